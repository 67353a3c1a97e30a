// SPDX-License-Identifier: Apache-2.0
#include "uniform.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <string>

#include "code_stream.h"
#include "multiversion.h"
#include "uniform_math.h"

namespace gradcomp {
namespace {

constexpr uint32_t kNonFiniteFlag = 0x80000000u;
constexpr int kMaxBits = 8;
constexpr int64_t kMinBlock = kPackGroup;  // so that every block's codes start on a word
constexpr int64_t kMaxBlock = 65536;
constexpr int64_t kTile = 512;  // values whose codes lie in the first-level cache
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr int64_t kEncodeCycles = 6;  // a value
constexpr int64_t kDecodeCycles = 3;

GRADCOMP_ALWAYS_INLINE void LoadTile(const float* values, const float* residual, int64_t count,
                                     float* x) {
  if (residual != nullptr) {
    for (int64_t i = 0; i < count; ++i) x[i] = values[i] + residual[i];
  } else {
    for (int64_t i = 0; i < count; ++i) x[i] = values[i];
  }
}

// Smallest and largest value so far, as ordered patterns.
struct Bounds {
  int32_t lo = std::numeric_limits<int32_t>::max();
  int32_t hi = std::numeric_limits<int32_t>::min();

  bool HasNonFinite() const {
    constexpr int32_t kInfinity = static_cast<int32_t>(kInfinityBits);
    return hi >= kInfinity || lo <= OrderedPattern(kInfinity | std::numeric_limits<int32_t>::min());
  }
  // The wire has no -0.
  static float FloatOfOrdered(int32_t ordered) {
    const uint32_t bits = static_cast<uint32_t>(OrderedPattern(ordered));
    return FloatOf(bits == kSignBit ? 0u : bits);
  }
};

GRADCOMP_ALWAYS_INLINE void Widen(const float* x, int64_t count, Bounds* bounds) {
  int32_t lo = bounds->lo, hi = bounds->hi;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t ordered = OrderedPattern(static_cast<int32_t>(BitsOf(x[i])));
    lo = std::min(lo, ordered);
    hi = std::max(hi, ordered);
  }
  bounds->lo = lo;
  bounds->hi = hi;
}

// Keeps errors finite where the bounds are further apart than binary32 reaches.
GRADCOMP_ALWAYS_INLINE void Saturate(int64_t count, float* error) {
  for (int64_t i = 0; i < count; ++i) {
    error[i] = std::min(std::max(error[i], -kLargest), kLargest);
  }
}

// What a run of blocks is encoded to.
struct Outputs {
  uint32_t* bounds;
  uint32_t* codes;
  float* error;  // may be null
};

// Encodes one block, whose first value has the index `index`. False for a non-finite value.
GRADCOMP_ALWAYS_INLINE bool EncodeBlock(const float* values, const float* residual, int64_t index,
                                        int64_t count, const RandomKey* key, int num_bits,
                                        const Outputs& out) {
  float x[kTile];
  Bounds bounds;
  for (int64_t begin = 0; begin < count; begin += kTile) {
    const int64_t size = std::min(kTile, count - begin);
    LoadTile(values + begin, residual == nullptr ? nullptr : residual + begin, size, x);
    Widen(x, size, &bounds);
  }
  if (bounds.HasNonFinite()) return false;
  const float lo = Bounds::FloatOfOrdered(bounds.lo);
  const float hi = Bounds::FloatOfOrdered(bounds.hi);
  out.bounds[0] = BitsOf(lo);
  out.bounds[1] = BitsOf(hi);
  const UniformLevels levels = MakeUniformLevels(lo, hi, num_bits);
  uint32_t codes[kTile];
  for (int64_t begin = 0; begin < count; begin += kTile) {
    const int64_t size = std::min(kTile, count - begin);
    if (count > kTile) {  // else they are still there
      LoadTile(values + begin, residual == nullptr ? nullptr : residual + begin, size, x);
    }
    if (key != nullptr) {
      uint32_t random[kTile];
      RandomWords(*key, index + begin, size, random);
      for (int64_t i = 0; i < size; ++i) {
        codes[i] = UniformEncodeOne(x[i], levels, UniformNoise(random[i]));
      }
    } else {
      for (int64_t i = 0; i < size; ++i) codes[i] = UniformEncodeOne(x[i], levels, kUniformNearest);
    }
    if (out.error != nullptr) {
      float* const error = out.error + begin;
      for (int64_t i = 0; i < size; ++i) error[i] = x[i] - UniformDecodeOne(codes[i], levels);
      // A residual that is not finite would never go away.
      if (!(hi - lo <= kLargest)) Saturate(size, error);
    }
    PackTile(num_bits, codes, size, out.codes + PackedWords(begin, num_bits));
  }
  return true;
}

// Encodes `count` values that begin with a block. False as soon as one is not finite.
GRADCOMP_MULTIVERSION
bool EncodeRun(const float* values, const float* residual, int64_t index, int64_t count,
               const RandomKey* key, int num_bits, int64_t block, const Outputs& out) {
  for (int64_t begin = 0; begin < count; begin += block) {
    const Outputs here = {out.bounds + begin / block * 2, out.codes + PackedWords(begin, num_bits),
                          out.error == nullptr ? nullptr : out.error + begin};
    if (!EncodeBlock(values + begin, residual == nullptr ? nullptr : residual + begin,
                     index + begin, std::min(block, count - begin), key, num_bits, here)) {
      return false;
    }
  }
  return true;
}

// Decodes the values first .. first + count - 1, which may begin and end inside blocks; `first` is
// a multiple of 32.
GRADCOMP_MULTIVERSION
void DecodeRun(const uint32_t* bounds, const uint32_t* words, int64_t first, int64_t count,
               int num_bits, int64_t block, bool add, float* out) {
  uint32_t codes[kTile];
  for (int64_t begin = first; begin < first + count;) {
    const int64_t end = std::min({(begin / block + 1) * block, begin + kTile, first + count});
    const int64_t size = end - begin;
    const uint32_t* const of_block = bounds + begin / block * 2;
    const UniformLevels levels =
        MakeUniformLevels(FloatOf(of_block[0]), FloatOf(of_block[1]), num_bits);
    UnpackTile(num_bits, words + PackedWords(begin, num_bits), size, codes);
    float* const to = out + (begin - first);
    if (add) {
      for (int64_t i = 0; i < size; ++i) to[i] += UniformDecodeOne(codes[i], levels);
    } else {
      for (int64_t i = 0; i < size; ++i) to[i] = UniformDecodeOne(codes[i], levels);
    }
    begin = end;
  }
}

// Finite and not -0.
bool IsBound(uint32_t bits) { return (bits & ~kSignBit) < kInfinityBits && bits != kSignBit; }

Status ValidateBlock(const uint32_t* words, int64_t worker, const UniformParams& params,
                     int64_t codes_at) {
  const std::string where = "uniform block of worker " + std::to_string(worker) + ": ";
  if ((words[0] & ~kNonFiniteFlag) != static_cast<uint32_t>(params.num_bits)) {
    return Status::InvalidArgument(where + "word 0 is " + std::to_string(words[0]) +
                                   ", expected num_bits " + std::to_string(params.num_bits));
  }
  const bool non_finite = (words[0] & kNonFiniteFlag) != 0;
  for (int64_t i = kUniformHeaderWords; i < codes_at; i += 2) {
    const uint32_t lo = words[i], hi = words[i + 1];
    const bool fits =
        non_finite ? (lo | hi) == 0 : IsBound(lo) && IsBound(hi) && FloatOf(lo) <= FloatOf(hi);
    if (!fits) {
      return Status::InvalidArgument(where + "bounds of block " + std::to_string(i / 2) +
                                     " are not finite with lo <= hi and without -0, or not 0 "
                                     "beside the non-finite flag (patterns " +
                                     std::to_string(lo) + ", " + std::to_string(hi) + ")");
    }
  }
  return Status();
}

}  // namespace

