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
  int32_t levels;   // s
  int32_t sign;     // the sign's bit in a code
  double factor;    // standard: 2^32 s / norm; natural: 1 / norm; 0 for a norm of 0
  double smallest;  // natural: 2^(1-s)
  double unit;      // standard: sent norm / s
  float norm;       // the sent norm
};

// `norm` is that of the values, `sent` the one that a decoder reads; both finite and not negative.
GRADCOMP_HOST_DEVICE DitheringScale MakeDitheringScale(bool standard, int32_t levels,
                                                       int32_t num_bits, float norm, float sent) {
  DitheringScale s;
  s.levels = levels;
  s.sign = 1 << (num_bits - 1);
  s.factor = (standard ? 4294967296.0 * levels : 1.0) / static_cast<double>(norm);
  if (BitsOf(norm) == 0) s.factor = 0.0;
  s.smallest =
      standard ? 0.0 : static_cast<double>(FloatOf(static_cast<uint32_t>(128 - levels) << 23));
  s.unit = static_cast<double>(sent) / levels;
  s.norm = sent;
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
  const double y = static_cast<double>(magnitude) * s.factor;
  // Below the smallest level the step is that level itself: moved up by it, the exponent is that of
  // the level and the fraction is the position in the step, as everywhere else.
  const bool below = y < s.smallest;
  const double moved = below ? y + s.smallest : y;
  // Carries into the exponent if and only if random < fraction * 2^32.
  const uint64_t rounded =
      BitsOf(moved) + (static_cast<uint64_t>(~random) << 20 | uint64_t{0xfffff});
  const uint32_t first = static_cast<uint32_t>(1024 - s.levels);  // exponent of the smallest level
  const uint32_t index = static_cast<uint32_t>(rounded >> 52) - first + (below ? 0u : 1u);
  const uint32_t levels = static_cast<uint32_t>(s.levels);
  return index < levels ? index : levels;
}

// The code of a finite value.
template <bool kStandard>
GRADCOMP_HOST_DEVICE uint32_t DitheringEncodeOne(float x, uint32_t random,
                                                 const DitheringScale& s) {
  const float magnitude = FloatOf(BitsOf(x) & ~kSignBit);
  const uint32_t index =
      kStandard ? StandardIndex(magnitude, random, s) : NaturalIndex(magnitude, random, s);
  const uint32_t sign = (BitsOf(x) & kSignBit) != 0 ? static_cast<uint32_t>(s.sign) : 0u;
  return index != 0 ? index | sign : 0u;
}

// The value of a code; NaN for an index above s, which does not occur.
template <bool kStandard>
GRADCOMP_HOST_DEVICE float DitheringDecodeOne(uint32_t code, const DitheringScale& s) {
  const int32_t index = static_cast<int32_t>(code) & (s.sign - 1);
  float magnitude;
  if (kStandard) {
    magnitude = static_cast<float>(static_cast<double>(index) * s.unit);
  } else {
    const uint32_t level = static_cast<uint32_t>(index - s.levels + 127) << 23;
    magnitude = FloatOf(index != 0 ? level : 0u) * s.norm;
  }
  // With masks: a compiler may turn conditions into jumps, and then cannot vectorise.
  const uint32_t sign = 0u - static_cast<uint32_t>((static_cast<int32_t>(code) & s.sign) != 0);
  const uint32_t unused = 0u - static_cast<uint32_t>(index > s.levels);
  const uint32_t bits = BitsOf(magnitude) | (sign & kSignBit);
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
