// SPDX-License-Identifier: Apache-2.0
// Bit packing against FORMAT.md's sentence, one bit at a time.

#include <random>
#include <vector>

#include "custom_ops/core/bit_pack.h"
#include "tests/core/check.h"
#include "tests/core/hostile_threads.h"

namespace gradcomp {
namespace {

// Code i occupies stream bits i*N .. i*N + N-1; stream bit b is bit b mod 32 of word b div 32.
std::vector<uint32_t> PackSlowly(const std::vector<uint32_t>& codes, int num_bits) {
  std::vector<uint32_t> words((codes.size() * num_bits + 31) / 32);
  for (size_t i = 0; i < codes.size(); ++i) {
    for (int j = 0; j < num_bits; ++j) {
      const size_t bit = i * num_bits + j;
      words[bit / 32] |= (codes[i] >> j & 1u) << (bit % 32);
    }
  }
  return words;
}

void TestGroups(int num_bits, int64_t groups, std::mt19937* random) {
  CurrentCase() = "num_bits " + std::to_string(num_bits) + " groups " + std::to_string(groups);
  std::vector<uint32_t> codes(groups * kPackGroup);
  for (uint32_t& code : codes) code = (*random)() & ((1u << num_bits) - 1);
  Guarded<uint32_t> words(groups * num_bits);
  PackGroups(num_bits, codes.data(), groups, words.data());
  CHECK(words.ToVector() == PackSlowly(codes, num_bits));
  CHECK(words.Intact());
  Guarded<uint32_t> unpacked(groups * kPackGroup);
  UnpackGroups(num_bits, words.data(), groups, unpacked.data());
  CHECK(unpacked.ToVector() == codes);
  CHECK(unpacked.Intact());
}

void TestPackedWords() {
  for (int num_bits = kMinPackBits; num_bits <= kMaxPackBits; ++num_bits) {
    for (int64_t count = 0; count < 200; ++count) {
      CHECK(PackedWords(count, num_bits) == (count * num_bits + 31) / 32);
    }
  }
  CHECK(PackedWords(int64_t{1} << 60, 12) == 3 * (int64_t{1} << 57));  // no overflow on the way
}

}  // namespace
}  // namespace gradcomp

int main() {
  std::mt19937 random(1);
  for (int num_bits = 6; num_bits <= 12; ++num_bits) {
    for (int64_t groups : {0, 1, 2, 3, 17}) gradcomp::TestGroups(num_bits, groups, &random);
  }
  gradcomp::TestPackedWords();
  return gradcomp::FinishTest();
}
