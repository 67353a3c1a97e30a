// SPDX-License-Identifier: Apache-2.0
#include "narrow_float.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

#include "multiversion.h"
#include "narrow_float_math.h"

namespace gradcomp {
namespace {

constexpr uint32_t kNonFiniteFlag = 0x80000000u;
constexpr int64_t kMinBlock = 32;
constexpr int64_t kMaxBlock = 65536;
constexpr int64_t kUnit = 4096;       // values in a unit of work without scales: whole words
constexpr int64_t kTile = 512;        // values whose codes lie in the first-level cache
constexpr int64_t kEncodeCycles = 3;  // a value
constexpr int64_t kDecodeCycles = 2;

// The float at `i` of values + residual.
GRADCOMP_ALWAYS_INLINE void LoadTile(const float* values, const float* residual, int64_t count,
                                     float* x) {
  if (residual != nullptr) {
    for (int64_t i = 0; i < count; ++i) x[i] = values[i] + residual[i];
  } else {
    for (int64_t i = 0; i < count; ++i) x[i] = values[i];
  }
}

GRADCOMP_ALWAYS_INLINE uint32_t LargestMagnitude(const float* x, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, BitsOf(x[i]) & ~kSignBit);
  return largest;
}

// Encodes values without a scale to 16-bit codes. Returns the pattern of the largest magnitude.
GRADCOMP_ALWAYS_INLINE uint32_t EncodeHalves(const float* values, const float* residual,
                                             int64_t count, const NarrowFormat& format,
                                             unsigned char* codes, float* error) {
  float x[kTile];
  uint16_t tile[kTile];
  uint32_t largest = 0;
  for (int64_t begin = 0; begin < count; begin += kTile) {
    const int64_t size = std::min(kTile, count - begin);
    LoadTile(values + begin, residual == nullptr ? nullptr : residual + begin, size, x);
    largest = std::max(largest, LargestMagnitude(x, size));
    for (int64_t i = 0; i < size; ++i) {
      tile[i] = static_cast<uint16_t>(NarrowEncodeOne(BitsOf(x[i]), format, format.limit));
    }
    std::memcpy(codes + 2 * begin, tile, static_cast<size_t>(2 * size));
    if (error == nullptr) continue;
    for (int64_t i = 0; i < size; ++i) error[begin + i] = x[i] - NarrowDecodeOne(tile[i], format);
  }
  return largest;
}

// Encodes values that share a scale to 8-bit codes. Returns the pattern of the largest magnitude.
GRADCOMP_ALWAYS_INLINE uint32_t EncodeBytes(const float* values, const float* residual,
                                            int64_t count, const NarrowFormat& format,
                                            unsigned char* scale_byte, unsigned char* codes,
                                            float* error) {
  float x[kTile];
  unsigned char tile[kTile];
  uint32_t largest = 0;
  for (int64_t begin = 0; begin < count; begin += kTile) {
    const int64_t size = std::min(kTile, count - begin);
    LoadTile(values + begin, residual == nullptr ? nullptr : residual + begin, size, x);
    largest = std::max(largest, LargestMagnitude(x, size));
  }
  const int32_t byte = NarrowScaleByte(static_cast<int32_t>(std::min(largest, kInfinityBits - 1)));
  const NarrowScale scale = MakeNarrowScale(byte, format);
  *scale_byte = static_cast<unsigned char>(byte);
  for (int64_t begin = 0; begin < count; begin += kTile) {
    const int64_t size = std::min(kTile, count - begin);
    if (count > kTile) {  // else they are still there
      LoadTile(values + begin, residual == nullptr ? nullptr : residual + begin, size, x);
    }
    for (int64_t i = 0; i < size; ++i) {
      tile[i] = static_cast<unsigned char>(NarrowEncodeScaled(x[i], format, scale));
    }
    std::memcpy(codes + begin, tile, static_cast<size_t>(size));
    if (error == nullptr) continue;
    for (int64_t i = 0; i < size; ++i) {
      error[begin + i] = x[i] - NarrowDecodeScaled(tile[i], format, scale);
    }
  }
  return largest;
}

// Encodes `count` values that begin with a block. The switch makes the formats constants.
GRADCOMP_MULTIVERSION
uint32_t EncodeRun(const float* values, const float* residual, int64_t count, NarrowType type,
                   int64_t block, unsigned char* scales, unsigned char* codes, float* error) {
  if (type == NarrowType::kFloat16) {
    return EncodeHalves(values, residual, count, kNarrowFloat16, codes, error);
  }
  if (type == NarrowType::kBfloat16) {
    return EncodeHalves(values, residual, count, kNarrowBfloat16, codes, error);
  }
  uint32_t largest = 0;
  for (int64_t begin = 0; begin < count; begin += block) {
    const int64_t size = std::min(block, count - begin);
    const float* const more = residual == nullptr ? nullptr : residual + begin;
    float* const lost = error == nullptr ? nullptr : error + begin;
    const uint32_t found =
        type == NarrowType::kFloat8E4m3
            ? EncodeBytes(values + begin, more, size, kNarrowE4m3, scales, codes + begin, lost)
            : EncodeBytes(values + begin, more, size, kNarrowE5m2, scales, codes + begin, lost);
    largest = std::max(largest, found);
    ++scales;
  }
  return largest;
}

GRADCOMP_ALWAYS_INLINE void DecodeHalves(const unsigned char* codes, int64_t count,
                                         const NarrowFormat& format, bool add, float* out) {
  uint16_t tile[kTile];
  for (int64_t begin = 0; begin < count; begin += kTile) {
    const int64_t size = std::min(kTile, count - begin);
    std::memcpy(tile, codes + 2 * begin, static_cast<size_t>(2 * size));
    if (add) {
      for (int64_t i = 0; i < size; ++i) out[begin + i] += NarrowDecodeOne(tile[i], format);
    } else {
      for (int64_t i = 0; i < size; ++i) out[begin + i] = NarrowDecodeOne(tile[i], format);
    }
  }
}

GRADCOMP_ALWAYS_INLINE void DecodeBytes(const unsigned char* codes, int64_t count,
                                        const NarrowFormat& format, int32_t scale_byte, bool add,
                                        float* out) {
  const NarrowScale scale = MakeNarrowScale(scale_byte, format);
  unsigned char tile[kTile];
  for (int64_t begin = 0; begin < count; begin += kTile) {
    const int64_t size = std::min(kTile, count - begin);
    std::memcpy(tile, codes + begin, static_cast<size_t>(size));
    if (add) {
      for (int64_t i = 0; i < size; ++i) {
        out[begin + i] += NarrowDecodeScaled(tile[i], format, scale);
      }
    } else {
      for (int64_t i = 0; i < size; ++i) {
        out[begin + i] = NarrowDecodeScaled(tile[i], format, scale);
      }
    }
  }
}

// Decodes the values first .. first + count - 1, which may begin and end inside blocks.
GRADCOMP_MULTIVERSION
void DecodeRun(const unsigned char* scales, const unsigned char* codes, int64_t first,
               int64_t count, NarrowType type, int64_t block, bool add, float* out) {
  if (type == NarrowType::kFloat16) {
    return DecodeHalves(codes + 2 * first, count, kNarrowFloat16, add, out);
  }
  if (type == NarrowType::kBfloat16) {
    return DecodeHalves(codes + 2 * first, count, kNarrowBfloat16, add, out);
  }
  for (int64_t begin = first; begin < first + count;) {
    const int64_t end = std::min((begin / block + 1) * block, first + count);
    const int32_t scale = scales[begin / block];
    float* const to = out + (begin - first);
    if (type == NarrowType::kFloat8E4m3) {
      DecodeBytes(codes + begin, end - begin, kNarrowE4m3, scale, add, to);
    } else {
      DecodeBytes(codes + begin, end - begin, kNarrowE5m2, scale, add, to);
    }
    begin = end;
  }
}

Status ValidateBlock(const uint32_t* words, int64_t worker, const NarrowFloatParams& params,
                     int64_t codes_at) {
  const std::string where = "narrow float block of worker " + std::to_string(worker) + ": ";
  const uint32_t type = static_cast<uint32_t>(params.type);
  if ((words[0] & ~kNonFiniteFlag) != type) {
    return Status::InvalidArgument(where + "word 0 is " + std::to_string(words[0]) +
                                   ", expected the number of the dtype, " + std::to_string(type));
  }
  if ((words[0] & kNonFiniteFlag) == 0) return Status();  // any byte is a scale
  for (int64_t i = kNarrowFloatHeaderWords; i < codes_at; ++i) {
    if (words[i] != 0) {
      return Status::InvalidArgument(where + "scales are not 0 beside the non-finite flag");
    }
  }
  return Status();
}

}  // namespace

