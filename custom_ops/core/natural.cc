// SPDX-License-Identifier: Apache-2.0
#include "natural.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "multiversion.h"
#include "natural_math.h"
#include "prefetch.h"
#include "stream_store.h"

namespace gradcomp {
namespace {

// Values whose random numbers are made at a time, into an array in the first-level cache.
constexpr int64_t kTile = 128;
constexpr int64_t kEncodeCycles = kNaturalBlock * 2;
constexpr int64_t kDecodeCycles = 1;  // a value
static_assert(kDecodeUnit == kNaturalBlock, "a unit of decoding has one exponent");

constexpr uint32_t kNonFiniteFlag = 0x80000000u;
constexpr uint32_t kHeader = 12;  // log2(kNaturalBlock)
static_assert(kNaturalBlock == int64_t{1} << kHeader, "the header names the block size");

int64_t NumBlocks(int64_t count) { return CeilDiv(count, kNaturalBlock); }

// Exponent bytes with the padding to whole words.
int64_t NumExponentBytes(int64_t count) { return CeilDiv(NumBlocks(count), 4) * 4; }

// Patterns of magnitudes.
struct Magnitudes {
  uint32_t largest;
  uint32_t smallest_minus_one;  // of those other than zero; 0xffffffff if there is none
};

GRADCOMP_ALWAYS_INLINE Magnitudes FindMagnitudes(const float* x, int64_t count) {
  uint32_t largest = 0;
  uint32_t smallest_minus_one = 0xffffffffu;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t magnitude = BitsOf(x[i]) & ~kSignBit;
    largest = std::max(largest, magnitude);
    smallest_minus_one = std::min(smallest_minus_one, magnitude - 1);
  }
  return {largest, smallest_minus_one};
}

// Codes up to kTile values. With kNormal, all are as NaturalEncodeNormal() needs them.
template <bool kNormal>
GRADCOMP_ALWAYS_INLINE void EncodeTile(const float* x, const uint32_t* random, int64_t count,
                                       const NaturalScale& scale, uint8_t* codes, float* error) {
  if (error == nullptr) {
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t bits = BitsOf(x[i]);
      codes[i] = static_cast<uint8_t>(kNormal ? NaturalEncodeNormal(bits, random[i], scale.offset)
                                              : NaturalEncodeOne(bits, random[i], scale));
    }
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const float value = x[i];
    const uint32_t code = kNormal ? NaturalEncodeNormal(BitsOf(value), random[i], scale.offset)
                                  : NaturalEncodeOne(BitsOf(value), random[i], scale);
    codes[i] = static_cast<uint8_t>(code);
    error[i] = value - NaturalDecodeOne(code, scale.scale);
  }
}

// Encodes one block, which starts at value `first`, and returns its exponent; 255 if a value is
// not finite, and then neither codes nor error are written.
GRADCOMP_MULTIVERSION
int32_t EncodeBlock(const float* values, const float* residual, int64_t first, int64_t count,
                    const RandomKey& key, bool streamed, uint8_t* codes, float* error) {
  alignas(64) float sum[kNaturalBlock];
  alignas(64) uint32_t random[kTile];
  alignas(64) float lost[kTile];
  const float* x = values;
  if (residual != nullptr) {
    for (int64_t i = 0; i < count; ++i) sum[i] = values[i] + residual[i];
    x = sum;
  }
  const Magnitudes magnitudes = FindMagnitudes(x, count);
  if (magnitudes.largest >= kInfinityBits) return 255;
  const int32_t exponent = NaturalBlockExponent(magnitudes.largest);
  const NaturalScale scale = MakeNaturalScale(exponent);
  const int32_t smallest_normal = std::max(scale.smallest, kExponentOne);
  const bool normal = magnitudes.largest <= kNaturalMaxBits &&
                      magnitudes.smallest_minus_one >= static_cast<uint32_t>(smallest_normal - 1);
  for (int64_t begin = 0; begin < count; begin += kTile) {
    const int64_t size = std::min(kTile, count - begin);
    float* const tile_error = error == nullptr ? nullptr : lost;
    // The next block is fetched while this one is coded.
    PrefetchAhead(values + begin, size, kNaturalBlock);
    if (residual != nullptr) PrefetchAhead(residual + begin, size, kNaturalBlock);
    RandomWords(key, first + begin, size, random);
    if (normal) {
      EncodeTile<true>(x + begin, random, size, scale, codes + begin, tile_error);
    } else {
      EncodeTile<false>(x + begin, random, size, scale, codes + begin, tile_error);
    }
    if (error != nullptr) StoreTile(lost, size, streamed, error + begin);
  }
  return exponent;
}

