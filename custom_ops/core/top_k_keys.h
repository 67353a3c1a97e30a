// SPDX-License-Identifier: Apache-2.0
// The sort keys of many items (FORMAT.md, section "Top-k"), and what selections do with them.

#ifndef GRADCOMP_CORE_TOP_K_KEYS_H_
#define GRADCOMP_CORE_TOP_K_KEYS_H_

#include <cstdint>
#include <memory>

#include "item_shape.h"
#include "parallel.h"
#include "status.h"
#include "stream_store.h"
#include "top_k_math.h"

namespace gradcomp {

// Items whose keys are computed at a time, into an array that stays in the first-level cache.
constexpr int64_t kKeyTile = 1024;

struct KeyedItems;

// The items of a selection's first pass, which may have to add them up itself.
struct PendingSum {
  const float* values;              // [n, components]
  const float* residual = nullptr;  // [n, components], or null: there is nothing to add
  float* sum = nullptr;             // [n, components], may be the memory of either
  bool streamed = false;            // the sum has memory of its own, too large for caches

  // Nothing to add.
  explicit PendingSum(const float* values) : values(values) {}
  // `residual` may be null; then `sum` is not used.
  PendingSum(const float* values, const float* residual, float* sum, int64_t num_floats)
      : values(values),
        residual(residual),
        sum(sum),
        streamed(IsStreamed(values, residual, sum, num_floats)) {}

  // Where the sum is, once it is complete.
  const float* total() const { return residual == nullptr ? values : sum; }

  // Writes floats first .. first + count - 1 of the sum, and returns where they are in cache: in
  // place, or in `tile` [count], if that is not null. Only once: the addends may be lost.
  const float* Add(int64_t first, int64_t count, float* tile) const;

  // Key of an item that Add() has not yet reached. Not of a wide one with something to add.
  uint32_t KeyAt(const KeyedItems& items, int64_t item) const;
};

// The items and how to turn them into keys.
struct KeyedItems {
  const float* values;  // [n, components], any bits
  int64_t n;
  int components;
  int64_t row_length;  // L: if positive, the items are rows of L/2 + 1 bins of real transforms
  std::unique_ptr<uint32_t[]> wide_keys = nullptr;  // [n] what ComputeWideKeys() found, if called

  int64_t RowBins() const { return row_length / 2 + 1; }

  uint32_t KeyAt(int64_t item) const {
    if (IsWide(components)) return wide_keys ? wide_keys[item] : WideKeyAt(item);
    return NarrowKey(values + item * components, item);
  }

  // Key of a real or complex item, wherever its components are.
  uint32_t NarrowKey(const float* value, int64_t item) const {
    if (components == 1) return RealKey(value[0]);
    return ComplexKey(value[0], value[1], BinWeight(item % RowBins(), row_length));
  }

  // keys[i] = key of item first + i, whose components are at at[i * components].
  void Keys(int64_t first, int64_t count, const float* at, uint32_t* keys) const;

  // Keys of wide items take longer than anything that is done with them: with this they are
  // computed once, each shard a part of them, after what is pending has been added. No effect on
  // other items. ResourceExhausted if there is no memory for them.
  Status ComputeWideKeys(PendingSum* pending, const ParallelFor& parallel_for);

  // Marks which of `size` <= kKeyTile items from `first` on, whose components are at `at`, have a
  // key of at least `threshold`, and returns how many. Bit i mod 64 of masks[i div 64] belongs to
  // item first + i; bits from `size` on are cleared. `keys` [kKeyTile] receives the keys, but for
  // real items, which are compared as they are loaded.
  int64_t MarkTile(int64_t first, int64_t size, const float* at, uint32_t threshold,
                   uint64_t* masks, uint32_t* keys) const;

  // InvalidArgument for a bad number of components, and unless row_length is 0, or positive with
  // complex items that fill their rows.
  Status Validate() const;

 private:
  uint32_t WideKeyAt(int64_t item) const;
  void FixBins(int64_t first, int64_t count, int64_t bin, const float* at, uint32_t* keys) const;
};

// sums[i] = the sum of the squares of item i's components, in the order of FORMAT.md, section
// "Top-k".
void SumsOfSquares(const float* values, int64_t count, int components, double* sums);

// The `rank`-th largest of `keys`, 1 <= rank <= size.
uint32_t SelectLargest(const uint32_t* keys, int64_t size, int64_t rank);

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_TOP_K_KEYS_H_
