// SPDX-License-Identifier: Apache-2.0
#include "range_float.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>

#include "multiversion.h"
#include "range_float_math.h"

namespace gradcomp {
namespace {

// Values in a unit of parallel work: whole groups of 32 codes, so that no two units share a word.
constexpr int64_t kUnit = 4096;
// Values encoded at a time, into an array that stays in the first-level cache.
constexpr int64_t kTile = 512;
constexpr int64_t kScanCycles = kUnit / 4;
constexpr int64_t kCodeCycles = kUnit * 3;

constexpr uint32_t kNonFiniteFlag = 0x80000000u;

// What the bounds and the flag of a block follow from. Order does not matter to it.
struct Extremes {
  int32_t largest = 0;         // largest pattern as a signed number: of the positive values
  uint32_t most_negative = 0;  // largest pattern as an unsigned number: of the negative values

  bool HasNonFinite() const {
    return largest >= static_cast<int32_t>(kInfinityBits) ||
           most_negative >= (kInfinityBits | kSignBit);
  }
  ValueRange Range() const {
    // -0 is not negative, and a largest unsigned pattern without sign bit is not a negative value.
    const bool has_negative = most_negative > kSignBit;
    return {has_negative ? FloatOf(most_negative) : 0.0f, FloatOf(static_cast<uint32_t>(largest))};
  }
};

GRADCOMP_MULTIVERSION
void FindExtremes(const float* values, int64_t count, int32_t* largest, uint32_t* most_negative) {
  int32_t signed_max = 0;
  uint32_t unsigned_max = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = BitsOf(values[i]);
    signed_max = std::max(signed_max, static_cast<int32_t>(bits));
    unsigned_max = std::max(unsigned_max, bits);
  }
  *largest = signed_max;
  *most_negative = unsigned_max;
}

// Encodes up to kTile values into `codes`, rounded up to whole groups with zeros.
GRADCOMP_ALWAYS_INLINE void EncodeTile(const float* values, int64_t count,
                                       const RangeFloatTable& table, uint32_t* codes,
                                       float* error) {
  if (error != nullptr) {
    for (int64_t i = 0; i < count; ++i) {
      const float value = values[i];
      const RangeFloatCode encoded = RangeFloatEncodeOne(BitsOf(value), table);
      codes[i] = static_cast<uint32_t>(encoded.code);
      error[i] = value - FloatOf(encoded.decoded_bits);
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      codes[i] = static_cast<uint32_t>(RangeFloatEncodeOne(BitsOf(values[i]), table).code);
    }
  }
  for (int64_t i = count; i % kPackGroup != 0; ++i) codes[i] = 0;
}

// Encodes values whose first code starts on a word.
GRADCOMP_MULTIVERSION
void EncodeRun(const float* values, int64_t count, const RangeFloatTable& table_in, int num_bits,
               uint32_t* words, float* error) {
  const RangeFloatTable table = table_in;  // a local copy cannot alias the outputs
  uint32_t codes[kTile];
  for (int64_t begin = 0; begin < count; begin += kTile) {
    const int64_t size = std::min(kTile, count - begin);
    EncodeTile(values + begin, size, table, codes, error == nullptr ? nullptr : error + begin);
    const int64_t groups = size / kPackGroup;
    PackGroups(num_bits, codes, groups, words);
    words += groups * num_bits;
    if (size % kPackGroup != 0) {
      uint32_t last[kMaxPackBits];
      PackGroups(num_bits, codes + groups * kPackGroup, 1, last);
      std::memcpy(words, last, sizeof(uint32_t) * PackedWords(size % kPackGroup, num_bits));
    }
  }
}

GRADCOMP_MULTIVERSION
void DecodeRun(const uint32_t* words, int64_t count, const RangeFloatTable& table_in, int num_bits,
               float* decoded) {
  const RangeFloatTable table = table_in;
  uint32_t codes[kTile];
  for (int64_t begin = 0; begin < count; begin += kTile) {
    const int64_t size = std::min(kTile, count - begin);
    const int64_t groups = size / kPackGroup;
    UnpackGroups(num_bits, words, groups, codes);
    words += groups * num_bits;
    if (size % kPackGroup != 0) {
      uint32_t last[kMaxPackBits] = {};
      std::memcpy(last, words, sizeof(uint32_t) * PackedWords(size % kPackGroup, num_bits));
      UnpackGroups(num_bits, last, 1, codes + groups * kPackGroup);
    }
    for (int64_t i = 0; i < size; ++i) {
      decoded[begin + i] = FloatOf(RangeFloatDecodeOne(static_cast<int32_t>(codes[i]), table));
    }
  }
}

Extremes ParallelExtremes(const float* values, int64_t count, const ParallelFor& parallel_for) {
  std::atomic<int32_t> largest{0};
  std::atomic<uint32_t> most_negative{0};
  const int64_t units = (count + kUnit - 1) / kUnit;
  RunShards(parallel_for, units, kScanCycles, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kUnit;
    Extremes found;
    FindExtremes(values + first, std::min(end * kUnit, count) - first, &found.largest,
                 &found.most_negative);
    int32_t signed_seen = largest.load();
    while (signed_seen < found.largest &&
           !largest.compare_exchange_weak(signed_seen, found.largest)) {
    }
    uint32_t unsigned_seen = most_negative.load();
    while (unsigned_seen < found.most_negative &&
           !most_negative.compare_exchange_weak(unsigned_seen, found.most_negative)) {
    }
  });
  Extremes all;
  all.largest = largest.load();
  all.most_negative = most_negative.load();
  return all;
}

