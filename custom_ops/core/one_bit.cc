// SPDX-License-Identifier: Apache-2.0
#include "one_bit.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>

#include "key_masks.h"
#include "multiversion.h"
#include "one_bit_math.h"
#include "one_bit_segment.h"
#include "scratch.h"
#include "stream_store.h"

namespace gradcomp {
namespace {

constexpr int64_t kLanes = 16;        // partial sums of a segment; FORMAT.md fixes this number
constexpr int64_t kEncodeCycles = 3;  // a value
constexpr int64_t kErrorTile = 256;   // errors computed at a time
// Blocks up to this many segments are finished while they are in cache; the rest is read twice.
constexpr int64_t kMaxFusedSegments = 16;

// What a block's scale follows from, for one segment.
struct Segment {
  double sum;           // of the magnitudes
  int32_t coded;        // values that decode to plus or minus the scale
  bool has_zeros;       // so the flags matter
  bool has_non_finite;  // then nothing else does
};

// The words of one segment.
struct SegmentWords {
  uint32_t* flags;
  uint32_t* signs;
  uint32_t* spares;
};

GRADCOMP_ALWAYS_INLINE void LoadSegment(const float* values, const float* residual, int64_t count,
                                        float* x) {
  if (residual != nullptr) {
    for (int64_t i = 0; i < count; ++i) x[i] = values[i] + residual[i];
  } else {
    for (int64_t i = 0; i < count; ++i) x[i] = values[i];
  }
}

// Sets bit i of the result to bit 31 of bits[i]: in eight lanes, shifted by constants.
GRADCOMP_ALWAYS_INLINE uint32_t GatherTopBits(const uint32_t* bits) {
  uint32_t lanes[8] = {};
  for (int row = 0; row < 4; ++row) {
    for (int lane = 0; lane < 8; ++lane) {
      lanes[lane] |= (bits[8 * row + lane] & kSignBit) >> (31 - 8 * row);
    }
  }
  uint32_t word = 0;
  for (int lane = 0; lane < 8; ++lane) word |= lanes[lane] << lane;
  return word;
}

// The sum of |x|, in the order that FORMAT.md fixes. `count` is a multiple of kLanes.
GRADCOMP_ALWAYS_INLINE double SumMagnitudes(const float* x, int64_t count) {
  double lanes[kLanes] = {};
  for (int64_t i = 0; i < count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] += static_cast<double>(FloatOf(BitsOf(x[i + lane]) & ~kSignBit));
    }
  }
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

// Flags the groups that hold zeros, as far as spare words reach, and moves their signs there.
// Returns how many of the `count` values are zero and stay so.
GRADCOMP_ALWAYS_INLINE int32_t FlagZeros(const float* x, int64_t count, const SegmentWords& words) {
  const int64_t groups = CeilDiv(count, kOneBitGroup);
  const int64_t num_spares = CeilDiv(groups, 32);
  int64_t used = 0;
  int32_t kept_zeros = 0;
  for (int64_t group = 0; group < groups; ++group) {
    uint32_t nonzero_bits[kOneBitGroup];
    for (int64_t i = 0; i < kOneBitGroup; ++i) {
      // Bit 31 of magnitude + 0x7fffffff is set unless the magnitude is 0.
      nonzero_bits[i] = (BitsOf(x[group * kOneBitGroup + i]) & ~kSignBit) + 0x7fffffffu;
    }
    const int64_t size = std::min(kOneBitGroup, count - group * kOneBitGroup);
    const uint32_t valid = size == kOneBitGroup ? ~0u : (1u << size) - 1;
    const uint32_t nonzero = GatherTopBits(nonzero_bits) & valid;
    const uint32_t zeros = valid & ~nonzero;
    if (zeros == 0) continue;
    const uint32_t signs = words.signs[group] & nonzero;  // without those of -0
    if (nonzero != 0 && used == num_spares) {
      words.signs[group] = signs | (zeros & kOneBitAlternate);
      continue;
    }
    if (nonzero != 0) words.spares[used++] = signs;
    words.signs[group] = nonzero;
    words.flags[group / 32] |= 1u << (group % 32);
    kept_zeros += static_cast<int32_t>(__builtin_popcount(zeros));
  }
  return kept_zeros;
}

GRADCOMP_MULTIVERSION
void EncodeSegment(const float* values, const float* residual, int64_t count,
                   const SegmentWords& words, Segment* segment) {
  float x[kOneBitSegment];
  LoadSegment(values, residual, count, x);
  uint32_t largest = 0, smallest = ~0u;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t magnitude = BitsOf(x[i]) & ~kSignBit;
    largest = std::max(largest, magnitude);
    smallest = std::min(smallest, magnitude);
  }
  const int64_t groups = CeilDiv(count, kOneBitGroup);
  const int64_t num_masks = CeilDiv(count, 64);
  for (int64_t i = count; i < 64 * num_masks; ++i) x[i] = 0.0f;
  const int64_t num_flag_words = CeilDiv(groups, 32);
  for (int64_t i = 0; i < num_flag_words; ++i) words.flags[i] = words.spares[i] = 0;
  uint64_t signs[kOneBitSegment / 64];
  MaskSigns(x, num_masks, signs);
  std::memcpy(words.signs, signs, sizeof(uint32_t) * static_cast<size_t>(groups));
  segment->sum = SumMagnitudes(x, groups * kOneBitGroup);
  segment->has_non_finite = largest >= kInfinityBits;
  segment->has_zeros = smallest == 0;
  const int32_t kept_zeros = segment->has_zeros ? FlagZeros(x, count, words) : 0;
  segment->coded = static_cast<int32_t>(count) - kept_zeros;
}

