// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/cuda/top_k_cuda.h"

#include "custom_ops/core/positions.h"
#include "custom_ops/core/top_k_math.h"
#include "custom_ops/cuda/block_scan.h"
#include "custom_ops/cuda/cuda_launch.h"
#include "custom_ops/cuda/positions_cuda.h"

namespace gradcomp::cuda {
namespace {

// The items and how to turn them into keys.
struct Items {
  const float* values;
  int64_t n;
  int components;
  int64_t row_length;

  __device__ uint32_t KeyAt(int64_t item) const {
    if (components == 1) return RealKey(values[item]);
    // A row has at most n bins, and n fits 32 bits, in which a division is cheaper.
    const uint32_t bins = static_cast<uint32_t>(row_length / 2 + 1);
    const double weight =
        row_length == 0 ? 1.0 : BinWeight(static_cast<uint32_t>(item) % bins, row_length);
    return ComplexKey(values[2 * item], values[2 * item + 1], weight);
  }
};

// One thread per float.
__global__ void AddKernel(const float* values, const float* residual, int64_t count, float* sum) {
  const int64_t i = GlobalThread();
  if (i < count) sum[i] = values[i] + residual[i];
}

// Some bits of a key. Keys have 31 bits, from the highest: 11, 10 and 10.
struct Digit {
  int shift;
  int bits;
};
constexpr Digit kDigits[] = {{20, 11}, {10, 10}, {0, 10}};
constexpr int kMaxBins = 1 << 11;

// What is known of the k-th largest key. All zeros at first.
struct Selection {
  uint32_t key;    // its bits so far, without those below the last digit
  uint32_t above;  // number of keys whose bits so far are larger; in the end, of larger keys
  uint32_t histogram[kMaxBins];  // of the next digit, of the keys that agree so far
};

// A block of the histogram has at least this many items to look at, and there are at most this many
// blocks: each of them adds its bins to the common ones.
constexpr int64_t kHistogramItems = 4096;
constexpr int64_t kHistogramBlocks = 1024;

// Blocks of any number count in shared memory, taking the items in turns, and add their counts to
// selection->histogram, which is zero before.
__global__ void HistogramKernel(Items items, Digit digit, Selection* selection) {
  __shared__ uint32_t histogram[kMaxBins];
  const uint32_t mask = (1u << digit.bits) - 1;
  for (uint32_t bin = threadIdx.x; bin <= mask; bin += blockDim.x) histogram[bin] = 0;
  __syncthreads();
  const uint32_t agreed = selection->key;
  for (int64_t item = GlobalThread(); item < items.n; item += GlobalThreads()) {
    const uint32_t key = items.KeyAt(item);
    if (key >> (digit.shift + digit.bits) == agreed) {
      atomicAdd(&histogram[key >> digit.shift & mask], 1u);
    }
  }
  __syncthreads();
  for (uint32_t bin = threadIdx.x; bin <= mask; bin += blockDim.x) {
    if (histogram[bin] != 0) atomicAdd(&selection->histogram[bin], histogram[bin]);
  }
}

// One block of kThreads finds the bin of the k-th largest key and appends it to the key. Each
// thread has a run of bins, thread 0 that of the largest, and clears them.
__global__ void PickDigitKernel(Digit digit, int64_t k, Selection* selection) {
  const int run = (1 << digit.bits) / kThreads;
  const int first = (1 << digit.bits) - 1 - static_cast<int>(threadIdx.x) * run;
  // Read here, before the barriers of the sum; written by one thread after them.
  const uint32_t agreed = selection->key;
  const uint32_t all_above = selection->above;
  const uint32_t rank = static_cast<uint32_t>(k) - all_above;  // among the keys that agree
  uint32_t sum = 0;
  for (int i = 0; i < run; ++i) sum += selection->histogram[first - i];
  uint32_t total;
  uint32_t above = BlockExclusiveSum(sum, &total);
  for (int i = 0; i < run; ++i) {
    const int bin = first - i;
    const uint32_t count = selection->histogram[bin];
    if (above < rank && rank <= above + count) {
      selection->key = agreed << digit.bits | static_cast<uint32_t>(bin);
      selection->above = all_above + above;
    }
    above += count;
    selection->histogram[bin] = 0;
  }
}

// One thread per item, and per bit up to the end of the last tile, compares its key with the k-th;
// one thread of each warp writes the warp's two words, one bit an item. Bits from n on have the key
// 0, which is above none, and if it is a tie, it is one too late to be kept.
__global__ void CompareKernel(Items items, const Selection* selection, int64_t num_words,
                              uint32_t* above, uint32_t* ties) {
  const int64_t item = GlobalThread();
  const uint32_t kth = selection->key;
  const uint32_t key = item < items.n ? items.KeyAt(item) : 0;
  const uint32_t above_word = __ballot_sync(~0u, key > kth);
  const uint32_t ties_word = __ballot_sync(~0u, key == kth);
  if (item % kWarp == 0 && item / kWarp < num_words) {
    above[item / kWarp] = above_word;
    ties[item / kWarp] = ties_word;
  }
}

// The lowest `count` of the set bits of `word`, or all if there are fewer.
__device__ __forceinline__ uint32_t LowestBits(uint32_t word, uint32_t count) {
  uint32_t rest = word;
  for (uint32_t i = 0; i < count && rest != 0; ++i) rest &= rest - 1;
  return word & ~rest;
}

// One thread per word adds the ties that are kept to the items that are: those of lowest index, as
// many as are missing to k. `offsets` are those of the ties' tiles.
__global__ void KeepTiesKernel(const uint32_t* ties, const uint32_t* offsets,
                               const Selection* selection, int64_t num_words, int64_t k,
                               uint32_t* selected) {
  const int64_t word = GlobalThread();
  if (word >= num_words) return;
  const uint32_t missing = static_cast<uint32_t>(k) - selection->above;
  const int64_t tile = word / kTileWords;
  uint32_t before = offsets[tile];
  if (before >= missing) return;
  for (int64_t i = tile * kTileWords; i < word; ++i) before += __popc(ties[i]);
  if (before < missing) selected[word] |= LowestBits(ties[word], missing - before);
}

bool ArgumentsAreValid(int64_t n, int components, int64_t row_length, int64_t k) {
  if (k < 1 || k > n || n > kMaxSize || row_length < 0) return false;
  if (row_length == 0) return components == 1 || components == 2;
  return components == 2 && n % (row_length / 2 + 1) == 0;
}

}  // namespace

size_t TopKSelectWorkspaceBytes(int64_t n) {
  return sizeof(Selection) + sizeof(uint32_t) * 2 * static_cast<size_t>(PositionsBitmapWords(n)) +
         PositionsGatherWorkspaceBytes(n);
}

cudaError_t LaunchTopKSelect(const float* d_values, const float* d_residual, int64_t n,
                             int components, int64_t row_length, int64_t k, void* d_workspace,
                             size_t workspace_bytes, cudaStream_t stream, uint32_t* d_positions,
                             float* d_kept, float* d_sum) {
  if (!ArgumentsAreValid(n, components, row_length, k) ||
      workspace_bytes < TopKSelectWorkspaceBytes(n)) {
    return cudaErrorInvalidValue;
  }
  if (d_residual != nullptr) {
    const int64_t count = n * components;
    GRADCOMP_LAUNCH(AddKernel, NumBlocks(count), kThreads, stream, d_values, d_residual, count,
                    d_sum);
    d_values = d_sum;
  }
  const Items items = {d_values, n, components, row_length};
  const int64_t num_words = PositionsBitmapWords(n);
  Selection* const d_selection = static_cast<Selection*>(d_workspace);
  uint32_t* const d_selected = reinterpret_cast<uint32_t*>(d_selection + 1);
  uint32_t* const d_ties = d_selected + num_words;
  uint32_t* const d_offsets = d_ties + num_words;

  cudaError_t error = cudaMemsetAsync(d_selection, 0, sizeof(Selection), stream);
  if (error != cudaSuccess) return error;
  const int64_t wanted = NumBlocks(n, kHistogramItems);
  const int64_t blocks = wanted < kHistogramBlocks ? wanted : kHistogramBlocks;
  for (const Digit& digit : kDigits) {
    GRADCOMP_LAUNCH(HistogramKernel, blocks, kThreads, stream, items, digit, d_selection);
    GRADCOMP_LAUNCH(PickDigitKernel, 1, kThreads, stream, digit, k, d_selection);
  }
  GRADCOMP_LAUNCH(CompareKernel, NumBlocks(n), kThreads, stream, items, d_selection, num_words,
                  d_selected, d_ties);
  error = LaunchBitmapOffsets(d_ties, 1, num_words, n, stream, d_offsets);
  if (error != cudaSuccess) return error;
  GRADCOMP_LAUNCH(KeepTiesKernel, NumBlocks(num_words), kThreads, stream, d_ties, d_offsets,
                  d_selection, num_words, k, d_selected);
  error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  // The offsets of the ties have done their work.
  return LaunchPositionsGather(d_selected, d_values, n, components, k, d_offsets,
                               PositionsGatherWorkspaceBytes(n), stream, d_positions, d_kept);
}

}  // namespace gradcomp::cuda
