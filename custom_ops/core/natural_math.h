// SPDX-License-Identifier: Apache-2.0
// Arithmetic of natural compression for one value, for CPU and CUDA. FORMAT.md, section "Natural
// block", defines every name used here.

#ifndef GRADCOMP_CORE_NATURAL_MATH_H_
#define GRADCOMP_CORE_NATURAL_MATH_H_

#include <cstdint>

#include "host_device.h"

namespace gradcomp {

constexpr int32_t kExponentOne = 1 << 23;         // one step of a binary32 exponent
constexpr int32_t kNaturalMinExponent = 104;      // smallest E of a block that is not all zero
constexpr int32_t kNaturalMaxExponent = 254;      // E of 2^127
constexpr uint32_t kNaturalMaxBits = 0x7f000000;  // pattern of 2^127

// E: the exponent of the smallest power of two that is not below the largest magnitude, whose
// pattern is given, within the limits above; 0 for a largest magnitude of 0.
GRADCOMP_HOST_DEVICE int32_t NaturalBlockExponent(uint32_t largest) {
  int32_t exponent = static_cast<int32_t>((largest + (kExponentOne - 1)) >> 23);
  exponent = exponent < kNaturalMaxExponent ? exponent : kNaturalMaxExponent;
  exponent = exponent > kNaturalMinExponent ? exponent : kNaturalMinExponent;
  return largest != 0 ? exponent : 0;
}

// What the codes of a block with exponent E refer to.
struct NaturalScale {
  int32_t offset;       // code c stands for the exponent c + offset
  int32_t smallest;     // p as an extended pattern
  double per_smallest;  // 2^32 / p
  float scale;          // 2^(E - 127), or 0 for E = 0
};

GRADCOMP_HOST_DEVICE NaturalScale MakeNaturalScale(int32_t exponent) {
  NaturalScale s;
  s.offset = exponent - 127;
  s.smallest = (exponent - 126) * kExponentOne;
  // p = 2^(E - 253). The exponent of this number is far from the ends of binary64.
  const uint64_t bits = static_cast<uint64_t>(32 + 253 - exponent + 1023) << 52;
  memcpy(&s.per_smallest, &bits, sizeof(bits));
  s.scale = FloatOf(static_cast<uint32_t>(exponent) << 23);
  return s;
}

// The pattern of a magnitude as if exponents went on below 1 instead of becoming denormal: bits 23
// and up are floor(log2(x)) + 127, which may be negative, and the lower bits are the fraction.
GRADCOMP_HOST_DEVICE int32_t NaturalExtended(uint32_t magnitude) {
  const int32_t bits = static_cast<int32_t>(magnitude);
  // A denormal is `bits` times 2^-149, and converting its integer normalises it.
  const int32_t denormal =
      static_cast<int32_t>(BitsOf(static_cast<float>(bits))) - 149 * kExponentOne;
  return bits < kExponentOne ? denormal : bits;
}

// The exponent of the power of two that an extended pattern is rounded to: one up with probability
// fraction / 2^23. Adding the complement of the random bits carries into the exponent if and only
// if random < fraction * 2^9.
GRADCOMP_HOST_DEVICE int32_t NaturalRound(int32_t extended, uint32_t random) {
  return (extended + static_cast<int32_t>(~random >> 9)) >> 23;
}

// The code of any finite value with the pattern `bits`.
GRADCOMP_HOST_DEVICE uint32_t NaturalEncodeOne(uint32_t bits, uint32_t random,
                                               const NaturalScale& s) {
  const uint32_t magnitude = bits & ~kSignBit;
  const int32_t extended = NaturalExtended(magnitude);
  int32_t code = NaturalRound(extended, random) - s.offset;
  code = code < 127 ? code : 127;
  // Below p the choice is between 0 and p. The product is exact.
  const double threshold = static_cast<double>(FloatOf(magnitude)) * s.per_smallest;
  const int32_t lowest = static_cast<double>(random) < threshold ? 1 : 0;
  code = extended < s.smallest ? lowest : code;
  return static_cast<uint32_t>(code) | (code != 0 ? bits >> 24 & 0x80u : 0u);
}

// The same for zeros and for normal values with p <= abs(x) <= 2^(E - 127), which are most.
GRADCOMP_HOST_DEVICE uint32_t NaturalEncodeNormal(uint32_t bits, uint32_t random, int32_t offset) {
  const int32_t magnitude = static_cast<int32_t>(bits & ~kSignBit);
  const uint32_t code = static_cast<uint32_t>(NaturalRound(magnitude, random) - offset);
  return magnitude != 0 ? code | (bits >> 24 & 0x80u) : 0u;
}

// The value of a code, exact: the code's seven bits are the exponent of a float in (0, 1].
GRADCOMP_HOST_DEVICE float NaturalDecodeOne(uint32_t code, float scale) {
  return FloatOf((code & 0x80u) << 24 | (code & 0x7fu) << 23) * scale;
}

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_NATURAL_MATH_H_
