// SPDX-License-Identifier: Apache-2.0
#include "positions_bits.h"

#include <algorithm>

#include "multiversion.h"

namespace gradcomp {

GRADCOMP_MULTIVERSION
int64_t CountBits(const uint32_t* words, int64_t num_words) {
  int64_t count = 0;
  for (int64_t i = 0; i < num_words; ++i) count += __builtin_popcount(words[i]);
  return count;
}

GRADCOMP_MULTIVERSION
int64_t CountBits(const uint64_t* words, int64_t num_words) {
  int64_t count = 0;
  for (int64_t i = 0; i < num_words; ++i) count += __builtin_popcountll(words[i]);
  return count;
}

GRADCOMP_MULTIVERSION
int64_t BitAfterZero(const uint32_t* words, int64_t zeros) {
  int64_t word = 0;
  for (;; ++word) {
    const int64_t found = 32 - __builtin_popcount(words[word]);
    if (zeros <= found) break;
    zeros -= found;
  }
  uint32_t left = ~words[word];
  for (; zeros > 1; --zeros) left &= left - 1;
  return word * 32 + __builtin_ctz(left) + 1;
}

bool IsZeroFrom(const uint32_t* words, int64_t num_words, int64_t bit) {
  if (bit % 32 != 0 && words[bit / 32] >> (bit % 32) != 0) return false;
  return std::all_of(words + (bit + 31) / 32, words + num_words,
                     [](uint32_t word) { return word == 0; });
}

}  // namespace gradcomp
