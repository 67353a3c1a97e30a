// SPDX-License-Identifier: Apache-2.0
#include "key_masks.h"

#include <cstring>

#include "top_k_math.h"

#if defined(GRADCOMP_KEY_MASKS_X86)
#include <immintrin.h>
#if !defined(__clang__)
// GCC 12 takes its own header's undefined vectors for ours (its bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#endif

namespace gradcomp {
namespace {

// What is compared: stored keys, the keys of real items, or patterns of floats. As unsigned
// numbers, patterns with the sign bit are the larger half.
enum class Source { kKeys, kValues, kPatterns };

template <Source kSource>
uint32_t KeyAt(const void* source, int64_t i) {
  uint32_t bits;
  std::memcpy(&bits, static_cast<const char*>(source) + sizeof(bits) * static_cast<size_t>(i),
              sizeof(bits));
  return kSource == Source::kValues ? RealKey(FloatOf(bits)) : bits;
}

#if defined(GRADCOMP_KEY_MASKS_X86)

// Intrinsics, because compilers do not find the instructions that compare into bits: they write a
// byte for every key and need six times as long.

template <Source kSource>
__attribute__((target("avx512f,popcnt"))) int64_t MaskAvx512(const void* source, int64_t num_masks,
                                                             uint32_t threshold, uint64_t* masks) {
  const __m512i bound = _mm512_set1_epi32(static_cast<int>(threshold));
  const __m512i magnitude_bits = _mm512_set1_epi32(0x7fffffff);
  const __m512i largest = _mm512_set1_epi32(static_cast<int>(kMaxRealKey));
  const __m512i* next = static_cast<const __m512i*>(source);
  int64_t count = 0;
  for (int64_t m = 0; m < num_masks; ++m) {
    uint64_t mask = 0;
    for (int part = 0; part < 4; ++part) {
      __m512i keys = _mm512_loadu_si512(next++);
      if constexpr (kSource == Source::kValues) {
        keys = _mm512_min_epu32(_mm512_and_si512(keys, magnitude_bits), largest);
      }
      mask |= static_cast<uint64_t>(_mm512_cmpge_epu32_mask(keys, bound)) << (16 * part);
    }
    masks[m] = mask;
    count += __builtin_popcountll(mask);
  }
  return count;
}

template <Source kSource>
__attribute__((target("avx2,popcnt"))) int64_t MaskAvx2(const void* source, int64_t num_masks,
                                                        uint32_t threshold, uint64_t* masks) {
  const __m256i bound = _mm256_set1_epi32(static_cast<int>(threshold));
  const __m256i magnitude_bits = _mm256_set1_epi32(0x7fffffff);
  const __m256i largest = _mm256_set1_epi32(static_cast<int>(kMaxRealKey));
  const __m256i* next = static_cast<const __m256i*>(source);
  int64_t count = 0;
  for (int64_t m = 0; m < num_masks; ++m) {
    uint64_t mask = 0;
    for (int part = 0; part < 8; ++part) {
      __m256i keys = _mm256_loadu_si256(next++);
      if constexpr (kSource == Source::kValues) {
        keys = _mm256_min_epu32(_mm256_and_si256(keys, magnitude_bits), largest);
      }
      const __m256i reaches = _mm256_cmpeq_epi32(_mm256_max_epu32(keys, bound), keys);
      const int bits = _mm256_movemask_ps(_mm256_castsi256_ps(reaches));
      mask |= static_cast<uint64_t>(bits) << (8 * part);
    }
    masks[m] = mask;
    count += __builtin_popcountll(mask);
  }
  return count;
}

#endif  // GRADCOMP_KEY_MASKS_X86

template <Source kSource>
int64_t MaskPlain(const void* source, int64_t num_masks, uint32_t threshold, uint64_t* masks) {
  int64_t count = 0;
  for (int64_t m = 0; m < num_masks; ++m) {
    uint64_t mask = 0;
    for (int i = 0; i < 64; ++i) {
      mask |= uint64_t{KeyAt<kSource>(source, 64 * m + i) >= threshold} << i;
    }
    masks[m] = mask;
    count += __builtin_popcountll(mask);
  }
  return count;
}

template <Source kSource>
int64_t Mask(const void* source, int64_t num_masks, uint32_t threshold, uint64_t* masks) {
#if defined(GRADCOMP_KEY_MASKS_X86)
  static const bool has_avx512 = __builtin_cpu_supports("avx512f") != 0;
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx512) return MaskAvx512<kSource>(source, num_masks, threshold, masks);
  if (has_avx2) return MaskAvx2<kSource>(source, num_masks, threshold, masks);
#endif
  return MaskPlain<kSource>(source, num_masks, threshold, masks);
}

}  // namespace

int64_t MaskKeys(const uint32_t* keys, int64_t num_masks, uint32_t threshold, uint64_t* masks) {
  return Mask<Source::kKeys>(keys, num_masks, threshold, masks);
}

int64_t MaskValues(const float* values, int64_t num_masks, uint32_t threshold, uint64_t* masks) {
  return Mask<Source::kValues>(values, num_masks, threshold, masks);
}

int64_t MaskSigns(const float* values, int64_t num_masks, uint64_t* masks) {
  return Mask<Source::kPatterns>(values, num_masks, kSignBit, masks);
}

#if defined(GRADCOMP_KEY_MASKS_X86)

int64_t MaskKeysAvx2(const uint32_t* keys, int64_t num_masks, uint32_t threshold, uint64_t* masks) {
  return MaskAvx2<Source::kKeys>(keys, num_masks, threshold, masks);
}

int64_t MaskValuesAvx2(const float* values, int64_t num_masks, uint32_t threshold,
                       uint64_t* masks) {
  return MaskAvx2<Source::kValues>(values, num_masks, threshold, masks);
}

int64_t MaskSignsAvx2(const float* values, int64_t num_masks, uint64_t* masks) {
  return MaskAvx2<Source::kPatterns>(values, num_masks, kSignBit, masks);
}

#endif  // GRADCOMP_KEY_MASKS_X86

}  // namespace gradcomp
