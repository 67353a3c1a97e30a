// SPDX-License-Identifier: Apache-2.0
// Entropy coding of floats at a fixed rate: exponents get a Huffman code, and mantissas are cut at
// one power of two, the step, so that larger values keep more bits. The step is the finest one with
// which the block fits in its words. After GComp, "Near-Lossless Gradient Compression" (SoCC 2024);
// the code is this project's own and is defined in FORMAT.md, section "Entropy block".

#ifndef GRADCOMP_CORE_ENTROPY_H_
#define GRADCOMP_CORE_ENTROPY_H_

#include <cstdint>

#include "ceil_div.h"
#include "parallel.h"
#include "status.h"

namespace gradcomp {

struct EntropyParams {
  double bits;  // of a value on average, on the wire: a multiple of 1/8 in 3..24
};

// Words that a block has beside those of its rate: room for what a block of few values needs.
constexpr int64_t kEntropyBaseWords = 8;

// InvalidArgument unless the parameter is in range.
Status ValidateEntropy(const EntropyParams& params);

// Words of the block of `count` >= 0 values: kEntropyBaseWords + ceil(bits * count / 32).
inline int64_t EntropyNumWords(int64_t count, const EntropyParams& params) {
  const int64_t eighths = static_cast<int64_t>(params.bits * 8.0);
  return kEntropyBaseWords + count / 256 * eighths + CeilDiv(count % 256 * eighths, 256);
}

// Writes the entropy block of x = values + residual.
//
//   values    [count] floats, any bits.
//   residual  [count] floats, or null for none.
//   words     [EntropyNumWords(count, params)], every word is written.
//   error     [count] x minus what a decoder reads; 0 everywhere if any x is Inf or NaN, because
//             then everything decodes to NaN. May be null, and may be `residual` or `values`.
//
// Errors: InvalidArgument for parameters outside their limits, ResourceExhausted without memory for
// half a byte a value. The same bits for any `parallel_for`. Thread-safe.
Status EntropyEncode(const float* values, const float* residual, int64_t count,
                     const EntropyParams& params, const ParallelFor& parallel_for, uint32_t* words,
                     float* error);

// Reads the blocks of several workers.
//
//   words    [num_workers, words_per_worker], words_per_worker = EntropyNumWords(count, params).
//   decoded  [num_workers, count], or with `sum` [count]: the float32 sum in the order of the
//            workers, starting from +0. Must not overlap `words`.
//
// Errors: InvalidArgument if the sizes do not fit together, or for a block that FORMAT.md
// says is refused, ResourceExhausted without memory for 34 KiB a worker and 8
// bytes for each 4096 of its values; nothing has been written then. The same bits for any
// `parallel_for`. Thread-safe.
Status EntropyDecode(const uint32_t* words, int64_t num_workers, int64_t words_per_worker,
                     int64_t count, const EntropyParams& params, bool sum,
                     const ParallelFor& parallel_for, float* decoded);

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_ENTROPY_H_
