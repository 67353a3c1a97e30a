// SPDX-License-Identifier: Apache-2.0
// Natural compression C_nat: every value is rounded at random, without bias, to one of the two
// powers of two around it, and travels as a byte. Source: Horvath et al., "Natural Compression for
// Distributed Deep Learning" (arXiv 1905.10988; MSML 2022); the byte code is this project's own and
// is defined in FORMAT.md.

#ifndef GRADCOMP_CORE_NATURAL_H_
#define GRADCOMP_CORE_NATURAL_H_

#include <cstdint>

#include "decode_rows.h"
#include "parallel.h"
#include "philox.h"
#include "status.h"

namespace gradcomp {

// Values that share an exponent byte.
constexpr int64_t kNaturalBlock = 4096;

// Words of the natural block of `count` >= 0 values: header, exponent bytes, codes.
constexpr int64_t NaturalNumWords(int64_t count) {
  return 1 + CeilDiv(CeilDiv(count, kNaturalBlock), 4) + CeilDiv(count, 4);
}

// Writes the natural block of x = values + residual.
//
//   values    [count] floats, any bits.
//   residual  [count], or null for x = values.
//   key       the random numbers; equal keys and values give equal words.
//   words     [NaturalNumWords(count)], every word is written.
//   error     [count] x minus what a decoder reads; 0 everywhere if any x is Inf or NaN, because
//             then everything decodes to NaN. May be null, `values` or `residual`.
//
// Errors: InvalidArgument for a negative count. The same bits for any `parallel_for`. Thread-safe.
Status NaturalEncode(const float* values, const float* residual, int64_t count,
                     const RandomKey& key, const ParallelFor& parallel_for, uint32_t* words,
                     float* error);

// Reads the blocks of several workers.
//
//   words    [num_workers, words_per_worker], words_per_worker = NaturalNumWords(count).
//   sum      false: `decoded` is [num_workers, count]. true: it is [count], the sum in float32 over
//            the workers in order, from +0.
//   decoded  must not overlap `words`.
//
// Errors: InvalidArgument if the sizes do not fit together, or if a header or an exponent byte is
// not one that NaturalEncode writes; nothing has been written then.
Status NaturalDecode(const uint32_t* words, int64_t num_workers, int64_t words_per_worker,
                     int64_t count, bool sum, const ParallelFor& parallel_for, float* decoded);

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_NATURAL_H_
