// SPDX-License-Identifier: Apache-2.0
// Selection by threshold: all items whose magnitude reaches it, up to a capacity (FORMAT.md,
// section "Threshold"), and a threshold from a sample.

#ifndef GRADCOMP_CORE_THRESHOLD_H_
#define GRADCOMP_CORE_THRESHOLD_H_

#include <cstdint>

#include "parallel.h"
#include "philox.h"
#include "status.h"

namespace gradcomp {

// Selects the items whose key is at least that of the threshold, in the order of the keys of top-k;
// if these are more than `capacity`, the top `capacity` of them (ties go to the lowest index). The
// key of a threshold t is that of an item whose first component is t and whose others are 0, with
// weight 1. Items that are not finite always reach it.
//
//   values      [n, components] floats, any bits, n >= 1; components as in item_shape.h.
//   residual    [n, components] floats, to be added to the values before anything else, or null.
//   row_length  as in TopKSelect().
//   threshold   >= 0; +Inf selects only what is not finite. Not NaN.
//   capacity    1 <= capacity <= n, and at most kPositionsMaxCapacity.
//   positions   [PositionsNumWords(n, capacity, true)] a counted positions block.
//   kept        [capacity, components] the selected items in ascending order of position, bits
//               unchanged, then +0.
//   sum         [n, components] values + residual; may be the memory of either. Not used without
//               a residual.
//
// One pass over the values, another over those near the selected ones unless they are real, and
// top-k where the capacity does not suffice. Errors: InvalidArgument for arguments outside these
// limits, ResourceExhausted if there is no memory for scratch space (1/8 byte an item, 4 bytes for
// each that is selected, and 4 an item if they are wide; that of TopKSelect on overflow); the sum
// may have overwritten an addend then. The same bits for any `parallel_for`, but for those of a NaN
// that is the sum of two. Thread-safe.
Status ThresholdSelect(const float* values, const float* residual, int64_t n, int components,
                       int64_t row_length, float threshold, int64_t capacity,
                       const ParallelFor& parallel_for, uint32_t* positions, float* kept,
                       float* sum);

// A threshold that about k of n items reach, judged by a sample (the idea of Deep Gradient
// Compression): the magnitude of rank ceil(k * num_samples / n) among `num_samples` items, which
// are the draw of random-k with this key.
//
//   k            1 <= k <= n.
//   num_samples  1 <= num_samples <= n <= kRandomKMaxItems. About 10 n/k or more make it useful.
//   threshold    for real items the magnitude itself; for others, the largest float whose key
//                does not exceed that of the sampled item: it reaches its own threshold. Inf if the
//                sampled item is not finite.
//
// Errors: InvalidArgument for arguments outside these limits, ResourceExhausted without memory for
// 4 bytes a sample. The same bits for any `parallel_for`. Thread-safe.
Status SampledThreshold(const float* values, int64_t n, int components, int64_t row_length,
                        int64_t k, int64_t num_samples, const RandomKey& key,
                        const ParallelFor& parallel_for, float* threshold);

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_THRESHOLD_H_
