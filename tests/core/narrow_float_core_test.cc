// SPDX-License-Identifier: Apache-2.0
// Narrow floats against FORMAT.md: the nearest code is looked up in a table of all of them.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "custom_ops/core/narrow_float.h"
#include "tests/core/check.h"
#include "tests/core/quantizer_check.h"

namespace gradcomp {
namespace {

// One of the formats: what each code without sign stands for, in order.
struct Format {
  Format(NarrowType type_in, int exponent_bits, int mantissa_bits, int largest)
      : type(type_in), code_bits(1 + exponent_bits + mantissa_bits) {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    for (int code = 0; code <= largest; ++code) {
      const int exponent = code >> mantissa_bits;
      const int mantissa = code & ((1 << mantissa_bits) - 1);
      numbers.push_back(exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                      : std::ldexp((1 << mantissa_bits) + mantissa,
                                                   exponent - bias - mantissa_bits));
    }
  }

  // The code nearest to `magnitude`, of those up to `last`; the even one of two.
  uint32_t Nearest(double magnitude, size_t last) const {
    const auto above = std::lower_bound(numbers.begin(), numbers.end(), magnitude);
    size_t code = static_cast<size_t>(above - numbers.begin());
    if (code > last) return static_cast<uint32_t>(last);
    if (code > 0) {
      const double up = numbers[code] - magnitude, down = magnitude - numbers[code - 1];
      if (down < up || (down == up && code % 2 == 1)) --code;
    }
    return static_cast<uint32_t>(code);
  }

