// SPDX-License-Identifier: Apache-2.0
#include "prefix_code.h"

#include <algorithm>

namespace gradcomp {
namespace {

// One list of package-merge: symbols and pairs of items of the list before, lightest first.
struct MergeList {
  std::array<int64_t, 2 * kCodeSymbols> weights;
  std::array<bool, 2 * kCodeSymbols> is_symbol;
  int size = 0;

  void Append(int64_t weight, bool symbol) {
    weights[static_cast<size_t>(size)] = weight;
    is_symbol[static_cast<size_t>(size)] = symbol;
    ++size;
  }
};

uint16_t Reversed(uint32_t codeword, int length) {
  uint32_t reversed = 0;
  for (int bit = 0; bit < length; ++bit) reversed |= (codeword >> bit & 1u) << (length - 1 - bit);
  return static_cast<uint16_t>(reversed);
}

}  // namespace

CodeLengths LimitedCodeLengths(const SymbolCounts& counts) {
  std::array<uint8_t, kCodeSymbols> symbols;  // those that occur, rarest first
  int num_symbols = 0;
  for (int symbol = 0; symbol < kCodeSymbols; ++symbol) {
    if (counts[static_cast<size_t>(symbol)] == 0) continue;
    symbols[static_cast<size_t>(num_symbols++)] = static_cast<uint8_t>(symbol);
  }
  std::stable_sort(symbols.begin(), symbols.begin() + num_symbols,
                   [&](uint8_t a, uint8_t b) { return counts[a] < counts[b]; });
  CodeLengths lengths{};
  if (num_symbols < 2) return lengths;

  std::array<MergeList, kMaxCodeLength> lists;
  for (size_t level = 0; level < kMaxCodeLength; ++level) {
    const MergeList* const before = level == 0 ? nullptr : &lists[level - 1];
    const int num_pairs = before == nullptr ? 0 : before->size / 2;
    int symbol = 0, pair = 0;
    while (symbol < num_symbols || pair < num_pairs) {
      const int64_t weight =
          symbol < num_symbols ? counts[symbols[static_cast<size_t>(symbol)]] : 0;
      const size_t first = 2 * static_cast<size_t>(pair);
      const int64_t pair_weight =
          pair < num_pairs ? before->weights[first] + before->weights[first + 1] : 0;
      const bool take_symbol = pair == num_pairs || (symbol < num_symbols && weight <= pair_weight);
      lists[level].Append(take_symbol ? weight : pair_weight, take_symbol);
      ++(take_symbol ? symbol : pair);
    }
  }
  // The lightest 2 n - 2 items of the last list, and what their pairs are made of: each symbol gets
  // a bit for every list in which it is. Those are the rarest ones, as the lists are sorted.
  int taken = 2 * num_symbols - 2;
  for (size_t level = kMaxCodeLength; level-- > 0;) {
    int num_taken_symbols = 0;
    for (int i = 0; i < taken; ++i) {
      if (lists[level].is_symbol[static_cast<size_t>(i)]) ++num_taken_symbols;
    }
    for (int i = 0; i < num_taken_symbols; ++i) ++lengths[symbols[static_cast<size_t>(i)]];
    taken = 2 * (taken - num_taken_symbols);
  }
  return lengths;
}

bool IsCompleteCode(const CodeLengths& lengths) {
  uint32_t filled = 0;
  for (const uint8_t length : lengths) {
    if (length > kMaxCodeLength) return false;
    if (length != 0) filled += 1u << (kMaxCodeLength - length);
  }
  return filled == 1u << kMaxCodeLength;
}

Codewords CanonicalCodewords(const CodeLengths& lengths) {
  Codewords codewords{};
  uint32_t next = 0;
  for (int length = 1; length <= kMaxCodeLength; ++length) {
    for (size_t symbol = 0; symbol < kCodeSymbols; ++symbol) {
      if (lengths[symbol] == length) codewords[symbol] = Reversed(next++, length);
    }
    next <<= 1;
  }
  return codewords;
}

}  // namespace gradcomp
