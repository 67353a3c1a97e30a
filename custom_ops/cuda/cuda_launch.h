// SPDX-License-Identifier: Apache-2.0
// What every CUDA file starts from: the runtime's types and how a kernel is launched.
//
// The same sources compile with g++ for an emulated device (define GRADCOMP_CUDA_EMULATION), on
// which they are tested without a GPU. They therefore launch kernels through GRADCOMP_LAUNCH and
// use one-dimensional grids and blocks, static shared memory, __syncthreads, __ballot_sync with all
// lanes, and atomics on integers; nothing else of the execution model.
//
// So far the kernels have been compiled by nvcc and run on the emulated device only, never on a
// GPU: their results are proven as far as the emulation goes, their speed is not known.

#ifndef GRADCOMP_CUDA_CUDA_LAUNCH_H_
#define GRADCOMP_CUDA_CUDA_LAUNCH_H_

#include <cstdint>

#if defined(GRADCOMP_CUDA_EMULATION)
#include "tests/cuda/cuda_emulation.h"
#else
#include <cuda_runtime.h>
// Starts kernel<<<blocks, threads>>>(arguments...) on `stream`. Errors: cudaGetLastError().
#define GRADCOMP_LAUNCH(kernel, blocks, threads, stream, ...) \
  kernel<<<static_cast<unsigned int>(blocks), threads, 0, stream>>>(__VA_ARGS__)
#endif

namespace gradcomp::cuda {

// Items or values that a launcher takes at most, per worker, and blocks of a grid: 32-bit counters
// then suffice everywhere.
constexpr int64_t kMaxSize = 0x7fffffff;

// Threads of a block where a kernel has no reason for another number.
constexpr int kThreads = 256;

inline int64_t NumBlocks(int64_t size, int64_t per_block = kThreads) {
  return (size + per_block - 1) / per_block;
}

}  // namespace gradcomp::cuda

#endif  // GRADCOMP_CUDA_CUDA_LAUNCH_H_
