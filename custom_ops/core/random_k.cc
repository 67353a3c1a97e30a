// SPDX-License-Identifier: Apache-2.0
#include "random_k.h"

#include <algorithm>
#include <string>

#include "item_shape.h"
#include "positions.h"
#include "positions_bits.h"
#include "positions_elias_fano.h"

namespace gradcomp {
namespace {

// Items drawn at a time, into an array that stays in the first-level cache; a multiple of 128.
constexpr int64_t kTile = 1024;
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

// Writes the positions of the kept items first .. first+count-1 to a block that was zeros before.
void WritePositions(const int64_t* drawn, int64_t n, int64_t k, int64_t first, int64_t count,
                    uint32_t* block) {
  if (PositionsLayoutOf(n, k) == PositionsLayout::kBitmap) {
    BitSetter bitmap(block);
    for (int64_t i = 0; i < count; ++i) bitmap.Or(drawn[i], 1);
  } else {
    EliasFanoWriter writer(EliasFanoShapeOf(n, k), first, block);
    for (int64_t i = 0; i < count; ++i) writer.Write(drawn[i]);
  }
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
  std::fill_n(positions, PositionsNumWords(n, k), 0u);
  const int64_t tiles = (k + kTile - 1) / kTile;
  RunShards(parallel_for, tiles, kDrawCycles * kTile, [&](int64_t begin, int64_t end) {
    int64_t drawn[kTile];
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t first = tile * kTile;
      const int64_t count = std::min(kTile, k - first);
      RandomKItems(key, n, k, first, count, drawn);
      WritePositions(drawn, n, k, first, count, positions);
    }
  });
  return Status();
}

Status RandomKScale(const float* kept, int64_t n, int components, int64_t k,
                    const ParallelFor& parallel_for, float* scaled) {
  if (Status status = Validate(n, k); !status.ok()) return status;
  if (Status status = ValidateComponents(components); !status.ok()) return status;
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
