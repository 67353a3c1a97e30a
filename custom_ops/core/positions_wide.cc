// SPDX-License-Identifier: Apache-2.0
#include "positions_wide.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "positions.h"
#include "scratch.h"

namespace gradcomp {
namespace {

void CopyFloats(const float* from, int components, float* to) {
  std::memcpy(to, from, sizeof(float) * static_cast<size_t>(components));
}

// Lists the positions of all workers, [num_workers, k]: ascending, and n where a block has room for
// more. `dense` is any array of at least n floats, to count from.
Status ListPositions(const PositionsBlocks& blocks, const float* dense, int64_t n, int64_t k,
                     const ParallelFor& parallel_for, std::unique_ptr<int64_t[]>* positions) {
  const int64_t num_units = blocks.num_units();
  *positions = AllocateScratch<int64_t>(blocks.num_workers() * k);
  if (!*positions) return OutOfScratch();
  std::fill_n(positions->get(), blocks.num_workers() * k, n);
  BadWorker bad;
  RunShards(parallel_for, blocks.num_workers() * num_units, blocks.unit_cycles(),
            [&](int64_t begin, int64_t end) {
              for (int64_t i = begin; i < end; ++i) {
                const int64_t worker = i / num_units;
                const auto list = [dense](int64_t* position, const float* item) {
                  *position = item - dense;
                };
                int64_t* const listed = positions->get() + worker * k;
                if (!blocks.ForUnit<1>(worker, i % num_units, listed, dense, list)) {
                  bad.Report(worker);
                }
              }
            });
  return bad.ToStatus();
}

}  // namespace

Status GatherWide(const uint64_t* selected, const float* values, int64_t n, int components,
                  int64_t count, const ParallelFor& parallel_for, float* kept) {
  const std::unique_ptr<int64_t[]> positions = AllocateScratch<int64_t>(count);
  if (!positions) return OutOfScratch();
  int64_t* next = positions.get();
  for (int64_t m = 0; m < SelectionWords(n); ++m) {
    for (uint64_t mask = selected[m]; mask != 0; mask &= mask - 1) {
      *next++ = m * 64 + __builtin_ctzll(mask);
    }
  }
  RunShards(parallel_for, count, components, [&](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) {
      CopyFloats(values + positions[j] * components, components, kept + j * components);
    }
  });
  return Status();
}

Status SumWide(const PositionsBlocks& blocks, const float* kept, int64_t n, int components,
               int64_t k, const ParallelFor& parallel_for, float* sum) {
  const int64_t num_workers = blocks.num_workers();
  std::unique_ptr<int64_t[]> positions;
  Status status = ListPositions(blocks, sum, n, k, parallel_for, &positions);
  if (!status.ok()) return status;
  RunShards(parallel_for, n, components, [&](int64_t begin, int64_t end) {
    // Of each worker, the first of its items that has not been added.
    std::vector<int64_t> next(static_cast<size_t>(num_workers));
    for (int64_t worker = 0; worker < num_workers; ++worker) {
      const int64_t* const listed = positions.get() + worker * k;
      next[worker] = std::lower_bound(listed, listed + k, begin) - listed;
    }
    for (int64_t item = begin; item < end; ++item) {
      float* const to = sum + item * components;
      std::fill_n(to, components, 0.0f);
      for (int64_t worker = 0; worker < num_workers; ++worker) {
        if (next[worker] == k || positions[worker * k + next[worker]] != item) continue;
        const float* const from = kept + (worker * k + next[worker]++) * components;
        for (int c = 0; c < components; ++c) to[c] += from[c];
      }
    }
  });
  return Status();
}

Status ReplaceWide(const PositionsBlocks& blocks, const float* kept, int64_t n, int components,
                   int64_t k, const ParallelFor& parallel_for, float* values) {
  std::unique_ptr<int64_t[]> positions;
  Status status = ListPositions(blocks, values, n, k, parallel_for, &positions);
  if (!status.ok()) return status;
  RunShards(parallel_for, k, components, [&](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end && positions[j] < n; ++j) {
      CopyFloats(kept + j * components, components, values + positions[j] * components);
    }
  });
  return Status();
}

Status TakeWide(const PositionsBlocks& blocks, const float* values, int64_t n, int components,
                int64_t k, const ParallelFor& parallel_for, float* kept) {
  std::unique_ptr<int64_t[]> positions;
  Status status = ListPositions(blocks, values, n, k, parallel_for, &positions);
  if (!status.ok()) return status;
  RunShards(parallel_for, k, components, [&](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) {
      CopyFloats(values + positions[j] * components, components, kept + j * components);
    }
  });
  return Status();
}

}  // namespace gradcomp
