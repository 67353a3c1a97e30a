// SPDX-License-Identifier: Apache-2.0
// Dithering: every value is rounded at random, without bias, to a level between zero and its
// block's norm. Sources: the levels 0, 2^(1-s), ..., 1/2, 1 and coded norms from Horvath et al.,
// "Natural Compression for Distributed Deep Learning" (arXiv 1905.10988); the levels j / s from
// QSGD, Alistarh et al. (arXiv 1610.02132), of which TernGrad, Wen et al. (arXiv 1705.07878), is
// the case s = 1 with the largest magnitude as norm. The wire format is this project's own and is
// defined in FORMAT.md.

#ifndef GRADCOMP_CORE_DITHERING_H_
#define GRADCOMP_CORE_DITHERING_H_

#include <cstdint>

#include "bit_pack.h"
#include "block_norm.h"
#include "decode_rows.h"
#include "parallel.h"
#include "philox.h"
#include "status.h"

namespace gradcomp {

struct DitheringParams {
  int32_t levels;      // s, levels other than zero: natural 1..127, standard 1..32767
  bool standard;       // levels j / s, else powers of two
  NormKind norm;       // of a block
  bool natural_norms;  // norms travel as randomly rounded powers of two, else as float32
  int64_t block;       // values that share a norm: a multiple of 32 up to 65536; 0 for all of them
};

// InvalidArgument unless all parameters are in range.
Status ValidateDithering(const DitheringParams& params);

// Where the parts of the block of `count` >= 0 values lie, in words.
struct DitheringLayout {
  DitheringLayout(int64_t count, const DitheringParams& params)
      : num_norms(params.block != 0 ? CeilDiv(count, params.block) : (count > 0 ? 1 : 0)),
        codes(norms + (params.natural_norms ? CeilDiv(num_norms, 4) : num_norms)) {
    while (params.levels >> (num_bits - 1) != 0) ++num_bits;
    num_words = codes + PackedWords(count, num_bits);
  }

  static constexpr int64_t norms = 2;  // after the header
  int64_t num_norms;
  int64_t codes;
  int32_t num_bits = 1;  // of a code: a sign, and the level index 0..s
  int64_t num_words;
};

// Writes the dithering block of x = values + residual.
//
//   values    [count] floats, any bits.
//   residual  [count], or null for x = values.
//   key       the random numbers; equal keys and values give equal words.
//   words     [DitheringLayout(count, params).num_words], every word is written.
//   error     [count] x minus what a decoder reads; 0 everywhere if any x is Inf or NaN, because
//             then everything decodes to NaN. May be null, `values` or `residual`.
//
// Errors: InvalidArgument for parameters outside their limits, ResourceExhausted without memory for
// 16 bytes for every 4096 values (block = 0 only). The same bits for any `parallel_for`.
// Thread-safe.
Status DitheringEncode(const float* values, const float* residual, int64_t count,
                       const RandomKey& key, const DitheringParams& params,
                       const ParallelFor& parallel_for, uint32_t* words, float* error);

// Reads the blocks of several workers.
//
//   words    [num_workers, words_per_worker], words_per_worker as above.
//   sum      false: `decoded` is [num_workers, count]. true: it is [count], the sum in float32 over
//            the workers in order, from +0.
//   decoded  must not overlap `words`.
//
// Errors: InvalidArgument if the sizes do not fit together, or if a header or a norm is not one
// that DitheringEncode writes with these parameters; nothing has been written then.
Status DitheringDecode(const uint32_t* words, int64_t num_workers, int64_t words_per_worker,
                       int64_t count, const DitheringParams& params, bool sum,
                       const ParallelFor& parallel_for, float* decoded);

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_DITHERING_H_
