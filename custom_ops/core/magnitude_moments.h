// SPDX-License-Identifier: Apache-2.0
// Moments of the magnitudes above a bound: what SIDCo (Abdelmoniem et al., MLSys 2021) fits its
// distributions to.

#ifndef GRADCOMP_CORE_MAGNITUDE_MOMENTS_H_
#define GRADCOMP_CORE_MAGNITUDE_MOMENTS_H_

#include <cstdint>

#include "parallel.h"
#include "status.h"

namespace gradcomp {

// Of the magnitudes y that are finite and above the bound. All zero if there are none.
struct MagnitudeMoments {
  int64_t count = 0;
  double min = 0.0;
  double mean = 0.0;
  double variance = 0.0;  // mean of (y - mean)^2
  double mean_log = 0.0;  // mean of the natural logarithm of y
};

// The moments of the items' magnitudes: |x|, or sqrt(w * (re^2 + im^2)) with the weights w of the
// keys of top-k, or the Euclidean norm of a wide item.
//
//   values      [n, components] floats, any bits; components as in item_shape.h.
//   row_length  as in TopKSelect().
//   bound       >= 0. A bound of 0 leaves out the zeros.
//
// In binary64, with sums in a fixed order: blocks of 16,384 items are summed in 64 interleaved
// lanes, then lanes and blocks in order. So the bits depend on neither `parallel_for` nor the
// instruction set. One pass over the values.
// Errors: InvalidArgument for arguments outside these limits. Thread-safe.
Status ComputeMagnitudeMoments(const float* values, int64_t n, int components, int64_t row_length,
                               double bound, const ParallelFor& parallel_for,
                               MagnitudeMoments* moments);

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_MAGNITUDE_MOMENTS_H_
