// SPDX-License-Identifier: Apache-2.0
// Runs an encoder and a decoder in all the ways that they may be called, and compares with what an
// oracle says.

#ifndef GRADCOMP_TESTS_CORE_QUANTIZER_CHECK_H_
#define GRADCOMP_TESTS_CORE_QUANTIZER_CHECK_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "custom_ops/core/parallel.h"
#include "custom_ops/core/status.h"
#include "tests/core/check.h"
#include "tests/core/hostile_threads.h"

namespace gradcomp {

inline uint32_t PatternOf(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

inline float FloatWith(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

// What an oracle says about a vector of x.
struct Expected {
  std::vector<uint32_t> words;
  std::vector<float> decoded;
};

// The functions under test, with their parameters bound.
struct Quantizer {
  std::function<Status(const float* values, const float* residual, int64_t count,
                       const ParallelFor& parallel_for, uint32_t* words, float* error)>
      encode;
  std::function<Status(const uint32_t* words, int64_t num_workers, int64_t words_per_worker,
                       int64_t count, bool sum, const ParallelFor& parallel_for, float* decoded)>
      decode;
};

// x = values + residual as the quantizer must compute it.
inline std::vector<float> Meant(const std::vector<float>& values,
                                const std::vector<float>& residual) {
  std::vector<float> x = values;
  for (size_t i = 0; i < residual.size(); ++i) x[i] += residual[i];
  return x;
}

// `residual` may be empty for none. The error is also written over the residual, or else the
// values.
inline void CheckQuantizer(const Quantizer& quantizer, const std::vector<float>& values,
                           const std::vector<float>& residual, const Expected& expected,
                           const ParallelFor& parallel_for) {
  const std::vector<float> x = Meant(values, residual);
  const int64_t count = static_cast<int64_t>(x.size());
  const int64_t num_words = static_cast<int64_t>(expected.words.size());
  std::vector<float> expected_error(x.size(), 0.0f);
  for (size_t i = 0; i < x.size(); ++i) {
    constexpr float kLargest = std::numeric_limits<float>::max();
    if (std::isnan(expected.decoded[i])) continue;
    expected_error[i] = std::clamp(x[i] - expected.decoded[i], -kLargest, kLargest);
  }
  const float* const more = residual.empty() ? nullptr : residual.data();
  Guarded<uint32_t> words(num_words), words_only(num_words), words_in_place(num_words);
  Guarded<float> error(count), in_place(count), decoded(3 * count), total(count);
  std::copy_n(more != nullptr ? more : values.data(), count, in_place.data());
  std::vector<uint32_t> blocks;
  for (int worker = 0; worker < 3; ++worker) {
    blocks.insert(blocks.end(), expected.words.begin(), expected.words.end());
  }
  {
    const ScopedFlush flush;
    CHECK(quantizer.encode(values.data(), more, count, parallel_for, words.data(), error.data())
              .ok());
    CHECK(quantizer.encode(values.data(), more, count, parallel_for, words_only.data(), nullptr)
              .ok());
    const float* const first = more != nullptr ? values.data() : in_place.data();
    const float* const second = more != nullptr ? in_place.data() : nullptr;
    CHECK(
        quantizer.encode(first, second, count, parallel_for, words_in_place.data(), in_place.data())
            .ok());
    CHECK(quantizer.decode(blocks.data(), 3, num_words, count, false, parallel_for, decoded.data())
              .ok());
    CHECK(quantizer.decode(blocks.data(), 3, num_words, count, true, parallel_for, total.data())
              .ok());
  }
  CHECK(words.ToVector() == expected.words);
  CHECK(words_only.ToVector() == expected.words);
  CHECK(words_in_place.ToVector() == expected.words);
  CHECK(SameBits(error.ToVector(), expected_error));
  CHECK(SameBits(in_place.ToVector(), expected_error));
  std::vector<float> expected_decoded, expected_total(x.size(), 0.0f);
  for (int worker = 0; worker < 3; ++worker) {
    expected_decoded.insert(expected_decoded.end(), expected.decoded.begin(),
                            expected.decoded.end());
    for (size_t i = 0; i < x.size(); ++i) expected_total[i] += expected.decoded[i];
  }
  CHECK(SameBits(decoded.ToVector(), expected_decoded));
  CHECK(SameBits(total.ToVector(), expected_total));
  CHECK(words.Intact() && words_only.Intact() && words_in_place.Intact());
  CHECK(error.Intact() && in_place.Intact() && decoded.Intact() && total.Intact());
}

enum class Sample { kNormal, kZeros, kSomeZeros, kAnyBits, kDenormal, kEdges };
constexpr Sample kSamples[] = {Sample::kNormal,  Sample::kZeros,    Sample::kSomeZeros,
                               Sample::kAnyBits, Sample::kDenormal, Sample::kEdges};

// Finite values of the given kind.
inline std::vector<float> MakeSample(Sample kind, int64_t size, std::mt19937* random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(size));
  for (size_t i = 0; i < values.size(); ++i) {
    float& value = values[i];
    value = normal(*random);
    const uint32_t bits = (*random)();
    if (kind == Sample::kZeros) value = bits % 2 == 0 ? 0.0f : -0.0f;
    if (kind == Sample::kSomeZeros && (i / 50 % 3 == 0 || bits % 64 == 0)) value = 0.0f;
    if (kind == Sample::kAnyBits) value = FloatWith(bits);
    if (kind == Sample::kDenormal) value = FloatWith(bits & 0x80ffffffu);
    if (kind == Sample::kEdges) {
      const uint32_t edges[] = {0x7f7fffffu, 0xff000001u, 0x7f000000u, 1u, 0x80000003u,
                                0x007fffffu, 0x00800000u, 0x80800001u, 0u, 0x40000000u};
      value = FloatWith(edges[bits % 10]);
    }
    if (!std::isfinite(value)) value = 1.0f;
  }
  return values;
}

// Calls test(values, residual, parallel_for) with vectors around `sizes`, without a residual and
// with one, then with an Inf or NaN in either.
inline void ForSamples(
    const std::vector<int64_t>& sizes,
    const std::function<void(const std::vector<float>&, const std::vector<float>&,
                             const ParallelFor&)>& test) {
  std::mt19937 random(6);
  for (Sample kind : kSamples) {
    for (int64_t size : sizes) {
      CurrentCase() =
          "sample " + std::to_string(static_cast<int>(kind)) + " size " + std::to_string(size);
      const std::vector<float> values = MakeSample(kind, size, &random);
      test(values, {}, HostileFor(static_cast<unsigned>(size)));
      std::vector<float> residual = MakeSample(Sample::kNormal, size, &random);
      for (size_t i = 0; i < residual.size(); i += 7) residual[i] = -values[i];  // zeros
      test(values, residual, HostileFor(static_cast<unsigned>(size) + 1));
    }
  }
  for (uint32_t bits : {0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffffffffu, 0x7f800001u}) {
    for (size_t place : {0, 37, 8999}) {
      CurrentCase() = "pattern " + std::to_string(bits) + " at " + std::to_string(place);
      std::vector<float> bad(9000, -0.5f);
      bad[place] = FloatWith(bits);
      test(bad, {}, HostileFor(1));
      test(std::vector<float>(9000, 1.0f), bad, HostileFor(2));
    }
  }
}

inline bool AllFinite(const std::vector<float>& x) {
  return std::all_of(x.begin(), x.end(), [](float value) { return std::isfinite(value); });
}

// What every oracle says about x with an Inf or NaN: `header` with the flag, and nothing else.
inline Expected NonFiniteBlock(size_t num_words, uint32_t header, size_t count) {
  Expected expected{std::vector<uint32_t>(num_words, 0),
                    std::vector<float>(count, FloatWith(0x7fc00000u))};
  expected.words[0] = header | 0x80000000u;
  return expected;
}

}  // namespace gradcomp

#endif  // GRADCOMP_TESTS_CORE_QUANTIZER_CHECK_H_
