// SPDX-License-Identifier: Apache-2.0
// Positions blocks on a GPU: core/positions.h with device pointers, the same bits.
//
// All launchers only enqueue work on `stream`: they neither allocate nor wait. `d_` marks device
// memory. A workspace is device memory, aligned to 4 bytes, of at least the bytes that the function
// beside the launcher tells; its content does not matter before and means nothing afterwards.
//
// They return cudaErrorInvalidValue, having launched nothing, for sizes outside their limits or a
// workspace that is too small, else the error of a launch.
//
// Nothing that a block contains can make them access memory outside the arrays. Unlike the CPU
// functions they cannot report a corrupt block without waiting for the device. It gives NaN
// (0x7fc00000) in every item instead, as a step with a non-finite gradient does.

#ifndef GRADCOMP_CUDA_POSITIONS_CUDA_H_
#define GRADCOMP_CUDA_POSITIONS_CUDA_H_

#include <cstddef>
#include <cstdint>

#include "custom_ops/cuda/cuda_launch.h"

namespace gradcomp::cuda {

// Items whose kept ones are counted together, and the bitmap words they take.
constexpr int64_t kTileItems = 256;
constexpr int64_t kTileWords = kTileItems / 32;

inline int64_t NumTiles(int64_t n) { return (n + kTileItems - 1) / kTileItems; }

// For each of several bitmaps of n items: how many bits are set before each tile, and in all.
//
//   d_bitmaps  [num_bitmaps, words_per_bitmap], of which the first ceil(n / 32) words are read.
//   d_offsets  [num_bitmaps, NumTiles(n) + 1]
//
// Limits: 0 <= n <= kMaxSize, 0 <= num_bitmaps * (NumTiles(n) + 1) <= kMaxSize.
cudaError_t LaunchBitmapOffsets(const uint32_t* d_bitmaps, int64_t num_bitmaps,
                                int64_t words_per_bitmap, int64_t n, cudaStream_t stream,
                                uint32_t* d_offsets);

// Writes the positions block of a selection, and the items it keeps.
//
//   d_selected   [ceil(n / 32)] bit i mod 32 of word i div 32 belongs to item i. Exactly k bits are
//                set, none from n on; with fewer or more, block and items are not meaningful.
//   d_values     [n, components]
//   d_positions  [PositionsNumWords(n, k)], every word is written.
//   d_kept       [k, components]
//
// Limits: 0 <= k <= n <= kMaxSize, components 1 or 2.
size_t PositionsGatherWorkspaceBytes(int64_t n);
cudaError_t LaunchPositionsGather(const uint32_t* d_selected, const float* d_values, int64_t n,
                                  int components, int64_t k, void* d_workspace,
                                  size_t workspace_bytes, cudaStream_t stream,
                                  uint32_t* d_positions, float* d_kept);

// The dense sum over workers, from +0 and in the order of the workers; a NaN sum has no defined
// pattern.
//
//   d_positions  [num_workers, PositionsNumWords(n, k)]
//   d_kept       [num_workers, k, components]
//   d_sum        [n, components], every float is written.
//
// Limits: as LaunchPositionsGather, and 0 <= num_workers * (NumTiles(n) + 1) <= kMaxSize.
size_t PositionsSumWorkspaceBytes(int64_t num_workers, int64_t n, int64_t k);
cudaError_t LaunchPositionsSum(const uint32_t* d_positions, const float* d_kept,
                               int64_t num_workers, int64_t n, int components, int64_t k,
                               void* d_workspace, size_t workspace_bytes, cudaStream_t stream,
                               float* d_sum);

// Overwrites the items at the positions.
//
//   d_positions  [PositionsNumWords(n, k)]
//   d_kept       [k, components]
//   d_values     [n, components], changed in place.
//
// Limits: as LaunchPositionsGather.
size_t PositionsReplaceWorkspaceBytes(int64_t n, int64_t k);
cudaError_t LaunchPositionsReplace(const uint32_t* d_positions, const float* d_kept, int64_t n,
                                   int components, int64_t k, void* d_workspace,
                                   size_t workspace_bytes, cudaStream_t stream, float* d_values);

}  // namespace gradcomp::cuda

#endif  // GRADCOMP_CUDA_POSITIONS_CUDA_H_
