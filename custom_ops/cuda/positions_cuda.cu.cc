// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/cuda/positions_cuda.h"

#include "custom_ops/core/host_device.h"
#include "custom_ops/core/positions.h"
#include "custom_ops/cuda/block_scan.h"
#include "custom_ops/cuda/cuda_launch.h"

namespace gradcomp::cuda {
namespace {

constexpr int kTileThreads = static_cast<int>(kTileItems);
constexpr int kScanThreads = 1024;

// The positions blocks of all workers, and what the kernels know of them.
struct Blocks {
  const uint32_t* words;  // [num_workers, num_words]
  int64_t num_workers;
  int64_t num_words;
  EliasFanoShape shape;     // if that is the layout
  int64_t first_word;       // of the bitmap, or of the upper bits
  int64_t last_word;        // of the bitmap, or of the low bits
  uint32_t unused_bits;     // of that last word, which must be 0
  const uint32_t* offsets;  // [num_workers, tiles + 1] bits set before each tile
  int64_t tiles;            // of the bitmap or of the upper bits
  uint32_t* is_corrupt;     // not 0 if an Elias-Fano block is
  int64_t n;
  int64_t k;

  __device__ const uint32_t* Words(int64_t worker) const { return words + worker * num_words; }
  __device__ const uint32_t* Bits(int64_t worker) const { return Words(worker) + first_word; }
  __device__ const uint32_t* Offsets(int64_t worker) const {
    return offsets + worker * (tiles + 1);
  }
  // Whether a worker's block keeps k items and has no unused bits set, as far as its last word.
  __device__ bool IsSound(int64_t worker) const {
    return Offsets(worker)[tiles] == k &&
           (unused_bits == 0 || (Words(worker)[last_word] & unused_bits) == 0);
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

// The low bits of kept item `rank` < k of an Elias-Fano block.
__device__ __forceinline__ int64_t LowBits(const uint32_t* block, int low_bits, int64_t rank) {
  const int64_t bit = rank * low_bits;
  const int shift = static_cast<int>(bit % 32);
  uint64_t bits = 0;
  if (low_bits > 0) bits = block[bit / 32] >> shift;
  if (shift + low_bits > 32) bits |= static_cast<uint64_t>(block[bit / 32 + 1]) << (32 - shift);
  return static_cast<int64_t>(bits & ((uint64_t{1} << low_bits) - 1));
}

// The kept item that an upper bit stands for, in a block that keeps k items.
struct KeptItem {
  int64_t rank;  // -1 if the bit is not set
  int64_t bucket;
  int64_t low;

  __device__ int64_t Position(int low_bits) const { return bucket << low_bits | low; }
};

__device__ __forceinline__ KeptItem KeptItemOf(const Blocks& blocks, int64_t worker, int64_t bit) {
  const int64_t rank = BitmapRank(blocks.Bits(worker), blocks.Offsets(worker), bit);
  if (rank < 0) return {-1, 0, 0};
  return {rank, bit - rank, LowBits(blocks.Words(worker), blocks.shape.low_bits, rank)};
}

__device__ __forceinline__ void SetBits(uint32_t* words, int64_t bit, uint32_t value) {
  const int shift = static_cast<int>(bit % 32);
  const uint64_t bits = static_cast<uint64_t>(value) << shift;
  if (static_cast<uint32_t>(bits) != 0) atomicOr(&words[bit / 32], static_cast<uint32_t>(bits));
  if (bits >> 32 != 0) atomicOr(&words[bit / 32 + 1], static_cast<uint32_t>(bits >> 32));
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

__global__ void ClearKernel(uint32_t* words, int64_t size) {
  const int64_t i = GlobalThread();
  if (i < size) words[i] = 0;
}

// One thread per item. That of a kept item writes the item and, in the Elias-Fano layout, adds its
// position to a block of zeros; in a bitmap that of a word's first item writes the word.
template <int kComponents>
__global__ void GatherKernel(const uint32_t* selected, const uint32_t* offsets, const float* values,
                             int64_t n, int64_t k, bool is_bitmap, EliasFanoShape shape,
                             uint32_t* positions, float* kept) {
  const int64_t item = GlobalThread();
  if (item >= n) return;
  if (is_bitmap && item % 32 == 0) positions[item / 32] = selected[item / 32];
  const int64_t rank = BitmapRank(selected, offsets, item);
  if (rank < 0 || rank >= k) return;
  if (!is_bitmap) {
    const uint32_t low_mask = (1u << shape.low_bits) - 1;
    SetBits(positions, rank * shape.low_bits, static_cast<uint32_t>(item) & low_mask);
    SetBits(positions + shape.low_words, (item >> shape.low_bits) + rank, 1);
  }
  for (int c = 0; c < kComponents; ++c) {
    kept[rank * kComponents + c] = values[item * kComponents + c];
  }
}

// ---- Elias-Fano --------------------------------------------------------------------------------

// One thread per upper bit of every worker. Whatever is wrong with a block sets *is_corrupt.
__global__ void CheckEliasFanoKernel(Blocks blocks) {
  const int64_t thread = GlobalThread();
  const int64_t bits = blocks.tiles * kTileItems;
  const int64_t worker = thread / bits;
  const int64_t bit = thread % bits;
  if (worker >= blocks.num_workers || bit >= 32 * blocks.shape.upper_words) return;
  bool is_sound = blocks.IsSound(worker);
  if (is_sound) {  // there are low bits for all the upper ones
    const KeptItem item = KeptItemOf(blocks, worker, bit);
    if (item.rank < 0) return;
    is_sound =
        item.bucket < blocks.shape.buckets && item.Position(blocks.shape.low_bits) < blocks.n;
    const uint32_t* const upper = blocks.Bits(worker);
    if (bit > 0 && (upper[(bit - 1) / 32] >> ((bit - 1) % 32) & 1) != 0) {  // of the same bucket
      is_sound &= LowBits(blocks.Words(worker), blocks.shape.low_bits, item.rank - 1) < item.low;
    }
  }
  if (!is_sound) atomicOr(blocks.is_corrupt, 1u);
}

// One thread per float: NaN if a block is corrupt, else +0 if `clear`, else as it was.
__global__ void StartEliasFanoKernel(const uint32_t* is_corrupt, bool clear, int64_t size,
                                     float* floats) {
  const int64_t i = GlobalThread();
  if (i >= size) return;
  if (*is_corrupt != 0) {
    floats[i] = FloatOf(kNanBits);
  } else if (clear) {
    floats[i] = 0.0f;
  }
}

// One thread per upper bit of one worker's block. That of a kept item adds it to the dense items,
// or puts it in their place. An item is kept once, so no two threads write to the same.
template <int kComponents>
__global__ void MoveEliasFanoKernel(Blocks blocks, int64_t worker, bool add, const float* kept,
                                    float* dense) {
  const int64_t bit = GlobalThread();
  if (*blocks.is_corrupt != 0 || bit >= 32 * blocks.shape.upper_words) return;
  const KeptItem item = KeptItemOf(blocks, worker, bit);
  if (item.rank < 0) return;
  const float* const from = kept + item.rank * kComponents;
  float* const to = dense + item.Position(blocks.shape.low_bits) * kComponents;
  for (int c = 0; c < kComponents; ++c) to[c] = add ? to[c] + from[c] : from[c];
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

// ---- Launching ---------------------------------------------------------------------------------

bool SizesAreValid(int64_t num_workers, int64_t n, int components, int64_t k) {
  return (components == 1 || components == 2) && 0 <= k && k <= n && n <= kMaxSize &&
         0 <= num_workers && num_workers <= kMaxSize / (NumTiles(n) + 1);
}

bool IsBitmap(int64_t n, int64_t k) { return PositionsLayoutOf(n, k) == PositionsLayout::kBitmap; }

// Bits of the bitmap, or of the whole words of upper bits.
int64_t NumBits(int64_t n, int64_t k) {
  return IsBitmap(n, k) ? n : 32 * EliasFanoShapeOf(n, k).upper_words;
}

// Offsets of tiles that the workspace has room for, one row per worker, and a flag.
size_t WorkspaceBytes(int64_t num_workers, int64_t n, int64_t k) {
  const int64_t words = num_workers * (NumTiles(NumBits(n, k)) + 1) + 1;
  return sizeof(uint32_t) * static_cast<size_t>(words);
}

// Computes the offsets of the blocks in the workspace, and describes the blocks to the kernels.
cudaError_t PrepareBlocks(const uint32_t* d_positions, int64_t num_workers, int64_t n, int64_t k,
                          void* d_workspace, cudaStream_t stream, Blocks* blocks) {
  const bool is_bitmap = IsBitmap(n, k);
  const int64_t num_bits = NumBits(n, k);
  uint32_t* const d_offsets = static_cast<uint32_t*>(d_workspace);
  blocks->words = d_positions;
  blocks->num_workers = num_workers;
  blocks->num_words = PositionsNumWords(n, k);
  blocks->shape = EliasFanoShapeOf(n, k);
  blocks->first_word = is_bitmap ? 0 : blocks->shape.low_words;
  blocks->last_word = (is_bitmap ? blocks->num_words : blocks->shape.low_words) - 1;
  const int64_t used = is_bitmap ? n % 32 : k * blocks->shape.low_bits % 32;
  blocks->unused_bits = used != 0 ? ~0u << used : 0u;
  blocks->offsets = d_offsets;
  blocks->tiles = NumTiles(num_bits);
  blocks->is_corrupt = d_offsets + num_workers * (blocks->tiles + 1);
  blocks->n = n;
  blocks->k = k;
  GRADCOMP_LAUNCH(ClearKernel, 1, kThreads, stream, blocks->is_corrupt, 1);
  if (num_workers == 0) return cudaGetLastError();
  const cudaError_t error = LaunchBitmapOffsets(d_positions + blocks->first_word, num_workers,
                                                blocks->num_words, num_bits, stream, d_offsets);
  if (error != cudaSuccess || is_bitmap) return error;
  GRADCOMP_LAUNCH(CheckEliasFanoKernel, num_workers * blocks->tiles, kTileThreads, stream, *blocks);
  return cudaGetLastError();
}

template <int kComponents>
void LaunchGather(const uint32_t* d_selected, const uint32_t* d_offsets, const float* d_values,
                  int64_t n, int64_t k, cudaStream_t stream, uint32_t* d_positions, float* d_kept) {
  const int64_t num_words = PositionsNumWords(n, k);
  if (!IsBitmap(n, k)) {
    GRADCOMP_LAUNCH(ClearKernel, NumBlocks(num_words), kThreads, stream, d_positions, num_words);
  }
  GRADCOMP_LAUNCH(GatherKernel<kComponents>, NumTiles(n), kTileThreads, stream, d_selected,
                  d_offsets, d_values, n, k, IsBitmap(n, k), EliasFanoShapeOf(n, k), d_positions,
                  d_kept);
}

template <int kComponents>
void LaunchSum(const Blocks& blocks, const float* d_kept, cudaStream_t stream, float* d_sum) {
  if (IsBitmap(blocks.n, blocks.k)) {
    GRADCOMP_LAUNCH(SumBitmapKernel<kComponents>, blocks.tiles, kTileThreads, stream, blocks,
                    d_kept, d_sum);
    return;
  }
  const int64_t size = blocks.n * kComponents;
  GRADCOMP_LAUNCH(StartEliasFanoKernel, NumBlocks(size), kThreads, stream, blocks.is_corrupt, true,
                  size, d_sum);
  // One launch after the other keeps the order of the workers.
  for (int64_t worker = 0; worker < blocks.num_workers; ++worker) {
    GRADCOMP_LAUNCH(MoveEliasFanoKernel<kComponents>, blocks.tiles, kTileThreads, stream, blocks,
                    worker, true, d_kept + worker * blocks.k * kComponents, d_sum);
  }
}

template <int kComponents>
void LaunchReplace(const Blocks& blocks, const float* d_kept, cudaStream_t stream,
                   float* d_values) {
  if (IsBitmap(blocks.n, blocks.k)) {
    GRADCOMP_LAUNCH(ReplaceBitmapKernel<kComponents>, blocks.tiles, kTileThreads, stream, blocks,
                    d_kept, d_values);
    return;
  }
  const int64_t size = blocks.n * kComponents;
  GRADCOMP_LAUNCH(StartEliasFanoKernel, NumBlocks(size), kThreads, stream, blocks.is_corrupt, false,
                  size, d_values);
  GRADCOMP_LAUNCH(MoveEliasFanoKernel<kComponents>, blocks.tiles, kTileThreads, stream, blocks, 0,
                  false, d_kept, d_values);
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
  return WorkspaceBytes(num_workers, n, k);
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

size_t PositionsReplaceWorkspaceBytes(int64_t n, int64_t k) { return WorkspaceBytes(1, n, k); }

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