Status NarrowTypeFromName(const std::string& name, NarrowType* type) {
  const char* const names[] = {"float16", "bfloat16", "float8_e4m3", "float8_e5m2"};
  for (int i = 0; i < 4; ++i) {
    if (name != names[i]) continue;
    *type = static_cast<NarrowType>(i);
    return Status();
  }
  return Status::InvalidArgument(
      "dtype must be float16, bfloat16, float8_e4m3 or float8_e5m2, got \"" + name + "\"");
}

Status ValidateNarrowFloat(const NarrowFloatParams& params) {
  const int type = static_cast<int>(params.type);
  if (type < 0 || type > 3) {
    return Status::InvalidArgument("dtype must be one of the numbers 0..3, got " +
                                   std::to_string(type));
  }
  if (params.block < kMinBlock || params.block > kMaxBlock || params.block % kMinBlock != 0) {
    return Status::InvalidArgument("block must be a multiple of 32 in 32..65536, got " +
                                   std::to_string(params.block));
  }
  return Status();
}

Status NarrowFloatEncode(const float* values, const float* residual, int64_t count,
                         const NarrowFloatParams& params, const ParallelFor& parallel_for,
                         uint32_t* words, float* error) {
  if (Status status = ValidateNarrowFloat(params); !status.ok()) return status;
  if (count < 0) return Status::InvalidArgument("count must be >= 0");
  const int64_t num_words = NarrowFloatNumWords(count, params);
  const int64_t codes_at = NarrowFloatCodesAt(count, params);
  const bool scaled = NarrowFloatHasScales(params.type);
  words[codes_at - 1] = 0;  // bytes after the last scale
  words[num_words - 1] = 0;
  words[0] = static_cast<uint32_t>(params.type);
  unsigned char* const scales = reinterpret_cast<unsigned char*>(words + kNarrowFloatHeaderWords);
  unsigned char* const codes = reinterpret_cast<unsigned char*>(words + codes_at);
  const int64_t unit = scaled ? params.block : kUnit;
  const int64_t code_bytes = scaled ? 1 : 2;
  std::atomic<bool> has_non_finite{false};
  RunShards(parallel_for, CeilDiv(count, unit), unit * kEncodeCycles,
            [&](int64_t begin, int64_t end) {
              const int64_t first = begin * unit;
              const uint32_t largest = EncodeRun(
                  values + first, residual == nullptr ? nullptr : residual + first,
                  std::min(end * unit, count) - first, params.type, params.block, scales + begin,
                  codes + first * code_bytes, error == nullptr ? nullptr : error + first);
              if (largest >= kInfinityBits) has_non_finite.store(true, std::memory_order_relaxed);
            });
  if (has_non_finite) {
    std::fill_n(words, num_words, 0u);
    words[0] = static_cast<uint32_t>(params.type) | kNonFiniteFlag;
    if (error != nullptr) std::fill_n(error, count, 0.0f);
  }
  return Status();
}

