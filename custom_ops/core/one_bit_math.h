// SPDX-License-Identifier: Apache-2.0
// Arithmetic of the one bit code, for CPU and CUDA. FORMAT.md, section "One bit block", defines
// every name used here.

#ifndef GRADCOMP_CORE_ONE_BIT_MATH_H_
#define GRADCOMP_CORE_ONE_BIT_MATH_H_

#include <cstdint>

#include "host_device.h"

namespace gradcomp {

// The scale of a block: `sum` of its magnitudes, of which `coded` become plus or minus the scale.
// Finite for finite magnitudes: a mean cannot exceed the largest of them by more than binary64
// rounds, which is far below half a step of binary32.
GRADCOMP_HOST_DEVICE float OneBitScale(double sum, int64_t coded) {
  return coded > 0 ? static_cast<float>(sum / static_cast<double>(coded)) : 0.0f;
}

// What value `lane` (0..31) of a group decodes to: the scale with the sign bit of `signs`, or +0
// where `nonzero` has a 0.
GRADCOMP_HOST_DEVICE float OneBitDecodeOne(uint32_t nonzero, uint32_t signs, uint32_t lane,
                                           uint32_t scale_bits) {
  const uint32_t sign = signs >> lane << 31;
  const uint32_t mask = 0u - (nonzero >> lane & 1u);
  return FloatOf((scale_bits | sign) & mask);
}

// Signs for the zeros of a group that may not be flagged: minus for odd lanes, so that they cancel
// on average.
constexpr uint32_t kOneBitAlternate = 0xaaaaaaaau;

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_ONE_BIT_MATH_H_
