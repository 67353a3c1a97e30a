// SPDX-License-Identifier: Apache-2.0
// How quantizers walk over the blocks of several workers: one after the other, or summed.

#ifndef GRADCOMP_CORE_DECODE_ROWS_H_
#define GRADCOMP_CORE_DECODE_ROWS_H_

#include <algorithm>
#include <cstdint>

#include "ceil_div.h"
#include "host_device.h"
#include "parallel.h"

namespace gradcomp {

// Values decoded at a time: 16 KiB of floats, so that a sum stays in cache while workers are added.
constexpr int64_t kDecodeUnit = 4096;

// Calls decode_unit(worker, first, size, out, add) for all workers and for units of kDecodeUnit
// values, the last one perhaps shorter. It writes the values first .. first + size - 1 of the
// worker to `out`, or adds them to `out` where `add` is set.
//
//   decoded  [num_workers, count], or with `sum` [count]: the sum in the order of the workers,
//            starting from +0.
template <typename DecodeUnit>
void DecodeRows(int64_t num_workers, int64_t count, bool sum, int64_t cycles_per_value,
                const ParallelFor& parallel_for, const DecodeUnit& decode_unit, float* decoded) {
  const int64_t units = CeilDiv(count, kDecodeUnit);
  const int64_t unit_cycles = cycles_per_value * kDecodeUnit;
  if (sum) {
    RunShards(parallel_for, units, unit_cycles * std::max<int64_t>(num_workers, 1),
              [&](int64_t begin, int64_t end) {
                for (int64_t unit = begin; unit < end; ++unit) {
                  const int64_t first = unit * kDecodeUnit;
                  const int64_t size = std::min(kDecodeUnit, count - first);
                  std::fill_n(decoded + first, size, 0.0f);
                  for (int64_t worker = 0; worker < num_workers; ++worker) {
                    decode_unit(worker, first, size, decoded + first, true);
                  }
                }
              });
    return;
  }
  RunShards(parallel_for, num_workers * units, unit_cycles, [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t worker = unit / units;
      const int64_t first = unit % units * kDecodeUnit;
      const int64_t size = std::min(kDecodeUnit, count - first);
      decode_unit(worker, first, size, decoded + worker * count + first, false);
    }
  });
}

// What a unit of a worker whose values held an Inf or NaN decodes to.
inline void DecodeNan(int64_t size, float* out) {
  // Also right for a sum: NaN plus anything is NaN.
  std::fill_n(out, size, FloatOf(kNanBits));
}

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_DECODE_ROWS_H_
