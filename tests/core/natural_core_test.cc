// SPDX-License-Identifier: Apache-2.0
// Natural compression against FORMAT.md, value by value and bit by bit.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "custom_ops/core/natural.h"
#include "custom_ops/core/philox.h"
#include "tests/core/check.h"
#include "tests/core/hostile_threads.h"

namespace gradcomp {
namespace {

constexpr RandomKey kKey = {11, 2, 3, 4};
constexpr uint32_t kFlag = 1u << 31;

float Float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

// The definitions of FORMAT.md, section "Natural block", in doubles.
struct Oracle {
  explicit Oracle(const std::vector<float>& x) {
    const size_t blocks = (x.size() + 4095) / 4096;
    const size_t codes = 1 + (blocks + 3) / 4;
    words.assign(codes + (x.size() + 3) / 4, 0);
    decoded.assign(x.size(), 0.0f);
    words[0] = 12;
    if (!std::all_of(x.begin(), x.end(), [](float value) { return std::isfinite(value); })) {
      words[0] |= kFlag;
      decoded.assign(x.size(), Float(0x7fc00000));
      return;
    }
    for (size_t block = 0; block < blocks; ++block) {
      const size_t end = std::min(x.size(), 4096 * (block + 1));
      double largest = 0;
      for (size_t i = 4096 * block; i < end; ++i)
        largest = std::max(largest, std::fabs(double{x[i]}));
      int exponent = 0;
      if (largest > 0) {
        exponent = std::clamp(static_cast<int>(std::ceil(std::log2(largest))) + 127, 104, 254);
      }
      words[1 + block / 4] |= static_cast<uint32_t>(exponent) << (8 * (block % 4));
      for (size_t i = 4096 * block; i < end; ++i) {
        const uint32_t code = Code(x[i], static_cast<int64_t>(i), exponent);
        words[codes + i / 4] |= code << (8 * (i % 4));
        const double magnitude = code == 0 ? 0.0 : std::ldexp(1.0, (code & 127) + exponent - 254);
        decoded[i] = static_cast<float>(code & 128 ? -magnitude : magnitude);
      }
    }
  }

  static uint32_t Code(float x, int64_t i, int exponent) {
    const double magnitude = std::fabs(double{x});
    const double smallest = std::ldexp(1.0, exponent - 253);
    const uint64_t quad = static_cast<uint64_t>(i) / 4;
    const double u = Philox(
        {static_cast<uint32_t>(quad), static_cast<uint32_t>(quad >> 32), kKey.bucket, kKey.step},
        {kKey.seed, kKey.stream})[i % 4];
    int code;
    if (magnitude < smallest) {
      code = u < std::ldexp(magnitude / smallest, 32) ? 1 : 0;
    } else {
      const int floor = std::ilogb(magnitude);
      const double fraction = std::ldexp(magnitude, -floor) - 1;
      code = std::min(floor + (u < std::ldexp(fraction, 32) ? 1 : 0) + 254 - exponent, 127);
    }
    return static_cast<uint32_t>(code) | (code != 0 && x < 0 ? 128u : 0u);
  }

