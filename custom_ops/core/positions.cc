// SPDX-License-Identifier: Apache-2.0
#include "positions.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "multiversion.h"
#include "scratch.h"

namespace gradcomp {
namespace {

#if defined(__BYTE_ORDER__)
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "16-bit indices and 64-bit masks are laid over 32-bit words: little-endian only");
#endif

// Items in a unit of parallel work. Divides a segment, and is a multiple of 64.
constexpr int64_t kChunkItems = 8192;
constexpr int64_t kChunkMasks = kChunkItems / 64;
constexpr int64_t kSegmentChunks = kSegmentItems / kChunkItems;

// Rough cycles for a chunk or a segment, to size the shards.
constexpr int64_t kCountCycles = kChunkMasks * 2;
constexpr int64_t kMoveCycles = kChunkItems * 2;
constexpr int64_t kSegmentCycles = kSegmentItems;

int64_t NumChunks(int64_t n) { return (n + kChunkItems - 1) / kChunkItems; }

inline int PopCount(uint64_t mask) { return __builtin_popcountll(mask); }
inline int LowestBit(uint64_t mask) { return __builtin_ctzll(mask); }

// An item as one machine word, to be moved without looking at its floats.
template <int kComponents>
struct Item;
template <>
struct Item<1> {
  using Type = uint32_t;
};
template <>
struct Item<2> {
  using Type = uint64_t;
};

template <int kComponents>
inline void CopyItem(const float* from, float* to) {
  typename Item<kComponents>::Type item;
  std::memcpy(&item, from, sizeof(item));
  std::memcpy(to, &item, sizeof(item));
}

template <int kComponents>
inline void AddItem(const float* from, float* to) {
  for (int c = 0; c < kComponents; ++c) to[c] += from[c];
}

// Mask `index` of a bitmap of `num_words` words, the missing half of the last one read as zeros.
inline uint64_t LoadMask(const uint32_t* bitmap, int64_t num_words, int64_t index) {
  uint64_t mask = 0;
  const int64_t words = std::min<int64_t>(2, num_words - 2 * index);
  if (words == 2) {
    std::memcpy(&mask, bitmap + 2 * index, 8);
  } else {
    std::memcpy(&mask, bitmap + 2 * index, 4);
  }
  return mask;
}

GRADCOMP_MULTIVERSION
int64_t CountBits(const uint64_t* masks, int64_t size) {
  int64_t count = 0;
  for (int64_t i = 0; i < size; ++i) count += PopCount(masks[i]);
  return count;
}

GRADCOMP_MULTIVERSION
int64_t CountBitsInWords(const uint32_t* words, int64_t size) {
  int64_t count = 0;
  for (int64_t i = 0; i < size; ++i) count += __builtin_popcount(words[i]);
  return count;
}

// Turns counts into start offsets and returns their total.
int64_t ExclusiveSum(int64_t* counts, int64_t size) {
  int64_t total = 0;
  for (int64_t i = 0; i < size; ++i) {
    const int64_t count = counts[i];
    counts[i] = total;
    total += count;
  }
  return total;
}

// The first error found by parallel shards, without its text: -1, or the worker it belongs to.
class BadWorker {
 public:
  void Report(int64_t worker) {
    int64_t none = -1;
    worker_.compare_exchange_strong(none, worker);
  }
  Status ToStatus(const char* what) const {
    const int64_t worker = worker_.load();
    if (worker < 0) return Status();
    return Status::InvalidArgument("positions block of worker " + std::to_string(worker) + ": " +
                                   what);
  }

