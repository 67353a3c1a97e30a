// SPDX-License-Identifier: Apache-2.0
#include "bit_list.h"

#include "multiversion.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace gradcomp {
namespace {

constexpr int kFewBits = 4;

// The set bits of every byte, and how many there are.
struct ByteBits {
  uint8_t bits[256][8] = {};
  uint8_t count[256] = {};

  constexpr ByteBits() {
    for (int byte = 0; byte < 256; ++byte) {
      for (int bit = 0; bit < 8; ++bit) {
        if ((byte >> bit & 1) != 0) bits[byte][count[byte]++] = static_cast<uint8_t>(bit);
      }
    }
  }
};
constexpr ByteBits kByteBits;

// Writes eight numbers: first + small[i].
GRADCOMP_ALWAYS_INLINE void WriteEight(const uint8_t* small, int64_t first, uint16_t* numbers) {
#if defined(__SSE2__)
  const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(small));
  const __m128i wide = _mm_unpacklo_epi8(eight, _mm_setzero_si128());
  const __m128i sums = _mm_add_epi16(wide, _mm_set1_epi16(static_cast<int16_t>(first)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(numbers), sums);
#else
  for (int i = 0; i < 8; ++i) numbers[i] = static_cast<uint16_t>(first + small[i]);
#endif
}

}  // namespace

// Some numbers at a time, whether there are so many or not: a loop over the bits that are set would
// mispredict its end nearly every time.
GRADCOMP_MULTIVERSION
int64_t ListBits(const uint64_t* masks, int64_t num_masks, uint16_t* bits) {
  constexpr uint64_t kLastBit = uint64_t{1} << 63;  // makes the count of zeros defined
  uint16_t* next = bits;
  for (int64_t m = 0; m < num_masks; ++m) {
    uint64_t mask = masks[m];
    const int count = __builtin_popcountll(mask);
    if (count <= kFewBits) {
      for (int i = 0; i < kFewBits; ++i, mask &= mask - 1) {
        next[i] = static_cast<uint16_t>(64 * m + __builtin_ctzll(mask | kLastBit));
      }
      next += count;
      continue;
    }
    for (int64_t first = 64 * m; first < 64 * (m + 1); first += 8, mask >>= 8) {
      WriteEight(kByteBits.bits[mask & 0xff], first, next);
      next += kByteBits.count[mask & 0xff];
    }
  }
  return next - bits;
}

}  // namespace gradcomp
