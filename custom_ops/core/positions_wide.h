// SPDX-License-Identifier: Apache-2.0
// For positions*.cc alone: moving wide items, of any number of components.
//
// Wide items are few for the floats they hold, so the positions are listed first, and then the work
// is cut by items, which no unit of a positions block is fit for: one of them may hold a gigabyte.
// As nothing is moved before all positions are known to be good, nothing is written after an error.

#ifndef GRADCOMP_CORE_POSITIONS_WIDE_H_
#define GRADCOMP_CORE_POSITIONS_WIDE_H_

#include <cstdint>

#include "parallel.h"
#include "positions_blocks.h"
#include "status.h"

namespace gradcomp {

// Copies the `count` selected items to `kept`. Arguments as in PositionsGather(). ResourceExhausted
// without memory for their positions, before anything is written; so it is below.
Status GatherWide(const uint64_t* selected, const float* values, int64_t n, int components,
                  int64_t count, const ParallelFor& parallel_for, float* kept);

// PositionsSum(), PositionsReplace() and PositionsTake() of blocks whose sizes have been validated.
Status SumWide(const PositionsBlocks& blocks, const float* kept, int64_t n, int components,
               int64_t k, const ParallelFor& parallel_for, float* sum);
Status ReplaceWide(const PositionsBlocks& blocks, const float* kept, int64_t n, int components,
                   int64_t k, const ParallelFor& parallel_for, float* values);
Status TakeWide(const PositionsBlocks& blocks, const float* values, int64_t n, int components,
                int64_t k, const ParallelFor& parallel_for, float* kept);

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_POSITIONS_WIDE_H_
