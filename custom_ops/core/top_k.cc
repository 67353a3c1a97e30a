// SPDX-License-Identifier: Apache-2.0
#include "top_k.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "marked_items.h"
#include "scratch.h"
#include "top_k_keys.h"
#include "top_k_math.h"

namespace gradcomp {
namespace {

// Half the width of the bracket in standard deviations of a sample's rank.
constexpr double kBracketDeviations = 4.0;

constexpr int64_t kSampleCycles = 40;

constexpr uint32_t kMaxKey = kMaxEnergyKey;

// Keys lo..hi, both included.
struct Bracket {
  uint32_t lo;
  uint32_t hi;
};

// ---- Where to look --------------------------------------------------------------------------

// Keys between which the k-th largest very probably lies, judged by a sample. The items need not
// have been added up yet.
Bracket SampleBracket(const KeyedItems& items, const PendingSum& pending, int64_t k,
                      const ParallelFor& parallel_for) {
  const int64_t n = items.n;
  if (n <= 2 * kTopKSampleSize) return {0, kMaxKey};
  std::vector<uint32_t> sample(kTopKSampleSize);
  RunShards(parallel_for, kTopKSampleSize, kSampleCycles, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      sample[i] = pending.KeyAt(items, TopKSampleItem(i, n));
    }
  });
  const double share = static_cast<double>(k) / static_cast<double>(n);
  const double rank = share * kTopKSampleSize;
  const double margin = 2.0 + kBracketDeviations * std::sqrt(rank * (1.0 - share));
  const int64_t upper = static_cast<int64_t>(rank - margin);
  const int64_t lower = static_cast<int64_t>(rank + margin) + 1;
  Bracket bracket = {0, kMaxKey};
  if (upper >= 1) bracket.hi = SelectLargest(sample.data(), kTopKSampleSize, upper);
  if (lower <= kTopKSampleSize) bracket.lo = SelectLargest(sample.data(), kTopKSampleSize, lower);
  // A key that very many items share (zero, as a rule) can only be a bound, not lie between: leave
  // the bounds out, lest all those items become candidates.
  if (bracket.hi > bracket.lo) --bracket.hi;
  if (bracket.hi > bracket.lo) ++bracket.lo;
  return bracket;
}

// ---- One pass over the items -------------------------------------------------------------------

// What a pass found in a chunk.
struct Counts {
  int64_t above = 0;   // keys > hi
  int64_t inside = 0;  // keys in the bracket
  int64_t ties = 0;    // of these, keys equal to the threshold
};

// Marks the items of a chunk that may be selected: those that reach the bracket. If it is a single
// key, very many may have it, and only those above it are marked.
bool ScanChunk(const PendingSum& pending, int64_t chunk, const Bracket& bracket,
               MarkedItems* marked, Counts* counts) {
  if (bracket.lo == bracket.hi) {
    if (!marked->Mark(pending, chunk, bracket.hi + 1, &counts->inside)) return false;
    counts->above = marked->count(chunk);
    return true;
  }
  if (!marked->Mark(pending, chunk, bracket.lo)) return false;
  const int64_t count = marked->count(chunk);
  int64_t above = 0;
  for (int64_t i = 0; i < count; ++i) above += marked->Key(chunk, i) > bracket.hi;
  counts->above = above;
  counts->inside = count - above;
  return true;
}

// Scans until the bracket holds the k-th largest key, in three passes at most: after a miss, the
// one key next to the bracket is tried, then all keys beyond that. Adds the items up on the way.
// Stores the number of keys above the bracket.
Status ScanUntilBracketed(const PendingSum& unscanned, int64_t k, const ParallelFor& parallel_for,
                          Bracket* bracket, MarkedItems* marked, std::vector<Counts>* counts,
                          int64_t* num_above) {
  PendingSum pending = unscanned;
  for (int pass = 1;; ++pass) {
    std::atomic<bool> has_memory{true};
    RunShards(parallel_for, marked->num_chunks(), MarkedItems::kScanCycles,
              [&](int64_t begin, int64_t end) {
                for (int64_t chunk = begin; chunk < end; ++chunk) {
                  if (!ScanChunk(pending, chunk, *bracket, marked, &(*counts)[chunk])) {
                    has_memory.store(false, std::memory_order_relaxed);
                  }
                }
              });
    if (!has_memory) return OutOfScratch();
    pending = PendingSum(pending.total());
    int64_t above = 0, inside = 0;
    for (const Counts& chunk : *counts) {
      above += chunk.above;
      inside += chunk.inside;
    }
    if (above >= k) {
      const uint32_t next = bracket->hi + 1;
      *bracket = {next, pass == 1 ? next : kMaxKey};
    } else if (above + inside < k) {
      const uint32_t next = bracket->lo - 1;
      *bracket = {pass == 1 ? next : 0, next};
    } else {
      *num_above = above;
      return Status();
    }
  }
}

// ---- From the bracket to the selection ---------------------------------------------------------

