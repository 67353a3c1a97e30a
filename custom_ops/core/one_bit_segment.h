// SPDX-License-Identifier: Apache-2.0
// A segment of the one bit code: its sizes, and how it is decoded. For the encoder, which needs
// that for the error, and the decoder; nobody else includes it.

#ifndef GRADCOMP_CORE_ONE_BIT_SEGMENT_H_
#define GRADCOMP_CORE_ONE_BIT_SEGMENT_H_

#include <algorithm>
#include <cstdint>

#include "multiversion.h"
#include "one_bit.h"
#include "one_bit_math.h"

namespace gradcomp {

constexpr uint32_t kOneBitNonFinite = 0x80000000u;  // in word 0
constexpr int64_t kOneBitSegmentGroups = kOneBitSegment / kOneBitGroup;
constexpr int64_t kOneBitSegmentFlags = kOneBitSegmentGroups / 32;  // flag words, and spare words

// Decodes the first `count` values of a segment, or adds them to `out`. Reads a spare word for
// every flagged group whose sign word is not 0.
GRADCOMP_ALWAYS_INLINE void OneBitDecodeSegment(const uint32_t* flags, const uint32_t* signs,
                                                const uint32_t* spares, int64_t count, float scale,
                                                bool add, float* out) {
  const uint32_t scale_bits = BitsOf(scale);
  for (int64_t group = 0; group * kOneBitGroup < count; ++group) {
    uint32_t nonzero = ~0u;
    uint32_t sign = signs[group];
    if ((flags[group / 32] >> (group % 32) & 1u) != 0) {
      nonzero = sign;
      sign = nonzero != 0 ? *spares++ : 0;
    }
    float group_values[kOneBitGroup];
    for (uint32_t i = 0; i < kOneBitGroup; ++i) {
      group_values[i] = OneBitDecodeOne(nonzero, sign, i, scale_bits);
    }
    float* const to = out + group * kOneBitGroup;
    const int64_t size = std::min(kOneBitGroup, count - group * kOneBitGroup);
    if (size == kOneBitGroup && add) {
      for (int64_t i = 0; i < kOneBitGroup; ++i) to[i] += group_values[i];
    } else if (size == kOneBitGroup) {
      for (int64_t i = 0; i < kOneBitGroup; ++i) to[i] = group_values[i];
    } else {
      for (int64_t i = 0; i < size; ++i) to[i] = add ? to[i] + group_values[i] : group_values[i];
    }
  }
}

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_ONE_BIT_SEGMENT_H_
