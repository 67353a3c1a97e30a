// SPDX-License-Identifier: Apache-2.0
// Exact top-k: the k items of largest magnitude, ties broken by lowest index (FORMAT.md, section
// "Top-k: which items are kept").
//
// The k-th largest key is bracketed from a sample. One pass over the items then keeps those that
// reach the bracket, among which the k-th follows exactly. A bracket that misses costs up to two
// more passes, never a wrong result. A residual is added in the first of them.

#ifndef GRADCOMP_CORE_TOP_K_H_
#define GRADCOMP_CORE_TOP_K_H_

#include <cstdint>

#include "parallel.h"
#include "status.h"

namespace gradcomp {

// Selects k of n items and writes their positions block and the items themselves.
//
//   values      [n, components] floats, any bits; components as in item_shape.h.
//   residual    [n, components] floats, to be added to the values before anything else, or null.
//   row_length  L >= 0. With L > 0, which needs components 2 and n a multiple of L/2 + 1, the items
//               are rows of L/2 + 1 bins of real transforms of length L, and bins that stand for a
//               conjugate pair count twice.
//   k           1 <= k <= n.
//   positions   [PositionsNumWords(n, k)] the positions block.
//   kept        [k, components] the selected items in ascending order of position, bits unchanged.
//   sum         [n, components] values + residual; may be the memory of either. Not used without
//               a residual.
//
// Errors: InvalidArgument for arguments outside these limits, ResourceExhausted if there is no
// memory for scratch space: 1/8 byte an item, 4 bytes for each that is selected or near, 4 more for
// each near one, and 4 an item if they are wide. Then the sum may have overwritten an addend. The
// same bits for any `parallel_for`, but for those of a NaN that is the sum of two. Thread-safe.
Status TopKSelect(const float* values, const float* residual, int64_t n, int components,
                  int64_t row_length, int64_t k, const ParallelFor& parallel_for,
                  uint32_t* positions, float* kept, float* sum);

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_TOP_K_H_
