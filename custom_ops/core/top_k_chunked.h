// SPDX-License-Identifier: Apache-2.0
// Top-k per chunk: of every chunk of neighbours its largest items, exactly, ties broken by lowest
// index (FORMAT.md, section "Top-k in chunks").
//
// A chunk fits in a near cache, so values come from memory once; and chunks need nothing of one
// another.

#ifndef GRADCOMP_CORE_TOP_K_CHUNKED_H_
#define GRADCOMP_CORE_TOP_K_CHUNKED_H_

#include <cstdint>

#include "parallel.h"
#include "status.h"

namespace gradcomp {

constexpr int64_t kMinTopKChunk = 64;
constexpr int64_t kMaxTopKChunk = 65536;

// How many items are kept, and where.
struct TopKChunks {
  int64_t size;        // items of a chunk, a power of two from kMinTopKChunk to kMaxTopKChunk
  int64_t count;       // kept of each chunk, 1 <= count <= size
  int64_t last_count;  // kept of a last, shorter chunk: 0 if and only if there is none

  // Items kept of n.
  int64_t NumKept(int64_t n) const { return n / size * count + last_count; }

  // InvalidArgument unless the fields are within these limits for n >= 1 items.
  Status Validate(int64_t n) const;
};

// Selects items of every chunk and writes their positions block and the items themselves.
//
//   values     [n] floats, any bits.
//   positions  [PositionsNumWords(n, k)], k = chunks.NumKept(n): the positions block.
//   kept       [k] the selected items in ascending order of position, bits unchanged.
//
// Errors: InvalidArgument for arguments outside these limits, ResourceExhausted if there is no
// memory for scratch space (1/8 byte an item).
// The same bits for any `parallel_for`. Thread-safe.
Status TopKChunkedSelect(const float* values, int64_t n, const TopKChunks& chunks,
                         const ParallelFor& parallel_for, uint32_t* positions, float* kept);

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_TOP_K_CHUNKED_H_
