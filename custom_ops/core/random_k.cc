// SPDX-License-Identifier: Apache-2.0
#include "random_k.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "positions.h"

namespace gradcomp {
namespace {

// Items drawn at a time, into an array that stays in the first-level cache; a multiple of 128.
constexpr int64_t kTile = 1024;
// Items of a bitmap that one shard fills at a time: a multiple of 32.
constexpr int64_t kBitmapItems = 65536;

// Rough cycles to draw and to scale an item.
constexpr int64_t kDrawCycles = 8;
constexpr int64_t kScaleCycles = 2;

// The first item of consecutive strata. Each is a division, or one addition to the one before.
class StratumCursor {
 public:
  StratumCursor(int64_t stratum, int64_t n, int64_t k)
      : k_(k),
        quotient_(n / k),
        remainder_(n % k),
        begin_(StratumBegin(stratum, n, k)),
        fraction_(static_cast<int64_t>(static_cast<uint64_t>(stratum) *
                                       static_cast<uint64_t>(remainder_) %
                                       static_cast<uint64_t>(k))) {}

  int64_t begin() const { return begin_; }
  // Items of the stratum: n/k, and one more where the fractions of n/k add up to one.
  int64_t size() const { return quotient_ + (fraction_ + remainder_ >= k_ ? 1 : 0); }
  void Next() {
    begin_ += size();
    fraction_ += remainder_;
    if (fraction_ >= k_) fraction_ -= k_;
  }

 private:
  const int64_t k_;
  const int64_t quotient_;
  const int64_t remainder_;
  int64_t begin_;
  int64_t fraction_;  // j * n / k - floor(j * n / k), in units of 1/k
};

int64_t ItemOfStratum(const RandomKey& key, int64_t n, int64_t k, int64_t stratum) {
  const int64_t begin = StratumBegin(stratum, n, k);
  return begin + DrawnItem(RandomWord(stratum, key), StratumBegin(stratum + 1, n, k) - begin);
}

// How many of the drawn items lie before `item`. Of all strata, only the one that holds `item` can
// give one on either side.
int64_t DrawnBefore(const RandomKey& key, int64_t n, int64_t k, int64_t item) {
  if (item >= n) return k;
  const int64_t stratum = StratumOf(item, n, k);
  return stratum + (ItemOfStratum(key, n, k, stratum) < item ? 1 : 0);
}

// Calls `put(j, item)` for the drawn items begin .. end-1.
template <typename Put>
void ForDrawnItems(const RandomKey& key, int64_t n, int64_t k, int64_t begin, int64_t end,
                   const Put& put) {
  int64_t items[kTile];
  for (int64_t first = begin; first < end; first += kTile) {
    const int64_t count = std::min(kTile, end - first);
    RandomKItems(key, n, k, first, count, items);
    for (int64_t i = 0; i < count; ++i) put(first + i, items[i]);
  }
}

Status Validate(int64_t n, int64_t k) {
  if (n < 1 || n > kRandomKMaxItems) {
    return Status::InvalidArgument("size must be in 1.." + std::to_string(kRandomKMaxItems) +
                                   ", got " + std::to_string(n));
  }
  if (k < 1 || k > n) {
    return Status::InvalidArgument("count must be in 1.." + std::to_string(n) +
                                   " (the number of items), got " + std::to_string(k));
  }
  return Status();
}

void WriteLocal(const RandomKey& key, int64_t n, int64_t k, const ParallelFor& parallel_for,
                uint32_t* positions) {
  const int64_t segments = PositionsNumSegments(n);
  positions[PositionsNumWords(n, k) - 1] = 0;  // the padding, if k is odd
  unsigned char* const indices = reinterpret_cast<unsigned char*>(positions + segments);
  const int64_t cycles = kDrawCycles * (k / segments + 1);
  RunShards(parallel_for, segments, cycles, [&](int64_t first, int64_t last) {
    int64_t begin = DrawnBefore(key, n, k, first * kSegmentItems);
    for (int64_t segment = first; segment < last; ++segment) {
      const int64_t end = DrawnBefore(key, n, k, (segment + 1) * kSegmentItems);
      positions[segment] = static_cast<uint32_t>(end - begin);
      ForDrawnItems(key, n, k, begin, end, [&](int64_t j, int64_t item) {
        const uint16_t index = static_cast<uint16_t>(item % kSegmentItems);
        std::memcpy(indices + 2 * j, &index, sizeof(index));
      });
      begin = end;
    }
  });
}

void WriteBitmap(const RandomKey& key, int64_t n, int64_t k, const ParallelFor& parallel_for,
                 uint32_t* positions) {
  const int64_t parts = (n + kBitmapItems - 1) / kBitmapItems;
  const int64_t cycles = kDrawCycles * (k / parts + 1);
  RunShards(parallel_for, parts, cycles, [&](int64_t first, int64_t last) {
    const int64_t begin_item = first * kBitmapItems;
    const int64_t end_item = std::min(last * kBitmapItems, n);
    std::fill(positions + begin_item / 32, positions + (end_item + 31) / 32, 0u);
    const int64_t begin = DrawnBefore(key, n, k, begin_item);
    const int64_t end = DrawnBefore(key, n, k, end_item);
    ForDrawnItems(key, n, k, begin, end, [positions](int64_t, int64_t item) {
      positions[item / 32] |= uint32_t{1} << (item % 32);
    });
  });
}

}  // namespace

void RandomKItems(const RandomKey& key, int64_t n, int64_t k, int64_t first, int64_t count,
                  int64_t* items) {
  uint32_t words[kTile];
  StratumCursor stratum(first, n, k);
  while (count > 0) {
    const int64_t quad = first / 4 * 4;
    const int64_t size = std::min(count, kTile - (first - quad));
    RandomWords(key, quad, first - quad + size, words);
    for (int64_t i = 0; i < size; ++i, stratum.Next()) {
      items[i] = stratum.begin() + DrawnItem(words[first - quad + i], stratum.size());
    }
    first += size;
    count -= size;
    items += size;
  }
}

Status RandomKPositions(const RandomKey& key, int64_t n, int64_t k, const ParallelFor& parallel_for,
                        uint32_t* positions) {
  if (Status status = Validate(n, k); !status.ok()) return status;
  if (PositionsUseLocal(n, k)) {
    WriteLocal(key, n, k, parallel_for, positions);
  } else {
    WriteBitmap(key, n, k, parallel_for, positions);
  }
  return Status();
}

Status RandomKScale(const float* kept, int64_t n, int components, int64_t k,
                    const ParallelFor& parallel_for, float* scaled) {
  if (Status status = Validate(n, k); !status.ok()) return status;
  if (components != 1 && components != 2) {
    return Status::InvalidArgument("components must be 1 or 2, got " + std::to_string(components));
  }
  RunShards(parallel_for, k, kScaleCycles * components, [&](int64_t begin, int64_t end) {
    StratumCursor stratum(begin, n, k);
    for (int64_t j = begin; j < end; ++j, stratum.Next()) {
      const float size = static_cast<float>(stratum.size());
      for (int64_t i = j * components; i < (j + 1) * components; ++i) scaled[i] = kept[i] * size;
    }
  });
  return Status();
}

}  // namespace gradcomp
