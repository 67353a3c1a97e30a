// SPDX-License-Identifier: Apache-2.0
#include "positions_blocks.h"

#include <functional>
#include <string>

#include "item_shape.h"
#include "scratch.h"

namespace gradcomp {
namespace {

// Words of a bitmap whose bits are counted together, in the Elias-Fano layout: few, for the begin
// of every unit is sought in one of them.
constexpr int64_t kUpperChunkWords = 32;
constexpr int64_t kUpperChunkBits = 32 * kUpperChunkWords;

// Counts the set bits of all workers' bitmaps, in chunks of words. Those of a worker start at
// counts[worker * stride].
void CountChunks(const std::function<const uint32_t*(int64_t)>& bitmap_of, int64_t num_workers,
                 int64_t num_words, int64_t chunk_words, int64_t stride,
                 const ParallelFor& parallel_for, int64_t* counts) {
  const int64_t chunks = CeilDiv(num_words, chunk_words);
  RunShards(parallel_for, num_workers * chunks, chunk_words, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t worker = i / chunks, first = i % chunks * chunk_words;
      counts[worker * stride + i % chunks] =
          CountBits(bitmap_of(worker) + first, std::min(chunk_words, num_words - first));
    }
  });
}

// Items of a unit in the Elias-Fano layout: those of whole buckets, with about a thousand kept
// ones, to pay for finding where they start, but if possible no more than a second-level cache
// holds.
int64_t EliasFanoUnitItems(const EliasFanoShape& shape) {
  const int64_t bucket_items = int64_t{1} << shape.low_bits;
  return std::max(bucket_items, std::clamp<int64_t>(1024 * bucket_items, kPositionsChunkItems,
                                                    8 * kPositionsChunkItems));
}

// How many bits of `upper` are set before the `zeros`-th that is not. `set_before` tells it for
// each chunk.
int64_t SetBeforeZero(const uint32_t* upper, const int64_t* set_before, int64_t chunks,
                      int64_t zeros) {
  if (zeros == 0) return 0;
  // The last chunk that fewer zeros come before.
  int64_t chunk = 0;
  for (int64_t end = chunks; end - chunk > 1;) {
    const int64_t middle = (chunk + end) / 2;
    (middle * kUpperChunkBits - set_before[middle] < zeros ? chunk : end) = middle;
  }
  const int64_t left = zeros - (chunk * kUpperChunkBits - set_before[chunk]);
  const int64_t bit = BitAfterZero(upper + chunk * kUpperChunkWords, left);
  return chunk * kUpperChunkBits + bit - zeros;
}

Status BadBlock(int64_t worker, const std::string& what) {
  return Status::InvalidArgument("positions block of worker " + std::to_string(worker) + ": " +
                                 what);
}

Status WrongCount(int64_t worker, int64_t found, int64_t expected) {
  return BadBlock(
      worker, "it keeps " + std::to_string(found) + " items, expected " + std::to_string(expected));
}

}  // namespace

int64_t ExclusiveSum(int64_t* counts, int64_t size) {
  int64_t total = 0;
  for (int64_t i = 0; i < size; ++i) {
    const int64_t count = counts[i];
    counts[i] = total;
    total += count;
  }
  return total;
}

Status ValidatePositionsSizes(int64_t num_words, int64_t n, int components, int64_t k,
                              bool counted) {
  if (Status status = ValidateComponents(components); !status.ok()) return status;
  if (n < 0 || k < 0 || k > n) {
    return Status::InvalidArgument("need 0 <= k <= n, got k " + std::to_string(k) + ", n " +
                                   std::to_string(n));
  }
  if (counted && k > kPositionsMaxCapacity) {
    return Status::InvalidArgument("a counted positions block holds at most " +
                                   std::to_string(kPositionsMaxCapacity) + " items, got " +
                                   std::to_string(k));
  }
  if (num_words != PositionsNumWords(n, k, counted)) {
    return Status::InvalidArgument("positions block of " + std::to_string(k) + " of " +
                                   std::to_string(n) + " items must have " +
                                   std::to_string(PositionsNumWords(n, k, counted)) +
                                   " words, got " + std::to_string(num_words));
  }
  return Status();
}

