// SPDX-License-Identifier: Apache-2.0
// Positions blocks: which k of n items a payload holds (FORMAT.md, section "Positions block"), and
// the operations that move items to and from them.
//
// Everywhere: n items of `components` floats each (item_shape.h), contiguous; `kept` holds the k
// items in ascending order of position; a block has PositionsNumWords(n, k) words. Floats are moved
// as bits, so denormals and NaN patterns survive, except in a sum.
//
// A counted block (FORMAT.md, section "Counted positions block") has room for k items and says in
// its first word how many of them it holds: its number of words still depends on n and k alone. The
// floats of `kept` after those items are unused: +0 where they are written, ignored where read.

#ifndef GRADCOMP_CORE_POSITIONS_H_
#define GRADCOMP_CORE_POSITIONS_H_

#include <cstdint>

#include "ceil_div.h"
#include "parallel.h"
#include "status.h"

namespace gradcomp {

// What a counted block has room for at most: its count is one word.
constexpr int64_t kPositionsMaxCapacity = 0xffffffff;

// Sizes do not overflow for any n and k: they are compared with what was received.
inline int64_t PositionsBitmapWords(int64_t n) { return CeilDiv(n, 32); }

// The Elias-Fano layout of room for k of n items: the low bits of every position, then the rest of
// them, their bucket, as a bitmap of gaps.
struct EliasFanoShape {
  int low_bits;  // of a position, 0..31
  int64_t buckets;
  int64_t low_words;
  int64_t upper_words;

  int64_t num_words() const { return low_words + upper_words; }
};

inline EliasFanoShape EliasFanoShapeOf(int64_t n, int64_t k) {
  if (k < 0) k = 0;  // of an argument that will be refused
  EliasFanoShape shape;
  shape.low_bits = 0;  // floor(log2(n / k))
  const int64_t items_per_kept = n / (k > 0 ? k : 1);
  while (shape.low_bits < 31 && items_per_kept >> shape.low_bits > 1) ++shape.low_bits;
  shape.buckets = CeilDiv(n, int64_t{1} << shape.low_bits);
  shape.low_words = CeilDiv(k * shape.low_bits, 32);  // at most n bits, or none if k > n
  shape.upper_words = k / 32 + shape.buckets / 32 + CeilDiv(k % 32 + shape.buckets % 32, 32);
  return shape;
}

enum class PositionsLayout { kBitmap, kEliasFano };

// The layout of the block of k of n items: Elias-Fano, which takes longer to read, if that saves
// more than a third of the bitmap.
inline PositionsLayout PositionsLayoutOf(int64_t n, int64_t k) {
  return 3 * EliasFanoShapeOf(n, k).num_words() < 2 * PositionsBitmapWords(n)
             ? PositionsLayout::kEliasFano
             : PositionsLayout::kBitmap;
}

// Words of the positions block of k of n items.
inline int64_t PositionsNumWords(int64_t n, int64_t k, bool counted = false) {
  return (counted ? 1 : 0) + (PositionsLayoutOf(n, k) == PositionsLayout::kBitmap
                                  ? PositionsBitmapWords(n)
                                  : EliasFanoShapeOf(n, k).num_words());
}

// 64-bit words of a selection mask of n items: bit i mod 64 of word i div 64 belongs to item i.
inline int64_t SelectionWords(int64_t n) { return CeilDiv(n, 64); }

// Writes the block of a selection, and the items it keeps.
//
//   selected   [SelectionWords(n)] exactly k bits set (at most k if counted), none from n on.
//   values     [n, components], or null if the caller has the kept items elsewhere.
//   positions  [PositionsNumWords(n, k, counted)], every word is written.
//   kept       [k, components], every float is written; without values, only those of a counted
//              block for which there are no items.
//
// Errors: InvalidArgument for a wrong number of set bits, or a counted k above
// kPositionsMaxCapacity; ResourceExhausted without memory for a byte for every 1024 items. Nothing
// is written then.
Status PositionsGather(const uint64_t* selected, const float* values, int64_t n, int components,
                       int64_t k, const ParallelFor& parallel_for, uint32_t* positions, float* kept,
                       bool counted = false);

// The dense sum over workers: sum[i] = (+0 + worker 0's item i) + worker 1's item i + ..., in
// float32 and in this order, so the bits depend on nothing else. Items a worker did not keep add
// nothing.
//
//   positions  [num_workers, words_per_worker], words_per_worker = PositionsNumWords(n, k, counted)
//   kept       [num_workers, k, components]
//   sum        [n, components], every float is written unless there is an error.
//
// Errors: InvalidArgument for a block that no encoder writes (wrong count, index out of range or
// not ascending, padding not zero) or a wrong size; ResourceExhausted without memory for at most
// eight times the positions. Never accesses memory outside the arrays.
Status PositionsSum(const uint32_t* positions, const float* kept, int64_t num_workers,
                    int64_t words_per_worker, int64_t n, int components, int64_t k,
                    const ParallelFor& parallel_for, float* sum, bool counted = false);

// Overwrites the items at the positions: values[position j] = kept[j].
//
//   values     [n, components], changed in place; the other items stay as they are.
//   positions  [num_words], num_words = PositionsNumWords(n, k, counted)
//   kept       [k, components]
//
// Errors: as PositionsSum; after an error, which items were overwritten is not defined.
Status PositionsReplace(const uint32_t* positions, const float* kept, int64_t num_words, int64_t n,
                        int components, int64_t k, const ParallelFor& parallel_for, float* values,
                        bool counted = false);

// The inverse: kept[j] = values[position j], for positions that were chosen without looking at the
// values.
//
//   positions  [num_words], num_words = PositionsNumWords(n, k)
//   values     [n, components]
//   kept       [k, components]
//
// Errors: as PositionsSum; after an error, what `kept` holds is not defined.
Status PositionsTake(const uint32_t* positions, const float* values, int64_t num_words, int64_t n,
                     int components, int64_t k, const ParallelFor& parallel_for, float* kept);

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_POSITIONS_H_
