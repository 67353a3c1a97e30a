// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/cuda/positions_cuda.h"

#include "custom_ops/core/host_device.h"
#include "custom_ops/core/positions.h"
#include "custom_ops/cuda/block_scan.h"
#include "custom_ops/cuda/cuda_launch.h"

namespace gradcomp::cuda {
namespace {

static_assert(kSegmentItems % kTileItems == 0, "a tile lies in one segment");

constexpr int kTileThreads = static_cast<int>(kTileItems);
constexpr int kScanThreads = 1024;
constexpr int kSegmentThreads = 1024;

// The positions blocks of all workers, and what the kernels know of them.
struct Blocks {
  const uint32_t* words;  // [num_workers, num_words]
  int64_t num_workers;
  int64_t num_words;
  uint32_t unused_bits;     // of the last word, which must be 0
  const uint32_t* offsets;  // [num_workers, parts + 1] kept items before each tile or segment
  int64_t parts;
  int64_t n;
  int64_t k;

  __device__ const uint32_t* Words(int64_t worker) const { return words + worker * num_words; }
  __device__ const uint32_t* Offsets(int64_t worker) const {
    return offsets + worker * (parts + 1);
  }
  // Whether a worker's block keeps k items and has no unused bits set.
  __device__ bool IsSound(int64_t worker) const {
    return Offsets(worker)[parts] == k &&
           (num_words == 0 || (Words(worker)[num_words - 1] & unused_bits) == 0);
  }
};

// Which of the kept items `item` is, by the bits before it; -1 if it is not kept. `offsets` are
// those of the bitmap's tiles.
__device__ __forceinline__ int64_t BitmapRank(const uint32_t* bitmap, const uint32_t* offsets,
                                              int64_t item) {
  const int64_t tile = item / kTileItems;
  const uint32_t word = bitmap[item / 32];
  const uint32_t bit = 1u << (item % 32);
  if ((word & bit) == 0) return -1;
  uint32_t rank = offsets[tile] + __popc(word & (bit - 1));
  for (int64_t i = tile * kTileWords; i < item / 32; ++i) rank += __popc(bitmap[i]);
  return rank;
}

// What a block of the local layout says about one segment.
struct Segment {
  const uint16_t* indices;  // [count]
  int64_t first_kept;       // which of the kept items the first index belongs to
  uint32_t count;
};

__device__ __forceinline__ Segment SegmentOf(const Blocks& blocks, int64_t worker,
                                             int64_t segment) {
  const uint32_t* const words = blocks.Words(worker);
  const uint32_t offset = blocks.Offsets(worker)[segment];
  return {reinterpret_cast<const uint16_t*>(words + blocks.parts) + offset, offset, words[segment]};
}

// Whether this thread finds nothing wrong with a segment of `size` items. The threads of a block
// share the indices among them; none is read before it is known that there are so many.
__device__ bool SegmentIsSound(const Blocks& blocks, int64_t worker, const Segment& entries,
                               int64_t size) {
  if (!blocks.IsSound(worker) || entries.first_kept + entries.count > blocks.k) return false;
  bool is_sound = true;
  for (uint32_t j = threadIdx.x; j < entries.count; j += blockDim.x) {
    const uint16_t index = entries.indices[j];
    is_sound &= index < size && (j == 0 || entries.indices[j - 1] < index);
  }
  return is_sound;
}

// ---- Counting ----------------------------------------------------------------------------------

// One thread per tile of every bitmap counts the tile's set bits. Bitmap b's counts start at
// counts[b * (tiles + 1)].
__global__ void CountTilesKernel(const uint32_t* bitmaps, int64_t num_bitmaps,
                                 int64_t words_per_bitmap, int64_t num_words, int64_t tiles,
                                 uint32_t* counts) {
  const int64_t thread = GlobalThread();
  if (thread >= num_bitmaps * tiles) return;
  const int64_t bitmap = thread / tiles;
  const int64_t tile = thread % tiles;
  const uint32_t* const words = bitmaps + bitmap * words_per_bitmap;
  uint32_t count = 0;
  for (int64_t i = tile * kTileWords; i < (tile + 1) * kTileWords && i < num_words; ++i) {
    count += __popc(words[i]);
  }
  counts[bitmap * (tiles + 1) + tile] = count;
}

// One block per row turns `size` counts into offsets and a total; the rows may be the same memory.
__global__ void OffsetsKernel(const uint32_t* counts, int64_t counts_stride, int64_t size,
                              uint32_t* offsets) {
  BlockOffsets(counts + blockIdx.x * counts_stride, size, offsets + blockIdx.x * (size + 1));
}

// ---- Gather ------------------------------------------------------------------------------------

// One thread per item. That of a kept item writes the item and, in the local layout, its index;
// that of a segment's first item writes the segment's count, that of item 0 the padding, and in a
// bitmap that of a word's first item the word.
template <int kComponents>
__global__ void GatherKernel(const uint32_t* selected, const uint32_t* offsets, const float* values,
                             int64_t n, int64_t k, int64_t tiles, int64_t segments, bool is_local,
                             uint32_t* positions, float* kept) {
  const int64_t item = GlobalThread();
  if (item >= n) return;
  uint16_t* const indices = reinterpret_cast<uint16_t*>(positions + segments);
  if (!is_local) {
    if (item % 32 == 0) positions[item / 32] = selected[item / 32];
  } else {
    if (item % kSegmentItems == 0) {
      const int64_t first = item / kTileItems;
      const int64_t next = first + kSegmentItems / kTileItems;
      positions[item / kSegmentItems] = offsets[next < tiles ? next : tiles] - offsets[first];
    }
    if (item == 0 && k % 2 != 0) indices[k] = 0;
  }
  const int64_t rank = BitmapRank(selected, offsets, item);
  if (rank < 0 || rank >= k) return;
  if (is_local) indices[rank] = static_cast<uint16_t>(item % kSegmentItems);
  for (int c = 0; c < kComponents; ++c) {
    kept[rank * kComponents + c] = values[item * kComponents + c];
  }
}

// ---- Sum ---------------------------------------------------------------------------------------

// One thread per item adds up the workers and writes the item's sum.
template <int kComponents>
__global__ void SumBitmapKernel(Blocks blocks, const float* kept, float* sum) {
  const int64_t item = GlobalThread();
  if (item >= blocks.n) return;
  float total[kComponents] = {};
  for (int64_t worker = 0; worker < blocks.num_workers; ++worker) {
    if (!blocks.IsSound(worker)) {
      for (int c = 0; c < kComponents; ++c) total[c] = FloatOf(kNanBits);
      break;
    }
    const int64_t rank = BitmapRank(blocks.Words(worker), blocks.Offsets(worker), item);
    if (rank < 0) continue;
    for (int c = 0; c < kComponents; ++c) {
      total[c] += kept[(worker * blocks.k + rank) * kComponents + c];
    }
  }
  for (int c = 0; c < kComponents; ++c) sum[item * kComponents + c] = total[c];
}

// One block per segment writes the segment's sums: zeros first, then worker after worker, one
// thread per kept item. A worker keeps an item once, so no two threads add to the same.
template <int kComponents>
__global__ void SumLocalKernel(Blocks blocks, const float* kept, float* sum) {
  __shared__ uint32_t is_corrupt;
  const int64_t segment = blockIdx.x;
  const int64_t first = segment * kSegmentItems;
  const int64_t size = blocks.n - first < kSegmentItems ? blocks.n - first : kSegmentItems;
  if (threadIdx.x == 0) is_corrupt = 0;
  __syncthreads();
  for (int64_t worker = 0; worker < blocks.num_workers; ++worker) {
    const Segment entries = SegmentOf(blocks, worker, segment);
    if (!SegmentIsSound(blocks, worker, entries, size)) atomicOr(&is_corrupt, 1u);
  }
  __syncthreads();
  const float start = is_corrupt != 0 ? FloatOf(kNanBits) : 0.0f;
  float* const sums = sum + first * kComponents;
  for (int64_t i = threadIdx.x; i < size * kComponents; i += blockDim.x) sums[i] = start;
  if (is_corrupt != 0) return;  // the same for the whole block
  for (int64_t worker = 0; worker < blocks.num_workers; ++worker) {
    __syncthreads();
    const Segment entries = SegmentOf(blocks, worker, segment);
    const float* const from = kept + (worker * blocks.k + entries.first_kept) * kComponents;
    for (uint32_t j = threadIdx.x; j < entries.count; j += blockDim.x) {
      float* const to = sums + static_cast<int64_t>(entries.indices[j]) * kComponents;
      for (int c = 0; c < kComponents; ++c) {
        to[c] += from[static_cast<int64_t>(j) * kComponents + c];
      }
    }
  }
}

// ---- Replace -----------------------------------------------------------------------------------

// One thread per item overwrites it if the only block keeps it.
template <int kComponents>
__global__ void ReplaceBitmapKernel(Blocks blocks, const float* kept, float* values) {
  const int64_t item = GlobalThread();
  if (item >= blocks.n) return;
  const bool is_sound = blocks.IsSound(0);
  const int64_t rank = is_sound ? BitmapRank(blocks.Words(0), blocks.Offsets(0), item) : 0;
  if (rank < 0) return;
  for (int c = 0; c < kComponents; ++c) {
    values[item * kComponents + c] = is_sound ? kept[rank * kComponents + c] : FloatOf(kNanBits);
  }
}

// One block per segment overwrites the segment's kept items, one thread per kept item.
template <int kComponents>
__global__ void ReplaceLocalKernel(Blocks blocks, const float* kept, float* values) {
  __shared__ uint32_t is_corrupt;
  const int64_t segment = blockIdx.x;
  const int64_t first = segment * kSegmentItems;
  const int64_t size = blocks.n - first < kSegmentItems ? blocks.n - first : kSegmentItems;
  const Segment entries = SegmentOf(blocks, 0, segment);
  float* const items = values + first * kComponents;
  if (threadIdx.x == 0) is_corrupt = 0;
  __syncthreads();
  if (!SegmentIsSound(blocks, 0, entries, size)) atomicOr(&is_corrupt, 1u);
  __syncthreads();
  if (is_corrupt != 0) {
    for (int64_t i = threadIdx.x; i < size * kComponents; i += blockDim.x) {
      items[i] = FloatOf(kNanBits);
    }
    return;
  }
  const float* const from = kept + entries.first_kept * kComponents;
  for (uint32_t j = threadIdx.x; j < entries.count; j += blockDim.x) {
    float* const to = items + static_cast<int64_t>(entries.indices[j]) * kComponents;
    for (int c = 0; c < kComponents; ++c) {
      to[c] = from[static_cast<int64_t>(j) * kComponents + c];
    }
  }
}

// ---- Launching ---------------------------------------------------------------------------------

bool SizesAreValid(int64_t num_workers, int64_t n, int components, int64_t k) {
  return (components == 1 || components == 2) && 0 <= k && k <= n && n <= kMaxSize &&
         0 <= num_workers && num_workers <= kMaxSize / (NumTiles(n) + 1);
}

// Counts of tiles or segments that the workspace has room for: one row per worker.
size_t OffsetsBytes(int64_t num_workers, int64_t n, int64_t k) {
  const int64_t parts = PositionsUseLocal(n, k) ? PositionsNumSegments(n) : NumTiles(n);
  return sizeof(uint32_t) * static_cast<size_t>(num_workers * (parts + 1));
}

// Computes the offsets of the blocks in the workspace, and describes the blocks to the kernels.
cudaError_t PrepareBlocks(const uint32_t* d_positions, int64_t num_workers, int64_t n, int64_t k,
                          void* d_workspace, cudaStream_t stream, Blocks* blocks) {
  const bool is_local = PositionsUseLocal(n, k);
  uint32_t* const d_offsets = static_cast<uint32_t*>(d_workspace);
  blocks->words = d_positions;
  blocks->num_workers = num_workers;
  blocks->num_words = PositionsNumWords(n, k);
  blocks->offsets = d_offsets;
  blocks->parts = is_local ? PositionsNumSegments(n) : NumTiles(n);
  blocks->n = n;
  blocks->k = k;
  if (num_workers == 0) return cudaSuccess;
  if (is_local) {
    blocks->unused_bits = k % 2 != 0 ? 0xffff0000u : 0u;
    GRADCOMP_LAUNCH(OffsetsKernel, num_workers, kScanThreads, stream, d_positions,
                    blocks->num_words, blocks->parts, d_offsets);
    return cudaGetLastError();
  }
  blocks->unused_bits = n % 32 != 0 ? ~0u << (n % 32) : 0u;
  return LaunchBitmapOffsets(d_positions, num_workers, blocks->num_words, n, stream, d_offsets);
}

template <int kComponents>
void LaunchGather(const uint32_t* d_selected, const uint32_t* d_offsets, const float* d_values,
                  int64_t n, int64_t k, cudaStream_t stream, uint32_t* d_positions, float* d_kept) {
  GRADCOMP_LAUNCH(GatherKernel<kComponents>, NumTiles(n), kTileThreads, stream, d_selected,
                  d_offsets, d_values, n, k, NumTiles(n), PositionsNumSegments(n),
                  PositionsUseLocal(n, k), d_positions, d_kept);
}

template <int kComponents>
void LaunchSum(const Blocks& blocks, const float* d_kept, cudaStream_t stream, float* d_sum) {
  if (PositionsUseLocal(blocks.n, blocks.k)) {
    GRADCOMP_LAUNCH(SumLocalKernel<kComponents>, blocks.parts, kSegmentThreads, stream, blocks,
                    d_kept, d_sum);
  } else {
    GRADCOMP_LAUNCH(SumBitmapKernel<kComponents>, blocks.parts, kTileThreads, stream, blocks,
                    d_kept, d_sum);
  }
}

template <int kComponents>
void LaunchReplace(const Blocks& blocks, const float* d_kept, cudaStream_t stream,
                   float* d_values) {
  if (PositionsUseLocal(blocks.n, blocks.k)) {
    GRADCOMP_LAUNCH(ReplaceLocalKernel<kComponents>, blocks.parts, kSegmentThreads, stream, blocks,
                    d_kept, d_values);
  } else {
    GRADCOMP_LAUNCH(ReplaceBitmapKernel<kComponents>, blocks.parts, kTileThreads, stream, blocks,
                    d_kept, d_values);
  }
}

}  // namespace

cudaError_t LaunchBitmapOffsets(const uint32_t* d_bitmaps, int64_t num_bitmaps,
                                int64_t words_per_bitmap, int64_t n, cudaStream_t stream,
                                uint32_t* d_offsets) {
  if (n < 0 || n > kMaxSize || num_bitmaps < 0 || num_bitmaps > kMaxSize / (NumTiles(n) + 1)) {
    return cudaErrorInvalidValue;
  }
  if (num_bitmaps == 0) return cudaSuccess;
  const int64_t tiles = NumTiles(n);
  if (n > 0) {
    GRADCOMP_LAUNCH(CountTilesKernel, NumBlocks(num_bitmaps * tiles), kThreads, stream, d_bitmaps,
                    num_bitmaps, words_per_bitmap, PositionsBitmapWords(n), tiles, d_offsets);
  }
  GRADCOMP_LAUNCH(OffsetsKernel, num_bitmaps, kScanThreads, stream, d_offsets, tiles + 1, tiles,
                  d_offsets);
  return cudaGetLastError();
}

size_t PositionsGatherWorkspaceBytes(int64_t n) {
  return sizeof(uint32_t) * static_cast<size_t>(NumTiles(n) + 1);
}

cudaError_t LaunchPositionsGather(const uint32_t* d_selected, const float* d_values, int64_t n,
                                  int components, int64_t k, void* d_workspace,
                                  size_t workspace_bytes, cudaStream_t stream,
                                  uint32_t* d_positions, float* d_kept) {
  if (!SizesAreValid(1, n, components, k) || workspace_bytes < PositionsGatherWorkspaceBytes(n)) {
    return cudaErrorInvalidValue;
  }
  if (n == 0) return cudaSuccess;
  uint32_t* const d_offsets = static_cast<uint32_t*>(d_workspace);
  const cudaError_t error =
      LaunchBitmapOffsets(d_selected, 1, PositionsBitmapWords(n), n, stream, d_offsets);
  if (error != cudaSuccess) return error;
  if (components == 1) {
    LaunchGather<1>(d_selected, d_offsets, d_values, n, k, stream, d_positions, d_kept);
  } else {
    LaunchGather<2>(d_selected, d_offsets, d_values, n, k, stream, d_positions, d_kept);
  }
  return cudaGetLastError();
}

size_t PositionsSumWorkspaceBytes(int64_t num_workers, int64_t n, int64_t k) {
  return OffsetsBytes(num_workers, n, k);
}

cudaError_t LaunchPositionsSum(const uint32_t* d_positions, const float* d_kept,
                               int64_t num_workers, int64_t n, int components, int64_t k,
                               void* d_workspace, size_t workspace_bytes, cudaStream_t stream,
                               float* d_sum) {
  if (!SizesAreValid(num_workers, n, components, k) ||
      workspace_bytes < PositionsSumWorkspaceBytes(num_workers, n, k)) {
    return cudaErrorInvalidValue;
  }
  if (n == 0) return cudaSuccess;
  Blocks blocks = {};
  const cudaError_t error =
      PrepareBlocks(d_positions, num_workers, n, k, d_workspace, stream, &blocks);
  if (error != cudaSuccess) return error;
  if (components == 1) {
    LaunchSum<1>(blocks, d_kept, stream, d_sum);
  } else {
    LaunchSum<2>(blocks, d_kept, stream, d_sum);
  }
  return cudaGetLastError();
}

size_t PositionsReplaceWorkspaceBytes(int64_t n, int64_t k) { return OffsetsBytes(1, n, k); }

cudaError_t LaunchPositionsReplace(const uint32_t* d_positions, const float* d_kept, int64_t n,
                                   int components, int64_t k, void* d_workspace,
                                   size_t workspace_bytes, cudaStream_t stream, float* d_values) {
  if (!SizesAreValid(1, n, components, k) ||
      workspace_bytes < PositionsReplaceWorkspaceBytes(n, k)) {
    return cudaErrorInvalidValue;
  }
  if (n == 0) return cudaSuccess;
  Blocks blocks = {};
  const cudaError_t error = PrepareBlocks(d_positions, 1, n, k, d_workspace, stream, &blocks);
  if (error != cudaSuccess) return error;
  if (components == 1) {
    LaunchReplace<1>(blocks, d_kept, stream, d_values);
  } else {
    LaunchReplace<2>(blocks, d_kept, stream, d_values);
  }
  return cudaGetLastError();
}

}  // namespace gradcomp::cuda
