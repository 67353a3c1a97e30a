// SPDX-License-Identifier: Apache-2.0
// Random numbers without state: Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random
// numbers: as easy as 1, 2, 3" (SC 2011).
//
// A 128-bit counter and a 64-bit key go through ten rounds of multiplying and mixing and give four
// 32-bit words. Any word can be computed on its own, so a value's random number depends on nothing
// but its index and the key: not on threads, vector width or device.

#ifndef GRADCOMP_CORE_PHILOX_H_
#define GRADCOMP_CORE_PHILOX_H_

#include <array>
#include <cstdint>

#include "host_device.h"

namespace gradcomp {

// What the random numbers of one encoding follow from, besides the index of a value.
struct RandomKey {
  uint32_t seed;
  uint32_t stream;  // tells workers, and uses on one worker, apart
  uint32_t bucket;
  uint32_t step;
};

constexpr uint32_t kPhiloxMultiplier0 = 0xd2511f53u;
constexpr uint32_t kPhiloxMultiplier1 = 0xcd9e8d57u;
constexpr uint32_t kPhiloxKeyStep0 = 0x9e3779b9u;  // the golden ratio
constexpr uint32_t kPhiloxKeyStep1 = 0xbb67ae85u;  // sqrt(3) - 1

// The state while rounds are applied. All fields are words of one lane.
struct PhiloxState {
  uint32_t c0, c1, c2, c3;  // counter
  uint32_t k0, k1;          // key
};

GRADCOMP_HOST_DEVICE void PhiloxRound(PhiloxState* s) {
  const uint64_t product0 = uint64_t{kPhiloxMultiplier0} * s->c0;
  const uint64_t product1 = uint64_t{kPhiloxMultiplier1} * s->c2;
  s->c0 = static_cast<uint32_t>(product1 >> 32) ^ s->c1 ^ s->k0;
  s->c1 = static_cast<uint32_t>(product1);
  s->c2 = static_cast<uint32_t>(product0 >> 32) ^ s->c3 ^ s->k1;
  s->c3 = static_cast<uint32_t>(product0);
  s->k0 += kPhiloxKeyStep0;
  s->k1 += kPhiloxKeyStep1;
}

GRADCOMP_HOST_DEVICE void PhiloxTenRounds(PhiloxState* s) {
  for (int round = 0; round < 10; ++round) PhiloxRound(s);
}

// The four words of one counter, in the order of the paper. Host only; CUDA has PhiloxTenRounds.
inline std::array<uint32_t, 4> Philox(std::array<uint32_t, 4> counter,
                                      std::array<uint32_t, 2> key) {
  PhiloxState s = {counter[0], counter[1], counter[2], counter[3], key[0], key[1]};
  PhiloxTenRounds(&s);
  return {s.c0, s.c1, s.c2, s.c3};
}

// The state whose words c0..c3, after ten rounds, are those of the values 4 * quad .. 4 * quad + 3.
GRADCOMP_HOST_DEVICE PhiloxState PhiloxOfQuad(uint64_t quad, const RandomKey& key) {
  return {static_cast<uint32_t>(quad),
          static_cast<uint32_t>(quad >> 32),
          key.bucket,
          key.step,
          key.seed,
          key.stream};
}

// The random word of value `index` >= 0: a quarter of the work's result is used.
GRADCOMP_HOST_DEVICE uint32_t RandomWord(int64_t index, const RandomKey& key) {
  PhiloxState s = PhiloxOfQuad(static_cast<uint64_t>(index) >> 2, key);
  PhiloxTenRounds(&s);
  const uint32_t low = (index & 1) != 0 ? s.c1 : s.c0;
  const uint32_t high = (index & 1) != 0 ? s.c3 : s.c2;
  return (index & 2) != 0 ? high : low;
}

// `count` words that RandomWords() writes for, rounded up to whole quads.
constexpr int64_t RandomWordsRoom(int64_t count) { return (count + 3) / 4 * 4; }

// Writes the random words of the values first .. first + count - 1 to `words`, which has room for
// RandomWordsRoom(count). `first` is a multiple of 4. Fastest for a multiple of 128 words at a
// time.
void RandomWords(const RandomKey& key, int64_t first, int64_t count, uint32_t* words);

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__CUDACC__) && \
    !defined(GRADCOMP_NO_MULTIVERSION)
#define GRADCOMP_PHILOX_X86
// Parts of RandomWords() for machines with these instructions: words of whole batches of quads,
// from `quad` on. They return how many of the quads that was.
int64_t PhiloxQuadsAvx512(const RandomKey& key, uint64_t quad, int64_t num_quads, uint32_t* words);
int64_t PhiloxQuadsAvx2(const RandomKey& key, uint64_t quad, int64_t num_quads, uint32_t* words);
#endif

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_PHILOX_H_