Status NarrowFloatDecode(const uint32_t* words, int64_t num_workers, int64_t words_per_worker,
                         int64_t count, const NarrowFloatParams& params, bool sum,
                         const ParallelFor& parallel_for, float* decoded) {
  if (Status status = ValidateNarrowFloat(params); !status.ok()) return status;
  if (count < 0 || num_workers < 0) {
    return Status::InvalidArgument("count and num_workers must be >= 0");
  }
  const int64_t num_words = NarrowFloatNumWords(count, params);
  if (words_per_worker != num_words) {
    return Status::InvalidArgument("narrow float block of " + std::to_string(count) +
                                   " values must have " + std::to_string(num_words) +
                                   " words, got " + std::to_string(words_per_worker));
  }
  const int64_t codes_at = NarrowFloatCodesAt(count, params);
  for (int64_t worker = 0; worker < num_workers; ++worker) {
    Status status = ValidateBlock(words + worker * num_words, worker, params, codes_at);
    if (!status.ok()) return status;
  }
  DecodeRows(
      num_workers, count, sum, kDecodeCycles, parallel_for,
      [&](int64_t worker, int64_t first, int64_t size, float* out, bool add) {
        const uint32_t* const block = words + worker * num_words;
        if ((block[0] & kNonFiniteFlag) != 0) return DecodeNan(size, out);
        DecodeRun(reinterpret_cast<const unsigned char*>(block + kNarrowFloatHeaderWords),
                  reinterpret_cast<const unsigned char*>(block + codes_at), first, size,
                  params.type, params.block, add, out);
      },
      decoded);
  return Status();
}

}  // namespace gradcomp
