// SPDX-License-Identifier: Apache-2.0
#include "entropy_code.h"

#include <algorithm>
#include <string>

namespace gradcomp {
namespace {

constexpr uint32_t kLengthMask = 0xf;
constexpr int32_t kLargestExponent = 254;  // of finite numbers

int64_t TotalBits(const SymbolCounts& counts, const EntropyCosts& costs) {
  int64_t bits = 0;
  for (size_t exponent = 0; exponent < kCodeSymbols; ++exponent) {
    bits += counts[exponent] * costs[exponent];
  }
  return bits;
}

}  // namespace

EntropyCosts CostsOf(const EntropyCode& code) {
  EntropyCosts costs;
  const int32_t lowest = EntropyLowest(code.step);
  for (int32_t exponent = 0; exponent < kCodeSymbols; ++exponent) {
    costs[static_cast<size_t>(exponent)] =
        static_cast<uint16_t>(code.Bits(exponent < lowest ? 0 : exponent));
  }
  return costs;
}

EntropyCode MakeEntropyCode(const SymbolCounts& counts, const EntropyStep& step) {
  SymbolCounts symbols{};
  EntropyCode code{step, {}, 0, 0};
  const int32_t lowest = EntropyLowest(step);
  for (int32_t exponent = 0; exponent <= kLargestExponent; ++exponent) {
    const int64_t count = counts[static_cast<size_t>(exponent)];
    symbols[static_cast<size_t>(exponent < lowest ? 0 : exponent)] += count;
    if (count == 0 || exponent < lowest) continue;
    if (code.range == 0) code.first = exponent;
    code.range = exponent - code.first + 1;
  }
  code.lengths = LimitedCodeLengths(symbols);
  return code;
}

EntropyStep ChooseEntropyStep(const SymbolCounts& counts, int32_t width, int64_t num_streams,
                              int64_t num_words) {
  const auto fits = [&](int32_t exponent) {
    const EntropyCode code = MakeEntropyCode(counts, {exponent, width});
    const int64_t bits = TotalBits(counts, CostsOf(code)) + 7 * num_streams;  // to whole bytes
    return bits <= 32 * (num_words - EntropyStreamsAt(code.num_words(), num_streams));
  };
  // A larger step never takes more bits, and with the largest exponent as the step all fits: two
  // bits a value. Zeros alone, which have no exponent, fit anyway.
  int32_t low = kEntropyMinStep, high = kLargestExponent;
  while (high > 0 && counts[static_cast<size_t>(high)] == 0) --high;
  while (low < high) {
    const int32_t middle = low + (high - low) / 2;
    if (fits(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return {low, width};
}

void WriteEntropyCode(const EntropyCode& code, uint32_t* words) {
  words[0] = static_cast<uint32_t>(code.first) | static_cast<uint32_t>(code.range) << 8 |
             static_cast<uint32_t>(code.lengths[0]) << 16;
  std::fill_n(words + 1, CeilDiv(code.range, 8), 0u);
  for (int32_t i = 0; i < code.range; ++i) {
    const uint32_t length = code.lengths[static_cast<size_t>(code.first + i)];
    words[1 + i / 8] |= length << (4 * (i % 8));
  }
}

Status ReadEntropyCode(const uint32_t* words, int64_t num_words, const EntropyStep& step,
                       EntropyCode* code) {
  if (num_words < 1) return Status::InvalidArgument("no room for a code");
  *code = {
      step, {}, static_cast<int32_t>(words[0] & 0xff), static_cast<int32_t>(words[0] >> 8 & 0xff)};
  code->lengths[0] = static_cast<uint8_t>(words[0] >> 16 & kLengthMask);
  const int32_t first = code->range == 0 ? 0 : EntropyLowest(step);
  if (words[0] >> 20 != 0 || code->first < first || code->first + code->range > 255 ||
      (code->range == 0 && code->first != 0)) {
    return Status::InvalidArgument("code for " + std::to_string(code->range) + " exponents from " +
                                   std::to_string(code->first) + ", expected exponents in " +
                                   std::to_string(first) + "..254");
  }
  if (num_words < code->num_words()) return Status::InvalidArgument("no room for a code");
  for (int32_t i = 0; i < 8 * static_cast<int32_t>(CeilDiv(code->range, 8)); ++i) {
    const uint32_t length = words[1 + i / 8] >> (4 * (i % 8)) & kLengthMask;
    if (i >= code->range && length != 0) {
      return Status::InvalidArgument("code lengths beyond the last exponent");
    }
    if (i < code->range) {
      code->lengths[static_cast<size_t>(code->first + i)] = static_cast<uint8_t>(length);
    }
  }
  const bool no_length = std::all_of(code->lengths.begin(), code->lengths.end(),
                                     [](uint8_t length) { return length == 0; });
  if (no_length ? code->range <= 1 : IsCompleteCode(code->lengths)) return Status();
  return Status::InvalidArgument("code lengths that do not make a complete code");
}

}  // namespace gradcomp
