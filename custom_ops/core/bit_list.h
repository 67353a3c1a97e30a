// SPDX-License-Identifier: Apache-2.0
// The set bits of masks as a list.

#ifndef GRADCOMP_CORE_BIT_LIST_H_
#define GRADCOMP_CORE_BIT_LIST_H_

#include <cstdint>

namespace gradcomp {

// Masks that are listed at a time, and the room that a list of their bits needs.
constexpr int64_t kListedMasks = 16;
constexpr int64_t kBitListRoom = 64 * kListedMasks + 4;

// Writes the numbers of the set bits of up to kListedMasks masks to `bits` [kBitListRoom], in
// ascending order: bit i mod 64 of masks[i div 64] is number i. Returns how many there are; what
// comes after them in `bits` may be overwritten.
int64_t ListBits(const uint64_t* masks, int64_t num_masks, uint16_t* bits);

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_BIT_LIST_H_
