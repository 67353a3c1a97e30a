// SPDX-License-Identifier: Apache-2.0
// Rows of a matrix that have the same index, added up: what becomes of a sparse gradient before it
// is sent, and of those of all workers after.

#ifndef GRADCOMP_CORE_DISTINCT_ROWS_H_
#define GRADCOMP_CORE_DISTINCT_ROWS_H_

#include <cstdint>
#include <vector>

#include "parallel.h"

namespace gradcomp {

// The positions 0..n-1 of a list of n indices, cut into a group for each distinct index.
struct RowGroups {
  std::vector<int64_t> positions;  // [n]: ascending by index; of the same index, by position
  std::vector<int64_t> starts;     // [groups + 1]: where in `positions` each group starts; then n

  int64_t size() const { return static_cast<int64_t>(starts.size()) - 1; }
};

// Groups the positions of equal indices. Any index is one, a negative one as well.
//
//   indices  [n]; Index is int32_t or int64_t.
//
// Takes O(n) time, and memory for about 6 n numbers of 64 bits while it runs.
template <typename Index>
RowGroups GroupRows(const Index* indices, int64_t n);

// Adds up the rows of each group, in the order of their positions: 0 + first + second + ...
//
//   groups  of GroupRows(); n is the number of its positions.
//   values  [n, row_size]; Value is float or double. row_size >= 0.
//   sums    [groups.size(), row_size], every element is written.
template <typename Value>
void SumGroups(const RowGroups& groups, const Value* values, int64_t row_size,
               const ParallelFor& parallel_for, Value* sums);

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_DISTINCT_ROWS_H_
