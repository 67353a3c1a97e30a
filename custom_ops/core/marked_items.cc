// SPDX-License-Identifier: Apache-2.0
#include "marked_items.h"

#include <algorithm>
#include <cstring>

#include "key_masks.h"
#include "scratch.h"

namespace gradcomp {
namespace {

// Items at a time: what is added up, and its keys, stay in the first-level cache.
constexpr int64_t kTile = 1024;
constexpr int64_t kTileMasks = kTile / 64;
static_assert(kTileMasks == kListedMasks, "the marked items of a tile are listed at once");
constexpr int kMaxNarrow = 2;  // components of an item that is not wide

}  // namespace

Status MarkedItems::Init() {
  masks_ = AllocateScratch<uint64_t>(SelectionWords(items_.n));
  if (!masks_) return OutOfScratch();
  chunks_.resize(static_cast<size_t>((items_.n + kChunkItems - 1) / kChunkItems));
  return Status();
}

bool MarkedItems::Mark(const PendingSum& pending, int64_t chunk, uint32_t bound,
                       int64_t* num_below) {
  alignas(64) float sum[kTile * kMaxNarrow];
  uint32_t keys[kTile];
  uint32_t found[kChunkItems];
  uint32_t* next = found;
  int64_t num_reached_below = 0;
  const int components = items_.components;
  const int64_t chunk_begin = chunk * kChunkItems;
  const int64_t chunk_end = std::min(chunk_begin + kChunkItems, items_.n);
  for (int64_t first = chunk_begin; first < chunk_end; first += kTile) {
    const int64_t size = std::min(kTile, chunk_end - first);
    const int64_t num_masks = (size + 63) / 64;
    uint64_t* const masks = masks_.get() + first / 64;
    // The sums of wide items are complete: they were needed for the keys.
    const float* const at = pending.Add(first * components, size * components, sum);
    // Whole tiles of real items need no room for their keys.
    const bool has_values = components == 1 && size == kTile;
    if (has_values) {
      MaskValues(at, num_masks, bound, masks);
    } else {
      items_.Keys(first, size, at, keys);
      // Fills up the last mask of all, which must not reach a bound of zero.
      std::fill(keys + size, keys + num_masks * 64, 0);
      MaskKeys(keys, num_masks, bound, masks);
      if (size % 64 != 0) masks[num_masks - 1] &= (uint64_t{1} << (size % 64)) - 1;
    }
    if (num_below != nullptr) {
      uint64_t unused[kTileMasks];
      num_reached_below += has_values ? MaskValues(at, num_masks, bound - 1, unused)
                                      : MaskKeys(keys, size / 64, bound - 1, unused);
      for (int64_t i = size / 64 * 64; i < size; ++i) num_reached_below += keys[i] >= bound - 1;
    }
    uint16_t bits[kBitListRoom];
    const int64_t count = ListBits(masks, num_masks, bits);
    if (components == 1) {
      for (int64_t i = 0; i < count; ++i) next[i] = BitsOf(at[bits[i]]);
    } else {
      for (int64_t i = 0; i < count; ++i) next[i] = keys[bits[i]];
    }
    next += count;
  }
  Chunk& marked = chunks_[chunk];
  marked.count = next - found;
  if (num_below != nullptr) *num_below = num_reached_below - marked.count;
  // As many words as there are: room for all items would cost more in page faults than the pass.
  marked.words = AllocateScratch<uint32_t>(marked.count);
  if (!marked.words) return false;
  std::copy(found, next, marked.words.get());
  return true;
}

Status MarkedItems::Write(int64_t k, bool counted, const ParallelFor& parallel_for,
                          uint32_t* positions, float* kept) const {
  // Items that are at hand need not be gathered.
  const bool has_values = items_.components == 1;
  Status status = PositionsGather(masks_.get(), has_values ? nullptr : items_.values, items_.n,
                                  items_.components, k, parallel_for, positions, kept, counted);
  if (!status.ok() || !has_values) return status;
  std::vector<int64_t> offsets(chunks_.size());
  int64_t total = 0;
  for (size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    offsets[chunk] = total;
    total += chunks_[chunk].count;
  }
  RunShards(parallel_for, num_chunks(), kFilterCycles, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      if (count(chunk) == 0) continue;
      std::memcpy(kept + offsets[chunk], chunks_[chunk].words.get(),
                  sizeof(float) * static_cast<size_t>(count(chunk)));
    }
  });
  return Status();
}

}  // namespace gradcomp
