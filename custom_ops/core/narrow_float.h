// SPDX-License-Identifier: Apache-2.0
// Narrow floats: float16, bfloat16, or float8 (e4m3, e5m2) with a power of two for each block of
// values. FORMAT.md, section "Narrow float block". The 8-bit formats are those of Micikevicius et
// al., "FP8 Formats for Deep Learning" (arXiv 2209.05433).
//
// Rounding is to nearest, ties to even. Finite values that would round beyond the largest finite
// number of a format become that number.

#ifndef GRADCOMP_CORE_NARROW_FLOAT_H_
#define GRADCOMP_CORE_NARROW_FLOAT_H_

#include <cstdint>
#include <string>

#include "decode_rows.h"
#include "parallel.h"
#include "status.h"

namespace gradcomp {

// The numbers travel in the header of a block.
enum class NarrowType { kFloat16 = 0, kBfloat16 = 1, kFloat8E4m3 = 2, kFloat8E5m2 = 3 };

struct NarrowFloatParams {
  NarrowType type;
  int64_t block;  // float8: values that share a scale, a multiple of 32 in 32..65536; else unused
};

constexpr int64_t kNarrowFloatHeaderWords = 1;

// "float16", "bfloat16", "float8_e4m3" or "float8_e5m2"; InvalidArgument for any other name.
Status NarrowTypeFromName(const std::string& name, NarrowType* type);

// InvalidArgument unless the parameters are in range.
Status ValidateNarrowFloat(const NarrowFloatParams& params);

inline bool NarrowFloatHasScales(NarrowType type) {
  return type == NarrowType::kFloat8E4m3 || type == NarrowType::kFloat8E5m2;
}

// Words before the codes: the header and, for float8, a byte for each block of values.
inline int64_t NarrowFloatCodesAt(int64_t count, const NarrowFloatParams& params) {
  if (!NarrowFloatHasScales(params.type)) return kNarrowFloatHeaderWords;
  return kNarrowFloatHeaderWords + CeilDiv(CeilDiv(count, params.block), 4);
}

// Words of the block of `count` >= 0 values.
inline int64_t NarrowFloatNumWords(int64_t count, const NarrowFloatParams& params) {
  return NarrowFloatCodesAt(count, params) +
         CeilDiv(count, NarrowFloatHasScales(params.type) ? 4 : 2);
}

// Writes the narrow float block of x = values + residual.
//
//   values    [count] floats, any bits.
//   residual  [count] floats, or null for none.
//   words     [NarrowFloatNumWords(count, params)], every word is written.
//   error     [count] x minus what a decoder reads; 0 everywhere if any x is Inf or NaN, because
//             then everything decodes to NaN. May be null, and may be `residual` or `values`.
//
// Errors: InvalidArgument for parameters outside their limits. The same bits for any
// `parallel_for`. Thread-safe.
Status NarrowFloatEncode(const float* values, const float* residual, int64_t count,
                         const NarrowFloatParams& params, const ParallelFor& parallel_for,
                         uint32_t* words, float* error);

// Reads the blocks of several workers.
//
//   words    [num_workers, words_per_worker],
//            words_per_worker = NarrowFloatNumWords(count, params).
//   decoded  [num_workers, count], or with `sum` [count]: the float32 sum in the order of the
//            workers, starting from +0. Must not overlap `words`.
//
// Errors: InvalidArgument if the sizes do not fit together, or for a header that no encoder writes
// with these parameters; nothing has been written then. The same bits for any `parallel_for`.
// Thread-safe.
Status NarrowFloatDecode(const uint32_t* words, int64_t num_workers, int64_t words_per_worker,
                         int64_t count, const NarrowFloatParams& params, bool sum,
                         const ParallelFor& parallel_for, float* decoded);

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_NARROW_FLOAT_H_
