// SPDX-License-Identifier: Apache-2.0
// Exact top-k on a GPU: core/top_k.h with device pointers, the same bits.
//
// The k-th largest key is found by radix selection: a histogram of the keys' upper bits, then one
// of the next bits of the keys that agree with it so far, three in all. What was found stays in
// device memory, so that nothing waits for the device between the passes. One more pass marks the
// items above that key and those equal to it, of which the first ones are kept.

#ifndef GRADCOMP_CUDA_TOP_K_CUDA_H_
#define GRADCOMP_CUDA_TOP_K_CUDA_H_

#include <cstddef>
#include <cstdint>

#include "custom_ops/cuda/cuda_launch.h"

namespace gradcomp::cuda {

// Bytes of the workspace that n items need: about n / 4.
size_t TopKSelectWorkspaceBytes(int64_t n);

// Selects k of n items and writes their positions block and the items themselves.
//
//   d_values     [n, components] floats, any bits; components 1 (real) or 2 (complex).
//   d_residual   [n, components] floats, to be added to the values before anything else, or null.
//   row_length   as in core/top_k.h: 0, or with components 2 the length of the rows' transforms.
//   d_workspace  device memory, aligned to 4 bytes; what it contains does not matter.
//   d_positions  [PositionsNumWords(n, k)], every word is written.
//   d_kept       [k, components] the selected items in ascending order of position.
//   d_sum        [n, components] values + residual; may be the memory of either. Not used without
//                a residual.
//
// Limits: 1 <= k <= n <= kMaxSize; row_length as in core/top_k.h. Outside them, or if the workspace
// is too small, returns cudaErrorInvalidValue and launches nothing; else returns the error of a
// launch. Only enqueues work on `stream`.
cudaError_t LaunchTopKSelect(const float* d_values, const float* d_residual, int64_t n,
                             int components, int64_t row_length, int64_t k, void* d_workspace,
                             size_t workspace_bytes, cudaStream_t stream, uint32_t* d_positions,
                             float* d_kept, float* d_sum);

}  // namespace gradcomp::cuda

#endif  // GRADCOMP_CUDA_TOP_K_CUDA_H_
