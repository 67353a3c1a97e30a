// SPDX-License-Identifier: Apache-2.0
// Norms of blocks of values whose bits depend on the values alone: on no thread, vector width or
// device. FORMAT.md, section "Dithering block", fixes the order of the sum.

#ifndef GRADCOMP_CORE_BLOCK_NORM_H_
#define GRADCOMP_CORE_BLOCK_NORM_H_

#include <cstdint>

namespace gradcomp {

// Values summed as one: a block is cut into chunks of this size, the last one perhaps shorter.
constexpr int64_t kNormChunk = 4096;
// Partial sums of a chunk: value i of the chunk goes to number i mod 16.
constexpr int64_t kNormLanes = 16;

enum class NormKind {
  kInf = 0,  // largest magnitude
  kTwo = 1,  // root of the sum of squares
};

// What the norm of a block follows from, for one chunk or for the chunks so far.
struct NormParts {
  uint32_t largest = 0;  // pattern of the largest magnitude; from 0x7f800000 on something is Inf or
                         // NaN, and `squares` means nothing
  double squares = 0.0;  // sum of the squares, if asked for

  void Append(const NormParts& next) {
    largest = largest > next.largest ? largest : next.largest;
    squares += next.squares;
  }
};

// Measures x = values + residual, or x = values without a residual; up to kNormChunk values.
NormParts MeasureChunk(const float* values, const float* residual, int64_t count, NormKind kind);

// The norm of finite values, finite itself: a 2-norm beyond binary32 becomes its largest number.
// Not below the largest magnitude.
float NormOf(const NormParts& parts, NormKind kind);

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_BLOCK_NORM_H_
