// SPDX-License-Identifier: Apache-2.0
#include "nonzero_blocks.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "host_device.h"
#include "item_shape.h"
#include "multiversion.h"
#include "positions_bits.h"
#include "prefetch.h"

namespace gradcomp {
namespace {

Status ValidateSizes(int64_t n, int64_t block_size) {
  if (n < 0) return Status::InvalidArgument("n must be >= 0, got " + std::to_string(n));
  if (block_size < 1 || block_size > kMaxComponents) {
    return Status::InvalidArgument("block_size must be in 1.." + std::to_string(kMaxComponents) +
                                   ", got " + std::to_string(block_size));
  }
  return Status();
}

Status ValidateCount(const uint32_t* mask, int64_t num_words, int64_t n, int64_t block_size,
                     int64_t count) {
  int64_t num_set = 0;
  Status status = BlocksCount(mask, num_words, n, block_size, &num_set);
  if (!status.ok() || count == num_set) return status;
  return Status::InvalidArgument("mask has " + std::to_string(num_set) +
                                 " set bits, but there are " + std::to_string(count) +
                                 " packed blocks");
}

GRADCOMP_ALWAYS_INLINE bool IsNonzero(const float* values, int64_t count) {
  uint32_t bits = 0;
  for (int64_t i = 0; i < count; ++i) bits |= BitsOf(values[i]);
  return (bits & ~kSignBit) != 0;
}

GRADCOMP_MULTIVERSION
void SetNonzero(const float* values, int64_t n, int64_t block_size, int64_t begin, int64_t end,
                BitSetter* bits) {
  constexpr int64_t kStep = 64;  // floats that are looked at before leaving a block
  for (int64_t block = begin; block < end; ++block) {
    const float* next = values + block * block_size;
    int64_t left = std::min(block_size, n - block * block_size);
    bool is_nonzero = false;
    for (; left >= kStep && !is_nonzero; left -= kStep, next += kStep) {
      PrefetchAhead(next, kStep);
      is_nonzero = IsNonzero(next, kStep);
    }
    if (is_nonzero || IsNonzero(next, left)) bits->Or(block, 1);
  }
}

// The number of set bits before `bit`.
int64_t CountBitsBefore(const uint32_t* mask, int64_t bit) {
  const int64_t word = bit / 32;
  const uint32_t rest = bit % 32 != 0 ? mask[word] << (32 - bit % 32) : 0;
  return CountBits(mask, word) + CountBits(&rest, 1);
}

// The bit that has `count` set bits before it and is set itself; it must exist.
GRADCOMP_MULTIVERSION
int64_t SetBitAfter(const uint32_t* mask, int64_t count) {
  int64_t word = 0;
  for (;; ++word) {
    const int64_t found = __builtin_popcount(mask[word]);
    if (count < found) break;
    count -= found;
  }
  uint32_t left = mask[word];
  for (; count > 0; --count) left &= left - 1;
  return word * 32 + __builtin_ctz(left);
}

// The first of the bits begin..end-1 that is set, or not set; `end` if there is none.
int64_t FindBit(const uint32_t* mask, int64_t begin, int64_t end, bool is_set) {
  uint32_t ignored = (uint32_t{1} << (begin % 32)) - 1;
  for (int64_t word = begin / 32; word * 32 < end; ++word) {
    const uint32_t found = (is_set ? mask[word] : ~mask[word]) & ~ignored;
    if (found != 0) return std::min(word * 32 + __builtin_ctz(found), end);
    ignored = 0;
  }
  return end;
}

void CopyFloats(const float* from, int64_t count, float* to) {
  std::memcpy(to, from, sizeof(float) * static_cast<size_t>(count));
}

}  // namespace

Status NonzeroBlocks(const float* values, int64_t n, int64_t block_size,
                     const ParallelFor& parallel_for, uint32_t* mask) {
  Status status = ValidateSizes(n, block_size);
  if (!status.ok()) return status;
  std::fill_n(mask, BlockMaskWords(n, block_size), 0);
  RunShards(parallel_for, CeilDiv(n, block_size), block_size, [&](int64_t begin, int64_t end) {
    BitSetter bits(mask);
    SetNonzero(values, n, block_size, begin, end, &bits);
  });
  return Status();
}

Status BlocksCount(const uint32_t* mask, int64_t num_words, int64_t n, int64_t block_size,
                   int64_t* count) {
  Status status = ValidateSizes(n, block_size);
  if (!status.ok()) return status;
  const int64_t num_blocks = CeilDiv(n, block_size);
  if (num_words != BlockMaskWords(n, block_size)) {
    return Status::InvalidArgument("the mask of " + std::to_string(num_blocks) + " blocks has " +
                                   std::to_string(BlockMaskWords(n, block_size)) + " words, got " +
                                   std::to_string(num_words));
  }
  if (!IsZeroFrom(mask, num_words, num_blocks)) {
    return Status::InvalidArgument("mask has a bit set beyond its " + std::to_string(num_blocks) +
                                   " blocks");
  }
  *count = CountBits(mask, num_words);
  return Status();
}

Status BlocksTake(const uint32_t* mask, int64_t num_words, const float* values, int64_t n,
                  int64_t block_size, int64_t count, const ParallelFor& parallel_for,
                  float* packed) {
  Status status = ValidateCount(mask, num_words, n, block_size, count);
  if (!status.ok()) return status;
  const int64_t num_blocks = CeilDiv(n, block_size);
  RunShards(parallel_for, count, block_size, [&](int64_t begin, int64_t end) {
    float* to = packed + begin * block_size;
    float* const to_end = packed + end * block_size;
    // Blocks next to each other are copied at once.
    for (int64_t first = SetBitAfter(mask, begin); to < to_end;) {
      const int64_t last = FindBit(mask, first, num_blocks, false);
      const int64_t size = std::min<int64_t>((last - first) * block_size, to_end - to);
      const int64_t num_values = std::min(size, n - first * block_size);
      CopyFloats(values + first * block_size, num_values, to);
      std::fill(to + num_values, to + size, 0.0f);
      to += size;
      first = FindBit(mask, last, num_blocks, true);
    }
  });
  return Status();
}

Status BlocksPut(const uint32_t* mask, int64_t num_words, const float* packed, int64_t count,
                 int64_t n, int64_t block_size, const ParallelFor& parallel_for, float* values) {
  Status status = ValidateCount(mask, num_words, n, block_size, count);
  if (!status.ok()) return status;
  RunShards(parallel_for, CeilDiv(n, block_size), block_size, [&](int64_t begin, int64_t end) {
    const float* from = packed + CountBitsBefore(mask, begin) * block_size;
    for (int64_t first = begin; first < end;) {
      const int64_t next = FindBit(mask, first, end, true);
      const int64_t last = FindBit(mask, next, end, false);
      const int64_t zeros_end = std::min(next * block_size, n);
      std::fill(values + first * block_size, values + zeros_end, 0.0f);
      if (next < last) {
        CopyFloats(from, std::min(last * block_size, n) - zeros_end, values + zeros_end);
        from += (last - next) * block_size;
      }
      first = last;
    }
  });
  return Status();
}

}  // namespace gradcomp
