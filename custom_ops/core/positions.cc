// SPDX-License-Identifier: Apache-2.0
// What writes blocks. What reads them is in positions_move.cc.

#include "positions.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "bit_list.h"
#include "item_shape.h"
#include "positions_bits.h"
#include "positions_blocks.h"
#include "positions_elias_fano.h"
#include "positions_wide.h"
#include "scratch.h"

namespace gradcomp {
namespace {

// Copies the selected items begin .. end-1 to `kept`, unless kComponents is 0, and
// calls `write(item)` for each. The first is number j of those kept; `begin` is a multiple of 64.
template <int kComponents, typename Write>
void GatherItems(const uint64_t* selected, const float* values, int64_t begin, int64_t end,
                 int64_t j, float* kept, const Write& write) {
  uint16_t bits[kBitListRoom];
  const int64_t last_mask = (end + 63) / 64;
  for (int64_t m = begin / 64; m < last_mask; m += kListedMasks) {
    const int64_t count = ListBits(selected + m, std::min(kListedMasks, last_mask - m), bits);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t item = m * 64 + bits[i];
      if constexpr (kComponents > 0) {
        CopyItem<kComponents>(values + item * kComponents, kept + (j + i) * kComponents);
      }
      write(item);
    }
    j += count;
  }
}

// Copies the selected items begin .. end-1 to `kept`, of which the first is number j, and writes
// their part of `block`, which is the positions block without its count, and zeros.
template <int kComponents>
void GatherShard(const uint64_t* selected, const float* values, int64_t n, int64_t k, int64_t begin,
                 int64_t end, int64_t j, uint32_t* block, float* kept) {
  if (PositionsLayoutOf(n, k) == PositionsLayout::kBitmap) {
    if constexpr (kComponents > 0) {
      const auto nothing = [](int64_t) {};
      GatherItems<kComponents>(selected, values, begin, end, j, kept, nothing);
    }
    std::memcpy(block + begin / 32, selected + begin / 64,
                static_cast<size_t>((end + 31) / 32 - begin / 32) * sizeof(uint32_t));
  } else {
    EliasFanoWriter writer(EliasFanoShapeOf(n, k), j, block);
    const auto write = [&writer](int64_t item) { writer.Write(item); };
    GatherItems<kComponents>(selected, values, begin, end, j, kept, write);
  }
}

}  // namespace

Status PositionsGather(const uint64_t* selected, const float* values, int64_t n, int components,
                       int64_t k, const ParallelFor& parallel_for, uint32_t* positions, float* kept,
                       bool counted) {
  const int64_t num_words = PositionsNumWords(n, k, counted);
  Status status = ValidatePositionsSizes(num_words, n, components, k, counted);
  if (!status.ok()) return status;
  const int64_t chunks = PositionsNumChunks(n);
  const std::unique_ptr<int64_t[]> offsets = AllocateScratch<int64_t>(chunks);
  if (!offsets) return OutOfScratch();
  RunShards(parallel_for, chunks, kPositionsCountCycles, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t first = chunk * kPositionsChunkMasks;
      offsets[chunk] =
          CountBits(selected + first, std::min(kPositionsChunkMasks, SelectionWords(n) - first));
    }
  });
  const int64_t found = ExclusiveSum(offsets.get(), chunks);
  if (found > k || (found < k && !counted)) {
    return Status::InvalidArgument("selection has " + std::to_string(found) + " items, expected " +
                                   (counted ? "at most " : "") + std::to_string(k));
  }
  if (values != nullptr && IsWide(components)) {
    status = GatherWide(selected, values, n, components, found, parallel_for, kept);
    if (!status.ok()) return status;
  }
  uint32_t* const block = positions + (counted ? 1 : 0);
  if (counted) positions[0] = static_cast<uint32_t>(found);
  std::fill(block, positions + num_words, 0u);
  std::fill(kept + found * components, kept + k * components, 0.0f);
  RunShards(parallel_for, chunks, kPositionsMoveCycles, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kPositionsChunkItems;
    const int64_t last = std::min(end * kPositionsChunkItems, n);
    if (values == nullptr) {
      GatherShard<0>(selected, values, n, k, first, last, offsets[begin], block, kept);
    } else if (components == 1) {
      GatherShard<1>(selected, values, n, k, first, last, offsets[begin], block, kept);
    } else if (components == 2) {
      GatherShard<2>(selected, values, n, k, first, last, offsets[begin], block, kept);
    } else {
      GatherShard<0>(selected, values, n, k, first, last, offsets[begin], block, kept);
    }
  });
  return Status();
}

}  // namespace gradcomp
