// SPDX-License-Identifier: Apache-2.0
// For positions*.cc alone: items as bits, and received blocks, checked and cut into units of work.

#ifndef GRADCOMP_CORE_POSITIONS_BLOCKS_H_
#define GRADCOMP_CORE_POSITIONS_BLOCKS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

#include "ceil_div.h"
#include "multiversion.h"
#include "parallel.h"
#include "positions.h"
#include "status.h"

namespace gradcomp {

#if defined(__BYTE_ORDER__)
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "16-bit indices and 64-bit masks are laid over 32-bit words: little-endian only");
#endif

// Items in a unit of work on masks. Divides a segment, and is a multiple of 64.
constexpr int64_t kPositionsChunkItems = 8192;
constexpr int64_t kPositionsChunkMasks = kPositionsChunkItems / 64;

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

// The blocks of some workers. A unit of work is a segment of items (local layout) or a chunk of
// them (bitmap): units are independent of one another.
class PositionsBlocks {
 public:
  // Checks everything but the local indices, which ForUnit() checks as it meets them. The sizes
  // have been validated. Keeps the pointer.
  Status Init(const uint32_t* positions, int64_t num_workers, int64_t n, int64_t k, bool counted,
              const ParallelFor& parallel_for);

  int64_t num_workers() const { return num_workers_; }
  int64_t num_units() const { return num_units_; }
  int64_t unit_items() const { return local_ ? kSegmentItems : kPositionsChunkItems; }

  // Calls `move(kept item, dense item)` for the items that a worker kept in a unit, in order.
  // `kept` points to the worker's items, `dense` to all n. Returns false at the first index that is
  // out of range or not ascending.
  template <int kComponents, typename Kept, typename Dense, typename Move>
  GRADCOMP_ALWAYS_INLINE bool ForUnit(int64_t worker, int64_t unit, Kept* kept, Dense* dense,
                                      const Move& move) const {
    kept += offsets_[worker * num_units_ + unit] * kComponents;
    dense += unit * unit_items() * kComponents;
    if (local_) return ForSegment<kComponents>(worker, unit, kept, dense, move);
    ForChunk<kComponents>(worker, unit, kept, dense, move);
    return true;
  }

 private:
  // The block of a worker without its count.
  const uint32_t* BlockOf(int64_t worker) const {
    return positions_ + worker * (counted_ + num_words_) + counted_;
  }
  int64_t CountOf(int64_t worker) const {
    return counted_ ? positions_[worker * (1 + num_words_)] : k_;
  }
  Status InitBitmaps(const ParallelFor& parallel_for);
  Status InitLocals();

  // Mask `index` of a bitmap, the missing half of the last one read as zeros.
  uint64_t LoadMask(const uint32_t* bitmap, int64_t index) const {
    uint64_t mask = 0;
    if (num_words_ - 2 * index >= 2) {
      std::memcpy(&mask, bitmap + 2 * index, 8);
    } else {
      std::memcpy(&mask, bitmap + 2 * index, 4);
    }
    return mask;
  }

  template <int kComponents, typename Kept, typename Dense, typename Move>
  GRADCOMP_ALWAYS_INLINE void ForChunk(int64_t worker, int64_t chunk, Kept* kept, Dense* dense,
                                       const Move& move) const {
    const uint32_t* const bitmap = BlockOf(worker);
    const int64_t first = chunk * kPositionsChunkMasks;
    const int64_t last = std::min(first + kPositionsChunkMasks, (num_words_ + 1) / 2);
    for (int64_t m = first; m < last; ++m, dense += 64 * kComponents) {
      for (uint64_t mask = LoadMask(bitmap, m); mask != 0; mask &= mask - 1) {
        move(kept, dense + __builtin_ctzll(mask) * kComponents);
        kept += kComponents;
      }
    }
  }

  template <int kComponents, typename Kept, typename Dense, typename Move>
  GRADCOMP_ALWAYS_INLINE bool ForSegment(int64_t worker, int64_t segment, Kept* kept, Dense* dense,
                                         const Move& move) const {
    const uint32_t* const block = BlockOf(worker);
    const int32_t size =
        static_cast<int32_t>(std::min(kSegmentItems, n_ - segment * kSegmentItems));
    const int64_t count = block[segment];
    const unsigned char* indices = reinterpret_cast<const unsigned char*>(block + num_units_) +
                                   offsets_[worker * num_units_ + segment] * 2;
    int32_t previous = -1;
    for (int64_t j = 0; j < count; ++j, indices += 2, kept += kComponents) {
      uint16_t index;
      std::memcpy(&index, indices, sizeof(index));
      if (index <= previous || index >= size) return false;
      previous = index;
      move(kept, dense + int64_t{index} * kComponents);
    }
    return true;
  }

  const uint32_t* positions_ = nullptr;
  int64_t num_workers_ = 0;
  int64_t num_words_ = 0;  // of a block without its count
  int64_t n_ = 0;
  int64_t k_ = 0;
  bool counted_ = false;
  bool local_ = false;
  int64_t num_units_ = 0;
  // [num_workers, num_units]: the unit's first item among the kept
  std::unique_ptr<int64_t[]> offsets_;
};

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_POSITIONS_BLOCKS_H_
