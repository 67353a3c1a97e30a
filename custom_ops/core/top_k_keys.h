// SPDX-License-Identifier: Apache-2.0
// The sort keys of many items (FORMAT.md, section "Top-k"), and what selections do with them.

#ifndef GRADCOMP_CORE_TOP_K_KEYS_H_
#define GRADCOMP_CORE_TOP_K_KEYS_H_

#include <cstdint>
#include <cstring>
#include <memory>

#include "item_shape.h"
#include "multiversion.h"
#include "parallel.h"
#include "status.h"
#include "top_k_math.h"

namespace gradcomp {

struct KeyedItems;

// Items that a selection has to add up itself, in its first pass over them. None by default.
struct PendingSum {
  const float* values = nullptr;    // [n, components]
  const float* residual = nullptr;  // [n, components], or null: there is nothing to add
  float* sum = nullptr;             // [n, components], may be the memory of either

  // Writes floats first .. first + count - 1 of the sum. Only once: the addends may be lost.
  void Add(int64_t first, int64_t count) const;

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

  // keys[i] = key of item first + i.
  void Keys(int64_t first, int64_t count, uint32_t* keys) const;

  // Keys of wide items take longer than anything that is done with them: with this they are
  // computed once, each shard a part of them, after what is pending has been added. No effect on
  // other items. ResourceExhausted if there is no memory for them.
  Status ComputeWideKeys(PendingSum* pending, const ParallelFor& parallel_for);

  // InvalidArgument for a bad number of components, and unless row_length is 0, or positive with
  // complex items that fill their rows.
  Status Validate() const;

 private:
  uint32_t WideKeyAt(int64_t item) const;
  void FixBins(int64_t first, int64_t count, int64_t bin, uint32_t* keys) const;
};

// sums[i] = the sum of the squares of item i's components, in the order of FORMAT.md, section
// "Top-k".
void SumsOfSquares(const float* values, int64_t count, int components, double* sums);

// Marks which of the items first .. end-1 have a key of at least `threshold`, and returns how many.
// Bit i mod 64 of masks[i div 64] belongs to item first + i; bits from `end` on are cleared.
int64_t MarkReached(const KeyedItems& items, int64_t first, int64_t end, uint32_t threshold,
                    uint64_t* masks);

// The `rank`-th largest of `keys`, 1 <= rank <= size.
uint32_t SelectLargest(const uint32_t* keys, int64_t size, int64_t rank);

// 64 flags of 0 or 1, one a byte, as a mask: bit j of the result is flag j.
GRADCOMP_ALWAYS_INLINE uint64_t PackFlags(const uint8_t* flags) {
  uint64_t mask = 0;
  for (int i = 0; i < 8; ++i) {
    uint64_t bytes;
    std::memcpy(&bytes, flags + 8 * i, sizeof(bytes));
    mask |= (bytes * 0x0102040810204080u >> 56) << (8 * i);
  }
  return mask;
}

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_TOP_K_KEYS_H_
