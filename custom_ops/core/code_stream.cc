// SPDX-License-Identifier: Apache-2.0
#include "code_stream.h"

#include <algorithm>
#include <cstring>

#include "multiversion.h"

namespace gradcomp {
namespace {

// Codes joined at a time, in arrays that stay in the first-level cache.
constexpr int64_t kJoined = 128;

// Codes of N bits, a power of two, to words: joined in pairs until each fills one. These loops are
// vectorised, which those of PackGroups() are only within one group.
template <int N>
GRADCOMP_ALWAYS_INLINE void JoinCodes(const uint32_t* codes, int64_t count, uint32_t* words) {
  if constexpr (N == 16) {
    for (int64_t i = 0; i < count / 2; ++i) words[i] = codes[2 * i] | codes[2 * i + 1] << N;
  } else {
    alignas(64) uint32_t pairs[kJoined / 2];
    for (int64_t i = 0; i < count / 2; ++i) pairs[i] = codes[2 * i] | codes[2 * i + 1] << N;
    JoinCodes<2 * N>(pairs, count / 2, words);
  }
}

template <int N>
GRADCOMP_ALWAYS_INLINE void PackWholeGroups(const uint32_t* codes, int64_t groups,
                                            uint32_t* words) {
  if constexpr ((N & (N - 1)) == 0) {
    const int64_t count = groups * kPackGroup;
    for (int64_t i = 0; i < count; i += kJoined) {
      JoinCodes<N>(codes + i, std::min(kJoined, count - i), words + i * N / 32);
    }
  } else {
    PackGroups<N>(codes, groups, words);
  }
}

template <int N>
GRADCOMP_ALWAYS_INLINE void PackTileOf(uint32_t* codes, int64_t count, uint32_t* words) {
  const int64_t groups = count / kPackGroup;
  PackWholeGroups<N>(codes, groups, words);
  if (count % kPackGroup == 0) return;
  uint32_t last[N];
  for (int64_t i = count; i < (groups + 1) * kPackGroup; ++i) codes[i] = 0;
  PackGroups<N>(codes + groups * kPackGroup, 1, last);
  std::memcpy(words + groups * N, last, sizeof(uint32_t) * PackedWords(count % kPackGroup, N));
}

template <int N>
GRADCOMP_ALWAYS_INLINE void UnpackTileOf(const uint32_t* words, int64_t count, uint32_t* codes) {
  const int64_t groups = count / kPackGroup;
  UnpackGroups<N>(words, groups, codes);
  if (count % kPackGroup == 0) return;
  uint32_t last[N] = {};
  std::memcpy(last, words + groups * N, sizeof(uint32_t) * PackedWords(count % kPackGroup, N));
  UnpackGroups<N>(last, 1, codes + groups * kPackGroup);
}

// One width of the two switches below.
#define GRADCOMP_WIDTH(N, FUNCTION, ...) \
  case N:                                \
    return FUNCTION<N>(__VA_ARGS__)

GRADCOMP_MULTIVERSION
void Pack(int num_bits, uint32_t* codes, int64_t count, uint32_t* words) {
  switch (num_bits) {
    GRADCOMP_WIDTH(1, PackTileOf, codes, count, words);
    GRADCOMP_WIDTH(2, PackTileOf, codes, count, words);
    GRADCOMP_WIDTH(3, PackTileOf, codes, count, words);
    GRADCOMP_WIDTH(4, PackTileOf, codes, count, words);
    GRADCOMP_WIDTH(5, PackTileOf, codes, count, words);
    GRADCOMP_WIDTH(6, PackTileOf, codes, count, words);
    GRADCOMP_WIDTH(7, PackTileOf, codes, count, words);
    GRADCOMP_WIDTH(8, PackTileOf, codes, count, words);
    GRADCOMP_WIDTH(9, PackTileOf, codes, count, words);
    GRADCOMP_WIDTH(10, PackTileOf, codes, count, words);
    GRADCOMP_WIDTH(11, PackTileOf, codes, count, words);
    GRADCOMP_WIDTH(12, PackTileOf, codes, count, words);
    GRADCOMP_WIDTH(13, PackTileOf, codes, count, words);
    GRADCOMP_WIDTH(14, PackTileOf, codes, count, words);
    GRADCOMP_WIDTH(15, PackTileOf, codes, count, words);
    GRADCOMP_WIDTH(16, PackTileOf, codes, count, words);
  }
}

GRADCOMP_MULTIVERSION
void Unpack(int num_bits, const uint32_t* words, int64_t count, uint32_t* codes) {
  switch (num_bits) {
    GRADCOMP_WIDTH(1, UnpackTileOf, words, count, codes);
    GRADCOMP_WIDTH(2, UnpackTileOf, words, count, codes);
    GRADCOMP_WIDTH(3, UnpackTileOf, words, count, codes);
    GRADCOMP_WIDTH(4, UnpackTileOf, words, count, codes);
    GRADCOMP_WIDTH(5, UnpackTileOf, words, count, codes);
    GRADCOMP_WIDTH(6, UnpackTileOf, words, count, codes);
    GRADCOMP_WIDTH(7, UnpackTileOf, words, count, codes);
    GRADCOMP_WIDTH(8, UnpackTileOf, words, count, codes);
    GRADCOMP_WIDTH(9, UnpackTileOf, words, count, codes);
    GRADCOMP_WIDTH(10, UnpackTileOf, words, count, codes);
    GRADCOMP_WIDTH(11, UnpackTileOf, words, count, codes);
    GRADCOMP_WIDTH(12, UnpackTileOf, words, count, codes);
    GRADCOMP_WIDTH(13, UnpackTileOf, words, count, codes);
    GRADCOMP_WIDTH(14, UnpackTileOf, words, count, codes);
    GRADCOMP_WIDTH(15, UnpackTileOf, words, count, codes);
    GRADCOMP_WIDTH(16, UnpackTileOf, words, count, codes);
  }
}

#undef GRADCOMP_WIDTH

}  // namespace

void PackTile(int num_bits, uint32_t* codes, int64_t count, uint32_t* words) {
  Pack(num_bits, codes, count, words);
}

void UnpackTile(int num_bits, const uint32_t* words, int64_t count, uint32_t* codes) {
  Unpack(num_bits, words, count, codes);
}

}  // namespace gradcomp