 private:
  std::atomic<int64_t> worker_{-1};
};

constexpr char kBadIndices[] = "indices within a segment must be ascending and below its size";

Status WrongCount(int64_t worker, int64_t found, int64_t k) {
  return Status::InvalidArgument("positions block of worker " + std::to_string(worker) + " keeps " +
                                 std::to_string(found) + " items, expected " + std::to_string(k));
}

Status ValidateSizes(int64_t num_words, int64_t n, int components, int64_t k) {
  if (components != 1 && components != 2) {
    return Status::InvalidArgument("components must be 1 or 2, got " + std::to_string(components));
  }
  if (n < 0 || k < 0 || k > n) {
    return Status::InvalidArgument("need 0 <= k <= n, got k " + std::to_string(k) + ", n " +
                                   std::to_string(n));
  }
  if (num_words != PositionsNumWords(n, k)) {
    return Status::InvalidArgument("positions block of " + std::to_string(k) + " of " +
                                   std::to_string(n) + " items must have " +
                                   std::to_string(PositionsNumWords(n, k)) + " words, got " +
                                   std::to_string(num_words));
  }
  return Status();
}

// ---- Writing a block -------------------------------------------------------------------------

// Copies the selected items of one chunk to `kept`, and in the local layout their indices to
// `indices`, an array of 16-bit numbers. `first` is the chunk's first item.
template <int kComponents, bool kLocal>
void GatherChunk(const uint64_t* masks, int64_t num_masks, const float* values, int64_t first,
                 float* kept, unsigned char* indices) {
  for (int64_t m = 0; m < num_masks; ++m) {
    const int64_t base = first + m * 64;
    for (uint64_t mask = masks[m]; mask != 0; mask &= mask - 1) {
      const int64_t item = base + LowestBit(mask);
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

template <int kComponents>
void GatherAll(const uint64_t* selected, const float* values, int64_t n, int64_t k,
               const int64_t* offsets, const ParallelFor& parallel_for, uint32_t* positions,
               float* kept) {
  const bool local = PositionsUseLocal(n, k);
  const int64_t num_masks = SelectionWords(n);
  const int64_t bitmap_bytes = PositionsBitmapWords(n) * 4;
  unsigned char* const bytes = reinterpret_cast<unsigned char*>(positions);
  unsigned char* const indices = bytes + PositionsNumSegments(n) * 4;
  RunShards(parallel_for, NumChunks(n), kMoveCycles, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t first_mask = chunk * kChunkMasks;
      const int64_t masks = std::min(kChunkMasks, num_masks - first_mask);
      const uint64_t* const chunk_masks = selected + first_mask;
      float* const chunk_kept = kept + offsets[chunk] * kComponents;
      if (local) {
        GatherChunk<kComponents, true>(chunk_masks, masks, values, chunk * kChunkItems, chunk_kept,
                                       indices + offsets[chunk] * 2);
      } else {
        GatherChunk<kComponents, false>(chunk_masks, masks, values, chunk * kChunkItems, chunk_kept,
                                        nullptr);
        std::memcpy(bytes + first_mask * 8, chunk_masks,
                    std::min(masks * 8, bitmap_bytes - first_mask * 8));
      }
    }
  });
}

// ---- Reading bitmaps -------------------------------------------------------------------------

// Offsets of the kept items of every chunk of every worker: [num_workers, NumChunks(n)].
Status BitmapOffsets(const uint32_t* positions, int64_t num_workers, int64_t num_words, int64_t n,
                     int64_t k, const ParallelFor& parallel_for, std::vector<int64_t>* offsets) {
  const int64_t chunks = NumChunks(n);
  offsets->resize(static_cast<size_t>(num_workers * chunks));
  int64_t* const counts = offsets->data();
  RunShards(parallel_for, num_workers * chunks, kCountCycles, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % chunks * (kChunkItems / 32);
      counts[i] = CountBitsInWords(positions + i / chunks * num_words + first,
                                   std::min(kChunkItems / 32, num_words - first));
    }
  });
  for (int64_t worker = 0; worker < num_workers; ++worker) {
    const int64_t found = ExclusiveSum(counts + worker * chunks, chunks);
    if (found != k) return WrongCount(worker, found, k);
    if (n % 32 != 0 && positions[(worker + 1) * num_words - 1] >> (n % 32) != 0) {
      return Status::InvalidArgument("positions block of worker " + std::to_string(worker) +
                                     ": bits beyond the last item are set");
    }
  }
  return Status();
}

// Calls `move(kept item, dense item)` for every kept item of one chunk of a checked bitmap.
template <int kComponents, typename Move>
GRADCOMP_ALWAYS_INLINE void ForBitmapChunk(const uint32_t* bitmap, int64_t num_words, int64_t chunk,
                                           const float* kept, float* dense, const Move& move) {
  const int64_t first = chunk * kChunkMasks;
  const int64_t last = std::min(first + kChunkMasks, (num_words + 1) / 2);
  for (int64_t m = first; m < last; ++m) {
    float* const base = dense + m * 64 * kComponents;
    for (uint64_t mask = LoadMask(bitmap, num_words, m); mask != 0; mask &= mask - 1) {
      move(kept, base + LowestBit(mask) * kComponents);
      kept += kComponents;
    }
  }
}

// ---- Reading local indices -------------------------------------------------------------------

