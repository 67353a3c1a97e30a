// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10 against the published known answers, and its vectorised form against the plain one.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "custom_ops/core/philox.h"
#include "tests/core/check.h"

namespace gradcomp {
namespace {

using Words = std::array<uint32_t, 4>;

// From the file kat_vectors of the authors' implementation, Random123.
void TestKnownAnswers() {
  CurrentCase() = "known answers";
  CHECK(
      (Philox({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  constexpr uint32_t kOnes = 0xffffffffu;
  CHECK((Philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}) ==
         Words{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  CHECK((Philox({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, {0xa4093822u, 0x299f31d0u}) ==
         Words{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

void TestFill() {
  const RandomKey key = {0xdeadbeefu, 3, 0x80000001u, 77};
  // The last two cross a carry into the high half of the counter.
  for (int64_t first :
       {int64_t{0}, int64_t{4096}, (int64_t{1} << 34) - 64, (int64_t{1} << 34) * 5 - 4}) {
    for (int64_t count : {0, 1, 3, 4, 5, 64, 255, 256, 1001}) {
      CurrentCase() = "first " + std::to_string(first) + " count " + std::to_string(count);
      std::vector<uint32_t> words(static_cast<size_t>(RandomWordsRoom(count)) + 1, 12345u);
      RandomWords(key, first, count, words.data());
      for (int64_t i = 0; i < count; ++i) {
        const uint64_t quad = static_cast<uint64_t>(first + i) / 4;
        const Words expected = Philox(
            {static_cast<uint32_t>(quad), static_cast<uint32_t>(quad >> 32), key.bucket, key.step},
            {key.seed, key.stream});
        CHECK(words[i] == expected[i % 4]);
        CHECK(RandomWord(first + i, key) == expected[i % 4]);
      }
      CHECK(words.back() == 12345u);
    }
  }
}

#if defined(GRADCOMP_PHILOX_X86)
// RandomWords() takes the widest vectors that the machine has; here each kind has its turn.
void TestVectors(int64_t (*fill)(const RandomKey&, uint64_t, int64_t, uint32_t*)) {
  const RandomKey key = {1, 2, 3, 4};
  const uint64_t first = (uint64_t{1} << 32) - 21;  // crosses a carry
  for (int64_t quads : {0, 1, 7, 8, 31, 32, 33, 100}) {
    CurrentCase() = "vectors, quads " + std::to_string(quads);
    std::vector<uint32_t> words(static_cast<size_t>(4 * quads), 12345u);
    const int64_t done = fill(key, first, quads, words.data());
    CHECK(done >= 0 && done <= quads && quads - done < 32);
    for (int64_t i = 0; i < 4 * quads; ++i) {
      const uint32_t expected = RandomWord(static_cast<int64_t>(4 * first) + i, key);
      CHECK(words[i] == (i < 4 * done ? expected : 12345u));
    }
  }
}

void TestVectors() {
  if (__builtin_cpu_supports("avx512f")) TestVectors(PhiloxQuadsAvx512);
  if (__builtin_cpu_supports("avx2")) TestVectors(PhiloxQuadsAvx2);
}
#else
void TestVectors() {}
#endif

}  // namespace
}  // namespace gradcomp

int main() {
  gradcomp::TestKnownAnswers();
  gradcomp::TestFill();
  gradcomp::TestVectors();
  return gradcomp::FinishTest();
}
