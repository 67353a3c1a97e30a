// SPDX-License-Identifier: Apache-2.0
// The Elias-Fano layout, for positions*.cc and random_k.cc (FORMAT.md, section "Positions block").

#ifndef GRADCOMP_CORE_POSITIONS_ELIAS_FANO_H_
#define GRADCOMP_CORE_POSITIONS_ELIAS_FANO_H_

#include <cstdint>
#include <cstring>

#include "multiversion.h"
#include "positions.h"
#include "positions_bits.h"

namespace gradcomp {

// Writes positions to a block that was zeros before. Several may be at work on one block at a time,
// each on kept items of its own, one after the other.
class EliasFanoWriter {
 public:
  // `first` is the number of the first kept item.
  EliasFanoWriter(const EliasFanoShape& shape, int64_t first, uint32_t* block)
      : low_bits_(shape.low_bits),
        low_mask_((uint32_t{1} << low_bits_) - 1),
        next_(first),
        lows_(block),
        uppers_(block + shape.low_words) {}
  ~EliasFanoWriter() { Flush(); }

  // Writes the position of the next kept item, later: a caller's loop that waits for memory has
  // more of it under way the less is done in between.
  void Write(int64_t position) {
    pending_[num_pending_++] = position;
    if (num_pending_ == kMaxPending) Flush();
  }

 private:
  static constexpr int kMaxPending = 128;

  void Flush() {
    for (int i = 0; i < num_pending_; ++i, ++next_) {
      const int64_t position = pending_[i];
      lows_.Or(next_ * low_bits_, static_cast<uint32_t>(position) & low_mask_);
      uppers_.Or((position >> low_bits_) + next_, 1);
    }
    num_pending_ = 0;
  }

  const int low_bits_;
  const uint32_t low_mask_;
  int64_t next_;
  BitSetter lows_;
  BitSetter uppers_;
  int num_pending_ = 0;
  int64_t pending_[kMaxPending];
};

// Some buckets of a block, and the kept items in them.
struct EliasFanoRange {
  int64_t first_bucket, last_bucket;  // the buckets first .. last-1
  int64_t first_kept, last_kept;      // the kept items first .. last-1
};

// Calls `visit(position)` for the kept items of a range, whose upper bits have been counted.
// Positions are relative to the range's first bucket. Returns false at the first that is not below
// `size` or not above the one before.
template <typename Visit>
bool ForEliasFano(const EliasFanoShape& shape, const uint32_t* block, const EliasFanoRange& range,
                  int64_t size, Visit visit) {
  const int low_bits = shape.low_bits;
  const uint64_t low_mask = (uint64_t{1} << low_bits) - 1;
  const uint32_t* const uppers = block + shape.low_words;
  const int64_t begin = range.first_bucket + range.first_kept;
  const int64_t end = range.last_bucket + range.last_kept;
  uint64_t low_bit = static_cast<uint64_t>(range.first_kept * low_bits);
  int64_t previous = -1;
  int64_t kept = 0;
  uint64_t outside = ~(~uint64_t{0} << (begin & 31));  // bits of the first mask before the range
  for (int64_t start = begin & ~int64_t{31}; start < end; start += 64, outside = 0) {
    uint64_t mask = LoadMask(uppers + (start >> 5), (end - start + 31) >> 5) & ~outside;
    if (end - start < 64) mask &= ~(~uint64_t{0} << (end - start));
    // The upper bit of kept item j is number j + its bucket.
    int64_t bucket_of_first = start - begin - kept;
    kept += __builtin_popcountll(mask);
    for (; mask != 0; mask &= mask - 1, --bucket_of_first, low_bit += low_bits) {
      uint64_t low;  // the last low bits are followed by at least one upper word
      std::memcpy(&low, block + (low_bit >> 5), sizeof(low));
      low = low >> (low_bit & 31) & low_mask;
      const int64_t bucket = bucket_of_first + __builtin_ctzll(mask);
      const int64_t position = bucket << low_bits | static_cast<int64_t>(low);
      if (position <= previous || position >= size) return false;
      previous = position;
      visit(position);
    }
  }
  return true;
}

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_POSITIONS_ELIAS_FANO_H_
