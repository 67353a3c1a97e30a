// SPDX-License-Identifier: Apache-2.0
// For positions*.cc alone: items as bits, and received blocks, checked and cut into units of work.

#ifndef GRADCOMP_CORE_POSITIONS_BLOCKS_H_
#define GRADCOMP_CORE_POSITIONS_BLOCKS_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "ceil_div.h"
#include "multiversion.h"
#include "parallel.h"
#include "positions.h"
#include "positions_bits.h"
#include "positions_elias_fano.h"
#include "status.h"

namespace gradcomp {

// Items in a unit of work, a power of two: their floats stay in a first-level cache.
constexpr int64_t kPositionsChunkItems = 8192;
constexpr int64_t kPositionsChunkMasks = kPositionsChunkItems / 64;
constexpr int64_t kPositionsChunkWords = kPositionsChunkItems / 32;

inline int64_t PositionsNumChunks(int64_t n) { return CeilDiv(n, kPositionsChunkItems); }

// Rough cycles to count the bits of a chunk, and to move its items, to size the shards.
constexpr int64_t kPositionsCountCycles = kPositionsChunkMasks * 2;
constexpr int64_t kPositionsMoveCycles = kPositionsChunkItems * 2;

// An item as one machine word, to be moved without looking at its floats.
template <int kComponents>
struct PositionsItem;
template <>
struct PositionsItem<1> {
  using Type = uint32_t;
};
template <>
struct PositionsItem<2> {
  using Type = uint64_t;
};

template <int kComponents>
inline void CopyItem(const float* from, float* to) {
  typename PositionsItem<kComponents>::Type item;
  std::memcpy(&item, from, sizeof(item));
  std::memcpy(to, &item, sizeof(item));
}

// Turns counts into start offsets and returns their total.
int64_t ExclusiveSum(int64_t* counts, int64_t size);

// Checks the arguments that all functions share.
Status ValidatePositionsSizes(int64_t num_words, int64_t n, int components, int64_t k,
                              bool counted);

// The first bad index found by parallel shards: none, or the worker it belongs to.
class BadWorker {
 public:
  void Report(int64_t worker) {
    int64_t none = -1;
    worker_.compare_exchange_strong(none, worker);
  }
  Status ToStatus() const {
    const int64_t worker = worker_.load();
    if (worker < 0) return Status();
    return Status::InvalidArgument("positions block of worker " + std::to_string(worker) +
                                   ": positions must be ascending and below the number of items");
  }

 private:
  std::atomic<int64_t> worker_{-1};
};

// The blocks of some workers, cut into units of work that are independent of one another: a chunk
// of the items for bitmaps, some buckets for the Elias-Fano layout.
class PositionsBlocks {
 public:
  // Checks everything but the low bits of the Elias-Fano layout, which ForUnit() checks as it meets
  // them. The sizes have been validated. Keeps the pointer.
  Status Init(const uint32_t* positions, int64_t num_workers, int64_t n, int64_t k, bool counted,
              const ParallelFor& parallel_for);

  int64_t num_workers() const { return num_workers_; }
  int64_t num_units() const { return num_units_; }
  int64_t unit_items() const { return unit_items_; }
  // Rough cycles to visit a unit of one worker.
  int64_t unit_cycles() const { return unit_items_ * 2; }

  // Calls `move(kept item, dense item)` for the items that a worker kept in a unit, in order.
  // `kept` points to the worker's items, `dense` to all n. Returns false at positions that are out
  // of range or not ascending.
  template <int kComponents, typename Kept, typename Dense, typename Move>
  bool ForUnit(int64_t worker, int64_t unit, Kept* kept, Dense* dense, const Move& move) const {
    const int64_t* const offsets = OffsetsOf(worker) + unit;
    kept += offsets[0] * kComponents;
    dense += unit * unit_items_ * kComponents;
    const auto visit = [kept, dense, &move](int64_t item) mutable {
      move(kept, dense + item * kComponents);
      kept += kComponents;
    };
    if (is_bitmap()) {
      ForChunk(BlockOf(worker), unit, visit);
      return true;
    }
    const EliasFanoRange range = {BucketsBefore(unit), BucketsBefore(unit + 1), offsets[0],
                                  offsets[1]};
    const int64_t size = std::min(unit_items_, n_ - unit * unit_items_);
    return ForEliasFano(shape_, BlockOf(worker), range, size, visit);
  }

 private:
  // Calls `visit(item)` for the items of a chunk of a bitmap, counted from the chunk's first.
  template <typename Visit>
  void ForChunk(const uint32_t* bitmap, int64_t chunk, Visit visit) const {
    const int64_t first = chunk * kPositionsChunkWords;
    const int64_t size = std::min(kPositionsChunkWords, num_words_ - first);
    for (int64_t word = 0; word < size; word += 2) {
      for (uint64_t mask = LoadMask(bitmap + first + word, size - word); mask != 0;
           mask &= mask - 1) {
        visit(word * 32 + __builtin_ctzll(mask));
      }
    }
  }

  bool is_bitmap() const { return layout_ == PositionsLayout::kBitmap; }
  // The block of a worker without its count.
  const uint32_t* BlockOf(int64_t worker) const {
    return positions_ + worker * (counted_ + num_words_) + counted_;
  }
  int64_t CountOf(int64_t worker) const {
    return counted_ ? positions_[worker * (1 + num_words_)] : k_;
  }
  // Kept items before each unit, and in all.
  int64_t* OffsetsOf(int64_t worker) { return offsets_.get() + worker * (num_units_ + 1); }
  const int64_t* OffsetsOf(int64_t worker) const {
    return offsets_.get() + worker * (num_units_ + 1);
  }
  // Buckets of the Elias-Fano layout before a unit.
  int64_t BucketsBefore(int64_t unit) const {
    return std::min((unit * unit_items_) >> shape_.low_bits, shape_.buckets);
  }
  Status InitBitmaps(const ParallelFor& parallel_for);
  Status InitEliasFano(const ParallelFor& parallel_for);

  const uint32_t* positions_ = nullptr;
  int64_t num_workers_ = 0;
  int64_t num_words_ = 0;  // of a block without its count
  int64_t n_ = 0;
  int64_t k_ = 0;
  bool counted_ = false;
  PositionsLayout layout_ = PositionsLayout::kBitmap;
  EliasFanoShape shape_ = {};
  int64_t unit_items_ = 0;
  int64_t num_units_ = 0;
  std::unique_ptr<int64_t[]> offsets_;  // [num_workers, num_units + 1]
};

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_POSITIONS_BLOCKS_H_
