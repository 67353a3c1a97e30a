// SPDX-License-Identifier: Apache-2.0
// Bits of 32-bit words, for positions*.cc, random_k.cc and nonzero_blocks.cc: bit b is bit b mod 32
// of word b div 32.

#ifndef GRADCOMP_CORE_POSITIONS_BITS_H_
#define GRADCOMP_CORE_POSITIONS_BITS_H_

#include <cstdint>
#include <cstring>

namespace gradcomp {

#if defined(__BYTE_ORDER__)
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "64-bit masks are laid over 32-bit words: little-endian only");
#endif

int64_t CountBits(const uint32_t* words, int64_t num_words);
int64_t CountBits(const uint64_t* words, int64_t num_words);

// The bit after the `zeros`-th of `words` that is not set, of which there must be so many; 0 <
// zeros.
int64_t BitAfterZero(const uint32_t* words, int64_t zeros);

// Whether all bits from `bit` on are 0.
bool IsZeroFrom(const uint32_t* words, int64_t num_words, int64_t bit);

// words[0] and words[1], the latter read as 0 if there is but one word.
inline uint64_t LoadMask(const uint32_t* words, int64_t num_words) {
  uint64_t mask = 0;
  if (num_words >= 2) {
    std::memcpy(&mask, words, 8);
  } else {
    std::memcpy(&mask, words, 4);
  }
  return mask;
}

// Sets bits of words that were 0 before, in ascending order. Several may be at work on one array at
// a time, in ranges of bits that do not overlap but may share a word.
class BitSetter {
 public:
  explicit BitSetter(uint32_t* words) : words_(words) {}
  ~BitSetter() {
    if (word_ < 0) return;
    Share(word_, static_cast<uint32_t>(pending_));
    if (pending_ >> 32 != 0) Share(word_ + 1, static_cast<uint32_t>(pending_ >> 32));
  }
  BitSetter(const BitSetter&) = delete;
  BitSetter& operator=(const BitSetter&) = delete;

  // Ors `value` into the bits from `bit` on, of which none is set.
  void Or(int64_t bit, uint32_t value) {
    const int64_t word = bit >> 5;
    if (word != word_) MoveTo(word);
    pending_ |= uint64_t{value} << (bit & 31);
  }

 private:
  void MoveTo(int64_t word) {
    if (word_ < 0) {
      first_ = word;
    } else if (word_ == first_) {
      Share(word_, static_cast<uint32_t>(pending_));
    } else {
      words_[word_] = static_cast<uint32_t>(pending_);
    }
    pending_ >>= 32;
    if (word_ + 1 != word && pending_ != 0) {
      words_[word_ + 1] = static_cast<uint32_t>(pending_);
      pending_ = 0;
    }
    word_ = word;
  }

  // For a range's first and last words.
  void Share(int64_t word, uint32_t bits) {
    __atomic_fetch_or(words_ + word, bits, __ATOMIC_RELAXED);
  }

  uint32_t* const words_;
  int64_t first_ = -1;    // the first word with a bit
  int64_t word_ = -1;     // the word that bits are collected for
  uint64_t pending_ = 0;  // its bits, and those of the next
};

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_POSITIONS_BITS_H_
