// SPDX-License-Identifier: Apache-2.0
// Streams of N-bit codes in 32-bit words, N = 6..12, as FORMAT.md lays them out: code i occupies
// the stream bits i*N .. i*N + N-1, and stream bit b is bit b mod 32 of word b div 32.
//
// 32 codes fill exactly N words, so a group of 32 codes starts on a word and can be read or written
// on its own. Worked example, N = 6, codes 1, 2, 3, 0, 0, 5, ...:
//   word 0 = 1 | 2 << 6 | 3 << 12 | 5 << 30 (low two bits of 5), word 1 = 5 >> 2 | ...

#ifndef GRADCOMP_CORE_BIT_PACK_H_
#define GRADCOMP_CORE_BIT_PACK_H_

#include <cstdint>

#include "multiversion.h"

namespace gradcomp {

constexpr int kMinPackBits = 6;
constexpr int kMaxPackBits = 12;
constexpr int kPackGroup = 32;  // codes in a group

// Words that `count` codes of `num_bits` bits fill, the last one perhaps in part.
inline int64_t PackedWords(int64_t count, int num_bits) {
  return count / kPackGroup * num_bits + (count % kPackGroup * num_bits + 31) / 32;
}

// Writes `groups` groups of 32 codes, each code below 2^N, to N words each.
template <int N>
GRADCOMP_ALWAYS_INLINE void PackGroups(const uint32_t* codes, int64_t groups, uint32_t* words) {
  for (int64_t group = 0; group < groups; ++group, codes += kPackGroup, words += N) {
    uint32_t packed[N] = {};
#pragma GCC unroll 32
    for (int i = 0; i < kPackGroup; ++i) {
      const int word = i * N / 32;
      const int shift = i * N % 32;
      packed[word] |= codes[i] << shift;
      if (shift + N > 32) packed[word + 1] |= codes[i] >> (32 - shift);
    }
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) words[i] = packed[i];
  }
}

// The inverse: reads N words for each group of 32 codes.
template <int N>
GRADCOMP_ALWAYS_INLINE void UnpackGroups(const uint32_t* words, int64_t groups, uint32_t* codes) {
  constexpr uint32_t kMask = (1u << N) - 1;
  for (int64_t group = 0; group < groups; ++group, codes += kPackGroup, words += N) {
#pragma GCC unroll 32
    for (int i = 0; i < kPackGroup; ++i) {
      const int word = i * N / 32;
      const int shift = i * N % 32;
      uint32_t code = words[word] >> shift;
      if (shift + N > 32) code |= words[word + 1] << (32 - shift);
      codes[i] = code & kMask;
    }
  }
}

// The same with N known at run time only; `num_bits` outside 6..12 does nothing.
GRADCOMP_ALWAYS_INLINE void PackGroups(int num_bits, const uint32_t* codes, int64_t groups,
                                       uint32_t* words) {
  switch (num_bits) {
    case 6:
      return PackGroups<6>(codes, groups, words);
    case 7:
      return PackGroups<7>(codes, groups, words);
    case 8:
      return PackGroups<8>(codes, groups, words);
    case 9:
      return PackGroups<9>(codes, groups, words);
    case 10:
      return PackGroups<10>(codes, groups, words);
    case 11:
      return PackGroups<11>(codes, groups, words);
    case 12:
      return PackGroups<12>(codes, groups, words);
  }
}

GRADCOMP_ALWAYS_INLINE void UnpackGroups(int num_bits, const uint32_t* words, int64_t groups,
                                         uint32_t* codes) {
  switch (num_bits) {
    case 6:
      return UnpackGroups<6>(words, groups, codes);
    case 7:
      return UnpackGroups<7>(words, groups, codes);
    case 8:
      return UnpackGroups<8>(words, groups, codes);
    case 9:
      return UnpackGroups<9>(words, groups, codes);
    case 10:
      return UnpackGroups<10>(words, groups, codes);
    case 11:
      return UnpackGroups<11>(words, groups, codes);
    case 12:
      return UnpackGroups<12>(words, groups, codes);
  }
}

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_BIT_PACK_H_
