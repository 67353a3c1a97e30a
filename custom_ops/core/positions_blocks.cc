// SPDX-License-Identifier: Apache-2.0
#include "positions_blocks.h"

#include <string>

#include "scratch.h"

namespace gradcomp {
namespace {

GRADCOMP_MULTIVERSION
int64_t CountBitsInWords(const uint32_t* words, int64_t size) {
  int64_t count = 0;
  for (int64_t i = 0; i < size; ++i) count += __builtin_popcount(words[i]);
  return count;
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
  if (components != 1 && components != 2) {
    return Status::InvalidArgument("components must be 1 or 2, got " + std::to_string(components));
  }
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
  local_ = PositionsUseLocal(n, k);
  num_units_ = local_ ? PositionsNumSegments(n) : PositionsNumChunks(n);
  for (int64_t worker = 0; worker < num_workers; ++worker) {
    if (CountOf(worker) > k) {
      return BadBlock(worker, "it keeps " + std::to_string(CountOf(worker)) +
                                  " items, more than its capacity of " + std::to_string(k));
    }
  }
  offsets_ = AllocateScratch<int64_t>(num_workers * num_units_);
  if (!offsets_) return OutOfScratch();
  return local_ ? InitLocals() : InitBitmaps(parallel_for);
}

Status PositionsBlocks::InitBitmaps(const ParallelFor& parallel_for) {
  constexpr int64_t kChunkWords = kPositionsChunkItems / 32;
  RunShards(parallel_for, num_workers_ * num_units_, kPositionsCountCycles,
            [&](int64_t begin, int64_t end) {
              for (int64_t i = begin; i < end; ++i) {
                const int64_t first = i % num_units_ * kChunkWords;
                offsets_[i] = CountBitsInWords(BlockOf(i / num_units_) + first,
                                               std::min(kChunkWords, num_words_ - first));
              }
            });
  for (int64_t worker = 0; worker < num_workers_; ++worker) {
    const int64_t found = ExclusiveSum(offsets_.get() + worker * num_units_, num_units_);
    if (found != CountOf(worker)) return WrongCount(worker, found, CountOf(worker));
    if (n_ % 32 != 0 && BlockOf(worker)[num_words_ - 1] >> (n_ % 32) != 0) {
      return BadBlock(worker, "bits beyond the last item are set");
    }
  }
  return Status();
}

Status PositionsBlocks::InitLocals() {
  for (int64_t worker = 0; worker < num_workers_; ++worker) {
    const uint32_t* const block = BlockOf(worker);
    int64_t* const starts = offsets_.get() + worker * num_units_;
    std::copy_n(block, num_units_, starts);
    for (int64_t segment = 0; segment < num_units_; ++segment) {
      if (starts[segment] > std::min(kSegmentItems, n_ - segment * kSegmentItems)) {
        return BadBlock(worker, "segment " + std::to_string(segment) + " keeps " +
                                    std::to_string(starts[segment]) + " items, more than it has");
      }
    }
    const int64_t count = CountOf(worker);
    const int64_t found = ExclusiveSum(starts, num_units_);
    if (found != count) return WrongCount(worker, found, count);
    // The unused half of a word, then whole words.
    uint32_t unused = count % 2 != 0 ? block[num_units_ + count / 2] >> 16 : 0;
    for (int64_t i = num_units_ + (count + 1) / 2; i < num_words_; ++i) unused |= block[i];
    if (unused != 0) return BadBlock(worker, "padding after the last index is not zero");
  }
  return Status();
}

}  // namespace gradcomp
