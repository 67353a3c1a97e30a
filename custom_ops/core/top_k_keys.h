// SPDX-License-Identifier: Apache-2.0
// The sort keys of many items (FORMAT.md, section "Top-k"), and what selections do with them.

#ifndef GRADCOMP_CORE_TOP_K_KEYS_H_
#define GRADCOMP_CORE_TOP_K_KEYS_H_

#include <cstdint>
#include <cstring>

#include "multiversion.h"
#include "status.h"
#include "top_k_math.h"

namespace gradcomp {

// The items and how to turn them into keys.
struct KeyedItems {
  const float* values;  // [n, components], any bits
  int64_t n;
  int components;      // 1 (real) or 2 (complex)
  int64_t row_length;  // L: if positive, the items are rows of L/2 + 1 bins of real transforms

  int64_t RowBins() const { return row_length / 2 + 1; }

  uint32_t KeyAt(int64_t item) const {
    if (components == 1) return RealKey(values[item]);
    return ComplexKey(values[2 * item], values[2 * item + 1],
                      BinWeight(item % RowBins(), row_length));
  }

  // keys[i] = key of item first + i.
  void Keys(int64_t first, int64_t count, uint32_t* keys) const;

  // InvalidArgument unless components is 1 or 2, and row_length is 0, or positive with complex
  // items that fill their rows.
  Status Validate() const;

 private:
  void FixBins(int64_t first, int64_t count, int64_t bin, uint32_t* keys) const;
};

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
