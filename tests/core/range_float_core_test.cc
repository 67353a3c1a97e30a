// SPDX-License-Identifier: Apache-2.0
// Range float against FORMAT.md, value by value and bit by bit.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "custom_ops/core/range_float.h"
#include "tests/core/check.h"
#include "tests/core/hostile_threads.h"

namespace gradcomp {
namespace {

uint32_t Bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

float Float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

// The definitions of FORMAT.md, section "Range float block", in 64-bit integers and doubles.
class Oracle {
 public:
  Oracle(const std::vector<float>& values, const ValueRange* range, int num_bits, int mantissa_bits)
      : num_bits_(num_bits), s_(23 - mantissa_bits) {
    float lo = 0.0f, hi = 0.0f;
    bool non_finite = false;
    for (float x : values) {
      non_finite |= !std::isfinite(x);
      if (x < lo) lo = x;
      if (x > hi) hi = x;
    }
    if (range != nullptr) {
      lo = range->lo == 0.0f ? 0.0f : range->lo;
      hi = range->hi == 0.0f ? 0.0f : range->hi;
    }
    const int64_t num_codes = static_cast<int64_t>(values.size());
    words_.resize(3 + static_cast<size_t>((num_codes * num_bits + 31) / 32));
    words_[2] = static_cast<uint32_t>(num_bits | mantissa_bits << 4);
    if (non_finite) {
      words_[2] |= 1u << 31;
      decoded_.assign(values.size(), Float(0x7fc00000));
      return;
    }
    words_[0] = Bits(lo);
    words_[1] = Bits(hi);
    const int64_t upper = Lattice(hi), lower = Lattice(lo), codes = (1 << num_bits) - 1;
    const int64_t a = std::max(upper, lower), b = std::min(upper, lower);
    p_ = a - codes + 1;
    if (!(p_ > b)) p_ = static_cast<int64_t>(std::ceil((a + b + 2 - codes) / 2.0));
    p_ = std::max<int64_t>(p_, 1);
    positive_ = std::max<int64_t>(0, upper - p_ + 1);
    negative_ = std::max<int64_t>(0, lower - p_ + 1);
    CHECK(positive_ + negative_ <= codes);
    eps_ = Float(static_cast<uint32_t>(p_ << s_));
    for (int64_t i = 0; i < num_codes; ++i) Append(values[i], i);
  }

  const std::vector<uint32_t>& words() const { return words_; }
  const std::vector<float>& decoded() const { return decoded_; }
  float eps() const { return eps_; }

 private:
  int64_t Lattice(float x) const {
    const int64_t half = int64_t{1} << (s_ - 1);
    return std::min((int64_t{Bits(std::fabs(x))} + half) >> s_, int64_t{0x7f7fffff} >> s_);
  }

  void Append(float x, int64_t i) {
    const double magnitude = std::fabs(static_cast<double>(x));
    int64_t j = Lattice(x) - p_ + 1;
    if (magnitude < eps_) j = 2 * magnitude >= eps_ ? 1 : 0;
    j = std::min(j, x > 0 ? positive_ : x < 0 ? negative_ : 0);
    const int64_t code = x > 0 || j == 0 ? j : positive_ + j;
    for (int bit = 0; bit < num_bits_; ++bit) {
      const int64_t b = i * num_bits_ + bit;
      words_[3 + b / 32] |= static_cast<uint32_t>(code >> bit & 1) << (b % 32);
    }
    float decoded = 0.0f;
    if (j > 0) decoded = Float(static_cast<uint32_t>((j - 1 + p_) << s_));
    decoded_.push_back(x < 0 && j > 0 ? -decoded : decoded);
  }