// Offsets of the kept items of every segment of every worker: [num_workers, S].
Status LocalOffsets(const uint32_t* positions, int64_t num_workers, int64_t num_words, int64_t n,
                    int64_t k, std::vector<int64_t>* offsets) {
  const int64_t segments = PositionsNumSegments(n);
  offsets->resize(static_cast<size_t>(num_workers * segments));
  for (int64_t worker = 0; worker < num_workers; ++worker) {
    const uint32_t* const block = positions + worker * num_words;
    int64_t* const starts = offsets->data() + worker * segments;
    std::copy_n(block, segments, starts);
    for (int64_t segment = 0; segment < segments; ++segment) {
      if (starts[segment] > std::min(kSegmentItems, n - segment * kSegmentItems)) {
        return Status::InvalidArgument("positions block of worker " + std::to_string(worker) +
                                       ": segment " + std::to_string(segment) + " keeps " +
                                       std::to_string(starts[segment]) +
                                       " items, more than it has");
      }
    }
    const int64_t found = ExclusiveSum(starts, segments);
    if (found != k) return WrongCount(worker, found, k);
    if (k % 2 != 0 && block[num_words - 1] >> 16 != 0) {
      return Status::InvalidArgument("positions block of worker " + std::to_string(worker) +
                                     ": padding after the last index is not zero");
    }
  }
  return Status();
}

// Calls `move(kept item, dense item)` for the kept items of one segment, whose counts were checked.
// Returns false at the first index that is out of range or not ascending.
template <int kComponents, typename Move>
bool ForLocalSegment(const uint32_t* block, const int64_t* offsets, int64_t n, int64_t segment,
                     const float* kept, float* dense, const Move& move) {
  const int64_t first = segment * kSegmentItems;
  const int32_t size = static_cast<int32_t>(std::min(kSegmentItems, n - first));
  const int64_t count = block[segment];
  const unsigned char* indices = reinterpret_cast<const unsigned char*>(block) +
                                 PositionsNumSegments(n) * 4 + offsets[segment] * 2;
  kept += offsets[segment] * kComponents;
  dense += first * kComponents;
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

// ---- Sum and replace for a number of components ------------------------------------------------

template <int kComponents>
Status SumBitmaps(const uint32_t* positions, const float* kept, int64_t num_workers,
                  int64_t num_words, int64_t n, int64_t k, const ParallelFor& parallel_for,
                  float* sum) {
  std::vector<int64_t> offsets;
  Status status = BitmapOffsets(positions, num_workers, num_words, n, k, parallel_for, &offsets);
  if (!status.ok()) return status;
  const int64_t chunks = NumChunks(n);
  const int64_t cycles = kMoveCycles * (num_workers + 1);
  RunShards(parallel_for, chunks, cycles, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t first = chunk * kChunkItems;
      std::fill_n(sum + first * kComponents, std::min(kChunkItems, n - first) * kComponents, 0.0f);
      for (int64_t worker = 0; worker < num_workers; ++worker) {
        const int64_t offset = worker * k + offsets[worker * chunks + chunk];
        ForBitmapChunk<kComponents>(positions + worker * num_words, num_words, chunk,
                                    kept + offset * kComponents, sum, AddItem<kComponents>);
      }
    }
  });
  return Status();
}

template <int kComponents>
Status SumLocals(const uint32_t* positions, const float* kept, int64_t num_workers,
                 int64_t num_words, int64_t n, int64_t k, const ParallelFor& parallel_for,
                 float* sum) {
  std::vector<int64_t> offsets;
  Status status = LocalOffsets(positions, num_workers, num_words, n, k, &offsets);
  if (!status.ok()) return status;
  const int64_t segments = PositionsNumSegments(n);
  BadWorker bad;
  RunShards(parallel_for, segments, kSegmentCycles, [&](int64_t begin, int64_t end) {
    for (int64_t segment = begin; segment < end; ++segment) {
      const int64_t first = segment * kSegmentItems;
      std::fill_n(sum + first * kComponents, std::min(kSegmentItems, n - first) * kComponents,
                  0.0f);
      for (int64_t worker = 0; worker < num_workers; ++worker) {
        if (!ForLocalSegment<kComponents>(
                positions + worker * num_words, offsets.data() + worker * segments, n, segment,
                kept + worker * k * kComponents, sum, AddItem<kComponents>)) {
          bad.Report(worker);
        }
      }
    }
  });
  return bad.ToStatus(kBadIndices);
}