GRADCOMP_MULTIVERSION
void DecodeBlock(const uint8_t* codes, int64_t count, float scale, bool add, float* out) {
  if (add) {
    for (int64_t i = 0; i < count; ++i) out[i] += NaturalDecodeOne(codes[i], scale);
  } else {
    for (int64_t i = 0; i < count; ++i) out[i] = NaturalDecodeOne(codes[i], scale);
  }
}

// The natural block of one worker.
struct Block {
  Block(const uint32_t* words, int64_t count)
      : header(words[0]),
        exponents(reinterpret_cast<const uint8_t*>(words + 1)),
        codes(exponents + NumExponentBytes(count)) {}

  bool NonFinite() const { return (header & kNonFiniteFlag) != 0; }

  uint32_t header;
  const uint8_t* exponents;
  const uint8_t* codes;
};

Status ValidateBlock(const Block& block, int64_t count, int64_t worker) {
  const std::string where = "natural block of worker " + std::to_string(worker) + ": ";
  if ((block.header & ~kNonFiniteFlag) != kHeader) {
    return Status::InvalidArgument(where + "word 0 is " + std::to_string(block.header) +
                                   ", expected " + std::to_string(kHeader));
  }
  const int64_t blocks = NumBlocks(count);
  for (int64_t i = 0; i < NumExponentBytes(count); ++i) {
    const int32_t exponent = block.exponents[i];
    const bool may_have_values = i < blocks && !block.NonFinite();
    if (exponent != 0 &&
        !(may_have_values && exponent >= kNaturalMinExponent && exponent <= kNaturalMaxExponent)) {
      return Status::InvalidArgument(where + "exponent byte " + std::to_string(i) + " of " +
                                     std::to_string(blocks) + " is " + std::to_string(exponent) +
                                     ", expected 0 or 104..254");
    }
  }
  return Status();
}

}  // namespace

Status NaturalEncode(const float* values, const float* residual, int64_t count,
                     const RandomKey& key, const ParallelFor& parallel_for, uint32_t* words,
                     float* error) {
  if (count < 0) return Status::InvalidArgument("count must be >= 0");
  const int64_t num_words = NaturalNumWords(count);
  const int64_t blocks = NumBlocks(count);
  words[0] = kHeader;
  if (blocks % 4 != 0) words[blocks / 4 + 1] = 0;  // bytes after the last exponent
  if (count % 4 != 0) words[num_words - 1] = 0;    // and after the last code
  uint8_t* const exponents = reinterpret_cast<uint8_t*>(words + 1);
  uint8_t* const codes = exponents + NumExponentBytes(count);
  std::atomic<bool> non_finite{false};
  const bool streamed = IsStreamed(values, residual, error, count);
  RunShards(parallel_for, blocks, kEncodeCycles, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kNaturalBlock;
      const int32_t exponent =
          EncodeBlock(values + first, residual == nullptr ? nullptr : residual + first, first,
                      std::min(kNaturalBlock, count - first), key, streamed, codes + first,
                      error == nullptr ? nullptr : error + first);
      if (exponent == 255) non_finite.store(true, std::memory_order_relaxed);
      exponents[block] = static_cast<uint8_t>(exponent);
    }
  });
  if (non_finite.load()) {
    std::fill_n(words, num_words, 0u);
    words[0] = kHeader | kNonFiniteFlag;
    if (error != nullptr) std::fill_n(error, count, 0.0f);
  }
  return Status();
}

Status NaturalDecode(const uint32_t* words, int64_t num_workers, int64_t words_per_worker,
                     int64_t count, bool sum, const ParallelFor& parallel_for, float* decoded) {
  if (count < 0 || num_workers < 0) {
    return Status::InvalidArgument("count and num_workers must be >= 0");
  }
  if (words_per_worker != NaturalNumWords(count)) {
    return Status::InvalidArgument("natural block of " + std::to_string(count) +
                                   " values must have " + std::to_string(NaturalNumWords(count)) +
                                   " words, got " + std::to_string(words_per_worker));
  }
  for (int64_t worker = 0; worker < num_workers; ++worker) {
    Status status = ValidateBlock(Block(words + worker * words_per_worker, count), count, worker);
    if (!status.ok()) return status;
  }
  DecodeRows(
      num_workers, count, sum, kDecodeCycles, parallel_for,
      [&](int64_t worker, int64_t first, int64_t size, float* out, bool add) {
        const Block block(words + worker * words_per_worker, count);
        if (block.NonFinite()) return DecodeNan(size, out);
        const uint32_t exponent = block.exponents[first / kNaturalBlock];
        DecodeBlock(block.codes + first, size, FloatOf(exponent << 23), add, out);
      },
      decoded);
  return Status();
}

}  // namespace gradcomp
