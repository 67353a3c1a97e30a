// SPDX-License-Identifier: Apache-2.0
#include "top_k.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "multiversion.h"
#include "positions.h"
#include "scratch.h"
#include "top_k_keys.h"
#include "top_k_math.h"

namespace gradcomp {
namespace {

// Items in a unit of parallel work; a multiple of the tile.
constexpr int64_t kChunkItems = 8192;
// Items whose keys are computed at a time, into an array that stays in the first-level cache.
constexpr int64_t kTile = 1024;
constexpr int64_t kTileMasks = kTile / 64;

// Half the width of the bracket in standard deviations of a sample's rank.
constexpr double kBracketDeviations = 4.0;

constexpr int64_t kScanCycles = kChunkItems * 2;
constexpr int64_t kResolveCycles = kChunkItems / 16;
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

// What a pass found in some items.
struct Counts {
  int64_t above = 0;   // keys > hi
  int64_t inside = 0;  // keys in the bracket
  int64_t ties = 0;    // of these, keys equal to the threshold
};

// A key in a bracket of several, and where in its chunk it is.
struct Candidate {
  uint32_t key;
  uint16_t item;
};

GRADCOMP_ALWAYS_INLINE uint32_t KeyOf(uint32_t key) { return key; }
GRADCOMP_ALWAYS_INLINE uint32_t KeyOf(float value) { return RealKey(value); }

// Compares 64 * num_masks keys, or those of real items, with a bracket: one bit a key, and how many
// bits are set.
template <typename T>
GRADCOMP_ALWAYS_INLINE void Compare(const T* keys, int64_t num_masks, const Bracket& bracket,
                                    uint64_t* above, uint64_t* inside, Counts* counts) {
  const uint32_t lo = bracket.lo, hi = bracket.hi;
  int64_t num_above = 0, num_inside = 0;
  for (int64_t m = 0; m < num_masks; ++m, keys += 64) {
    uint8_t is_above[64], is_inside[64];
    for (int i = 0; i < 64; ++i) {
      const uint32_t key = KeyOf(keys[i]);
      is_above[i] = key > hi;
      is_inside[i] = key - lo <= hi - lo;
    }
    above[m] = PackFlags(is_above);
    inside[m] = PackFlags(is_inside);
    num_above += __builtin_popcountll(above[m]);
    num_inside += __builtin_popcountll(inside[m]);
  }
  counts->above += num_above;
  counts->inside += num_inside;
}

GRADCOMP_MULTIVERSION
void CompareKeys(const uint32_t* keys, int64_t num_masks, const Bracket& bracket, uint64_t* above,
                 uint64_t* inside, Counts* counts) {
  Compare(keys, num_masks, bracket, above, inside, counts);
}

GRADCOMP_MULTIVERSION
void CompareValues(const float* values, int64_t num_masks, const Bracket& bracket, uint64_t* above,
                   uint64_t* inside, Counts* counts) {
  Compare(values, num_masks, bracket, above, inside, counts);
}

// The state of a selection. `above` has a bit for each item above the bracket. The items inside are
// in `inside`, the same, if the bracket is a single key, and otherwise are their chunk's
// candidates.
struct Selection {
  std::unique_ptr<uint64_t[]> above;
  std::unique_ptr<uint64_t[]> inside;
  std::vector<Counts> counts;                            // of each chunk
  std::vector<std::unique_ptr<Candidate[]>> candidates;  // of each chunk, counts.inside of them
  std::atomic<bool> is_out_of_scratch{false};

