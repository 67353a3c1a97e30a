// SPDX-License-Identifier: Apache-2.0
// Arithmetic of the uniform code for one value, for CPU and CUDA. FORMAT.md, section "Uniform
// block", defines every name used here. All of it is binary64: the difference of two floats cannot
// overflow there, and its rounding is far below what a code or a float can show.

#ifndef GRADCOMP_CORE_UNIFORM_MATH_H_
#define GRADCOMP_CORE_UNIFORM_MATH_H_

#include <cstdint>

#include "host_device.h"

namespace gradcomp {

constexpr int kUniformFraction = 23;  // bits of a position between two levels
// Added to a position before its fraction is cut off: rounds to nearest, half up.
constexpr uint32_t kUniformNearest = 1u << (kUniformFraction - 1);

// The levels of one block.
struct UniformLevels {
  double lo;
  double scale;  // L * 2^23 / (hi - lo), or 0 for equal bounds
  double low;    // lo / L
  double high;   // hi / L
  double last;   // L = 2^b - 1
};

// lo <= hi, both finite.
GRADCOMP_HOST_DEVICE UniformLevels MakeUniformLevels(float lo, float hi, int num_bits) {
  UniformLevels levels;
  levels.last = static_cast<double>((1 << num_bits) - 1);
  levels.lo = static_cast<double>(lo);
  const double range = static_cast<double>(hi) - levels.lo;
  levels.scale = range > 0.0 ? levels.last * (1 << kUniformFraction) / range : 0.0;
  levels.low = levels.lo / levels.last;
  levels.high = static_cast<double>(hi) / levels.last;
  return levels;
}

// What is added to a position for the random word `word`: promotes a fraction f in units of 2^-23
// if and only if word >> 9 < f, which is word < f * 2^9.
GRADCOMP_HOST_DEVICE uint32_t UniformNoise(uint32_t word) { return ~word >> 9; }

// The code 0..L of lo <= x <= hi. `noise` below 2^23; x = lo and x = hi get 0 and L for any.
GRADCOMP_HOST_DEVICE uint32_t UniformEncodeOne(float x, const UniformLevels& levels,
                                               uint32_t noise) {
  const double position = (static_cast<double>(x) - levels.lo) * levels.scale + 0.5;
  // Below 2^31, so a signed conversion does, which every instruction set has.
  return (static_cast<uint32_t>(static_cast<int32_t>(position)) + noise) >> kUniformFraction;
}

// The float that `code` decodes to: lo for 0, hi for L, and evenly spaced between them.
GRADCOMP_HOST_DEVICE float UniformDecodeOne(uint32_t code, const UniformLevels& levels) {
  const double c = static_cast<double>(static_cast<int32_t>(code));
  return static_cast<float>(levels.low * (levels.last - c) + levels.high * c);
}

// Maps the pattern of a float, as a signed number, to numbers in the order of the floats; its own
// inverse.
GRADCOMP_HOST_DEVICE int32_t OrderedPattern(int32_t bits) {
  return bits ^ (bits >> 31 & 0x7fffffff);
}

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_UNIFORM_MATH_H_
