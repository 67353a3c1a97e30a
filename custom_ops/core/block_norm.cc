// SPDX-License-Identifier: Apache-2.0
#include "block_norm.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "host_device.h"
#include "multiversion.h"

namespace gradcomp {
namespace {

template <bool kHasResidual>
GRADCOMP_ALWAYS_INLINE float ValueAt(const float* values, const float* residual, int64_t i) {
  return kHasResidual ? values[i] + residual[i] : values[i];
}

template <bool kHasResidual>
GRADCOMP_ALWAYS_INLINE uint32_t Largest(const float* values, const float* residual, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, BitsOf(ValueAt<kHasResidual>(values, residual, i)) & ~kSignBit);
  }
  return largest;
}

template <bool kHasResidual>
GRADCOMP_ALWAYS_INLINE double Squares(const float* values, const float* residual, int64_t count) {
  double sums[kNormLanes] = {};
  int64_t i = 0;
  for (; i + kNormLanes <= count; i += kNormLanes) {
    for (int64_t lane = 0; lane < kNormLanes; ++lane) {
      const double x = static_cast<double>(ValueAt<kHasResidual>(values, residual, i + lane));
      sums[lane] += x * x;
    }
  }
  for (int64_t lane = 0; i + lane < count; ++lane) {
    const double x = static_cast<double>(ValueAt<kHasResidual>(values, residual, i + lane));
    sums[lane] += x * x;
  }
  double total = 0.0;
  for (double sum : sums) total += sum;
  return total;
}

// One loop for both would take one pass over the cache less, but compilers do badly at it.
GRADCOMP_MULTIVERSION
void MeasureInf(const float* values, const float* residual, int64_t count, NormParts* parts) {
  parts->largest = residual != nullptr ? Largest<true>(values, residual, count)
                                       : Largest<false>(values, residual, count);
}

GRADCOMP_MULTIVERSION
void MeasureSquares(const float* values, const float* residual, int64_t count, NormParts* parts) {
  parts->squares = residual != nullptr ? Squares<true>(values, residual, count)
                                       : Squares<false>(values, residual, count);
}

}  // namespace

NormParts MeasureChunk(const float* values, const float* residual, int64_t count, NormKind kind) {
  NormParts parts;
  MeasureInf(values, residual, count, &parts);
  if (kind == NormKind::kTwo) MeasureSquares(values, residual, count, &parts);
  return parts;
}

float NormOf(const NormParts& parts, NormKind kind) {
  if (kind == NormKind::kInf) return FloatOf(parts.largest);
  // Squares neither overflow nor underflow in binary64, whose root is rounded correctly.
  const double norm = std::sqrt(parts.squares);
  const float largest = std::numeric_limits<float>::max();
  return norm < static_cast<double>(largest) ? static_cast<float>(norm) : largest;
}

}  // namespace gradcomp