// Finds the `rank`-th largest key inside the bracket. Counts the ties of every chunk, and in
// `*above` the keys in the bracket that are larger.
Status FindThreshold(const Bracket& bracket, int64_t rank, const MarkedItems& marked,
                     const ParallelFor& parallel_for, std::vector<Counts>* counts,
                     uint32_t* threshold_out, int64_t* above) {
  *above = 0;
  if (bracket.lo == bracket.hi) {
    for (Counts& chunk : *counts) chunk.ties = chunk.inside;
    *threshold_out = bracket.lo;
    return Status();
  }
  std::vector<int64_t> offsets(counts->size());
  int64_t num_inside = 0;
  for (size_t chunk = 0; chunk < counts->size(); ++chunk) {
    offsets[chunk] = num_inside;
    num_inside += (*counts)[chunk].inside;
  }
  const std::unique_ptr<uint32_t[]> keys = AllocateScratch<uint32_t>(num_inside);
  if (!keys) return OutOfScratch();
  RunShards(parallel_for, marked.num_chunks(), MarkedItems::kFilterCycles,
            [&](int64_t begin, int64_t end) {
              for (int64_t chunk = begin; chunk < end; ++chunk) {
                uint32_t* next = keys.get() + offsets[chunk];
                const int64_t count = (*counts)[chunk].inside > 0 ? marked.count(chunk) : 0;
                for (int64_t i = 0; i < count; ++i) {
                  const uint32_t key = marked.Key(chunk, i);
                  if (key <= bracket.hi) *next++ = key;
                }
              }
            });
  const uint32_t threshold = SelectLargest(keys.get(), num_inside, rank);
  const uint32_t* key = keys.get();
  for (Counts& chunk : *counts) {
    int64_t num_above = 0, num_ties = 0;
    for (int64_t i = 0; i < chunk.inside; ++i, ++key) {
      num_above += *key > threshold;
      num_ties += *key == threshold;
    }
    chunk.ties = num_ties;
    *above += num_above;
  }
  *threshold_out = threshold;
  return Status();
}

// Leaves the selected items of a chunk marked: keys above the threshold, and the first `ties` of
// those equal to it. False if there was no memory.
bool ResolveChunk(const KeyedItems& items, const Bracket& bracket, uint32_t threshold, int64_t ties,
                  int64_t chunk, MarkedItems* marked) {
  if (bracket.lo == bracket.hi) {
    if (ties == 0) return true;
    if (!marked->Mark(PendingSum(items.values), chunk, threshold)) return false;
  }
  marked->Filter(chunk, [threshold, &ties](uint32_t key) {
    const bool is_tie = key == threshold;
    const bool is_selected = (key > threshold) | (is_tie & (ties > 0));
    ties -= is_tie;
    return is_selected;
  });
  return true;
}

Status Validate(const KeyedItems& items, int64_t k) {
  if (Status status = items.Validate(); !status.ok()) return status;
  if (k < 1 || k > items.n) {
    return Status::InvalidArgument("count must be in 1.." + std::to_string(items.n) +
                                   " (the number of items), got " + std::to_string(k));
  }
  return Status();
}

}  // namespace

Status TopKSelect(const float* values, const float* residual, int64_t n, int components,
                  int64_t row_length, int64_t k, const ParallelFor& parallel_for,
                  uint32_t* positions, float* kept, float* sum) {
  PendingSum pending(values, residual, sum, n * components);
  KeyedItems items = {pending.total(), n, components, row_length};
  if (Status status = Validate(items, k); !status.ok()) return status;
  if (Status status = items.ComputeWideKeys(&pending, parallel_for); !status.ok()) return status;
  MarkedItems marked(items);
  if (Status status = marked.Init(); !status.ok()) return status;
  std::vector<Counts> counts(static_cast<size_t>(marked.num_chunks()));

  Bracket bracket = SampleBracket(items, pending, k, parallel_for);
  int64_t above_bracket = 0, above_threshold = 0;
  Status status =
      ScanUntilBracketed(pending, k, parallel_for, &bracket, &marked, &counts, &above_bracket);
  if (!status.ok()) return status;
  uint32_t threshold = 0;
  status = FindThreshold(bracket, k - above_bracket, marked, parallel_for, &counts, &threshold,
                         &above_threshold);
  if (!status.ok()) return status;

  // Ties go to the lowest index: a chunk gets what the chunks before it left over.
  std::vector<int64_t> ties(counts.size());
  int64_t ties_left = k - above_bracket - above_threshold;
  for (size_t chunk = 0; chunk < counts.size(); ++chunk) {
    ties[chunk] = std::min(ties_left, counts[chunk].ties);
    ties_left -= ties[chunk];
  }
  std::atomic<bool> has_memory{true};
  RunShards(parallel_for, marked.num_chunks(), MarkedItems::kFilterCycles,
            [&](int64_t begin, int64_t end) {
              for (int64_t chunk = begin; chunk < end; ++chunk) {
                if (!ResolveChunk(items, bracket, threshold, ties[chunk], chunk, &marked)) {
                  has_memory.store(false, std::memory_order_relaxed);
                }
              }
            });
  if (!has_memory) return OutOfScratch();
  return marked.Write(k, /*counted=*/false, parallel_for, positions, kept);
}

}  // namespace gradcomp
