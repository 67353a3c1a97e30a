// SPDX-License-Identifier: Apache-2.0
// What writes blocks. What reads them is in positions_move.cc.

#include "positions.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "multiversion.h"
#include "positions_blocks.h"
#include "scratch.h"

namespace gradcomp {
namespace {

constexpr int64_t kSegmentChunks = kSegmentItems / kPositionsChunkItems;

GRADCOMP_MULTIVERSION
int64_t CountBits(const uint64_t* masks, int64_t size) {
  int64_t count = 0;
  for (int64_t i = 0; i < size; ++i) count += __builtin_popcountll(masks[i]);
  return count;
}

// Copies the selected items of one chunk to `kept`, and in the local layout their indices to
// `indices`, an array of 16-bit numbers. `first` is the chunk's first item.
template <int kComponents, bool kLocal>
void GatherChunk(const uint64_t* masks, int64_t num_masks, const float* values, int64_t first,
                 float* kept, unsigned char* indices) {
  for (int64_t m = 0; m < num_masks; ++m) {
    const int64_t base = first + m * 64;
    for (uint64_t mask = masks[m]; mask != 0; mask &= mask - 1) {
      const int64_t item = base + __builtin_ctzll(mask);
      CopyItem<kComponents>(values + item * kComponents, kept);
      kept += kComponents;
      if (kLocal) {
        const uint16_t index = static_cast<uint16_t>(item % kSegmentItems);
        std::memcpy(indices, &index, sizeof(index));
        indices += sizeof(index);
      }
    }
  }
}

// `block` is the positions block without its count.
template <int kComponents>
void GatherAll(const uint64_t* selected, const float* values, int64_t n, bool local,
               const int64_t* offsets, const ParallelFor& parallel_for, uint32_t* block,
               float* kept) {
  const int64_t num_masks = SelectionWords(n);
  const int64_t bitmap_bytes = PositionsBitmapWords(n) * 4;
  unsigned char* const bytes = reinterpret_cast<unsigned char*>(block);
  unsigned char* const indices = bytes + PositionsNumSegments(n) * 4;
  RunShards(
      parallel_for, PositionsNumChunks(n), kPositionsMoveCycles, [&](int64_t begin, int64_t end) {
        for (int64_t chunk = begin; chunk < end; ++chunk) {
          const int64_t first_mask = chunk * kPositionsChunkMasks;
          const int64_t first = chunk * kPositionsChunkItems;
          const int64_t masks = std::min(kPositionsChunkMasks, num_masks - first_mask);
          const uint64_t* const chunk_masks = selected + first_mask;
          float* const chunk_kept = kept + offsets[chunk] * kComponents;
          if (local) {
            GatherChunk<kComponents, true>(chunk_masks, masks, values, first, chunk_kept,
                                           indices + offsets[chunk] * 2);
          } else {
            GatherChunk<kComponents, false>(chunk_masks, masks, values, first, chunk_kept, nullptr);
            std::memcpy(bytes + first_mask * 8, chunk_masks,
                        std::min(masks * 8, bitmap_bytes - first_mask * 8));
          }
        }
      });
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
  uint32_t* const block = positions + (counted ? 1 : 0);
  if (counted) positions[0] = static_cast<uint32_t>(found);
  const bool local = PositionsUseLocal(n, k);
  if (local) {
    const int64_t segments = PositionsNumSegments(n);
    for (int64_t segment = 0; segment < segments; ++segment) {
      const int64_t end = segment + 1 < segments ? offsets[(segment + 1) * kSegmentChunks] : found;
      block[segment] = static_cast<uint32_t>(end - offsets[segment * kSegmentChunks]);
    }
    std::fill(block + segments + found / 2, positions + num_words, 0u);  // indices without an item
  }
  std::fill(kept + found * components, kept + k * components, 0.0f);
  if (components == 1) {
    GatherAll<1>(selected, values, n, local, offsets.get(), parallel_for, block, kept);
  } else {
    GatherAll<2>(selected, values, n, local, offsets.get(), parallel_for, block, kept);
  }
  return Status();
}

}  // namespace gradcomp