Status PositionsBlocks::Init(const uint32_t* positions, int64_t num_workers, int64_t n, int64_t k,
                             bool counted, const ParallelFor& parallel_for) {
  positions_ = positions;
  num_workers_ = num_workers;
  num_words_ = PositionsNumWords(n, k);
  n_ = n;
  k_ = k;
  counted_ = counted;
  layout_ = PositionsLayoutOf(n, k);
  shape_ = EliasFanoShapeOf(n, k);
  unit_items_ = is_bitmap() ? kPositionsChunkItems : EliasFanoUnitItems(shape_);
  num_units_ = CeilDiv(n, unit_items_);
  for (int64_t worker = 0; worker < num_workers; ++worker) {
    if (CountOf(worker) > k) {
      return BadBlock(worker, "it keeps " + std::to_string(CountOf(worker)) +
                                  " items, more than its capacity of " + std::to_string(k));
    }
  }
  offsets_ = AllocateScratch<int64_t>(num_workers * (num_units_ + 1));
  if (!offsets_) return OutOfScratch();
  return is_bitmap() ? InitBitmaps(parallel_for) : InitEliasFano(parallel_for);
}

Status PositionsBlocks::InitBitmaps(const ParallelFor& parallel_for) {
  CountChunks([this](int64_t worker) { return BlockOf(worker); }, num_workers_, num_words_,
              kPositionsChunkWords, num_units_ + 1, parallel_for, offsets_.get());
  for (int64_t worker = 0; worker < num_workers_; ++worker) {
    int64_t* const offsets = OffsetsOf(worker);
    const int64_t found = offsets[num_units_] = ExclusiveSum(offsets, num_units_);
    if (found != CountOf(worker)) return WrongCount(worker, found, CountOf(worker));
    if (n_ % 32 != 0 && BlockOf(worker)[num_words_ - 1] >> (n_ % 32) != 0) {
      return BadBlock(worker, "bits beyond the last item are set");
    }
  }
  return Status();
}

Status PositionsBlocks::InitEliasFano(const ParallelFor& parallel_for) {
  const auto upper_of = [this](int64_t worker) { return BlockOf(worker) + shape_.low_words; };
  // Upper bits set before each chunk of them.
  const int64_t chunks = CeilDiv(shape_.upper_words, kUpperChunkWords);
  const std::unique_ptr<int64_t[]> set_before = AllocateScratch<int64_t>(num_workers_ * chunks);
  if (!set_before) return OutOfScratch();
  CountChunks(upper_of, num_workers_, shape_.upper_words, kUpperChunkWords, chunks, parallel_for,
              set_before.get());
  for (int64_t worker = 0; worker < num_workers_; ++worker) {
    const int64_t found = ExclusiveSum(set_before.get() + worker * chunks, chunks);
    const int64_t count = CountOf(worker);
    if (found != count) return WrongCount(worker, found, count);
    if (!IsZeroFrom(BlockOf(worker), shape_.low_words, count * shape_.low_bits)) {
      return BadBlock(worker, "low bits after those of the last item are set");
    }
  }
  // As many upper bits are not set as there are buckets, at least: each ends a bucket.
  const int64_t bounds = num_units_ + 1;
  RunShards(parallel_for, num_workers_ * bounds, kUpperChunkWords, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t buckets = BucketsBefore(i % bounds);
      const int64_t* const before = set_before.get() + i / bounds * chunks;
      offsets_[i] = SetBeforeZero(upper_of(i / bounds), before, chunks, buckets);
    }
  });
  for (int64_t worker = 0; worker < num_workers_; ++worker) {
    if (OffsetsOf(worker)[num_units_] != CountOf(worker)) {
      return BadBlock(worker, "upper bits beyond the last item are set");
    }
  }
  return Status();
}

}  // namespace gradcomp
