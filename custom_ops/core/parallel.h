// SPDX-License-Identifier: Apache-2.0
// How core functions use threads: through a callable that the caller gives them.
//
// No result depends on how that callable cuts the work, in which order the parts run, or on how
// many threads.

#ifndef GRADCOMP_CORE_PARALLEL_H_
#define GRADCOMP_CORE_PARALLEL_H_

#include <cstdint>
#include <functional>

#include "fp_environment.h"
#include "stream_store.h"

namespace gradcomp {

// Work on the units begin..end-1.
using ShardFn = std::function<void(int64_t begin, int64_t end)>;

// Calls `fn` on disjoint ranges that together cover 0..total-1 and returns when all are done.
// `cost_per_unit` is a rough number of CPU cycles for one unit, a hint for the size of a range.
using ParallelFor = std::function<void(int64_t total, int64_t cost_per_unit, const ShardFn& fn)>;

// Everything on the calling thread.
inline void SerialFor(int64_t total, int64_t /*cost_per_unit*/, const ShardFn& fn) {
  if (total > 0) fn(0, total);
}

// `parallel_for` with every range in IEEE mode, and what it stored visible to all when it ends. All
// core code goes through this one.
inline void RunShards(const ParallelFor& parallel_for, int64_t total, int64_t cost_per_unit,
                      const ShardFn& fn) {
  if (total <= 0) return;
  parallel_for(total, cost_per_unit, [&fn](int64_t begin, int64_t end) {
    const ScopedIeeeMode ieee_mode;
    fn(begin, end);
    FenceStreamedStores();
  });
}

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_PARALLEL_H_
