// SPDX-License-Identifier: Apache-2.0
#include "marked_items.h"

#include <algorithm>
#include <cstring>

#include "scratch.h"

namespace gradcomp {
namespace {

constexpr int kMaxNarrow = 2;  // components of an item that is not wide
static_assert(kKeyTile == 64 * kListedMasks, "the marked items of a tile are listed at once");

}  // namespace

Status MarkedItems::Init() {
  masks_ = AllocateScratch<uint64_t>(SelectionWords(items_.n));
  if (!masks_) return OutOfScratch();
  chunks_.resize(static_cast<size_t>((items_.n + kChunkItems - 1) / kChunkItems));
  return Status();
}

bool MarkedItems::Mark(const PendingSum& pending, int64_t chunk, uint32_t bound,
                       int64_t* num_below) {
  alignas(64) float sum[kKeyTile * kMaxNarrow];
  uint32_t keys[kKeyTile];
  uint16_t bits[kBitListRoom];
  uint32_t found[kChunkItems];
  uint32_t* next = found;
  int64_t num_reached_below = 0;
  const int components = items_.components;
  const int64_t chunk_begin = chunk * kChunkItems;
  const int64_t chunk_end = std::min(chunk_begin + kChunkItems, items_.n);
  for (int64_t first = chunk_begin; first < chunk_end; first += kKeyTile) {
    const int64_t size = std::min(kKeyTile, chunk_end - first);
    uint64_t* const masks = masks_.get() + first / 64;
    // The sums of wide items are complete: they were needed for the keys.
    const float* const at = pending.Add(first * components, size * components, sum);
    if (num_below != nullptr) {
      num_reached_below += items_.MarkTile(first, size, at, bound - 1, masks, keys);
    }
    items_.MarkTile(first, size, at, bound, masks, keys);
    const int64_t count = ListBits(masks, (size + 63) / 64, bits);
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
  const bool is_real = items_.components == 1;
  Status status = PositionsGather(masks_.get(), is_real ? nullptr : items_.values, items_.n,
                                  items_.components, k, parallel_for, positions, kept, counted);
  if (!status.ok() || !is_real) return status;
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