// Writes x minus what the segment decodes to.
GRADCOMP_MULTIVERSION
void SegmentError(const float* values, const float* residual, int64_t count,
                  const SegmentWords& words, bool has_zeros, float scale, bool streamed,
                  float* error) {
  float decoded[kOneBitSegment];
  if (has_zeros) {
    OneBitDecodeSegment(words.flags, words.signs, words.spares, count, scale, false, decoded);
  }
  const uint32_t scale_bits = BitsOf(scale);
  for (int64_t begin = 0; begin < count; begin += kErrorTile) {
    const int64_t size = std::min(kErrorTile, count - begin);
    float x[kErrorTile], lost[kErrorTile];
    LoadSegment(values + begin, residual == nullptr ? nullptr : residual + begin, size, x);
    if (has_zeros) {
      for (int64_t i = 0; i < size; ++i) lost[i] = x[i] - decoded[begin + i];
    } else {
      for (int64_t i = 0; i < size; ++i) {
        lost[i] = x[i] - FloatOf(scale_bits | (BitsOf(x[i]) & kSignBit));
      }
    }
    StoreTile(lost, size, streamed, error + begin);
  }
}

}  // namespace

Status ValidateOneBit(const OneBitParams& params) {
  if (params.block >= 0 && params.block % kOneBitSegment == 0) return Status();
  return Status::InvalidArgument("block must be 0 or a multiple of 4096, got " +
                                 std::to_string(params.block));
}

Status OneBitEncode(const float* values, const float* residual, int64_t count,
                    const OneBitParams& params, const ParallelFor& parallel_for, uint32_t* words,
                    float* error) {
  if (Status status = ValidateOneBit(params); !status.ok()) return status;
  if (count < 0) return Status::InvalidArgument("count must be >= 0");
  const ScopedIeeeMode ieee_mode;
  const OneBitLayout layout(count, params);
  const int64_t num_segments = CeilDiv(count, kOneBitSegment);
  const std::unique_ptr<Segment[]> segments = AllocateScratch<Segment>(num_segments);
  if (segments == nullptr) return OutOfScratch();
  std::atomic<bool> has_non_finite{false};
  const bool streamed = IsStreamed(values, residual, error, count);

  const auto words_of = [&](int64_t segment) {
    return SegmentWords{words + layout.flags() + segment * kOneBitSegmentFlags,
                        words + layout.signs() + segment * kOneBitSegmentGroups,
                        words + layout.spares() + segment * kOneBitSegmentFlags};
  };
  const auto encode_segment = [&](int64_t segment) {
    const int64_t first = segment * kOneBitSegment;
    EncodeSegment(values + first, residual == nullptr ? nullptr : residual + first,
                  std::min(kOneBitSegment, count - first), words_of(segment), &segments[segment]);
    if (segments[segment].has_non_finite) has_non_finite.store(true, std::memory_order_relaxed);
  };
  const auto scale_of_segments = [&](int64_t begin, int64_t end) {
    double sum = 0.0;
    int64_t coded = 0;
    for (int64_t segment = begin; segment < end; ++segment) {
      sum += segments[segment].sum;
      coded += segments[segment].coded;
    }
    return OneBitScale(sum, coded);
  };
  const auto write_error = [&](int64_t segment, float scale) {
    const int64_t first = segment * kOneBitSegment;
    SegmentError(values + first, residual == nullptr ? nullptr : residual + first,
                 std::min(kOneBitSegment, count - first), words_of(segment),
                 segments[segment].has_zeros, scale, streamed, error + first);
  };

  const int64_t block =
      std::min(params.block == 0 ? num_segments : params.block / kOneBitSegment, num_segments);
  const auto store_scale = [&](int64_t i) {
    const float scale = scale_of_segments(i * block, std::min((i + 1) * block, num_segments));
    words[layout.scales() + i] = BitsOf(scale);
    return scale;
  };
  constexpr int64_t kSegmentCycles = kEncodeCycles * kOneBitSegment;
  if (block <= kMaxFusedSegments) {
    RunShards(parallel_for, layout.num_scales, kSegmentCycles * block,
              [&](int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i) {
                  const int64_t last = std::min((i + 1) * block, num_segments);
                  for (int64_t s = i * block; s < last; ++s) encode_segment(s);
                  const float scale = store_scale(i);
                  if (error == nullptr) continue;
                  for (int64_t s = i * block; s < last; ++s) write_error(s, scale);
                }
              });
  } else {
    RunShards(parallel_for, num_segments, kSegmentCycles, [&](int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; ++s) encode_segment(s);
    });
    for (int64_t i = 0; i < layout.num_scales; ++i) store_scale(i);
    if (error != nullptr) {
      RunShards(parallel_for, num_segments, kSegmentCycles, [&](int64_t begin, int64_t end) {
        for (int64_t s = begin; s < end; ++s) {
          write_error(s, FloatOf(words[layout.scales() + s / block]));
        }
      });
    }
  }
  words[0] = 0;
  if (has_non_finite) {
    std::fill_n(words, layout.num_words(), 0u);
    words[0] = kOneBitNonFinite;
    if (error != nullptr) std::fill_n(error, count, 0.0f);
  }
  return Status();
}

}  // namespace gradcomp
