// SPDX-License-Identifier: Apache-2.0
// One bit against FORMAT.md, value by value and bit by bit.

#include <cmath>
#include <string>
#include <vector>

#include "custom_ops/core/one_bit.h"
#include "tests/core/check.h"
#include "tests/core/quantizer_check.h"

namespace gradcomp {
namespace {

// The definitions of FORMAT.md, section "One bit block", one value at a time.
Expected Oracle(const std::vector<float>& x, size_t block) {
  const size_t v = x.size();
  const size_t scales = block == 0 ? (v > 0 ? 1 : 0) : (v + block - 1) / block;
  const size_t groups = (v + 31) / 32, flag_words = (groups + 31) / 32;
  const size_t flags = 1 + scales, signs = flags + flag_words, spares = signs + groups;
  if (!AllFinite(x)) return NonFiniteBlock(spares + flag_words, 0, v);
  Expected expected{std::vector<uint32_t>(spares + flag_words, 0), std::vector<float>(v)};
  std::vector<double> sums(scales, 0.0), coded(scales, 0.0);
  std::vector<bool> is_zero(v, false), is_negative(v, false);
  for (size_t first = 0; first < v; first += 4096) {
    const size_t end = std::min(v, first + 4096), of = block == 0 ? 0 : first / block;
    std::vector<double> lanes(16, 0.0);
    for (size_t i = first; i < end; ++i) lanes[i % 16] += std::fabs(double{x[i]});
    for (size_t width : {8, 4, 2, 1}) {
      for (size_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
    }
    sums[of] += lanes[0];
    size_t spare = spares + first / 1024;
    const size_t spare_end = spares + (end + 1023) / 1024;
    for (size_t group = first / 32; group * 32 < end; ++group) {
      size_t zeros = 0, size = 0;
      for (size_t i = group * 32; i < std::min(end, group * 32 + 32); ++i) {
        zeros += x[i] == 0 ? 1 : 0;
        size += 1;
      }
      const bool flag = zeros == size || (zeros > 0 && spare < spare_end);
      uint32_t nonzero = 0, negative = 0;
      for (size_t i = group * 32; i < group * 32 + size; ++i) {
        is_zero[i] = flag && x[i] == 0;
        is_negative[i] = x[i] < 0 || (x[i] == 0 && !flag && i % 2 == 1);
        nonzero |= (x[i] != 0 ? 1u : 0u) << (i % 32);
        negative |= (is_negative[i] ? 1u : 0u) << (i % 32);
      }
      coded[of] += static_cast<double>(size - (flag ? zeros : 0));
      expected.words[signs + group] = flag ? nonzero : negative;
      if (flag) expected.words[flags + group / 32] |= 1u << (group % 32);
      if (flag && nonzero != 0) expected.words[spare++] = negative;
    }
  }
  for (size_t i = 0; i < scales; ++i) {
    const float scale = coded[i] > 0 ? static_cast<float>(sums[i] / coded[i]) : 0.0f;
    expected.words[1 + i] = PatternOf(scale);
  }
  for (size_t i = 0; i < v; ++i) {
    const float scale = FloatWith(expected.words[1 + (block == 0 ? 0 : i / block)]);
    expected.decoded[i] = is_zero[i] ? 0.0f : is_negative[i] ? -scale : scale;
  }
  return expected;
}

Quantizer OneBit(int64_t block) {
  const OneBitParams params = {block};
  return {[params](const float* values, const float* residual, int64_t count,
                   const ParallelFor& parallel_for, uint32_t* words, float* error) {
            return OneBitEncode(values, residual, count, params, parallel_for, words, error);
          },
          [params](const uint32_t* words, int64_t num_workers, int64_t words_per_worker,
                   int64_t count, bool sum, const ParallelFor& parallel_for, float* decoded) {
            return OneBitDecode(words, num_workers, words_per_worker, count, params, sum,
                                parallel_for, decoded);
          }};
}

void TestAgainstOracle() {
  // 81920 is finished in two passes; 0 is one block of all.
  for (int64_t block : {4096, 12288, 81920, 0}) {
    const Quantizer quantizer = OneBit(block);
    ForSamples({0, 1, 31, 32, 33, 1023, 1025, 4095, 4096, 4097, 12289, 90001},
               [&](const std::vector<float>& values, const std::vector<float>& residual,
                   const ParallelFor& parallel_for) {
                 const Expected expected =
                     Oracle(Meant(values, residual), static_cast<size_t>(block));
                 CHECK(OneBitNumWords(static_cast<int64_t>(values.size()), {block}) ==
                       static_cast<int64_t>(expected.words.size()));
                 CheckQuantizer(quantizer, values, residual, expected, parallel_for);
               });
  }
}

void TestRefused() {
  CurrentCase() = "refused";
  constexpr StatusCode bad = StatusCode::kInvalidArgument;
  float out[5000];
  const Quantizer quantizer = OneBit(4096);
  const std::vector<uint32_t> good = Oracle(std::vector<float>(5000, 1.0f), 4096).words;
  const int64_t num_words = static_cast<int64_t>(good.size());
  const auto decode = [&](size_t at, uint32_t word, int64_t size) {
    std::vector<uint32_t> words = good;
    words[at] = word;
    words.resize(static_cast<size_t>(size));
    return quantizer.decode(words.data(), 1, size, 5000, true, SerialFor, out).code();
  };
  CHECK(decode(0, 0, num_words) == StatusCode::kOk);
  CHECK(decode(0, 0, num_words - 1) == bad);
  CHECK(decode(0, 0, num_words + 1) == bad);
  CHECK(decode(0, 1, num_words) == bad);                 // reserved bit
  CHECK(decode(0, 0x80000000u, num_words) == bad);       // flag beside scales
  CHECK(decode(1, 0x7f800000u, num_words) == bad);       // infinite
  CHECK(decode(2, 0x80000000u, num_words) == bad);       // -0
  CHECK(decode(3, 0xfu, num_words) == StatusCode::kOk);  // sign words 0: groups of zeros
  CHECK(decode(7, 1u << 29, num_words) == bad);          // there are 29 groups
  std::vector<uint32_t> words = good;
  words[3] = 0x1fu;  // five groups with signs, four spare words
  for (size_t group = 0; group < 5; ++group) words[8 + group] = 1;
  CHECK(quantizer.decode(words.data(), 1, num_words, 5000, false, SerialFor, out).code() == bad);
  words[8] = 0;
  CHECK(quantizer.decode(words.data(), 1, num_words, 5000, false, SerialFor, out).ok());
  for (int64_t block : {-4096, 1, 4095, 6000}) {
    CHECK(OneBit(block).encode(out, nullptr, 0, SerialFor, words.data(), nullptr).code() == bad);
  }
}

}  // namespace
}  // namespace gradcomp

int main() {
  gradcomp::TestAgainstOracle();
  gradcomp::TestRefused();
  return gradcomp::FinishTest();
}
