// SPDX-License-Identifier: Apache-2.0
#include "philox.h"

#if defined(GRADCOMP_PHILOX_X86)
#include <immintrin.h>
#if !defined(__clang__)
// GCC 12 takes its own header's undefined vectors for ours (its bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#endif

namespace gradcomp {

#if defined(GRADCOMP_PHILOX_X86)

// Intrinsics, because compilers turn the plain loop into more than twice the instructions. A lane
// has 64 bits and holds one word of one counter in its lower half, where the multiplication reads
// it; what the upper half holds does not matter until the words are put together.

__attribute__((target("avx512f"))) int64_t PhiloxQuadsAvx512(const RandomKey& key, uint64_t quad,
                                                             int64_t num_quads, uint32_t* words) {
  constexpr int kVectors = 4;  // enough independent work to hide the latency of multiplying
  constexpr int64_t kBatch = 8 * kVectors;
  const __m512i iota = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
  const __m512i first_half = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
  const __m512i second_half = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
  const __m512i multiplier0 = _mm512_set1_epi64(kPhiloxMultiplier0);
  const __m512i multiplier1 = _mm512_set1_epi64(kPhiloxMultiplier1);
  int64_t done = 0;
  for (; done + kBatch <= num_quads; done += kBatch) {
    __m512i c0[kVectors], c1[kVectors], c2[kVectors], c3[kVectors];
    for (int j = 0; j < kVectors; ++j) {
      c0[j] = _mm512_add_epi64(_mm512_set1_epi64(static_cast<int64_t>(quad) + done + 8 * j), iota);
      c1[j] = _mm512_srli_epi64(c0[j], 32);
      c2[j] = _mm512_set1_epi64(key.bucket);
      c3[j] = _mm512_set1_epi64(key.step);
    }
    uint32_t k0 = key.seed, k1 = key.stream;
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      const __m512i key0 = _mm512_set1_epi64(k0), key1 = _mm512_set1_epi64(k1);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) {
        const __m512i product0 = _mm512_mul_epu32(c0[j], multiplier0);
        const __m512i product1 = _mm512_mul_epu32(c2[j], multiplier1);
        constexpr int kXorOfThree = 0x96;
        c0[j] =
            _mm512_ternarylogic_epi64(_mm512_srli_epi64(product1, 32), c1[j], key0, kXorOfThree);
        c2[j] =
            _mm512_ternarylogic_epi64(_mm512_srli_epi64(product0, 32), c3[j], key1, kXorOfThree);
        c1[j] = product1;
        c3[j] = product0;
      }
      k0 += kPhiloxKeyStep0;
      k1 += kPhiloxKeyStep1;
    }
    for (int j = 0; j < kVectors; ++j) {
      // The low half of c1 goes above that of c0, and c3 above c2.
      const __m512i low = _mm512_mask_shuffle_epi32(c0[j], 0xaaaa, c1[j], _MM_PERM_CCAA);
      const __m512i high = _mm512_mask_shuffle_epi32(c2[j], 0xaaaa, c3[j], _MM_PERM_CCAA);
      uint32_t* const out = words + 4 * (done + 8 * j);
      _mm512_storeu_si512(out, _mm512_permutex2var_epi64(low, first_half, high));
      _mm512_storeu_si512(out + 16, _mm512_permutex2var_epi64(low, second_half, high));
    }
  }
  return done;
}

__attribute__((target("avx2"))) int64_t PhiloxQuadsAvx2(const RandomKey& key, uint64_t quad,
                                                        int64_t num_quads, uint32_t* words) {
  constexpr int kVectors = 2;
  constexpr int64_t kBatch = 4 * kVectors;
  const __m256i iota = _mm256_setr_epi64x(0, 1, 2, 3);
  const __m256i multiplier0 = _mm256_set1_epi64x(kPhiloxMultiplier0);
  const __m256i multiplier1 = _mm256_set1_epi64x(kPhiloxMultiplier1);
  int64_t done = 0;
  for (; done + kBatch <= num_quads; done += kBatch) {
    __m256i c0[kVectors], c1[kVectors], c2[kVectors], c3[kVectors];
    for (int j = 0; j < kVectors; ++j) {
      c0[j] = _mm256_add_epi64(_mm256_set1_epi64x(static_cast<int64_t>(quad) + done + 4 * j), iota);
      c1[j] = _mm256_srli_epi64(c0[j], 32);
      c2[j] = _mm256_set1_epi64x(key.bucket);
      c3[j] = _mm256_set1_epi64x(key.step);
    }
    uint32_t k0 = key.seed, k1 = key.stream;
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      const __m256i key0 = _mm256_set1_epi64x(k0), key1 = _mm256_set1_epi64x(k1);
#pragma GCC unroll 2
      for (int j = 0; j < kVectors; ++j) {
        const __m256i product0 = _mm256_mul_epu32(c0[j], multiplier0);
        const __m256i product1 = _mm256_mul_epu32(c2[j], multiplier1);
        c0[j] = _mm256_xor_si256(_mm256_srli_epi64(product1, 32), _mm256_xor_si256(c1[j], key0));
        c2[j] = _mm256_xor_si256(_mm256_srli_epi64(product0, 32), _mm256_xor_si256(c3[j], key1));
        c1[j] = product1;
        c3[j] = product0;
      }
      k0 += kPhiloxKeyStep0;
      k1 += kPhiloxKeyStep1;
    }
    for (int j = 0; j < kVectors; ++j) {
      const __m256i low = _mm256_blend_epi32(c0[j], _mm256_slli_epi64(c1[j], 32), 0xaa);
      const __m256i high = _mm256_blend_epi32(c2[j], _mm256_slli_epi64(c3[j], 32), 0xaa);
      const __m256i even = _mm256_unpacklo_epi64(low, high);  // quads 0 and 2
      const __m256i odd = _mm256_unpackhi_epi64(low, high);   // quads 1 and 3
      __m256i* const out = reinterpret_cast<__m256i*>(words + 4 * (done + 4 * j));
      _mm256_storeu_si256(out, _mm256_permute2x128_si256(even, odd, 0x20));
      _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(even, odd, 0x31));
    }
  }
  return done;
}

#endif  // GRADCOMP_PHILOX_X86

namespace {

// Some of the quads, from the front, in the fastest way this machine has; returns how many.
int64_t FastQuads(const RandomKey& key, uint64_t quad, int64_t num_quads, uint32_t* words) {
#if defined(GRADCOMP_PHILOX_X86)
  static const bool has_avx512 = __builtin_cpu_supports("avx512f") != 0;
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  int64_t done = 0;
  if (has_avx512) done = PhiloxQuadsAvx512(key, quad, num_quads, words);
  if (has_avx2) {
    done += PhiloxQuadsAvx2(key, quad + static_cast<uint64_t>(done), num_quads - done,
                            words + 4 * done);
  }
  return done;
#else
  (void)key, (void)quad, (void)num_quads, (void)words;
  return 0;
#endif
}

}  // namespace

void RandomWords(const RandomKey& key, int64_t first, int64_t count, uint32_t* words) {
  const uint64_t quad = static_cast<uint64_t>(first) >> 2;
  const int64_t num_quads = (count + 3) / 4;
  for (int64_t i = FastQuads(key, quad, num_quads, words); i < num_quads; ++i) {
    PhiloxState s = PhiloxOfQuad(quad + static_cast<uint64_t>(i), key);
    PhiloxTenRounds(&s);
    words[4 * i] = s.c0;
    words[4 * i + 1] = s.c1;
    words[4 * i + 2] = s.c2;
    words[4 * i + 3] = s.c3;
  }
}

}  // namespace gradcomp
