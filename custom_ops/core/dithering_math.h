// SPDX-License-Identifier: Apache-2.0
// Arithmetic of dithering for one value, for CPU and CUDA. FORMAT.md, section "Dithering block",
// defines every name used here.

#ifndef GRADCOMP_CORE_DITHERING_MATH_H_
#define GRADCOMP_CORE_DITHERING_MATH_H_

#include <cstdint>

#include "host_device.h"

namespace gradcomp {

// How the values of one block become level indices and back.
struct DitheringScale {
  int32_t levels;      // s
  int32_t sign;        // the sign's bit in a code
  int32_t sign_shift;  // from there to bit 31
  float norm;          // the sent norm

  // Standard.
  double factor;  // 2^32 s / norm, or 0 for a norm of 0
  double unit;    // sent norm / s

  // Natural. A power of two keeps numbers from overflowing and from losing digits.
  float scale;
  float mantissa;       // m
  float smallest;       // L, scaled
  int32_t steps;        // s + 1 - exponent of the scaled norm
  int32_t steps_below;  // 1 - exponent of `smallest`
};

// `norm` is that of the values, `sent` the one that a decoder reads; both finite and not negative.
GRADCOMP_HOST_DEVICE DitheringScale MakeDitheringScale(bool standard, int32_t levels,
                                                       int32_t num_bits, float norm, float sent) {
  DitheringScale s = {};
  s.levels = levels;
  s.sign = 1 << (num_bits - 1);
  s.sign_shift = 32 - num_bits;
  s.norm = sent;
  if (standard) {
    if (BitsOf(norm) != 0) s.factor = 4294967296.0 * levels / static_cast<double>(norm);
    s.unit = static_cast<double>(sent) / levels;
    return s;
  }
  // Twice the scaled norm is finite. Halving rounds only what is too small to change a sum with L.
  s.scale = norm < 0x1p64f ? 0x1p63f : 0.5f;
  const uint32_t scaled = BitsOf(norm * s.scale);
  const uint32_t fraction = scaled & 0x7fffffu;
  const int32_t exponent = static_cast<int32_t>(scaled >> 23) - 127;
  // Where this limit raises L, no value but zero is below: others are 2^-149 * 2^63 or more.
  const int32_t lowest = exponent + 1 - levels > -126 ? exponent + 1 - levels : -126;
  s.mantissa = FloatOf(127u << 23 | fraction);
  s.smallest = FloatOf(static_cast<uint32_t>(lowest + 127) << 23 | fraction);
  s.steps = levels + 1 - exponent;
  s.steps_below = 1 - lowest;
  return s;
}

// The index of the level that a magnitude is rounded to, 0..s: of the levels j / s.
GRADCOMP_HOST_DEVICE uint32_t StandardIndex(float magnitude, uint32_t random,
                                            const DitheringScale& s) {
  // In units of 2^-32 of a step, and at most about 2^47; adding 2^52 rounds it to an integer, which
  // then stands in the low bits of the pattern.
  const uint64_t position = BitsOf(static_cast<double>(magnitude) * s.factor + 0x1p52);
  // Carries into the upper half if and only if random < the lower half.
  const uint64_t rounded = position + static_cast<uint64_t>(~random);
  const uint32_t index = static_cast<uint32_t>(rounded >> 32) - 0x43300000u;
  const uint32_t levels = static_cast<uint32_t>(s.levels);
  return index < levels ? index : levels;
}

// The same of the levels 0, 2^(1-s), ..., 1/2, 1.
GRADCOMP_HOST_DEVICE uint32_t NaturalIndex(float magnitude, uint32_t random,
                                           const DitheringScale& s) {
  const float x = magnitude * s.scale;
  // Below the smallest level the step is that level itself: moved up by it, the value is as far
  // above a power of two of the norm as it is above zero.
  const bool below = x < s.smallest;
  const float z = below ? x + s.smallest : x;
  const float t = s.mantissa * FloatOf(127u << 23 | random >> 9);
  // The difference of two patterns is that of the exponents, less one if the fraction of the first
  // is the smaller one: here, the exponent of the largest power of two 2^k with t 2^k < z.
  const int32_t exponent = static_cast<int32_t>(BitsOf(z) - BitsOf(t) - 1u) >> 23;
  return static_cast<uint32_t>(exponent + (below ? s.steps_below : s.steps));
}

// The level of an index 0..s with the sign bit of `sign`; +0 for the index 0.
template <bool kStandard>
GRADCOMP_HOST_DEVICE float DitheringLevel(uint32_t index, uint32_t sign, const DitheringScale& s) {
  // With masks: a compiler may turn conditions into jumps, and then cannot vectorise.
  const uint32_t mask = 0u - static_cast<uint32_t>(index != 0);
  sign &= kSignBit & mask;
  if (kStandard) {
    const double magnitude = static_cast<double>(static_cast<int32_t>(index)) * s.unit;
    return FloatOf(BitsOf(static_cast<float>(magnitude)) | sign);
  }
  const uint32_t power = (index + static_cast<uint32_t>(127 - s.levels)) << 23;
  return FloatOf((power & mask) | sign) * s.norm;
}

// The code of a finite value, and its level.
template <bool kStandard>
GRADCOMP_HOST_DEVICE uint32_t DitheringEncodeOne(float x, uint32_t random, const DitheringScale& s,
                                                 float* level) {
  const float magnitude = FloatOf(BitsOf(x) & ~kSignBit);
  const uint32_t index =
      kStandard ? StandardIndex(magnitude, random, s) : NaturalIndex(magnitude, random, s);
  *level = DitheringLevel<kStandard>(index, BitsOf(x), s);
  const uint32_t sign = (BitsOf(x) & kSignBit) >> s.sign_shift;
  return index != 0 ? index | sign : 0u;
}

// The value of a code; NaN for an index above s, which does not occur.
template <bool kStandard>
GRADCOMP_HOST_DEVICE float DitheringDecodeOne(uint32_t code, const DitheringScale& s) {
  const uint32_t index = code & static_cast<uint32_t>(s.sign - 1);
  const uint32_t sign = 0u - static_cast<uint32_t>((code & static_cast<uint32_t>(s.sign)) != 0);
  const uint32_t unused = 0u - static_cast<uint32_t>(index > static_cast<uint32_t>(s.levels));
  const uint32_t bits = BitsOf(DitheringLevel<kStandard>(index, sign, s));
  return FloatOf((bits & ~unused) | (kNanBits & unused));
}

// A norm, finite and not negative, as a byte: the exponent of the power of two it is rounded to, or
// 0 for zero. Denormals are as evenly spaced between 0 and 2^-126 as the others are between powers
// of two, so that one formula serves them all. From 2^127 on, there is nothing to round up to.
GRADCOMP_HOST_DEVICE uint32_t NormCode(float norm, uint32_t random) {
  const uint32_t code = (BitsOf(norm) + (~random >> 9)) >> 23;
  return code < 254u ? code : 254u;
}

GRADCOMP_HOST_DEVICE float NormOfCode(uint32_t code) { return FloatOf(code << 23); }

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_DITHERING_MATH_H_
