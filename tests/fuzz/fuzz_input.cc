// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/fuzz_input.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <utility>

#include "custom_ops/core/host_device.h"
#include "tests/core/check.h"

namespace gradcomp {
namespace {

// Numbers at which something changes: types, blocks, segments and the sizes of products.
constexpr int64_t kNotableNumbers[] = {0,
                                       -1,
                                       1,
                                       31,
                                       32,
                                       65536,
                                       65537,
                                       std::numeric_limits<int32_t>::max(),
                                       int64_t{1} << 32,
                                       (int64_t{1} << 32) - 1,
                                       int64_t{1} << 62,
                                       std::numeric_limits<int64_t>::max() - 31,
                                       std::numeric_limits<int64_t>::max(),
                                       std::numeric_limits<int64_t>::min()};

constexpr uint32_t kEdgeFloats[] = {0x7f7fffffu, 0xff7fffffu, 0x7f000000u, 0xff000001u,
                                    0x00800000u, 0x007fffffu, 0x80000001u, 0x80000000u,
                                    0x00000000u, 0x3f800000u, 0xbf800001u, 0x43e00000u};

}  // namespace

uint8_t FuzzInput::Byte() {
  if (size_ == 0) return 0;
  --size_;
  return *data_++;
}

uint32_t FuzzInput::Word() {
  uint32_t word = 0;
  for (int shift = 0; shift < 32; shift += 8) word |= uint32_t{Byte()} << shift;
  return word;
}

int64_t FuzzInput::Number(int64_t lo, int64_t hi) {
  // No more bytes than needed: a fuzzer finds its way sooner through short inputs.
  const int64_t range = hi - lo + 1;
  uint32_t number = Byte();
  if (range > 256) number |= uint32_t{Byte()} << 8;
  if (range > 65536) number |= uint32_t{Byte()} << 16;
  return lo + number % range;
}

int64_t FuzzInput::NumberOrAny(int64_t lo, int64_t hi) {
  return OneIn(32) ? AnyNumber() : Number(lo, hi);
}

int64_t FuzzInput::AnyNumber() {
  const size_t kind = Byte() % (std::size(kNotableNumbers) + 1);
  if (kind < std::size(kNotableNumbers)) return kNotableNumbers[kind];
  const uint64_t low = Word();
  return static_cast<int64_t>(low | uint64_t{Word()} << 32);
}

int64_t FuzzInput::NumWorkers() {
  constexpr int64_t kNumbers[] = {1, 2, 3, 0};
  return kNumbers[Byte() % std::size(kNumbers)];
}

int64_t FuzzInput::Size() {
  const uint8_t kind = Byte();
  if (kind % 64 == 63) return Number(0, 80000);
  if (kind % 8 == 7) return Number(0, 9000);
  if (kind % 8 == 6) return Number(1, 3) * 4096 + Number(-1, 1);
  if (kind % 8 == 5) return Number(1, 16) * 32 + Number(-1, 1);
  return Number(0, 100);
}

RandomKey FuzzInput::Key() { return {Byte(), Byte(), 0, 0}; }

std::vector<float> FuzzInput::Floats(int64_t count) {
  const uint8_t kind = Byte();
  const RandomKey key = Key();
  std::vector<float> values(static_cast<size_t>(count));
  std::vector<uint32_t> random(static_cast<size_t>(RandomWordsRoom(count)));
  RandomWords(key, 0, count, random.data());
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t bits = random[i];
    // Sign and mantissa at random, and 16 exponents below 1.
    float value = FloatOf((bits & 0x87ffffffu) | 0x38000000u);
    if (kind % 8 == 1 && (i / 40 % 3 == 0 || bits % 16 == 0)) value = bits % 2 == 0 ? 0.0f : -0.0f;
    if (kind % 8 == 2) value = FloatOf(bits & 0x80ffffffu);
    if (kind % 8 == 3) value = FloatOf(kEdgeFloats[bits % std::size(kEdgeFloats)]);
    if (kind % 8 >= 4) value = FloatOf(bits);
    values[i] = kind % 8 == 5 || std::isfinite(value) ? value : -0.5f;
  }
  // The first ones as the input has them.
  if (kind >= 192) {
    const std::vector<uint32_t> words = Words(std::min<int64_t>(count, 64));
    for (size_t i = 0; i < words.size(); ++i) values[i] = FloatOf(words[i]);
  }
  return values;
}

std::vector<uint32_t> FuzzInput::Words(int64_t count) const {
  std::vector<uint32_t> words(static_cast<size_t>(count));
  if (size_ == 0) return words;
  size_t at = 0;
  for (uint32_t& word : words) {
    for (int shift = 0; shift < 32; shift += 8) word |= uint32_t{data_[at++ % size_]} << shift;
  }
  return words;
}

void FuzzInput::Damage(std::vector<uint32_t>* words) {
  if (words->empty()) return;
  const auto place = [&] {
    const int64_t size = static_cast<int64_t>(words->size());
    return static_cast<size_t>(Number(0, OneIn(2) ? size - 1 : std::min<int64_t>(size, 8) - 1));
  };
  for (int changes = Byte() % 4; changes > 0; --changes) {
    const uint8_t kind = Byte();
    uint32_t& word = (*words)[place()];
    switch (kind % 10) {
      case 0:
        word = Word();
        break;
      case 1:
        word = 0;
        break;
      case 2:
        ++word;
        break;
      case 3:
        --word;
        break;
      case 4:  // such as a count, and another that it must agree with
        ++word;
        ++(*words)[place()];
        break;
      case 5:  // two equal indices
        word = (word & 0xffff) | word << 16;
        break;
      case 6:
        word = (*words)[place()];
        break;
      case 7:
        std::swap(word, (*words)[place()]);
        break;
      default:
        word ^= uint32_t{1} << (Byte() % 32);
    }
  }
}

bool SameNumbers(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (BitsOf(a[i]) != BitsOf(b[i]) && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
  }
  return true;
}

int FinishInput() {
  if (NumFailures() != 0) std::abort();
  return 0;
}

}  // namespace gradcomp
