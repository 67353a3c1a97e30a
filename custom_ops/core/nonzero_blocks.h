// SPDX-License-Identifier: Apache-2.0
// Blocks of a tensor that are not all zero: which they are, and packing and unpacking them. What a
// block-sparse exchange does before and after its all-reduce (Fei et al., "Efficient Sparse
// Collective Communication and its application to Accelerate Distributed Deep Learning", SIGCOMM
// 2021, which sends non-zero blocks).
//
// Everywhere: n floats are cut into CeilDiv(n, block_size) blocks of block_size floats, of which
// the last may be shorter; block_size is in 1..kMaxComponents (item_shape.h). A block mask has
// BlockMaskWords() words (FORMAT.md, section "Block mask"); those that are read come from a
// network. Floats are moved as bits.

#ifndef GRADCOMP_CORE_NONZERO_BLOCKS_H_
#define GRADCOMP_CORE_NONZERO_BLOCKS_H_

#include <cstdint>

#include "ceil_div.h"
#include "parallel.h"
#include "status.h"

namespace gradcomp {

// Words of the mask of n floats, n >= 0 and block_size > 0.
inline int64_t BlockMaskWords(int64_t n, int64_t block_size) {
  return CeilDiv(CeilDiv(n, block_size), 32);
}

// Sets the bits of the blocks that hold anything but zeros of either sign: a denormal, Inf or NaN
// counts.
//
//   values  [n]
//   mask    [BlockMaskWords(n, block_size)], every word is written.
//
// Errors: InvalidArgument for n or block_size outside these limits; nothing is written then.
Status NonzeroBlocks(const float* values, int64_t n, int64_t block_size,
                     const ParallelFor& parallel_for, uint32_t* mask);

// Counts the set bits of a mask: the blocks that BlocksTake() packs.
//
//   mask  [num_words], num_words = BlockMaskWords(n, block_size)
//
// Errors: InvalidArgument for n or block_size outside these limits, a wrong number of words, or a
// set bit that no block belongs to.
Status BlocksCount(const uint32_t* mask, int64_t num_words, int64_t n, int64_t block_size,
                   int64_t* count);

// Packs the blocks whose bits are set, in ascending order.
//
//   mask    [num_words], as above
//   values  [n]
//   count   BlocksCount() of the mask
//   packed  [count, block_size], every float is written; those beyond a shorter last block are +0.
//
// Errors: as BlocksCount(), and InvalidArgument for a wrong count; nothing is written then.
Status BlocksTake(const uint32_t* mask, int64_t num_words, const float* values, int64_t n,
                  int64_t block_size, int64_t count, const ParallelFor& parallel_for,
                  float* packed);

// The inverse, with +0 where there is no packed block.
//
//   mask    [num_words], as above
//   packed  [count, block_size]; what is beyond a shorter last block is ignored.
//   count   BlocksCount() of the mask
//   values  [n], every float is written.
//
// Errors: as BlocksTake(); nothing is written then.
Status BlocksPut(const uint32_t* mask, int64_t num_words, const float* packed, int64_t count,
                 int64_t n, int64_t block_size, const ParallelFor& parallel_for, float* values);

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_NONZERO_BLOCKS_H_
