// SPDX-License-Identifier: Apache-2.0
// The items that a selection considers: those whose keys reach a bound, found in one pass over the
// bucket. Their keys are kept, and real items themselves, so that choosing among them needs no
// other pass.

#ifndef GRADCOMP_CORE_MARKED_ITEMS_H_
#define GRADCOMP_CORE_MARKED_ITEMS_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "bit_list.h"
#include "parallel.h"
#include "positions.h"
#include "status.h"
#include "top_k_keys.h"

namespace gradcomp {

class MarkedItems {
 public:
  // A unit of parallel work, and what work on it costs.
  static constexpr int64_t kChunkItems = 8192;
  static constexpr int64_t kScanCycles = kChunkItems;
  static constexpr int64_t kFilterCycles = kChunkItems / 16;

  // `items` must outlive this.
  explicit MarkedItems(const KeyedItems& items) : items_(items) {}

  // To be called first. ResourceExhausted without memory for 1/8 byte an item.
  Status Init();

  int64_t num_chunks() const { return static_cast<int64_t>(chunks_.size()); }

  // Adds up what is pending of a chunk, and marks the items in it whose key is at least `bound`,
  // and no others. If `num_below` is not null, it receives the number of items whose key is bound -
  // 1; bound > 0 then. False if there was no memory for 4 bytes a marked item.
  bool Mark(const PendingSum& pending, int64_t chunk, uint32_t bound, int64_t* num_below = nullptr);

  // The number of marked items in a chunk, and their keys in ascending order of position.
  int64_t count(int64_t chunk) const { return chunks_[chunk].count; }
  uint32_t Key(int64_t chunk, int64_t i) const { return KeyOfWord(chunks_[chunk].words[i]); }

  // Leaves those items of a chunk marked for which `keep(key)` is true; it is called once for each,
  // in ascending order of position.
  template <typename Keep>
  void Filter(int64_t chunk, const Keep& keep);

  // Writes the positions block of the marked items, and the items: PositionsGather().
  Status Write(int64_t k, bool counted, const ParallelFor& parallel_for, uint32_t* positions,
               float* kept) const;

 private:
  static constexpr int64_t kChunkMasks = kChunkItems / 64;

  struct Chunk {
    int64_t count = 0;
    // [count] of a real item its bits, so that it need not be fetched again; of others their keys
    std::unique_ptr<uint32_t[]> words;
  };

  uint32_t KeyOfWord(uint32_t word) const {
    return items_.components == 1 ? RealKey(FloatOf(word)) : word;
  }

  const KeyedItems& items_;
  std::unique_ptr<uint64_t[]> masks_;  // [SelectionWords(n)]
  std::vector<Chunk> chunks_;
};

template <typename Keep>
void MarkedItems::Filter(int64_t chunk, const Keep& keep) {
  uint32_t* const words = chunks_[chunk].words.get();
  const uint32_t* from = words;
  uint32_t* to = words;
  uint16_t bits[kBitListRoom];
  for (int64_t m = chunk * kChunkMasks; from < words + count(chunk); m += kListedMasks) {
    uint64_t* const masks = masks_.get() + m;
    const int64_t num_masks = std::min(kListedMasks, SelectionWords(items_.n) - m);
    const int64_t num_marked = ListBits(masks, num_masks, bits);
    for (int64_t i = 0; i < num_marked; ++i) {
      const uint32_t word = *from++;
      const bool is_kept = keep(KeyOfWord(word));
      *to = word;
      to += is_kept;
      masks[bits[i] / 64] ^= uint64_t{!is_kept} << (bits[i] % 64);
    }
  }
  chunks_[chunk].count = to - words;
}

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_MARKED_ITEMS_H_
