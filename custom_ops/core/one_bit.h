// SPDX-License-Identifier: Apache-2.0
// One bit: the sign of each value and the mean magnitude of a block. Source: EF-SignSGD,
// Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes" (ICML
// 2019), whose compressor is mean|x| * sign(x). Exact zeros are this project's own addition; both
// are defined in FORMAT.md, section "One bit block".
//
// Zeros of gradients come in runs (rows of an embedding that no example touched, inputs that never
// fire). A bit for each group of 32 values says that the group holds zeros. Then its sign word
// tells which values are not zero, and their signs follow in a spare word, of which a segment of
// 4096 values has four; a group of zeros alone needs none. A run of zeros thus costs spare words at
// its two ends only.

#ifndef GRADCOMP_CORE_ONE_BIT_H_
#define GRADCOMP_CORE_ONE_BIT_H_

#include <cstdint>

#include "decode_rows.h"
#include "parallel.h"
#include "status.h"

namespace gradcomp {

constexpr int64_t kOneBitGroup = 32;  // values in a sign word
constexpr int64_t kOneBitSegment =
    4096;  // values that share spare words; a block is whole segments
constexpr int64_t kOneBitHeaderWords = 1;

struct OneBitParams {
  int64_t block;  // values that share a scale: a multiple of 4096, or 0 for all of them
};

// InvalidArgument unless the parameter is in range.
Status ValidateOneBit(const OneBitParams& params);

// Where the parts of the block of `count` >= 0 values lie, in words.
struct OneBitLayout {
  OneBitLayout(int64_t count, const OneBitParams& params)
      : num_scales(params.block == 0 ? (count > 0 ? 1 : 0) : CeilDiv(count, params.block)),
        num_groups(CeilDiv(count, kOneBitGroup)),
        num_flag_words(CeilDiv(num_groups, 32)) {}

  int64_t num_scales;
  int64_t num_groups;
  int64_t num_flag_words;  // and as many spare words

  int64_t scales() const { return kOneBitHeaderWords; }
  int64_t flags() const { return scales() + num_scales; }
  int64_t signs() const { return flags() + num_flag_words; }
  int64_t spares() const { return signs() + num_groups; }
  int64_t num_words() const { return spares() + num_flag_words; }
};

// Words of the block of `count` >= 0 values: about 1.07 bits a value.
inline int64_t OneBitNumWords(int64_t count, const OneBitParams& params) {
  return OneBitLayout(count, params).num_words();
}

// Writes the one bit block of x = values + residual.
//
//   values    [count] floats, any bits.
//   residual  [count] floats, or null for none.
//   words     [OneBitNumWords(count, params)], every word is written.
//   error     [count] x minus what a decoder reads; 0 everywhere if any x is Inf or NaN, because
//             then everything decodes to NaN. May be null, and may be `residual` or `values`.
//
// Errors: InvalidArgument for parameters outside their limits, ResourceExhausted without memory for
// 24 bytes a segment. The same bits for any `parallel_for`. Thread-safe.
Status OneBitEncode(const float* values, const float* residual, int64_t count,
                    const OneBitParams& params, const ParallelFor& parallel_for, uint32_t* words,
                    float* error);

// Reads the blocks of several workers.
//
//   words    [num_workers, words_per_worker], words_per_worker = OneBitNumWords(count, params).
//   decoded  [num_workers, count], or with `sum` [count]: the float32 sum in the order of the
//            workers, starting from +0. Must not overlap `words`.
//
// Errors: InvalidArgument if the sizes do not fit together, or for a block that no encoder writes;
// nothing has been written then. The same bits for any `parallel_for`. Thread-safe.
Status OneBitDecode(const uint32_t* words, int64_t num_workers, int64_t words_per_worker,
                    int64_t count, const OneBitParams& params, bool sum,
                    const ParallelFor& parallel_for, float* decoded);

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_ONE_BIT_H_
