// SPDX-License-Identifier: Apache-2.0
// What receives blocks: the sum over workers, and moving items to and from their positions.

#include <algorithm>

#include "item_shape.h"
#include "positions.h"
#include "positions_blocks.h"
#include "positions_wide.h"

namespace gradcomp {
namespace {

template <int kComponents>
Status Sum(const PositionsBlocks& blocks, const float* kept, int64_t n, int64_t k,
           const ParallelFor& parallel_for, float* sum) {
  const auto add = [](const float* from, float* to) {
    for (int c = 0; c < kComponents; ++c) to[c] += from[c];
  };
  BadWorker bad;
  const int64_t cycles = blocks.unit_cycles() * (blocks.num_workers() + 1);
  RunShards(parallel_for, blocks.num_units(), cycles, [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      // All workers' items go to a unit while it is in the cache.
      const int64_t first = unit * blocks.unit_items();
      std::fill_n(sum + first * kComponents, std::min(blocks.unit_items(), n - first) * kComponents,
                  0.0f);
      for (int64_t worker = 0; worker < blocks.num_workers(); ++worker) {
        const float* const worker_kept = kept + worker * k * kComponents;
        if (!blocks.ForUnit<kComponents>(worker, unit, worker_kept, sum, add)) bad.Report(worker);
      }
    }
  });
  return bad.ToStatus();
}

template <int kComponents>
Status Replace(const PositionsBlocks& blocks, const float* kept, const ParallelFor& parallel_for,
               float* values) {
  BadWorker bad;
  RunShards(parallel_for, blocks.num_units(), blocks.unit_cycles(),
            [&](int64_t begin, int64_t end) {
              for (int64_t unit = begin; unit < end; ++unit) {
                if (!blocks.ForUnit<kComponents>(0, unit, kept, values, CopyItem<kComponents>)) {
                  bad.Report(0);
                }
              }
            });
  return bad.ToStatus();
}

// Copies items, some at a time: a short loop has more loads from memory under way.
template <int kComponents>
class TakeQueue {
 public:
  ~TakeQueue() { Flush(); }
  void Add(const float* from, float* to) {
    if (size_ == 0) to_ = to;
    from_[size_++] = from;
    if (size_ == kMaxSize) Flush();
  }

 private:
  static constexpr int kMaxSize = 128;

  void Flush() {
    for (int i = 0; i < size_; ++i) CopyItem<kComponents>(from_[i], to_ + i * kComponents);
    size_ = 0;
  }

  int size_ = 0;
  float* to_ = nullptr;  // of the first; the others follow
  const float* from_[kMaxSize];
};

template <int kComponents>
Status Take(const PositionsBlocks& blocks, const float* values, const ParallelFor& parallel_for,
            float* kept) {
  BadWorker bad;
  RunShards(parallel_for, blocks.num_units(), blocks.unit_cycles(),
            [&](int64_t begin, int64_t end) {
              for (int64_t unit = begin; unit < end; ++unit) {
                TakeQueue<kComponents> queue;
                const auto take = [&queue](float* to, const float* from) { queue.Add(from, to); };
                if (!blocks.ForUnit<kComponents>(0, unit, kept, values, take)) bad.Report(0);
              }
            });
  return bad.ToStatus();
}

}  // namespace

Status PositionsSum(const uint32_t* positions, const float* kept, int64_t num_workers,
                    int64_t words_per_worker, int64_t n, int components, int64_t k,
                    const ParallelFor& parallel_for, float* sum, bool counted) {
  if (num_workers < 0) return Status::InvalidArgument("num_workers must be >= 0");
  Status status = ValidatePositionsSizes(words_per_worker, n, components, k, counted);
  if (!status.ok()) return status;
  PositionsBlocks blocks;
  status = blocks.Init(positions, num_workers, n, k, counted, parallel_for);
  if (!status.ok()) return status;
  if (IsWide(components)) {
    return SumWide(blocks, kept, n, components, k, parallel_for, sum);
  }
  return components == 1 ? Sum<1>(blocks, kept, n, k, parallel_for, sum)
                         : Sum<2>(blocks, kept, n, k, parallel_for, sum);
}

Status PositionsReplace(const uint32_t* positions, const float* kept, int64_t num_words, int64_t n,
                        int components, int64_t k, const ParallelFor& parallel_for, float* values,
                        bool counted) {
  Status status = ValidatePositionsSizes(num_words, n, components, k, counted);
  if (!status.ok()) return status;
  PositionsBlocks blocks;
  status = blocks.Init(positions, 1, n, k, counted, parallel_for);
  if (!status.ok()) return status;
  if (IsWide(components)) {
    return ReplaceWide(blocks, kept, n, components, k, parallel_for, values);
  }
  return components == 1 ? Replace<1>(blocks, kept, parallel_for, values)
                         : Replace<2>(blocks, kept, parallel_for, values);
}

Status PositionsTake(const uint32_t* positions, const float* values, int64_t num_words, int64_t n,
                     int components, int64_t k, const ParallelFor& parallel_for, float* kept) {
  Status status = ValidatePositionsSizes(num_words, n, components, k, false);
  if (!status.ok()) return status;
  PositionsBlocks blocks;
  status = blocks.Init(positions, 1, n, k, false, parallel_for);
  if (!status.ok()) return status;
  if (IsWide(components)) {
    return TakeWide(blocks, values, n, components, k, parallel_for, kept);
  }
  return components == 1 ? Take<1>(blocks, values, parallel_for, kept)
                         : Take<2>(blocks, values, parallel_for, kept);
}

}  // namespace gradcomp
