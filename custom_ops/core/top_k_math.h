// SPDX-License-Identifier: Apache-2.0
// The sort keys of top-k selection for one item, for CPU and CUDA (FORMAT.md, section "Top-k").

#ifndef GRADCOMP_CORE_TOP_K_MATH_H_
#define GRADCOMP_CORE_TOP_K_MATH_H_

#include <cstdint>

#include "host_device.h"

namespace gradcomp {

// Keys of Inf and NaN, the largest there are.
constexpr uint32_t kMaxRealKey = 0x7f800000u;
constexpr uint32_t kMaxEnergyKey = 0x7ff00000u;

// The pattern of abs(x): ordered as the magnitudes are.
GRADCOMP_HOST_DEVICE uint32_t RealKey(float x) {
  const uint32_t magnitude = BitsOf(x) & ~kSignBit;
  return magnitude < kMaxRealKey ? magnitude : kMaxRealKey;
}

// The upper half of the binary64 pattern of an energy: a sum of squares.
GRADCOMP_HOST_DEVICE uint32_t EnergyKey(double energy) {
  const uint32_t upper = static_cast<uint32_t>(BitsOf(energy) >> 32) & ~kSignBit;
  return upper < kMaxEnergyKey ? upper : kMaxEnergyKey;
}

// The key of weight * (re^2 + im^2), weight 1 or 2. Products of binary32 numbers and a doubling are
// exact in binary64, so contraction cannot change the result.
GRADCOMP_HOST_DEVICE uint32_t ComplexKey(float re, float im, double weight) {
  const double real = re;
  const double imaginary = im;
  return EnergyKey(weight * (real * real + imaginary * imaginary));
}

// How often a bin of a real transform of length `row_length` counts: 1 if it is its own conjugate,
// 2 if it stands for a pair. 1 for row_length 0 (no transform).
GRADCOMP_HOST_DEVICE double BinWeight(int64_t bin, int64_t row_length) {
  const bool is_own_conjugate = bin == 0 || 2 * bin == row_length;
  return row_length == 0 || is_own_conjugate ? 1.0 : 2.0;
}

// Keys looked at to bracket the k-th one. More would narrow the bracket by their square root only.
constexpr int64_t kTopKSampleSize = 16384;

// The item sampled from stratum `i` of kTopKSampleSize equal ones: at a scrambled but fixed place
// in it, so that no period in the data meets a period of the sample. n >= kTopKSampleSize.
GRADCOMP_HOST_DEVICE int64_t TopKSampleItem(int64_t i, int64_t n) {
  const int64_t stratum = n / kTopKSampleSize;
  const int64_t start = i * stratum + i * (n % kTopKSampleSize) / kTopKSampleSize;
  const uint32_t scrambled = static_cast<uint32_t>(i) * 0x9e3779b9u;
  // The upper half is the well mixed one; this scales it to 0..stratum-1.
  return start + static_cast<int64_t>((scrambled >> 16) * static_cast<uint64_t>(stratum) >> 16);
}

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_TOP_K_MATH_H_
