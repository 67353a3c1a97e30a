// SPDX-License-Identifier: Apache-2.0
#include "bit_list.h"

#include "multiversion.h"

namespace gradcomp {

// Where few bits are set, a loop over those of each mask would mispredict its end nearly every
// time. So the first four are written in any case, set or not, and seldom more.
GRADCOMP_MULTIVERSION
int64_t ListBits(const uint64_t* masks, int64_t num_masks, uint16_t* bits) {
  constexpr int kAtOnce = 4;
  constexpr uint64_t kLastBit = uint64_t{1} << 63;  // makes the count of zeros defined
  uint16_t* next = bits;
  for (int64_t m = 0; m < num_masks; ++m) {
    uint64_t mask = masks[m];
    const int count = __builtin_popcountll(mask);
    for (int i = 0; i < kAtOnce; ++i, mask &= mask - 1) {
      next[i] = static_cast<uint16_t>(64 * m + __builtin_ctzll(mask | kLastBit));
    }
    for (int i = kAtOnce; i < count; ++i, mask &= mask - 1) {
      next[i] = static_cast<uint16_t>(64 * m + __builtin_ctzll(mask | kLastBit));
    }
    next += count;
  }
  return next - bits;
}

}  // namespace gradcomp