  NarrowType type;
  int code_bits;
  std::vector<double> numbers;
};

Expected Oracle(const std::vector<float>& x, const Format& format, size_t block) {
  const size_t v = x.size(), per_word = static_cast<size_t>(32 / format.code_bits);
  const bool scaled = format.code_bits == 8;
  const size_t scales = scaled ? (v + block - 1) / block : 0, codes = 1 + (scales + 3) / 4;
  const size_t num_words = codes + (v + per_word - 1) / per_word;
  const uint32_t header = static_cast<uint32_t>(format.type);
  if (!AllFinite(x)) return NonFiniteBlock(num_words, header, v);
  Expected expected{std::vector<uint32_t>(num_words, 0), std::vector<float>(v)};
  expected.words[0] = header;
  if (!scaled) block = std::max<size_t>(v, 1);
  for (size_t first = 0; first < v; first += block) {
    double largest = 0, unit = 1;
    size_t last = format.numbers.size() - 1;
    for (size_t i = first; i < std::min(v, first + block); ++i) {
      largest = std::max(largest, std::fabs(double{x[i]}));
    }
    if (scaled) {
      int byte = 0;
      while (largest > std::ldexp(1.75, byte - 127)) ++byte;
      expected.words[1 + first / block / 4] |= static_cast<uint32_t>(byte)
                                               << (8 * (first / block % 4));
      unit = std::ldexp(1.75, byte - 127) / format.numbers[last];
      if (byte == 255) last = 0x77;
    }
    for (size_t i = first; i < std::min(v, first + block); ++i) {
      const uint32_t code = format.Nearest(std::fabs(double{x[i]}) / unit, last);
      const float magnitude = static_cast<float>(format.numbers[code] * unit);
      const uint32_t sign = std::signbit(x[i]) ? 1u : 0u;
      expected.words[codes + i / per_word] |=
          (code | sign << (format.code_bits - 1))
          << (static_cast<size_t>(format.code_bits) * (i % per_word));
      expected.decoded[i] = sign != 0 ? -magnitude : magnitude;
    }
  }
  return expected;
}

Quantizer NarrowFloat(const NarrowFloatParams& params) {
  return {[params](const float* values, const float* residual, int64_t count,
                   const ParallelFor& parallel_for, uint32_t* words, float* error) {
            return NarrowFloatEncode(values, residual, count, params, parallel_for, words, error);
          },
          [params](const uint32_t* words, int64_t num_workers, int64_t words_per_worker,
                   int64_t count, bool sum, const ParallelFor& parallel_for, float* decoded) {
            return NarrowFloatDecode(words, num_workers, words_per_worker, count, params, sum,
                                     parallel_for, decoded);
          }};
}

std::vector<Format> Formats() {
  return {{NarrowType::kFloat16, 5, 10, 0x7bff},
          {NarrowType::kBfloat16, 8, 7, 0x7f7f},
          {NarrowType::kFloat8E4m3, 4, 3, 0x7e},
          {NarrowType::kFloat8E5m2, 5, 2, 0x7b}};
}

void TestAgainstOracle() {
  for (const Format& format : Formats()) {
    for (int64_t block : {32, 128, 5120}) {
      if (format.code_bits == 16 && block != 128) continue;
      const Quantizer quantizer = NarrowFloat({format.type, block});
      ForSamples({0, 1, 2, 3, 4, 5, 127, 128, 129, 511, 513, 9001},
                 [&](const std::vector<float>& values, const std::vector<float>& residual,
                     const ParallelFor& parallel_for) {
                   const Expected expected =
                       Oracle(Meant(values, residual), format, static_cast<size_t>(block));
                   CheckQuantizer(quantizer, values, residual, expected, parallel_for);
                 });
    }
  }
}

// Every code and every point half way between two, with their neighbours.
void TestRounding() {
  for (const Format& format : Formats()) {
    CurrentCase() = "rounding, dtype " + std::to_string(static_cast<int>(format.type));
    std::vector<float> values;
    for (size_t code = 1; code < format.numbers.size(); ++code) {
      // The first value of each block of 32 makes its scale that of the largest number.
      if (values.size() % 32 == 0) values.push_back(static_cast<float>(format.numbers.back()));
      const double middle = (format.numbers[code - 1] + format.numbers[code]) / 2;
      for (double point : {format.numbers[code], middle}) {
        const float x = static_cast<float>(point);
        for (float value : {std::nextafter(x, 0.0f), x, -x}) values.push_back(value);
      }
      values.push_back(std::min(std::nextafter(static_cast<float>(middle), INFINITY),
                                static_cast<float>(format.numbers.back())));
      while (values.size() % 32 > 24) values.push_back(0.0f);
    }
    CheckQuantizer(NarrowFloat({format.type, 32}), values, {}, Oracle(values, format, 32),
                   SerialFor);
  }
}

void TestRefused() {
  CurrentCase() = "refused";
  constexpr StatusCode bad = StatusCode::kInvalidArgument;
  float out[4];
  const auto decode = [&](NarrowType type, uint32_t header, uint32_t second, int64_t num_words) {
    const uint32_t words[4] = {header, second, 0, 0};
    return NarrowFloat({type, 128}).decode(words, 1, num_words, 4, false, SerialFor, out).code();
  };
  CHECK(decode(NarrowType::kFloat16, 0, 7, 3) == StatusCode::kOk);
  CHECK(decode(NarrowType::kFloat16, 0, 7, 2) == bad);
  CHECK(decode(NarrowType::kFloat16, 1, 7, 3) == bad);
  CHECK(decode(NarrowType::kFloat16, 4, 7, 3) == bad);
  CHECK(decode(NarrowType::kFloat8E5m2, 3, 255, 3) == StatusCode::kOk);
  CHECK(decode(NarrowType::kFloat8E5m2, 3 | 1u << 31, 0, 3) == StatusCode::kOk);
  CHECK(decode(NarrowType::kFloat8E5m2, 3 | 1u << 31, 255, 3) == bad);
  CHECK(decode(NarrowType::kFloat8E5m2, 2, 255, 3) == bad);
  NarrowType type;
  CHECK(NarrowTypeFromName("float8_e5m2", &type).ok() && type == NarrowType::kFloat8E5m2);
  CHECK(NarrowTypeFromName("float32", &type).code() == bad);
  for (int64_t block : {0, -32, 33, 65568}) {
    CHECK(ValidateNarrowFloat({NarrowType::kFloat16, block}).code() == bad);
  }
}

}  // namespace
}  // namespace gradcomp

int main() {
  gradcomp::TestAgainstOracle();
  gradcomp::TestRounding();
  gradcomp::TestRefused();
  return gradcomp::FinishTest();
}