uint32_t ParameterWord(const RangeFloatParams& params) {
  return static_cast<uint32_t>(params.num_bits) | static_cast<uint32_t>(params.mantissa_bits) << 4;
}

Status ValidateHeader(const uint32_t* header, int64_t worker, const RangeFloatParams& params) {
  const std::string where = "range float block of worker " + std::to_string(worker) + ": ";
  const uint32_t expected = ParameterWord(params);
  if ((header[2] & ~kNonFiniteFlag) != expected) {
    return Status::InvalidArgument(
        where + "word 2 says num_bits " + std::to_string(header[2] & 15) + ", mantissa_bits " +
        std::to_string(header[2] >> 4 & 31) + " (word " + std::to_string(header[2]) +
        "), expected num_bits " + std::to_string(params.num_bits) + ", mantissa_bits " +
        std::to_string(params.mantissa_bits));
  }
  const bool non_finite = (header[2] & kNonFiniteFlag) != 0;
  const bool lo_fits = header[0] == 0 || (header[0] > kSignBit && header[0] < 0xff800000u);
  const bool hi_fits = header[1] < kInfinityBits;
  if (non_finite ? (header[0] | header[1]) != 0 : !(lo_fits && hi_fits)) {
    return Status::InvalidArgument(where + "bounds are not finite with lo <= 0 <= hi (patterns " +
                                   std::to_string(header[0]) + ", " + std::to_string(header[1]) +
                                   ")");
  }
  return Status();
}

}  // namespace

Status ValidateRangeFloat(const RangeFloatParams& params) {
  if (params.num_bits < kMinPackBits || params.num_bits > kMaxPackBits) {
    return Status::InvalidArgument("num_bits must be in 6..12, got " +
                                   std::to_string(params.num_bits));
  }
  if (params.mantissa_bits < 1 || params.mantissa_bits > params.num_bits - 2) {
    return Status::InvalidArgument("mantissa_bits must be in 1..num_bits-2 = 1.." +
                                   std::to_string(params.num_bits - 2) + ", got " +
                                   std::to_string(params.mantissa_bits));
  }
  return Status();
}