  int num_bits_;
  int s_;
  int64_t p_ = 1, positive_ = 0, negative_ = 0;
  float eps_ = 0.0f;
  std::vector<uint32_t> words_;
  std::vector<float> decoded_;
};

enum Kind { kNormal, kPositive, kNegative, kZero, kBits, kDenormal, kTinyRange, kEdges, kNumKinds };

std::vector<float> MakeValues(Kind kind, int64_t size, std::mt19937* random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(size));
  for (float& value : values) {
    value = normal(*random);
    const uint32_t bits = (*random)();
    if (kind == kPositive) value = std::fabs(value);
    if (kind == kNegative) value = -std::exp(8 * value);
    if (kind == kZero) value = bits % 2 == 0 ? 0.0f : -0.0f;
    if (kind == kBits) value = Float(bits);
    if (kind == kDenormal) value = Float(bits & 0x807fffffu);
    if (kind == kTinyRange) value = Float((bits & 0x80ffffffu) + (1u << 23));
    if (kind == kEdges) {
      const uint32_t edges[] = {0x7f7fffffu, 0xff7fffffu, 1u,          0x80000001u, 0x007fffffu,
                                0x00800000u, 0x80800000u, 0x00ffffffu, 0x01000000u, 0u};
      value = Float(edges[bits % 10]);
    }
    if (!std::isfinite(value)) value = std::numeric_limits<float>::max();
  }
  return values;
}

void TestValues(const std::vector<float>& values, const ValueRange* range, int num_bits,
                int mantissa_bits, const ParallelFor& parallel_for) {
  const Oracle oracle(values, range, num_bits, mantissa_bits);
  const RangeFloatParams params = {num_bits, mantissa_bits};
  const int64_t count = static_cast<int64_t>(values.size());
  const int64_t num_words = RangeFloatNumWords(count, params);
  if (!CHECK(num_words == static_cast<int64_t>(oracle.words().size()))) return;
  std::vector<float> expected_error(values.size(), 0.0f);
  for (int64_t i = 0; i < count; ++i) {
    const float difference = values[i] - oracle.decoded()[i];
    if (!std::isnan(oracle.decoded()[i])) expected_error[i] = difference;
  }
  Guarded<uint32_t> words(num_words), words_only(num_words), words_in_place(num_words);
  Guarded<float> error(count), in_place(count), decoded(3 * count);
  std::copy(values.begin(), values.end(), in_place.data());
  std::vector<uint32_t> blocks;
  for (int worker = 0; worker < 3; ++worker) {
    blocks.insert(blocks.end(), oracle.words().begin(), oracle.words().end());
  }
  {
    const ScopedFlush flush;
    CHECK(RangeFloatEncode(values.data(), count, range, params, parallel_for, words.data(),
                           error.data())
              .ok());
    CHECK(RangeFloatEncode(values.data(), count, range, params, parallel_for, words_only.data(),
                           nullptr)
              .ok());
    CHECK(RangeFloatEncode(in_place.data(), count, range, params, parallel_for,
                           words_in_place.data(), in_place.data())
              .ok());
    CHECK(RangeFloatDecode(blocks.data(), 3, num_words, count, params, parallel_for, decoded.data())
              .ok());
  }
  CHECK(words.ToVector() == oracle.words());
  CHECK(words_only.ToVector() == oracle.words());
  CHECK(words_in_place.ToVector() == oracle.words());
  CHECK(SameBits(error.ToVector(), expected_error));
  CHECK(SameBits(in_place.ToVector(), expected_error));
  std::vector<float> expected_decoded;
  for (int worker = 0; worker < 3; ++worker) {
    expected_decoded.insert(expected_decoded.end(), oracle.decoded().begin(),
                            oracle.decoded().end());
  }
  CHECK(SameBits(decoded.ToVector(), expected_decoded));
  CHECK(words.Intact() && words_only.Intact() && words_in_place.Intact());
  CHECK(error.Intact() && in_place.Intact() && decoded.Intact());

  // FORMAT.md's promise: relative error at most 2^-(m+1) for normal numbers in [eps, hi], except
  // in the last step before the largest finite lattice point.
  const float last_step = Float(((0x7f7fffffu >> (23 - mantissa_bits)) << (23 - mantissa_bits)));
  for (int64_t i = 0; range == nullptr && i < count; ++i) {
    const double magnitude = std::fabs(static_cast<double>(values[i]));
    if (std::isnan(oracle.decoded()[i]) || magnitude < oracle.eps() || magnitude > last_step ||
        magnitude < std::numeric_limits<float>::min()) {
      continue;
    }
    CHECK(std::fabs(static_cast<double>(values[i]) - decoded.data()[i]) <=
          std::ldexp(magnitude, -(mantissa_bits + 1)));
  }
}

void TestAllParameters() {
  std::mt19937 random(6);
  const int64_t sizes[] = {0, 1, 2, 31, 32, 33, 63, 64, 65, 511, 513, 700};
  for (int num_bits = 6; num_bits <= 12; ++num_bits) {
    for (int mantissa_bits = 1; mantissa_bits <= num_bits - 2; ++mantissa_bits) {
      for (int kind = 0; kind < kNumKinds; ++kind) {
        const int64_t size = sizes[random() % 12];
        CurrentCase() = "num_bits " + std::to_string(num_bits) + " mantissa_bits " +
                        std::to_string(mantissa_bits) + " kind " + std::to_string(kind) + " size " +
                        std::to_string(size);
        const std::vector<float> values = MakeValues(static_cast<Kind>(kind), size, &random);
        TestValues(values, nullptr, num_bits, mantissa_bits, SerialFor);
        const ValueRange ranges[] = {
            {-1.0f, 1.0f}, {-0.0f, 0.25f}, {-3e38f, 0.0f}, {0.0f, 0.0f}, {-1e-40f, 1e-42f}};
        TestValues(values, &ranges[random() % 5], num_bits, mantissa_bits, SerialFor);
      }
    }
  }
}

// Around the limit where the smaller side gets its first code, V = U - C + 1.
void TestLastCode() {
  for (int num_bits = 6; num_bits <= 12; ++num_bits) {
    for (int mantissa_bits = 1; mantissa_bits <= num_bits - 2; ++mantissa_bits) {
      const int s = 23 - mantissa_bits;
      const uint32_t larger = Bits(2.5f) >> s, codes = (1u << num_bits) - 1;
      for (uint32_t smaller = larger - codes; smaller <= larger - codes + 3; ++smaller) {
        if (larger + 3 < codes || smaller > larger) continue;
        CurrentCase() = "num_bits " + std::to_string(num_bits) + " mantissa_bits " +
                        std::to_string(mantissa_bits) + " V " + std::to_string(smaller);
        const float a = Float(larger << s), b = Float(smaller << s);
        TestValues({a, -b, a / 3, -b / 3, b, -a}, nullptr, num_bits, mantissa_bits, SerialFor);
        TestValues({a, -b, b / 2, -b / 2}, nullptr, num_bits, mantissa_bits, SerialFor);
        TestValues({-a, b, b / 2, -b / 2}, nullptr, num_bits, mantissa_bits, SerialFor);
      }
    }
  }
}

void TestSizes() {
  std::mt19937 random(7);
  for (int64_t size : {4095, 4096, 4097, 8191, 12288, 65537, 100003}) {
    CurrentCase() = "size " + std::to_string(size);
    TestValues(MakeValues(kNormal, size, &random), nullptr, 10, 6, HostileFor(size));
    TestValues(MakeValues(kDenormal, size, &random), nullptr, 7, 3, HostileFor(size));
  }
}

// One Inf or NaN of either sign anywhere, also with a given range.
void TestNonFinite() {
  const ValueRange range = {-1.0f, 1.0f};
  for (uint32_t bits : {0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffc00000u, 0x7f800001u}) {
    for (int64_t place : {0, 37, 8999}) {
      CurrentCase() = "pattern " + std::to_string(bits) + " at " + std::to_string(place);
      std::vector<float> values(9000, -0.5f);
      values[place] = Float(bits);
      TestValues(values, nullptr, 8, 3, HostileFor(1));
      TestValues(values, &range, 8, 3, SerialFor);
    }
  }
}

void TestRefused() {
  CurrentCase() = "refused";
  const float values[4] = {1, 2, -3, 4};
  uint32_t words[5];
  float out[4];
  const auto encode = [&](int num_bits, int mantissa_bits, float lo, float hi) {
    const ValueRange range = {lo, hi};
    const ScopedFlush flush;
    return RangeFloatEncode(values, 4, &range, {num_bits, mantissa_bits}, SerialFor, words, out)
        .code();
  };
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const StatusCode bad = StatusCode::kInvalidArgument;
  CHECK(encode(10, 6, -1, 1) == StatusCode::kOk);
  CHECK(encode(5, 1, -1, 1) == bad);
  CHECK(encode(13, 1, -1, 1) == bad);
  CHECK(encode(10, 0, -1, 1) == bad);
  CHECK(encode(10, 9, -1, 1) == bad);
  CHECK(encode(10, 6, 1e-40f, 1) == bad);  // positive, even if denormals were read as zero
  CHECK(encode(10, 6, -1, -1e-40f) == bad);
  CHECK(encode(10, 6, -inf, 1) == bad);
  CHECK(encode(10, 6, -1, inf) == bad);
  CHECK(encode(10, 6, nan, 1) == bad);
  CHECK(encode(10, 6, -1, nan) == bad);

  // Corrupt headers: each word in turn.
  const auto decode = [&](uint32_t word0, uint32_t word1, uint32_t word2, int64_t num_words = 5) {
    const uint32_t block[5] = {word0, word1, word2, 0, 0};
    return RangeFloatDecode(block, 1, num_words, 4, {10, 6}, SerialFor, out).code();
  };
  const uint32_t params = 10 | 6 << 4, flag = 1u << 31;
  const uint32_t one = Bits(1.0f), minus_one = Bits(-1.0f);
  CHECK(decode(minus_one, one, params) == StatusCode::kOk);
  CHECK(decode(0, 0, params | flag) == StatusCode::kOk);
  CHECK(decode(minus_one, one, params, 4) == bad);
  CHECK(decode(minus_one, one, 9 | 6 << 4) == bad);
  CHECK(decode(minus_one, one, 10 | 5 << 4) == bad);
  CHECK(decode(minus_one, one, params | 1 << 9) == bad);
  CHECK(decode(one, one, params) == bad);
  CHECK(decode(minus_one, minus_one, params) == bad);
  CHECK(decode(Bits(-inf), one, params) == bad);
  CHECK(decode(minus_one, Bits(nan), params) == bad);
  CHECK(decode(minus_one, 0, params | flag) == bad);
}

// Codes beyond P + Q do not occur, and decode to NaN.
void TestUnusedCodes() {
  CurrentCase() = "unused codes";
  const uint32_t block[] = {0, 0, 6 | 1 << 4, 0x3fu | 1u << 6};  // P = Q = 0: codes 63, 1, 0, 0, 0
  float out[5];
  CHECK(RangeFloatDecode(block, 1, 4, 5, {6, 1}, SerialFor, out).ok());
  CHECK(Bits(out[0]) == 0x7fc00000u && Bits(out[1]) == 0x7fc00000u);
  CHECK(Bits(out[2]) == 0 && Bits(out[4]) == 0);
}

}  // namespace
}  // namespace gradcomp

int main() {
  gradcomp::TestAllParameters();
  gradcomp::TestLastCode();
  gradcomp::TestSizes();
  gradcomp::TestNonFinite();
  gradcomp::TestRefused();
  gradcomp::TestUnusedCodes();
  return gradcomp::FinishTest();
}
