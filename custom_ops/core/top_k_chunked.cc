// SPDX-License-Identifier: Apache-2.0
#include "top_k_chunked.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "positions.h"
#include "scratch.h"
#include "top_k_keys.h"
#include "top_k_math.h"

namespace gradcomp {
namespace {

constexpr int64_t kCyclesPerItem = 2;

// The smallest key but that of zero, which may be the key of very many items.
constexpr uint32_t kSmallestKey = 1;
// How far apart the keys of a number and of its double are.
constexpr uint32_t kOctave = 1u << 23;
// The key of 2^-10: gradients are small.
constexpr uint32_t kFirstGuess = (127u - 10u) * kOctave;

// Passes over a chunk to find few enough candidates. A pass takes about as long as picking out one
// item in a hundred.
constexpr int kMaxPasses = 8;
constexpr int64_t kFewCandidates = 64;

// Selects in one chunk after the other. What was enough for one chunk is the first guess for the
// next; a bad guess costs time only.
class ChunkSelector {
 public:
  explicit ChunkSelector(const KeyedItems& items) : items_(items) {}

  // Marks the `count` largest of the items first .. first+size-1: bit i mod 64 of masks[i div 64]
  // belongs to item first + i.
  void Select(int64_t first, int64_t size, int64_t count, uint64_t* masks) {
    const uint32_t threshold = Threshold(first, size, count, masks);
    const int64_t reached = Mark(first, size, threshold, masks);
    if (reached > count) DropTies(first, size, threshold, reached - count, masks);
    if (threshold < kSmallestKey) return;  // a chunk of zeros tells nothing about the next
    // For normal values at a density of 1 %, this is five standard deviations of the threshold.
    const uint32_t margin = static_cast<uint32_t>(kOctave / std::sqrt(count));
    guess_ = std::max(threshold, margin + kSmallestKey) - margin;
  }

 private:
  // The `count`-th largest key: narrowed down until few items reach it or a little less, and then
  // found among these. `masks` is scratch space.
  uint32_t Threshold(int64_t first, int64_t size, int64_t count, uint64_t* masks) {
    uint32_t low = 0, high = kMaxRealKey + 1;  // enough items reach `low`, too few reach `high`
    uint32_t step = kOctave;
    uint32_t key = guess_;
    for (int pass = 0; pass < kMaxPasses && high - low > 1; ++pass, step *= 2) {
      const int64_t reached = Mark(first, size, key, masks);
      if (reached >= count) {
        if (reached <= 3 * count + kFewCandidates) return LargestMarked(first, size, count, masks);
        low = key;
        key += std::min(step, (high - low) / 2);
        continue;
      }
      high = key;
      if (low == 0) {
        if (Mark(first, size, kSmallestKey, masks) < count) return 0;
        low = kSmallestKey;
      }
      key -= std::min(step, (high - low) / 2);
    }
    if (high - low <= 1) return low;
    Mark(first, size, low, masks);
    return LargestMarked(first, size, count, masks);
  }

  // Marks the items of a key of at least `threshold`, and returns how many there are.
  int64_t Mark(int64_t first, int64_t size, uint32_t threshold, uint64_t* masks) const {
    uint32_t keys[kKeyTile];
    int64_t count = 0;
    for (int64_t i = 0; i < size; i += kKeyTile) {
      count += items_.MarkTile(first + i, std::min(kKeyTile, size - i), items_.values + first + i,
                               threshold, masks + i / 64, keys);
    }
    return count;
  }

  // The `rank`-th largest key of the marked items.
  uint32_t LargestMarked(int64_t first, int64_t size, int64_t rank, const uint64_t* masks) {
    keys_.clear();
    for (int64_t m = 0; m < SelectionWords(size); ++m) {
      for (uint64_t mask = masks[m]; mask != 0; mask &= mask - 1) {
        keys_.push_back(items_.KeyAt(first + m * 64 + __builtin_ctzll(mask)));
      }
    }
    return SelectLargest(keys_.data(), static_cast<int64_t>(keys_.size()), rank);
  }

  // Clears the marks of the last `surplus` items whose key is the threshold.
  void DropTies(int64_t first, int64_t size, uint32_t threshold, int64_t surplus, uint64_t* masks) {
    int64_t m = SelectionWords(size);
    above_.resize(static_cast<size_t>(m));
    Mark(first, size, threshold + 1, above_.data());
    while (surplus > 0) {
      --m;
      uint64_t ties = masks[m] & ~above_[m];
      for (int64_t kept = __builtin_popcountll(ties) - surplus; kept > 0; --kept) ties &= ties - 1;
      masks[m] &= ~ties;
      surplus -= __builtin_popcountll(ties);
    }
  }

  const KeyedItems& items_;
  uint32_t guess_ = kFirstGuess;  // a key that enough items of the next chunk may reach
  std::vector<uint32_t> keys_;
  std::vector<uint64_t> above_;
};

}  // namespace

Status TopKChunks::Validate(int64_t n) const {
  if (size < kMinTopKChunk || size > kMaxTopKChunk || (size & (size - 1)) != 0) {
    return Status::InvalidArgument("chunk must be a power of two from " +
                                   std::to_string(kMinTopKChunk) + " to " +
                                   std::to_string(kMaxTopKChunk) + ", got " + std::to_string(size));
  }
  if (n < 1) {
    return Status::InvalidArgument("there must be at least one item, got " + std::to_string(n));
  }
  if (count < 1 || count > size) {
    return Status::InvalidArgument("count must be in 1.." + std::to_string(size) +
                                   " (the items of a chunk), got " + std::to_string(count));
  }
  const int64_t rest = n % size;
  if (last_count < std::min<int64_t>(rest, 1) || last_count > rest) {
    return Status::InvalidArgument(
        "last_count must be in " + std::string(rest > 0 ? "1.." : "0..") + std::to_string(rest) +
        " (the items of the last chunk), got " + std::to_string(last_count));
  }
  return Status();
}

Status TopKChunkedSelect(const float* values, int64_t n, const TopKChunks& chunks,
                         const ParallelFor& parallel_for, uint32_t* positions, float* kept) {
  if (Status status = chunks.Validate(n); !status.ok()) return status;
  const std::unique_ptr<uint64_t[]> selected = AllocateScratch<uint64_t>(SelectionWords(n));
  if (!selected) return OutOfScratch();
  const KeyedItems items = {values, n, /*components=*/1, /*row_length=*/0};
  const int64_t num_chunks = (n + chunks.size - 1) / chunks.size;
  RunShards(parallel_for, num_chunks, kCyclesPerItem * chunks.size,
            [&](int64_t begin, int64_t end) {
              ChunkSelector selector(items);
              for (int64_t chunk = begin; chunk < end; ++chunk) {
                const int64_t first = chunk * chunks.size;
                const int64_t size = std::min(chunks.size, n - first);
                selector.Select(first, size, size == chunks.size ? chunks.count : chunks.last_count,
                                selected.get() + first / 64);
              }
            });
  return PositionsGather(selected.get(), values, n, /*components=*/1, chunks.NumKept(n),
                         parallel_for, positions, kept);
}

}  // namespace gradcomp
