// SPDX-License-Identifier: Apache-2.0
// Kinds of floats that find mistakes, for the CUDA tests.

#ifndef GRADCOMP_TESTS_CUDA_SAMPLE_FLOATS_H_
#define GRADCOMP_TESTS_CUDA_SAMPLE_FLOATS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace gradcomp {

enum Kind {
  kNormal,
  kTies,
  kZero,    // of both signs
  kEqual,   // magnitudes
  kSparse,  // zeros, mostly
  kPositive,
  kNegative,
  kDenormal,
  kFinite,  // any finite pattern
  kBits,    // any pattern: a few Inf and many NaN
  kNumKinds
};

inline std::vector<float> SampleFloats(Kind kind, int64_t size, std::mt19937* random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(size));
  for (float& value : values) {
    value = normal(*random);
    uint32_t bits = (*random)();
    if (kind == kTies) value = std::round(2 * value);
    if (kind == kZero) value = bits % 2 == 0 ? 0.0f : -0.0f;
    if (kind == kEqual) value = bits % 2 == 0 ? 1.5f : -1.5f;
    if (kind == kSparse && bits % 8 != 0) value = 0.0f;
    if (kind == kPositive) value = std::fabs(value);
    if (kind == kNegative) value = -std::exp(8 * value);
    if (kind == kDenormal) bits &= 0x807fffffu;
    if (kind == kFinite && (bits & 0x7f800000u) == 0x7f800000u) bits ^= 0x40000000u;
    if (kind == kBits && bits % 64 == 1) bits = bits & 0x80000000u ? 0xff800000u : 0x7f800000u;
    if (kind == kDenormal || kind == kFinite || kind == kBits) std::memcpy(&value, &bits, 4);
  }
  return values;
}

// Equal as bits, but any NaN equals any other.
inline bool SameNumbers(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return std::memcmp(&x, &y, sizeof(x)) == 0 || (std::isnan(x) && std::isnan(y));
  });
}

}  // namespace gradcomp

#endif  // GRADCOMP_TESTS_CUDA_SAMPLE_FLOATS_H_