Status ValidateUniform(const UniformParams& params) {
  if (params.num_bits < 1 || params.num_bits > kMaxBits) {
    return Status::InvalidArgument("num_bits must be in 1..8, got " +
                                   std::to_string(params.num_bits));
  }
  if (params.block < kMinBlock || params.block > kMaxBlock || params.block % kMinBlock != 0) {
    return Status::InvalidArgument("block must be a multiple of 32 in 32..65536, got " +
                                   std::to_string(params.block));
  }
  return Status();
}

Status UniformEncode(const float* values, const float* residual, int64_t count,
                     const RandomKey* key, const UniformParams& params,
                     const ParallelFor& parallel_for, uint32_t* words, float* error) {
  if (Status status = ValidateUniform(params); !status.ok()) return status;
  if (count < 0) return Status::InvalidArgument("count must be >= 0");
  const int64_t codes_at = UniformCodesAt(count, params);
  words[0] = static_cast<uint32_t>(params.num_bits);
  std::atomic<bool> has_non_finite{false};
  RunShards(parallel_for, CeilDiv(count, params.block), params.block * kEncodeCycles,
            [&](int64_t begin, int64_t end) {
              const int64_t first = begin * params.block;
              const Outputs out = {words + kUniformHeaderWords + 2 * begin,
                                   words + codes_at + PackedWords(first, params.num_bits),
                                   error == nullptr ? nullptr : error + first};
              if (!EncodeRun(values + first, residual == nullptr ? nullptr : residual + first,
                             first, std::min(end * params.block, count) - first, key,
                             params.num_bits, params.block, out)) {
                has_non_finite.store(true, std::memory_order_relaxed);
              }
            });
  if (has_non_finite) {
    std::fill_n(words, UniformNumWords(count, params), 0u);
    words[0] = static_cast<uint32_t>(params.num_bits) | kNonFiniteFlag;
    if (error != nullptr) std::fill_n(error, count, 0.0f);
  }
  return Status();
}

Status UniformDecode(const uint32_t* words, int64_t num_workers, int64_t words_per_worker,
                     int64_t count, const UniformParams& params, bool sum,
                     const ParallelFor& parallel_for, float* decoded) {
  if (Status status = ValidateUniform(params); !status.ok()) return status;
  if (count < 0 || num_workers < 0) {
    return Status::InvalidArgument("count and num_workers must be >= 0");
  }
  const int64_t num_words = UniformNumWords(count, params);
  if (words_per_worker != num_words) {
    return Status::InvalidArgument("uniform block of " + std::to_string(count) +
                                   " values must have " + std::to_string(num_words) +
                                   " words, got " + std::to_string(words_per_worker));
  }
  const ScopedIeeeMode ieee_mode;  // bounds that are denormal must not compare as zero
  const int64_t codes_at = UniformCodesAt(count, params);
  for (int64_t worker = 0; worker < num_workers; ++worker) {
    Status status = ValidateBlock(words + worker * num_words, worker, params, codes_at);
    if (!status.ok()) return status;
  }
  DecodeRows(
      num_workers, count, sum, kDecodeCycles, parallel_for,
      [&](int64_t worker, int64_t first, int64_t size, float* out, bool add) {
        const uint32_t* const block = words + worker * num_words;
        if ((block[0] & kNonFiniteFlag) != 0) return DecodeNan(size, out);
        DecodeRun(block + kUniformHeaderWords, block + codes_at, first, size, params.num_bits,
                  params.block, add, out);
      },
      decoded);
  return Status();
}

}  // namespace gradcomp