  int64_t num_chunks() const { return static_cast<int64_t>(counts.size()); }
};

void ScanChunk(const KeyedItems& items, const PendingSum& pending, int64_t chunk,
               const Bracket& bracket, Candidate* found, Selection* selection) {
  Counts counts;
  const int64_t chunk_begin = chunk * kChunkItems;
  const int64_t chunk_end = std::min(chunk_begin + kChunkItems, items.n);
  const bool is_one_key = bracket.lo == bracket.hi;
  Candidate* candidate = found;
  uint32_t keys[kTile];
  uint64_t tile_inside[kTileMasks];
  for (int64_t first = chunk_begin; first < chunk_end; first += kTile) {
    const int64_t size = std::min(kTile, chunk_end - first);
    const int64_t num_masks = (size + 63) / 64;
    uint64_t* const inside = is_one_key ? selection->inside.get() + first / 64 : tile_inside;
    uint64_t* const above = selection->above.get() + first / 64;
    pending.Add(first * items.components, size * items.components);
    // Whole tiles of real items need no room for their keys.
    const bool has_values = items.components == 1 && size == kTile;
    if (has_values) {
      CompareValues(items.values + first, num_masks, bracket, above, inside, &counts);
    } else {
      items.Keys(first, size, keys);
      // Fills up the last mask of all with items that are never selected: none ranks lower, as they
      // have the smallest key and come last.
      std::fill(keys + size, keys + num_masks * 64, 0);
      CompareKeys(keys, num_masks, bracket, above, inside, &counts);
    }
    if (is_one_key) continue;
    for (int64_t m = 0; m < num_masks; ++m) {
      for (uint64_t mask = inside[m]; mask != 0; mask &= mask - 1) {
        const int64_t item = m * 64 + __builtin_ctzll(mask);
        *candidate++ = {has_values ? RealKey(items.values[first + item]) : keys[item],
                        static_cast<uint16_t>(first - chunk_begin + item)};
      }
    }
  }
  selection->counts[chunk] = counts;
  if (is_one_key || counts.inside == 0) return;
  // As many as there are: room for all items would cost more in page faults than the pass.
  std::unique_ptr<Candidate[]>& kept = selection->candidates[chunk];
  kept = AllocateScratch<Candidate>(counts.inside);
  if (!kept) {
    selection->is_out_of_scratch = true;
    return;
  }
  std::copy(found, candidate, kept.get());
}

// Scans until the bracket holds the k-th largest key, in three passes at most: after a miss, the
// one key next to the bracket is tried, then all keys beyond that. Adds the items up on the way.
// Returns the number of keys above the bracket.
int64_t ScanUntilBracketed(const KeyedItems& items, PendingSum pending, int64_t k,
                           const ParallelFor& parallel_for, Bracket* bracket,
                           Selection* selection) {
  for (int pass = 1;; ++pass) {
    if (bracket->lo == bracket->hi && !selection->inside) {
      selection->inside = AllocateScratch<uint64_t>(SelectionWords(items.n));
      if (!selection->inside) selection->is_out_of_scratch = true;
    }
    if (selection->is_out_of_scratch) return 0;
    RunShards(parallel_for, selection->num_chunks(), kScanCycles, [&](int64_t begin, int64_t end) {
      Candidate found[kChunkItems];
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        ScanChunk(items, pending, chunk, *bracket, found, selection);
      }
    });
    pending = {};
    int64_t above = 0, inside = 0;
    for (const Counts& counts : selection->counts) {
      above += counts.above;
      inside += counts.inside;
    }
    if (above >= k) {
      const uint32_t next = bracket->hi + 1;
      *bracket = {next, pass == 1 ? next : kMaxKey};
    } else if (above + inside < k) {
      const uint32_t next = bracket->lo - 1;
      *bracket = {pass == 1 ? next : 0, next};
    } else {
      return above;
    }
  }
}

// ---- From the bracket to the selection ---------------------------------------------------------

// The `rank`-th largest key inside the bracket. Counts the ties of every chunk, and in `*above` the
// keys in the bracket that are larger.
uint32_t Threshold(const Bracket& bracket, int64_t rank, Selection* selection, int64_t* above) {
  *above = 0;
  if (bracket.lo == bracket.hi) {
    for (Counts& counts : selection->counts) counts.ties = counts.inside;
    return bracket.lo;
  }
  std::vector<uint32_t> keys;
  for (int64_t chunk = 0; chunk < selection->num_chunks(); ++chunk) {
    const Candidate* const candidates = selection->candidates[chunk].get();
    for (int64_t i = 0; i < selection->counts[chunk].inside; ++i) {
      keys.push_back(candidates[i].key);
    }
  }
  const uint32_t threshold = SelectLargest(keys.data(), static_cast<int64_t>(keys.size()), rank);
  const uint32_t* key = keys.data();
  for (Counts& counts : selection->counts) {
    int64_t num_above = 0, num_ties = 0;
    for (int64_t i = 0; i < counts.inside; ++i, ++key) {
      num_above += *key > threshold;
      num_ties += *key == threshold;
    }
    counts.ties = num_ties;
    *above += num_above;
  }
  return threshold;
}

// Adds to the items above the bracket those of one chunk that are in it and selected: keys above
// the threshold, and the first `ties` of those equal to it.
void ResolveCandidates(uint32_t threshold, int64_t ties, int64_t chunk, Selection* selection) {
  const Candidate* const candidates = selection->candidates[chunk].get();
  uint64_t* const masks = selection->above.get() + chunk * (kChunkItems / 64);
  for (int64_t i = 0; i < selection->counts[chunk].inside; ++i) {
    const auto& [key, item] = candidates[i];
    const bool is_tie = key == threshold;
    const bool is_selected = (key > threshold) | (is_tie & (ties > 0));
    ties -= is_tie;
    masks[item / 64] |= uint64_t{is_selected} << (item % 64);
  }
}

// The same for a bracket of one key, where everything inside is a tie.
void ResolveTies(int64_t ties, int64_t chunk, int64_t num_masks, Selection* selection) {
  const int64_t first = chunk * (kChunkItems / 64);
  const int64_t last = std::min(first + kChunkItems / 64, num_masks);
  for (int64_t m = first; m < last && ties > 0; ++m) {
    uint64_t left = selection->inside[m];
    const int64_t count = __builtin_popcountll(left);
    if (count <= ties) {
      left = 0;
    } else {
      for (int64_t i = 0; i < ties; ++i) left &= left - 1;
    }
    selection->above[m] |= selection->inside[m] & ~left;
    ties -= count;
  }
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
  PendingSum pending;
  if (residual != nullptr) pending = {values, residual, sum};
  KeyedItems items = {residual != nullptr ? sum : values, n, components, row_length};
  if (Status status = Validate(items, k); !status.ok()) return status;
  if (Status status = items.ComputeWideKeys(&pending, parallel_for); !status.ok()) return status;
  const int64_t num_chunks = (n + kChunkItems - 1) / kChunkItems;
  const int64_t num_masks = SelectionWords(n);
  Selection selection;
  selection.above = AllocateScratch<uint64_t>(num_masks);
  if (!selection.above) return OutOfScratch();
  selection.counts.resize(static_cast<size_t>(num_chunks));
  selection.candidates.resize(static_cast<size_t>(num_chunks));

  Bracket bracket = SampleBracket(items, pending, k, parallel_for);
  const int64_t above_bracket =
      ScanUntilBracketed(items, pending, k, parallel_for, &bracket, &selection);
  if (selection.is_out_of_scratch) return OutOfScratch();
  int64_t above_threshold = 0;
  const uint32_t threshold = Threshold(bracket, k - above_bracket, &selection, &above_threshold);

  // Ties go to the lowest index: a chunk gets what the chunks before it left over.
  std::vector<int64_t> ties(static_cast<size_t>(num_chunks));
  int64_t ties_left = k - above_bracket - above_threshold;
  for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
    ties[chunk] = ties_left;
    ties_left = std::max<int64_t>(0, ties_left - selection.counts[chunk].ties);
  }
  RunShards(parallel_for, num_chunks, kResolveCycles, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      if (bracket.lo == bracket.hi) {
        ResolveTies(ties[chunk], chunk, num_masks, &selection);
      } else {
        ResolveCandidates(threshold, ties[chunk], chunk, &selection);
      }
    }
  });
  return PositionsGather(selection.above.get(), items.values, n, components, k, parallel_for,
                         positions, kept);
}

}  // namespace gradcomp