template <int kComponents>
Status ReplaceBitmap(const uint32_t* positions, const float* kept, int64_t num_words, int64_t n,
                     int64_t k, const ParallelFor& parallel_for, float* values) {
  std::vector<int64_t> offsets;
  Status status = BitmapOffsets(positions, 1, num_words, n, k, parallel_for, &offsets);
  if (!status.ok()) return status;
  RunShards(parallel_for, NumChunks(n), kMoveCycles, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      ForBitmapChunk<kComponents>(positions, num_words, chunk, kept + offsets[chunk] * kComponents,
                                  values, CopyItem<kComponents>);
    }
  });
  return Status();
}

template <int kComponents>
Status ReplaceLocal(const uint32_t* positions, const float* kept, int64_t num_words, int64_t n,
                    int64_t k, const ParallelFor& parallel_for, float* values) {
  std::vector<int64_t> offsets;
  Status status = LocalOffsets(positions, 1, num_words, n, k, &offsets);
  if (!status.ok()) return status;
  BadWorker bad;
  RunShards(parallel_for, PositionsNumSegments(n), kSegmentCycles, [&](int64_t begin, int64_t end) {
    for (int64_t segment = begin; segment < end; ++segment) {
      if (!ForLocalSegment<kComponents>(positions, offsets.data(), n, segment, kept, values,
                                        CopyItem<kComponents>)) {
        bad.Report(0);
      }
    }
  });
  return bad.ToStatus(kBadIndices);
}

}  // namespace

Status PositionsGather(const uint64_t* selected, const float* values, int64_t n, int components,
                       int64_t k, const ParallelFor& parallel_for, uint32_t* positions,
                       float* kept) {
  Status status = ValidateSizes(PositionsNumWords(n, k), n, components, k);
  if (!status.ok()) return status;
  const int64_t chunks = NumChunks(n);
  std::vector<int64_t> offsets(static_cast<size_t>(chunks));
  RunShards(parallel_for, chunks, kCountCycles, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t first = chunk * kChunkMasks;
      offsets[chunk] =
          CountBits(selected + first, std::min(kChunkMasks, SelectionWords(n) - first));
    }
  });
  const int64_t found = ExclusiveSum(offsets.data(), chunks);
  if (found != k) {
    return Status::InvalidArgument("selection has " + std::to_string(found) + " items, expected " +
                                   std::to_string(k));
  }
  if (PositionsUseLocal(n, k)) {
    const int64_t segments = PositionsNumSegments(n);
    for (int64_t segment = 0; segment < segments; ++segment) {
      const int64_t end = segment + 1 < segments ? offsets[(segment + 1) * kSegmentChunks] : k;
      positions[segment] = static_cast<uint32_t>(end - offsets[segment * kSegmentChunks]);
    }
    positions[PositionsNumWords(n, k) - 1] = 0;  // the padding, if k is odd
  }
  if (components == 1) {
    GatherAll<1>(selected, values, n, k, offsets.data(), parallel_for, positions, kept);
  } else {
    GatherAll<2>(selected, values, n, k, offsets.data(), parallel_for, positions, kept);
  }
  return Status();
}

Status PositionsSum(const uint32_t* positions, const float* kept, int64_t num_workers,
                    int64_t words_per_worker, int64_t n, int components, int64_t k,
                    const ParallelFor& parallel_for, float* sum) {
  Status status = ValidateSizes(words_per_worker, n, components, k);
  if (!status.ok()) return status;
  if (PositionsUseLocal(n, k)) {
    return components == 1 ? SumLocals<1>(positions, kept, num_workers, words_per_worker, n, k,
                                          parallel_for, sum)
                           : SumLocals<2>(positions, kept, num_workers, words_per_worker, n, k,
                                          parallel_for, sum);
  }
  return components == 1 ? SumBitmaps<1>(positions, kept, num_workers, words_per_worker, n, k,
                                         parallel_for, sum)
                         : SumBitmaps<2>(positions, kept, num_workers, words_per_worker, n, k,
                                         parallel_for, sum);
}

Status PositionsReplace(const uint32_t* positions, const float* kept, int64_t num_words, int64_t n,
                        int components, int64_t k, const ParallelFor& parallel_for, float* values) {
  Status status = ValidateSizes(num_words, n, components, k);
  if (!status.ok()) return status;
  if (PositionsUseLocal(n, k)) {
    return components == 1
               ? ReplaceLocal<1>(positions, kept, num_words, n, k, parallel_for, values)
               : ReplaceLocal<2>(positions, kept, num_words, n, k, parallel_for, values);
  }
  return components == 1 ? ReplaceBitmap<1>(positions, kept, num_words, n, k, parallel_for, values)
                         : ReplaceBitmap<2>(positions, kept, num_words, n, k, parallel_for, values);
}

}  // namespace gradcomp
