// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "decode_rows.h"
#include "multiversion.h"
#include "one_bit.h"
#include "one_bit_segment.h"

namespace gradcomp {
namespace {

constexpr int64_t kDecodeCycles = 1;  // a value

GRADCOMP_MULTIVERSION
void DecodeSegment(const uint32_t* flags, const uint32_t* signs, const uint32_t* spares,
                   int64_t count, float scale, bool add, float* out) {
  OneBitDecodeSegment(flags, signs, spares, count, scale, add, out);
}

// Checks the header, the scales and the flags of one worker: all that decoding depends on.
Status ValidateBlock(const uint32_t* words, int64_t worker, int64_t count,
                     const OneBitLayout& layout) {
  const std::string where = "one bit block of worker " + std::to_string(worker) + ": ";
  const bool non_finite = (words[0] & kOneBitNonFinite) != 0;
  if ((words[0] & ~kOneBitNonFinite) != 0) {
    return Status::InvalidArgument(where + "reserved bits are set in word 0 (word " +
                                   std::to_string(words[0]) + ")");
  }
  for (int64_t i = 0; i < layout.num_scales; ++i) {
    const uint32_t scale = words[layout.scales() + i];
    if (non_finite ? scale != 0 : scale >= kInfinityBits) {
      return Status::InvalidArgument(where + "scale " + std::to_string(i) +
                                     " is not finite and >= 0, or not 0 beside the non-finite flag "
                                     "(pattern " +
                                     std::to_string(scale) + ")");
    }
  }
  const uint32_t* const flags = words + layout.flags();
  const uint32_t* const signs = words + layout.signs();
  int64_t spares_used = 0;
  for (int64_t i = 0; i < layout.num_flag_words; ++i) {
    if (i % kOneBitSegmentFlags == 0) spares_used = 0;
    for (uint32_t rest = flags[i]; rest != 0; rest &= rest - 1) {
      const int64_t group = i * 32 + __builtin_ctz(rest);
      if (group >= layout.num_groups) {
        return Status::InvalidArgument(where + "a group beyond the " + std::to_string(count) +
                                       " values is flagged");
      }
      spares_used += signs[group] != 0 ? 1 : 0;
    }
    const int64_t segment = i / kOneBitSegmentFlags;
    const int64_t room =
        std::min(kOneBitSegmentFlags, layout.num_flag_words - segment * kOneBitSegmentFlags);
    if (spares_used > room) {
      return Status::InvalidArgument(where + "segment " + std::to_string(segment) +
                                     " flags more groups with signs than its " +
                                     std::to_string(room) + " spare words");
    }
  }
  return Status();
}

}  // namespace

Status OneBitDecode(const uint32_t* words, int64_t num_workers, int64_t words_per_worker,
                    int64_t count, const OneBitParams& params, bool sum,
                    const ParallelFor& parallel_for, float* decoded) {
  if (Status status = ValidateOneBit(params); !status.ok()) return status;
  if (count < 0 || num_workers < 0) {
    return Status::InvalidArgument("count and num_workers must be >= 0");
  }
  const OneBitLayout layout(count, params);
  if (words_per_worker != layout.num_words()) {
    return Status::InvalidArgument("one bit block of " + std::to_string(count) +
                                   " values must have " + std::to_string(layout.num_words()) +
                                   " words, got " + std::to_string(words_per_worker));
  }
  for (int64_t worker = 0; worker < num_workers; ++worker) {
    Status status = ValidateBlock(words + worker * words_per_worker, worker, count, layout);
    if (!status.ok()) return status;
  }
  static_assert(kDecodeUnit == kOneBitSegment, "a unit must be a segment");
  DecodeRows(
      num_workers, count, sum, kDecodeCycles, parallel_for,
      [&](int64_t worker, int64_t first, int64_t size, float* out, bool add) {
        const uint32_t* const block = words + worker * words_per_worker;
        if ((block[0] & kOneBitNonFinite) != 0) return DecodeNan(size, out);
        const int64_t segment = first / kOneBitSegment;
        const int64_t scale = params.block == 0 ? 0 : first / params.block;
        DecodeSegment(block + layout.flags() + segment * kOneBitSegmentFlags,
                      block + layout.signs() + segment * kOneBitSegmentGroups,
                      block + layout.spares() + segment * kOneBitSegmentFlags, size,
                      FloatOf(block[layout.scales() + scale]), add, out);
      },
      decoded);
  return Status();
}

}  // namespace gradcomp
