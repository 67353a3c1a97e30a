// SPDX-License-Identifier: Apache-2.0
// Uniform: 2^b evenly spaced levels between the smallest and the largest value of a block, rounded
// to nearest or stochastically. Source: the min-max quantization of CGX, Markov et al., "CGX:
// Adaptive System Support for Communication-Efficient Deep Learning" (Middleware 2022); stochastic
// rounding as in QSGD, Alistarh et al. (NeurIPS 2017). FORMAT.md, section "Uniform block".

#ifndef GRADCOMP_CORE_UNIFORM_H_
#define GRADCOMP_CORE_UNIFORM_H_

#include <cstdint>

#include "bit_pack.h"
#include "decode_rows.h"
#include "parallel.h"
#include "philox.h"
#include "status.h"

namespace gradcomp {

struct UniformParams {
  int num_bits;   // b, bits of a code, 1..8
  int64_t block;  // values that share bounds: a multiple of 32 in 32..65536
};

constexpr int64_t kUniformHeaderWords = 1;

// InvalidArgument unless the parameters are in range.
Status ValidateUniform(const UniformParams& params);

// Words before the codes: the header and two bounds for each block of values.
inline int64_t UniformCodesAt(int64_t count, const UniformParams& params) {
  return kUniformHeaderWords + 2 * CeilDiv(count, params.block);
}

// Words of the block of `count` >= 0 values.
inline int64_t UniformNumWords(int64_t count, const UniformParams& params) {
  return UniformCodesAt(count, params) + PackedWords(count, params.num_bits);
}

// Writes the uniform block of x = values + residual.
//
//   values    [count] floats, any bits.
//   residual  [count] floats, or null for none.
//   key       of the random numbers for stochastic rounding, or null to round to nearest.
//   words     [UniformNumWords(count, params)], every word is written.
//   error     [count] x minus what a decoder reads, at most the largest finite float either way; 0
//             everywhere if any x is Inf or NaN, because then everything decodes to NaN. May be
//             null, and may be `residual` or `values`.
//
// Errors: InvalidArgument for parameters outside their limits. The same bits for any
// `parallel_for`. Thread-safe.
Status UniformEncode(const float* values, const float* residual, int64_t count,
                     const RandomKey* key, const UniformParams& params,
                     const ParallelFor& parallel_for, uint32_t* words, float* error);

// Reads the blocks of several workers.
//
//   words    [num_workers, words_per_worker], words_per_worker = UniformNumWords(count, params).
//   decoded  [num_workers, count], or with `sum` [count]: the float32 sum in the order of the
//            workers, starting from +0. Must not overlap `words`.
//
// Errors: InvalidArgument if the sizes do not fit together, or for a header or bounds that no
// encoder writes with these parameters; nothing has been written then. The same bits for any
// `parallel_for`. Thread-safe.
Status UniformDecode(const uint32_t* words, int64_t num_workers, int64_t words_per_worker,
                     int64_t count, const UniformParams& params, bool sum,
                     const ParallelFor& parallel_for, float* decoded);

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_UNIFORM_H_
