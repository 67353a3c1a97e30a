// SPDX-License-Identifier: Apache-2.0
// Uniform against FORMAT.md, value by value and bit by bit.

#include <cmath>
#include <string>
#include <vector>

#include "custom_ops/core/philox.h"
#include "custom_ops/core/uniform.h"
#include "tests/core/check.h"
#include "tests/core/quantizer_check.h"

namespace gradcomp {
namespace {

constexpr RandomKey kKey = {11, 2, 3, 4};

// The definitions of FORMAT.md, section "Uniform block", one value at a time.
Expected Oracle(const std::vector<float>& x, int num_bits, size_t block, bool stochastic) {
  const size_t v = x.size(), blocks = (v + block - 1) / block, b = static_cast<size_t>(num_bits);
  const size_t codes = 1 + 2 * blocks, num_words = codes + (v * b + 31) / 32;
  const uint32_t header = static_cast<uint32_t>(num_bits);
  if (!AllFinite(x)) return NonFiniteBlock(num_words, header, v);
  Expected expected{std::vector<uint32_t>(num_words, 0), std::vector<float>(v)};
  expected.words[0] = header;
  const double last = std::ldexp(1.0, num_bits) - 1;
  for (size_t first = 0; first < v; first += block) {
    const size_t end = std::min(v, first + block);
    double lo = x[first], hi = x[first];
    for (size_t i = first; i < end; ++i) {
      lo = std::min(lo, double{x[i]});
      hi = std::max(hi, double{x[i]});
    }
    lo = lo == 0 ? 0.0 : lo;  // +0
    hi = hi == 0 ? 0.0 : hi;
    expected.words[1 + 2 * (first / block)] = PatternOf(static_cast<float>(lo));
    expected.words[2 + 2 * (first / block)] = PatternOf(static_cast<float>(hi));
    const double scale = hi > lo ? last * 8388608.0 / (hi - lo) : 0.0;
    for (size_t i = first; i < end; ++i) {
      const double position = std::floor((double{x[i]} - lo) * scale + 0.5);
      const double level = std::floor(position / 8388608.0);
      const double fraction = position / 8388608.0 - level;
      const uint32_t word = RandomWord(static_cast<int64_t>(i), kKey);
      const bool up =
          stochastic ? static_cast<double>(word) < std::ldexp(fraction, 32) : fraction >= 0.5;
      const uint32_t code = static_cast<uint32_t>(level) + (up ? 1 : 0);
      CHECK(code <= last);
      for (size_t bit = 0; bit < b; ++bit) {
        expected.words[codes + (i * b + bit) / 32] |= (code >> bit & 1) << ((i * b + bit) % 32);
      }
      const double c = code;
      expected.decoded[i] = static_cast<float>(lo / last * (last - c) + hi / last * c);
    }
  }
  return expected;
}

Quantizer Uniform(int num_bits, int64_t block, bool stochastic) {
  const UniformParams params = {num_bits, block};
  return {[=](const float* values, const float* residual, int64_t count,
              const ParallelFor& parallel_for, uint32_t* words, float* error) {
            return UniformEncode(values, residual, count, stochastic ? &kKey : nullptr, params,
                                 parallel_for, words, error);
          },
          [=](const uint32_t* words, int64_t num_workers, int64_t words_per_worker, int64_t count,
              bool sum, const ParallelFor& parallel_for, float* decoded) {
            return UniformDecode(words, num_workers, words_per_worker, count, params, sum,
                                 parallel_for, decoded);
          }};
}

void TestAgainstOracle() {
  for (int num_bits = 1; num_bits <= 8; ++num_bits) {
    for (int64_t block : {32, 512, 5120}) {
      if (block != 512 && num_bits % 3 != 0) continue;
      for (bool stochastic : {false, true}) {
        const Quantizer quantizer = Uniform(num_bits, block, stochastic);
        ForSamples({0, 1, 31, 32, 33, 511, 513, 9001}, [&](const std::vector<float>& values,
                                                           const std::vector<float>& residual,
                                                           const ParallelFor& parallel_for) {
          const Expected expected =
              Oracle(Meant(values, residual), num_bits, static_cast<size_t>(block), stochastic);
          CheckQuantizer(quantizer, values, residual, expected, parallel_for);
        });
      }
    }
  }
}

void TestRefused() {
  CurrentCase() = "refused";
  constexpr StatusCode bad = StatusCode::kInvalidArgument;
  float out[4];
  const Quantizer quantizer = Uniform(8, 512, false);
  const auto decode = [&](uint32_t header, uint32_t lo, uint32_t hi, int64_t num_words = 4) {
    const uint32_t words[5] = {header, lo, hi, 0x00ff00ffu, 0};
    return quantizer.decode(words, 1, num_words, 4, true, SerialFor, out).code();
  };
  const uint32_t one = PatternOf(1.0f), minus_one = PatternOf(-1.0f), flag = 1u << 31;
  CHECK(decode(8, minus_one, one) == StatusCode::kOk);
  CHECK(out[0] == 1.0f && out[1] == -1.0f && out[2] == 1.0f && out[3] == -1.0f);
  CHECK(decode(8, one, one) == StatusCode::kOk);
  CHECK(decode(8 | flag, 0, 0) == StatusCode::kOk);
  CHECK(decode(8, minus_one, one, 3) == bad);
  CHECK(decode(8, minus_one, one, 5) == bad);
  CHECK(decode(7, minus_one, one) == bad);
  CHECK(decode(8 | 1 << 9, minus_one, one) == bad);
  CHECK(decode(8 | flag, 0, one) == bad);
  CHECK(decode(8, one, minus_one) == bad);
  CHECK(decode(8, 2, 1) == bad);  // denormals in the wrong order
  CHECK(decode(8, flag, one) == bad);
  CHECK(decode(8, minus_one, flag) == bad);
  CHECK(decode(8, minus_one, 0x7f800000u) == bad);
  CHECK(decode(8, 0xffc00000u, one) == bad);
  for (const UniformParams& params : {UniformParams{0, 512}, {9, 512}, {4, 0}, {4, 48}, {4, 65568}})
    CHECK(ValidateUniform(params).code() == bad);
}

}  // namespace
}  // namespace gradcomp

int main() {
  gradcomp::TestAgainstOracle();
  gradcomp::TestRefused();
  return gradcomp::FinishTest();
}
