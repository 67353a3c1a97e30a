// SPDX-License-Identifier: Apache-2.0
// Device code that CUDA sources share: where a thread is, and sums over the threads of a block.
// For .cu.cc files only.

#ifndef GRADCOMP_CUDA_BLOCK_SCAN_H_
#define GRADCOMP_CUDA_BLOCK_SCAN_H_

#include "custom_ops/cuda/cuda_launch.h"

namespace gradcomp::cuda {

constexpr int kWarp = 32;
constexpr int kMaxThreads = 1024;

// The number of this thread in the grid, and how many there are.
static __device__ __forceinline__ int64_t GlobalThread() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
static __device__ __forceinline__ int64_t GlobalThreads() {
  return static_cast<int64_t>(gridDim.x) * blockDim.x;
}

// The sum of `value` over the threads of the block before this one; in `*total` over all of them.
// To be called by all threads of a block whose size is a multiple of 32. Sums wrap at 2^32.
static __device__ __forceinline__ uint32_t BlockExclusiveSum(uint32_t value, uint32_t* total) {
  __shared__ uint32_t values[kMaxThreads];
  __shared__ uint32_t warp_sums[kMaxThreads / kWarp];
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp;
  const int num_warps = static_cast<int>(blockDim.x) / kWarp;
  values[thread] = value;
  __syncthreads();
  if (thread < num_warps) {
    uint32_t sum = 0;
    for (int i = 0; i < kWarp; ++i) sum += values[thread * kWarp + i];
    warp_sums[thread] = sum;
  }
  __syncthreads();
  uint32_t before = 0, all = 0;
  for (int i = 0; i < num_warps; ++i) {
    if (i < warp) before += warp_sums[i];
    all += warp_sums[i];
  }
  for (int i = warp * kWarp; i < thread; ++i) before += values[i];
  __syncthreads();  // the next call may write
  *total = all;
  return before;
}

// offsets[i] = counts[0] + ... + counts[i-1] for i = 0..size, so that offsets[size] is the total.
// `offsets` may be `counts`, with room for one more. By all threads of a block of a multiple of 32.
static __device__ __forceinline__ void BlockOffsets(const uint32_t* counts, int64_t size,
                                                    uint32_t* offsets) {
  const int64_t run = (size + blockDim.x - 1) / blockDim.x;
  const int64_t begin = run * threadIdx.x < size ? run * threadIdx.x : size;
  const int64_t end = begin + run < size ? begin + run : size;
  uint32_t sum = 0;
  for (int64_t i = begin; i < end; ++i) sum += counts[i];
  uint32_t total = 0;
  uint32_t offset = BlockExclusiveSum(sum, &total);
  for (int64_t i = begin; i < end; ++i) {
    const uint32_t count = counts[i];
    offsets[i] = offset;
    offset += count;
  }
  if (threadIdx.x == 0) offsets[size] = total;
}

}  // namespace gradcomp::cuda

#endif  // GRADCOMP_CUDA_BLOCK_SCAN_H_
