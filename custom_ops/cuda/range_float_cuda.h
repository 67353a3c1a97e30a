// SPDX-License-Identifier: Apache-2.0
// Range float on a GPU: core/range_float.h with device pointers, the same bits.
//
// All launchers only enqueue work on `stream`: they neither allocate nor wait. `d_` marks device
// memory. They return cudaErrorInvalidValue, having launched nothing, for parameters, sizes or a
// range outside their limits or a workspace that is too small, else the error of a launch.

#ifndef GRADCOMP_CUDA_RANGE_FLOAT_CUDA_H_
#define GRADCOMP_CUDA_RANGE_FLOAT_CUDA_H_

#include <cstddef>
#include <cstdint>

#include "custom_ops/core/range_float.h"
#include "custom_ops/cuda/cuda_launch.h"

namespace gradcomp::cuda {

// Whether lo <= 0 <= hi, both finite. Looks at the bits, so that it does not matter whether the
// calling thread reads denormals as zero.
bool RangeIsValid(const ValueRange& range);

// Bytes of the workspace of the encoder.
size_t RangeFloatEncodeWorkspaceBytes();

// Writes the range float block of `d_values`.
//
//   d_values     [count] floats, any bits.
//   range        null: from the values. Else given, in host memory, read before the return.
//   d_workspace  device memory, aligned to 4 bytes; what it contains does not matter.
//   d_words      [RangeFloatNumWords(count, params)], every word is written.
//   d_error      [count] values minus what a decoder reads, or 0 everywhere if any value is Inf or
//                NaN. May be null, and may be `d_values` itself.
//
// Limits: 0 <= count <= kMaxSize, parameters and range as in core/range_float.h.
cudaError_t LaunchRangeFloatEncode(const float* d_values, int64_t count, const ValueRange* range,
                                   const RangeFloatParams& params, void* d_workspace,
                                   size_t workspace_bytes, cudaStream_t stream, uint32_t* d_words,
                                   float* d_error);

// Reads the blocks of several workers.
//
//   d_words    [num_workers, RangeFloatNumWords(count, params)]
//   d_decoded  [num_workers, count]; must not overlap `d_words`.
//
// A block whose header is not one that an encoder with these parameters writes cannot be reported
// without waiting for the device: all its values decode to NaN (0x7fc00000).
//
// Limits: 0 <= count <= kMaxSize, 0 <= num_workers * ceil(count / 256) <= kMaxSize.
cudaError_t LaunchRangeFloatDecode(const uint32_t* d_words, int64_t num_workers, int64_t count,
                                   const RangeFloatParams& params, cudaStream_t stream,
                                   float* d_decoded);

}  // namespace gradcomp::cuda

#endif  // GRADCOMP_CUDA_RANGE_FLOAT_CUDA_H_
