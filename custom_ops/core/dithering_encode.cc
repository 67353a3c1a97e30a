// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <memory>

#include "code_stream.h"
#include "dithering.h"
#include "dithering_block.h"
#include "dithering_math.h"
#include "multiversion.h"
#include "prefetch.h"
#include "scratch.h"
#include "stream_store.h"

namespace gradcomp {
namespace {

constexpr int64_t kEncodeCycles = 3;  // a value
// Values ahead: the next block of the default size is fetched while this one is coded.
constexpr int64_t kPrefetchBlock = 4096;
constexpr uint32_t kNormStream = 0x80000000u;  // flips the stream of the norms' random numbers

template <bool kStandard>
GRADCOMP_ALWAYS_INLINE void EncodeTile(const float* x, int64_t count, const uint32_t* random,
                                       const DitheringScale& scale, uint32_t* codes, float* error) {
  float level;
  if (error == nullptr) {
    for (int64_t i = 0; i < count; ++i) {
      codes[i] = DitheringEncodeOne<kStandard>(x[i], random[i], scale, &level);
    }
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    codes[i] = DitheringEncodeOne<kStandard>(x[i], random[i], scale, &level);
    error[i] = x[i] - level;
  }
}

// Encodes values of one block; `first`, the index of the first one, is a multiple of 32.
GRADCOMP_MULTIVERSION
void EncodeRun(const float* values, const float* residual, int64_t first, int64_t count,
               const RandomKey& key, bool standard, const DitheringScale& scale_in, int num_bits,
               bool streamed, uint32_t* words, float* error) {
  const DitheringScale scale = scale_in;  // a local copy cannot alias the outputs
  alignas(64) float sum[kDitheringTile];
  alignas(64) uint32_t random[kDitheringTile];
  alignas(64) uint32_t codes[kDitheringTile];
  alignas(64) float lost[kDitheringTile];
  for (int64_t begin = 0; begin < count; begin += kDitheringTile) {
    const int64_t size = std::min(kDitheringTile, count - begin);
    const float* x = values + begin;
    if (residual != nullptr) {
      for (int64_t i = 0; i < size; ++i) sum[i] = values[begin + i] + residual[begin + i];
      x = sum;
    }
    PrefetchAhead(values + begin, size, kPrefetchBlock);
    if (residual != nullptr) PrefetchAhead(residual + begin, size, kPrefetchBlock);
    RandomWords(key, first + begin, size, random);
    float* const tile_error = error == nullptr ? nullptr : lost;
    if (standard) {
      EncodeTile<true>(x, size, random, scale, codes, tile_error);
    } else {
      EncodeTile<false>(x, size, random, scale, codes, tile_error);
    }
    if (error != nullptr) StoreTile(lost, size, streamed, error + begin);
    PackTile(num_bits, codes, size, words + PackedWords(begin, num_bits));
  }
}

// Writes the norm of block `index` and returns it as a decoder reads it.
float SendNorm(const DitheringBlock<uint32_t>& block, const DitheringParams& params,
               const RandomKey& key, int64_t index, float norm) {
  if (!params.natural_norms) {
    block.norms[index] = BitsOf(norm);
    return norm;
  }
  RandomKey norm_key = key;
  norm_key.stream ^= kNormStream;
  const uint32_t code = NormCode(norm, RandomWord(index, norm_key));
  reinterpret_cast<uint8_t*>(block.norms)[index] = static_cast<uint8_t>(code);
  return NormOfCode(code);
}

// The work of DitheringEncode() after its arguments were checked.
class Encoder {
 public:
  Encoder(const float* values, const float* residual, int64_t count, const RandomKey& key,
          const DitheringParams& params, const DitheringLayout& layout, uint32_t* words,
          float* error)
      : values_(values),
        residual_(residual),
        count_(count),
        key_(key),
        params_(params),
        layout_(layout),
        block_(words, layout),
        error_(error) {}

  // Measures up to kNormChunk values.
  NormParts Measure(int64_t first, int64_t size) const {
    return MeasureChunk(values_ + first, residual_ == nullptr ? nullptr : residual_ + first, size,
                        params_.norm);
  }