  std::vector<uint32_t> words;
  std::vector<float> decoded;
};

enum Kind { kNormal, kZero, kBits, kDenormal, kWideBlock, kEdges, kNumKinds };

std::vector<float> MakeValues(Kind kind, int64_t size, std::mt19937* random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(size));
  for (float& value : values) {
    value = normal(*random);
    const uint32_t bits = (*random)();
    if (kind == kZero) value = bits % 2 == 0 ? 0.0f : -0.0f;
    if (kind == kBits) value = Float(bits);
    if (kind == kDenormal) value = Float(bits & 0x807fffffu);
    if (kind == kWideBlock) value = Float(bits % 0x50000000u);
    if (kind == kEdges) {
      const uint32_t edges[] = {0x7f7fffffu, 0xff000001u, 0x7f000000u, 1u, 0x80000003u,
                                0x007fffffu, 0x00800000u, 0x80800001u, 0u, 0x40000000u};
      value = Float(edges[bits % 10]);
    }
    if (!std::isfinite(value)) value = 1.0f;
  }
  return values;
}

void TestValues(const std::vector<float>& values, const std::vector<float>& residual,
                const ParallelFor& parallel_for) {
  const int64_t count = static_cast<int64_t>(values.size());
  std::vector<float> x = values;
  for (size_t i = 0; i < residual.size(); ++i) x[i] += residual[i];
  const Oracle oracle(x);
  if (!CHECK(NaturalNumWords(count) == static_cast<int64_t>(oracle.words.size()))) return;
  std::vector<float> expected_error(x.size(), 0.0f);
  for (size_t i = 0; i < x.size(); ++i) {
    if (!std::isnan(oracle.decoded[i])) expected_error[i] = x[i] - oracle.decoded[i];
  }
  const float* const r = residual.empty() ? nullptr : residual.data();
  Guarded<uint32_t> words(NaturalNumWords(count)), words_only(NaturalNumWords(count));
  Guarded<uint32_t> words_in_place(NaturalNumWords(count));
  Guarded<float> error(count), in_place(count), decoded(3 * count), total(count);
  // The error takes the place of the residual, or else of the values.
  std::copy_n(r != nullptr ? r : values.data(), count, in_place.data());
  std::vector<uint32_t> blocks;
  for (int worker = 0; worker < 3; ++worker) {
    blocks.insert(blocks.end(), oracle.words.begin(), oracle.words.end());
  }
  {
    const ScopedFlush flush;
    CHECK(NaturalEncode(values.data(), r, count, kKey, parallel_for, words.data(), error.data())
              .ok());
    CHECK(NaturalEncode(values.data(), r, count, kKey, parallel_for, words_only.data(), nullptr)
              .ok());
    CHECK(NaturalEncode(r != nullptr ? values.data() : in_place.data(),
                        r != nullptr ? in_place.data() : nullptr, count, kKey, parallel_for,
                        words_in_place.data(), in_place.data())
              .ok());
    CHECK(NaturalDecode(blocks.data(), 3, NaturalNumWords(count), count, false, parallel_for,
                        decoded.data())
              .ok());
    CHECK(NaturalDecode(blocks.data(), 3, NaturalNumWords(count), count, true, parallel_for,
                        total.data())
              .ok());
  }
  CHECK(words.ToVector() == oracle.words);
  CHECK(words_only.ToVector() == oracle.words);
  CHECK(words_in_place.ToVector() == oracle.words);
  CHECK(SameBits(error.ToVector(), expected_error));
  CHECK(SameBits(in_place.ToVector(), expected_error));
  std::vector<float> expected_decoded, expected_total(x.size(), 0.0f);
  for (int worker = 0; worker < 3; ++worker) {
    expected_decoded.insert(expected_decoded.end(), oracle.decoded.begin(), oracle.decoded.end());
    for (size_t i = 0; i < x.size(); ++i) expected_total[i] += oracle.decoded[i];
  }
  CHECK(SameBits(decoded.ToVector(), expected_decoded));
  CHECK(SameBits(total.ToVector(), expected_total));
  CHECK(words.Intact() && words_only.Intact() && words_in_place.Intact());
  CHECK(error.Intact() && in_place.Intact() && decoded.Intact() && total.Intact());
}

void TestKindsAndSizes() {
  std::mt19937 random(6);
  for (int kind = 0; kind < kNumKinds; ++kind) {
    for (int64_t size : {0, 1, 3, 4, 5, 255, 256, 257, 4095, 4096, 4097, 16385, 40003}) {
      CurrentCase() = "kind " + std::to_string(kind) + " size " + std::to_string(size);
      const std::vector<float> values = MakeValues(static_cast<Kind>(kind), size, &random);
      TestValues(values, {}, HostileFor(size));
      TestValues(values,
                 MakeValues(kind == kEdges ? kNormal : static_cast<Kind>(kind), size, &random),
                 HostileFor(size));
    }
  }
}

// Blocks of every exponent, with values over the whole range below it.
void TestExponents() {
  std::mt19937 random(7);
  for (uint32_t largest = 1; largest < 0x7f800000u; largest += 0x00400000u) {
    for (uint32_t near : {largest - 1, largest, largest + 1}) {
      CurrentCase() = "largest " + std::to_string(near);
      std::vector<float> values(300);
      for (float& value : values) value = Float(random() % (near + 1) | (random() & kFlag));
      values[7] = Float(near);
      TestValues(values, {}, SerialFor);
    }
  }
}

void TestNonFinite() {
  for (uint32_t bits : {0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffc00000u, 0x7f800001u}) {
    for (size_t place : {0, 37, 8999}) {
      CurrentCase() = "pattern " + std::to_string(bits) + " at " + std::to_string(place);
      std::vector<float> values(9000, -0.5f);
      values[place] = Float(bits);
      TestValues(values, {}, HostileFor(1));
      TestValues(std::vector<float>(9000, 1.0f), values, HostileFor(2));
    }
  }
}

void TestRefused() {
  CurrentCase() = "refused";
  float out[4];
  const auto decode = [&](uint32_t word0, uint32_t word1, int64_t num_words = 3) {
    const uint32_t block[4] = {word0, word1, 0x7f, 0};
    return NaturalDecode(block, 1, num_words, 4, false, SerialFor, out).code();
  };
  const StatusCode ok = StatusCode::kOk, bad = StatusCode::kInvalidArgument;
  CHECK(decode(12, 104) == ok);
  CHECK(decode(12, 254) == ok);
  CHECK(decode(12, 0) == ok);
  CHECK(decode(12 | kFlag, 0) == ok);
  CHECK(decode(12, 103) == bad);
  CHECK(decode(12, 255) == bad);
  CHECK(decode(12, 127 | 1 << 8) == bad);
  CHECK(decode(12 | kFlag, 127) == bad);
  CHECK(decode(13, 127) == bad);
  CHECK(decode(12, 127, 2) == bad);
  CHECK(decode(12, 127, 4) == bad);
  CHECK(NaturalDecode(nullptr, 1, 0, -1, false, SerialFor, out).code() == bad);
}

}  // namespace
}  // namespace gradcomp

int main() {
  gradcomp::TestKindsAndSizes();
  gradcomp::TestExponents();
  gradcomp::TestNonFinite();
  gradcomp::TestRefused();
  return gradcomp::FinishTest();
}
