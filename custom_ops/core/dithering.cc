// SPDX-License-Identifier: Apache-2.0
#include "dithering.h"

#include <algorithm>
#include <string>

#include "code_stream.h"
#include "dithering_block.h"
#include "dithering_math.h"
#include "multiversion.h"

namespace gradcomp {
namespace {

constexpr int64_t kDecodeCycles = 1;  // a value
constexpr int64_t kMaxBlock = 65536;  // its values and residual stay in the second-level cache
constexpr int32_t kMaxNaturalLevels = 127;
constexpr int32_t kMaxStandardLevels = 32767;

template <bool kStandard>
GRADCOMP_ALWAYS_INLINE void DecodeTile(const uint32_t* codes, int64_t count,
                                       const DitheringScale& scale, bool add, float* out) {
  if (add) {
    for (int64_t i = 0; i < count; ++i) out[i] += DitheringDecodeOne<kStandard>(codes[i], scale);
  } else {
    for (int64_t i = 0; i < count; ++i) out[i] = DitheringDecodeOne<kStandard>(codes[i], scale);
  }
}

// Decodes values of one block, whose first code starts on a word.
GRADCOMP_MULTIVERSION
void DecodeRun(const uint32_t* words, int64_t count, bool standard, const DitheringScale& scale_in,
               int num_bits, bool add, float* out) {
  const DitheringScale scale = scale_in;
  alignas(64) uint32_t codes[kDitheringTile];
  for (int64_t begin = 0; begin < count; begin += kDitheringTile) {
    const int64_t size = std::min(kDitheringTile, count - begin);
    UnpackTile(num_bits, words + PackedWords(begin, num_bits), size, codes);
    if (standard) {
      DecodeTile<true>(codes, size, scale, add, out + begin);
    } else {
      DecodeTile<false>(codes, size, scale, add, out + begin);
    }
  }
}

float SentNorm(const DitheringBlock<const uint32_t>& block, const DitheringParams& params,
               int64_t index) {
  if (!params.natural_norms) return FloatOf(block.norms[index]);
  return NormOfCode(reinterpret_cast<const uint8_t*>(block.norms)[index]);
}

Status ValidateBlock(const DitheringBlock<const uint32_t>& block, const DitheringLayout& layout,
                     const DitheringParams& params, int64_t worker) {
  const std::string where = "dithering block of worker " + std::to_string(worker) + ": ";
  if ((block.header[0] & ~kDitheringNonFinite) != DitheringParameterWord(params) ||
      block.header[1] != static_cast<uint32_t>(params.block)) {
    return Status::InvalidArgument(where + "words 0 and 1 are " + std::to_string(block.header[0]) +
                                   " and " + std::to_string(block.header[1]) + ", expected " +
                                   std::to_string(DitheringParameterWord(params)) + " and " +
                                   std::to_string(params.block));
  }
  const uint8_t* const bytes = reinterpret_cast<const uint8_t*>(block.norms);
  const int64_t written = layout.codes - DitheringLayout::norms;
  for (int64_t i = 0; i < (params.natural_norms ? 4 * written : written); ++i) {
    const uint32_t norm = params.natural_norms ? bytes[i] : block.norms[i];
    const uint32_t limit = params.natural_norms ? 255u : kInfinityBits;
    const bool may_have_values = i < layout.num_norms && !block.NonFinite();
    if (norm != 0 && !(may_have_values && norm < limit)) {
      return Status::InvalidArgument(where + "norm " + std::to_string(i) + " of " +
                                     std::to_string(layout.num_norms) + " is written as " +
                                     std::to_string(norm) + ", which no encoder does");
    }
  }
  return Status();
}

}  // namespace

Status ValidateDithering(const DitheringParams& params) {
  const int32_t max_levels = params.standard ? kMaxStandardLevels : kMaxNaturalLevels;
  if (params.levels < 1 || params.levels > max_levels) {
    return Status::InvalidArgument("levels must be in 1.." + std::to_string(max_levels) +
                                   " for this kind, got " + std::to_string(params.levels));
  }
  if (params.block < 0 || params.block > kMaxBlock || params.block % kPackGroup != 0) {
    return Status::InvalidArgument("block must be 0 or a multiple of 32 up to 65536, got " +
                                   std::to_string(params.block));
  }
  return Status();
}

Status DitheringDecode(const uint32_t* words, int64_t num_workers, int64_t words_per_worker,
                       int64_t count, const DitheringParams& params, bool sum,
                       const ParallelFor& parallel_for, float* decoded) {
  if (Status status = ValidateDithering(params); !status.ok()) return status;
  if (count < 0 || num_workers < 0) {
    return Status::InvalidArgument("count and num_workers must be >= 0");
  }
  const DitheringLayout layout(count, params);
  if (words_per_worker != layout.num_words) {
    return Status::InvalidArgument("dithering block of " + std::to_string(count) +
                                   " values must have " + std::to_string(layout.num_words) +
                                   " words, got " + std::to_string(words_per_worker));
  }
  for (int64_t worker = 0; worker < num_workers; ++worker) {
    const DitheringBlock<const uint32_t> block(words + worker * words_per_worker, layout);
    Status status = ValidateBlock(block, layout, params, worker);
    if (!status.ok()) return status;
  }
  const int64_t block_size = params.block != 0 ? params.block : std::max<int64_t>(count, 1);
  DecodeRows(
      num_workers, count, sum, kDecodeCycles, parallel_for,
      [&](int64_t worker, int64_t first, int64_t size, float* out, bool add) {
        const DitheringBlock<const uint32_t> block(words + worker * words_per_worker, layout);
        if (block.NonFinite()) return DecodeNan(size, out);
        for (int64_t at = first; at < first + size;) {
          const int64_t index = at / block_size;
          const int64_t end = std::min((index + 1) * block_size, first + size);
          const float norm = SentNorm(block, params, index);
          const DitheringScale scale =
              MakeDitheringScale(params.standard, params.levels, layout.num_bits, norm, norm);
          DecodeRun(block.codes + PackedWords(at, layout.num_bits), end - at, params.standard,
                    scale, layout.num_bits, add, out + (at - first));
          at = end;
        }
      },
      decoded);
  return Status();
}

}  // namespace gradcomp