Status RangeFloatEncode(const float* values, int64_t count, const ValueRange* range,
                        const RangeFloatParams& params, const ParallelFor& parallel_for,
                        uint32_t* words, float* error) {
  if (Status status = ValidateRangeFloat(params); !status.ok()) return status;
  if (count < 0) return Status::InvalidArgument("count must be >= 0");
  const ScopedIeeeMode ieee_mode;  // a denormal bound must not compare as zero
  if (range != nullptr && !(std::isfinite(range->lo) && std::isfinite(range->hi) &&
                            range->lo <= 0.0f && range->hi >= 0.0f)) {
    return Status::InvalidArgument("range must be finite with lo <= 0 <= hi, got lo " +
                                   std::to_string(range->lo) + ", hi " + std::to_string(range->hi));
  }
  const Extremes extremes = ParallelExtremes(values, count, parallel_for);
  const int64_t num_words = RangeFloatNumWords(count, params);
  words[2] = ParameterWord(params);
  if (extremes.HasNonFinite()) {
    std::fill_n(words, num_words, 0u);
    words[2] = ParameterWord(params) | kNonFiniteFlag;
    if (error != nullptr) std::fill_n(error, count, 0.0f);
    return Status();
  }
  const ValueRange bounds = range != nullptr ? *range : extremes.Range();
  // A given bound may be -0; the wire has +0.
  words[0] = BitsOf(bounds.lo) == kSignBit ? 0u : BitsOf(bounds.lo);
  words[1] = BitsOf(bounds.hi) == kSignBit ? 0u : BitsOf(bounds.hi);
  const RangeFloatTable table =
      MakeRangeFloatTable(bounds.lo, bounds.hi, params.num_bits, params.mantissa_bits);
  uint32_t* const codes = words + kRangeFloatHeaderWords;
  const int64_t units = (count + kUnit - 1) / kUnit;
  RunShards(parallel_for, units, kCodeCycles, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kUnit;
    EncodeRun(values + first, std::min(end * kUnit, count) - first, table, params.num_bits,
              codes + PackedWords(first, params.num_bits),
              error == nullptr ? nullptr : error + first);
  });
  return Status();
}

Status RangeFloatDecode(const uint32_t* words, int64_t num_workers, int64_t words_per_worker,
                        int64_t count, const RangeFloatParams& params,
                        const ParallelFor& parallel_for, float* decoded) {
  if (Status status = ValidateRangeFloat(params); !status.ok()) return status;
  if (count < 0 || num_workers < 0) {
    return Status::InvalidArgument("count and num_workers must be >= 0");
  }
  if (words_per_worker != RangeFloatNumWords(count, params)) {
    return Status::InvalidArgument("range float block of " + std::to_string(count) +
                                   " values must have " +
                                   std::to_string(RangeFloatNumWords(count, params)) +
                                   " words, got " + std::to_string(words_per_worker));
  }
  for (int64_t worker = 0; worker < num_workers; ++worker) {
    Status status = ValidateHeader(words + worker * words_per_worker, worker, params);
    if (!status.ok()) return status;
  }
  const int64_t units = (count + kUnit - 1) / kUnit;
  RunShards(parallel_for, num_workers * units, kCodeCycles, [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t worker = unit / units;
      const int64_t first = unit % units * kUnit;
      const int64_t size = std::min(kUnit, count - first);
      const uint32_t* const block = words + worker * words_per_worker;
      float* const out = decoded + worker * count + first;
      if ((block[2] & kNonFiniteFlag) != 0) {
        std::fill_n(out, size, FloatOf(kNanBits));
        continue;
      }
      const RangeFloatTable table = MakeRangeFloatTable(FloatOf(block[0]), FloatOf(block[1]),
                                                        params.num_bits, params.mantissa_bits);
      DecodeRun(block + kRangeFloatHeaderWords + PackedWords(first, params.num_bits), size, table,
                params.num_bits, out);
    }
  });
  return Status();
}

}  // namespace gradcomp
