// SPDX-License-Identifier: Apache-2.0
#if defined(__CUDACC__)
#pragma nv_diag_suppress 1675  // core/bit_pack.h has pragmas that only GCC knows
#endif

#include "custom_ops/cuda/range_float_cuda.h"

#include "custom_ops/core/range_float.h"
#include "custom_ops/core/range_float_math.h"
#include "custom_ops/cuda/block_scan.h"
#include "custom_ops/cuda/cuda_launch.h"

namespace gradcomp::cuda {
namespace {

static_assert(kThreads % kPackGroup == 0, "the codes of a block of threads start on a word");

constexpr uint32_t kNonFiniteFlag = 0x80000000u;  // bit 31 of word 2
constexpr uint32_t kNegativeInfinityBits = kInfinityBits | kSignBit;

// A block of the scan has at least this many values to look at, and there are at most this many.
constexpr int64_t kScanValues = 4096;
constexpr int64_t kScanBlocks = 1024;

// What the bounds and the flag follow from. All zeros at first.
struct Extremes {
  int32_t largest;         // largest pattern as a signed number: of the positive values
  uint32_t most_negative;  // largest pattern as an unsigned number: of the negative values
};

// The first three words of a block.
struct Header {
  uint32_t lo_bits;
  uint32_t hi_bits;
  uint32_t parameters;
};

// The code table of a block; without one, all codes are 0 or all values NaN.
struct BlockTable {
  bool exists;
  RangeFloatTable table;
};

// Patterns of the bounds that the caller gave, if it did.
struct GivenRange {
  bool exists;
  uint32_t lo_bits;
  uint32_t hi_bits;
};

// Of -0 the wire has +0.
uint32_t PositiveZero(uint32_t bits) { return bits == kSignBit ? 0u : bits; }

// Whether these are patterns of lo <= 0 <= hi, both finite and neither of them -0.
GRADCOMP_HOST_DEVICE bool BoundsAreValid(uint32_t lo_bits, uint32_t hi_bits) {
  const bool lo_fits = lo_bits == 0 || (lo_bits > kSignBit && lo_bits < kNegativeInfinityBits);
  return lo_fits && hi_bits < kInfinityBits;
}

__device__ Header MakeHeader(const Extremes& extremes, const GivenRange& range,
                             uint32_t parameters) {
  if (extremes.largest >= static_cast<int32_t>(kInfinityBits) ||
      extremes.most_negative >= kNegativeInfinityBits) {
    return {0, 0, parameters | kNonFiniteFlag};
  }
  if (range.exists) return {range.lo_bits, range.hi_bits, parameters};
  // -0 is not negative, and neither is a largest pattern without sign bit.
  const bool has_negative = extremes.most_negative > kSignBit;
  return {has_negative ? extremes.most_negative : 0u, static_cast<uint32_t>(extremes.largest),
          parameters};
}

// A table for what an encoder writes as the header of finite values, none for anything else.
__device__ BlockTable MakeBlockTable(const Header& header, int num_bits, int mantissa_bits,
                                     uint32_t parameters) {
  BlockTable result = {};
  result.exists = header.parameters == parameters && BoundsAreValid(header.lo_bits, header.hi_bits);
  if (result.exists) {
    result.table = MakeRangeFloatTable(FloatOf(header.lo_bits), FloatOf(header.hi_bits), num_bits,
                                       mantissa_bits);
  }
  return result;
}

// Blocks of any number take the values in turns and merge their extremes into the common ones.
__global__ void ExtremesKernel(const float* values, int64_t count, Extremes* extremes) {
  __shared__ Extremes found;
  if (threadIdx.x == 0) found = {0, 0};
  __syncthreads();
  int32_t largest = 0;
  uint32_t most_negative = 0;
  for (int64_t i = GlobalThread(); i < count; i += GlobalThreads()) {
    const uint32_t bits = BitsOf(values[i]);
    const int32_t signed_bits = static_cast<int32_t>(bits);
    largest = signed_bits > largest ? signed_bits : largest;
    most_negative = bits > most_negative ? bits : most_negative;
  }
  atomicMax(&found.largest, largest);
  atomicMax(&found.most_negative, most_negative);
  __syncthreads();
  if (threadIdx.x == 0) {
    atomicMax(&extremes->largest, found.largest);
    atomicMax(&extremes->most_negative, found.most_negative);
  }
}

// Word `word` of the stream of kThreads codes, which fill whole words. A code that lies in two
// words gives a part of itself to each.
__device__ uint32_t PackWord(const uint32_t* codes, int num_bits, int word) {
  const int begin = word * 32;
  uint32_t packed = 0;
  for (int i = begin / num_bits; i * num_bits < begin + 32; ++i) {
    const int shift = i * num_bits - begin;
    packed |= shift >= 0 ? codes[i] << shift : codes[i] >> -shift;
  }
  return packed;
}

// One thread per value encodes it, and writes its error unless `error` is null; the block's first
// threads then write one word of codes each. Block 0 writes the header.
__global__ void EncodeKernel(const float* values, int64_t count, const Extremes* extremes,
                             GivenRange range, int num_bits, int mantissa_bits, uint32_t parameters,
                             int64_t code_words, uint32_t* words, float* error) {
  __shared__ BlockTable shared_table;
  __shared__ uint32_t codes[kThreads];
  if (threadIdx.x == 0) {
    const Header header = MakeHeader(*extremes, range, parameters);
    shared_table = MakeBlockTable(header, num_bits, mantissa_bits, parameters);
    if (blockIdx.x == 0) {
      words[0] = header.lo_bits;
      words[1] = header.hi_bits;
      words[2] = header.parameters;
    }
  }
  __syncthreads();
  const int64_t i = GlobalThread();
  RangeFloatCode encoded = {0, 0};
  if (i < count) {
    const float value = values[i];
    if (shared_table.exists) encoded = RangeFloatEncodeOne(BitsOf(value), shared_table.table);
    if (error != nullptr) {
      error[i] = shared_table.exists ? value - FloatOf(encoded.decoded_bits) : 0.0f;
    }
  }
  codes[threadIdx.x] = static_cast<uint32_t>(encoded.code);
  __syncthreads();
  const int words_per_block = kThreads / kPackGroup * num_bits;
  const int word = static_cast<int>(threadIdx.x);
  const int64_t first_word = static_cast<int64_t>(blockIdx.x) * words_per_block;
  if (word < words_per_block && first_word + word < code_words) {
    words[kRangeFloatHeaderWords + first_word + word] = PackWord(codes, num_bits, word);
  }
}

// Code `i` of a stream of codes.
__device__ __forceinline__ int32_t ReadCode(const uint32_t* codes, int num_bits, int64_t i) {
  const int64_t bit = i * num_bits;
  const int shift = static_cast<int>(bit % 32);
  uint32_t code = codes[bit / 32] >> shift;
  if (shift + num_bits > 32) code |= codes[bit / 32 + 1] << (32 - shift);
  return static_cast<int32_t>(code & ((1u << num_bits) - 1));
}

// `blocks_per_worker` blocks in a row decode a worker's values, one thread per value.
__global__ void DecodeKernel(const uint32_t* words, int64_t words_per_worker, int64_t count,
                             int num_bits, int mantissa_bits, uint32_t parameters,
                             int64_t blocks_per_worker, float* decoded) {
  __shared__ BlockTable shared_table;
  const int64_t worker = blockIdx.x / blocks_per_worker;
  const uint32_t* const block = words + worker * words_per_worker;
  if (threadIdx.x == 0) {
    const Header header = {block[0], block[1], block[2]};
    shared_table = MakeBlockTable(header, num_bits, mantissa_bits, parameters);
  }
  __syncthreads();
  const int64_t i = blockIdx.x % blocks_per_worker * blockDim.x + threadIdx.x;
  if (i >= count) return;
  uint32_t bits = kNanBits;
  if (shared_table.exists) {
    const int32_t code = ReadCode(block + kRangeFloatHeaderWords, num_bits, i);
    bits = RangeFloatDecodeOne(code, shared_table.table);
  }
  decoded[worker * count + i] = FloatOf(bits);
}

uint32_t ParameterWord(const RangeFloatParams& params) {
  return static_cast<uint32_t>(params.num_bits) | static_cast<uint32_t>(params.mantissa_bits) << 4;
}

}  // namespace

bool RangeIsValid(const ValueRange& range) {
  return BoundsAreValid(PositiveZero(BitsOf(range.lo)), PositiveZero(BitsOf(range.hi)));
}

size_t RangeFloatEncodeWorkspaceBytes() { return sizeof(Extremes); }

cudaError_t LaunchRangeFloatEncode(const float* d_values, int64_t count, const ValueRange* range,
                                   const RangeFloatParams& params, void* d_workspace,
                                   size_t workspace_bytes, cudaStream_t stream, uint32_t* d_words,
                                   float* d_error) {
  if (!ValidateRangeFloat(params).ok() || count < 0 || count > kMaxSize ||
      (range != nullptr && !RangeIsValid(*range)) ||
      workspace_bytes < RangeFloatEncodeWorkspaceBytes()) {
    return cudaErrorInvalidValue;
  }
  GivenRange given = {};
  if (range != nullptr) {
    given = {true, PositiveZero(BitsOf(range->lo)), PositiveZero(BitsOf(range->hi))};
  }
  Extremes* const d_extremes = static_cast<Extremes*>(d_workspace);
  const cudaError_t error = cudaMemsetAsync(d_extremes, 0, sizeof(Extremes), stream);
  if (error != cudaSuccess) return error;
  if (count > 0) {
    const int64_t wanted = NumBlocks(count, kScanValues);
    GRADCOMP_LAUNCH(ExtremesKernel, wanted < kScanBlocks ? wanted : kScanBlocks, kThreads, stream,
                    d_values, count, d_extremes);
  }
  // One block even without values: it writes the header.
  const int64_t blocks = count > 0 ? NumBlocks(count) : 1;
  GRADCOMP_LAUNCH(EncodeKernel, blocks, kThreads, stream, d_values, count, d_extremes, given,
                  params.num_bits, params.mantissa_bits, ParameterWord(params),
                  PackedWords(count, params.num_bits), d_words, d_error);
  return cudaGetLastError();
}

cudaError_t LaunchRangeFloatDecode(const uint32_t* d_words, int64_t num_workers, int64_t count,
                                   const RangeFloatParams& params, cudaStream_t stream,
                                   float* d_decoded) {
  if (!ValidateRangeFloat(params).ok() || count < 0 || count > kMaxSize || num_workers < 0 ||
      (count > 0 && num_workers > kMaxSize / NumBlocks(count))) {
    return cudaErrorInvalidValue;
  }
  if (count == 0 || num_workers == 0) return cudaSuccess;
  const int64_t blocks = NumBlocks(count);
  GRADCOMP_LAUNCH(DecodeKernel, num_workers * blocks, kThreads, stream, d_words,
                  RangeFloatNumWords(count, params), count, params.num_bits, params.mantissa_bits,
                  ParameterWord(params), blocks, d_decoded);
  return cudaGetLastError();
}

}  // namespace gradcomp::cuda
