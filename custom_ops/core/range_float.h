// SPDX-License-Identifier: Apache-2.0
// Range float: floats in N bits that keep binary32's exponent and mantissa spacing but spend codes
// only between the smallest and the largest value. Source: the range-based float of SuperNeurons
// (arXiv 1811.08596); the exact code table is this project's own and is defined in FORMAT.md.

#ifndef GRADCOMP_CORE_RANGE_FLOAT_H_
#define GRADCOMP_CORE_RANGE_FLOAT_H_

#include <cstdint>

#include "bit_pack.h"
#include "parallel.h"
#include "status.h"

namespace gradcomp {

struct RangeFloatParams {
  int num_bits;       // N, bits of a code, 6..12
  int mantissa_bits;  // m, mantissa bits kept, 1..N-2
};

// The bounds of the code table.
struct ValueRange {
  float lo;  // finite, at most 0
  float hi;  // finite, at least 0
};

constexpr int64_t kRangeFloatHeaderWords = 3;

// InvalidArgument unless both parameters are in range.
Status ValidateRangeFloat(const RangeFloatParams& params);

// Words of the block of `count` >= 0 values.
inline int64_t RangeFloatNumWords(int64_t count, const RangeFloatParams& params) {
  return kRangeFloatHeaderWords + PackedWords(count, params.num_bits);
}

// Writes the range float block of `values`.
//
//   values  [count] floats, any bits.
//   range   null: from the values. Else given: values outside saturate.
//   words   [RangeFloatNumWords(count, params)], every word is written.
//   error   [count] values minus what a decoder reads; 0 everywhere if any value is Inf or NaN,
//           because then everything decodes to NaN. May be null, and may be `values` itself.
//
// Errors: InvalidArgument for parameters or a given range outside their limits.
// The same bits for any `parallel_for`. Thread-safe.
Status RangeFloatEncode(const float* values, int64_t count, const ValueRange* range,
                        const RangeFloatParams& params, const ParallelFor& parallel_for,
                        uint32_t* words, float* error);

// Reads the blocks of several workers.
//
//   words    [num_workers, words_per_worker], words_per_worker = RangeFloatNumWords(count, params).
//   decoded  [num_workers, count]; must not overlap `words`.
//
// Errors: InvalidArgument if the sizes do not fit together, or if a header is not one that
// RangeFloatEncode writes with these parameters; nothing has been written then.
Status RangeFloatDecode(const uint32_t* words, int64_t num_workers, int64_t words_per_worker,
                        int64_t count, const RangeFloatParams& params,
                        const ParallelFor& parallel_for, float* decoded);

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_RANGE_FLOAT_H_