  // Writes the codes of values of a block with this norm.
  void Code(int64_t first, int64_t size, float norm, float sent) const {
    const DitheringScale scale =
        MakeDitheringScale(params_.standard, params_.levels, layout_.num_bits, norm, sent);
    EncodeRun(values_ + first, residual_ == nullptr ? nullptr : residual_ + first, first, size,
              key_, params_.standard, scale, layout_.num_bits,
              IsStreamed(values_, residual_, error_, count_),
              block_.codes + PackedWords(first, layout_.num_bits),
              error_ == nullptr ? nullptr : error_ + first);
  }

  // Encodes one block while it is in cache. False if a value is not finite.
  bool EncodeBlock(int64_t index) const {
    const int64_t first = index * params_.block;
    const int64_t end = std::min(first + params_.block, count_);
    NormParts parts;
    for (int64_t chunk = first; chunk < end; chunk += kNormChunk) {
      parts.Append(Measure(chunk, std::min(kNormChunk, end - chunk)));
    }
    if (parts.largest >= kInfinityBits) return false;
    const float norm = NormOf(parts, params_.norm);
    Code(first, end - first, norm, SendNorm(block_, params_, key_, index, norm));
    return true;
  }

  // Encodes all blocks. *finite tells whether all values are.
  void EncodeBlocks(const ParallelFor& parallel_for, bool* finite) const {
    std::atomic<bool> non_finite{false};
    RunShards(parallel_for, layout_.num_norms, kEncodeCycles * params_.block,
              [&](int64_t begin, int64_t end) {
                for (int64_t index = begin; index < end; ++index) {
                  if (!EncodeBlock(index)) non_finite.store(true, std::memory_order_relaxed);
                }
              });
    *finite = !non_finite.load();
  }

  // The same with one norm for all values, which takes two passes.
  Status EncodeWhole(const ParallelFor& parallel_for, bool* finite) const {
    const int64_t chunks = CeilDiv(count_, kNormChunk);
    const std::unique_ptr<NormParts[]> measured = AllocateScratch<NormParts>(chunks);
    if (measured == nullptr) return OutOfScratch();
    RunShards(parallel_for, chunks, kNormChunk, [&](int64_t begin, int64_t end) {
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        const int64_t first = chunk * kNormChunk;
        measured[chunk] = Measure(first, std::min(kNormChunk, count_ - first));
      }
    });
    NormParts parts;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) parts.Append(measured[chunk]);
    *finite = parts.largest < kInfinityBits;
    if (!*finite || count_ == 0) return Status();
    const float norm = NormOf(parts, params_.norm);
    const float sent = SendNorm(block_, params_, key_, 0, norm);
    RunShards(parallel_for, chunks, kEncodeCycles * kNormChunk, [&](int64_t begin, int64_t end) {
      const int64_t first = begin * kNormChunk;
      Code(first, std::min(end * kNormChunk, count_) - first, norm, sent);
    });
    return Status();
  }

 private:
  const float* values_;
  const float* residual_;
  const int64_t count_;
  const RandomKey key_;
  const DitheringParams params_;
  const DitheringLayout layout_;
  const DitheringBlock<uint32_t> block_;
  float* error_;
};

}  // namespace

Status DitheringEncode(const float* values, const float* residual, int64_t count,
                       const RandomKey& key, const DitheringParams& params,
                       const ParallelFor& parallel_for, uint32_t* words, float* error) {
  if (Status status = ValidateDithering(params); !status.ok()) return status;
  if (count < 0) return Status::InvalidArgument("count must be >= 0");
  const ScopedIeeeMode ieee_mode;  // norms may be denormal
  const DitheringLayout layout(count, params);
  words[0] = DitheringParameterWord(params);
  words[1] = static_cast<uint32_t>(params.block);
  if (layout.codes > DitheringLayout::norms) words[layout.codes - 1] = 0;  // bytes after the norms
  const Encoder encoder(values, residual, count, key, params, layout, words, error);
  bool finite = true;
  if (params.block == 0) {
    Status status = encoder.EncodeWhole(parallel_for, &finite);
    if (!status.ok()) return status;
  } else {
    encoder.EncodeBlocks(parallel_for, &finite);
  }
  if (!finite) {
    std::fill(words + 2, words + layout.num_words, 0u);
    words[0] |= kDitheringNonFinite;
    if (error != nullptr) std::fill_n(error, count, 0.0f);
  }
  return Status();
}

}  // namespace gradcomp
