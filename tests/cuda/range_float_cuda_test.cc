// SPDX-License-Identifier: Apache-2.0
// Range float on the device against the core, bit for bit, and corrupt blocks.

#include "custom_ops/cuda/range_float_cuda.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "custom_ops/core/range_float.h"
#include "tests/core/check.h"
#include "tests/core/hostile_threads.h"
#include "tests/cuda/device_buffer.h"
#include "tests/cuda/sample_floats.h"

namespace gradcomp {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

float Float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

std::vector<float> DeviceDecode(const std::vector<uint32_t>& words, int64_t num_workers,
                                int64_t count, const RangeFloatParams& params) {
  DeviceBuffer<uint32_t> d_words(words);
  DeviceBuffer<float> d_decoded(num_workers * count);
  CHECK(cuda::LaunchRangeFloatDecode(d_words.data(), num_workers, count, params, nullptr,
                                     d_decoded.data()) == cudaSuccess);
  return d_decoded.ToVector();
}

// Encodes with errors in their own array, in the values' place, or without errors.
void TestValues(const std::vector<float>& values, const ValueRange* range,
                const RangeFloatParams& params) {
  const int64_t count = static_cast<int64_t>(values.size());
  const int64_t num_words = RangeFloatNumWords(count, params);
  std::vector<uint32_t> words(static_cast<size_t>(num_words));
  std::vector<float> error(values.size()), decoded(values.size());
  CHECK(RangeFloatEncode(values.data(), count, range, params, SerialFor, words.data(), error.data())
            .ok());
  CHECK(
      RangeFloatDecode(words.data(), 1, num_words, count, params, SerialFor, decoded.data()).ok());

  DeviceBuffer<char> workspace(static_cast<int64_t>(cuda::RangeFloatEncodeWorkspaceBytes()));
  DeviceBuffer<float> d_values(values), d_error(count);
  DeviceBuffer<uint32_t> d_words(num_words), d_words_only(num_words), d_words_in_place(num_words);
  const auto encode = [&](uint32_t* d_to, float* d_error_to) {
    return cuda::LaunchRangeFloatEncode(d_values.data(), count, range, params, workspace.data(),
                                        workspace.Bytes(), nullptr, d_to, d_error_to);
  };
  CHECK(encode(d_words.data(), d_error.data()) == cudaSuccess);
  CHECK(encode(d_words_only.data(), nullptr) == cudaSuccess);
  CHECK(SameBits(d_values.ToVector(), values));
  CHECK(encode(d_words_in_place.data(), d_values.data()) == cudaSuccess);
  CHECK(d_words.ToVector() == words);
  CHECK(d_words_only.ToVector() == words);
  CHECK(d_words_in_place.ToVector() == words);
  CHECK(SameBits(d_error.ToVector(), error));
  CHECK(SameBits(d_values.ToVector(), error));

  // Three workers of which the middle one sends nothing but zeros.
  std::vector<float> zeros(values.size()), expected = decoded;
  std::vector<uint32_t> blocks = words, zero_words(words.size());
  CHECK(
      RangeFloatEncode(zeros.data(), count, nullptr, params, SerialFor, zero_words.data(), nullptr)
          .ok());
  for (const auto& block : {zero_words, words}) {
    blocks.insert(blocks.end(), block.begin(), block.end());
  }
  for (const auto& floats : {zeros, decoded}) {
    expected.insert(expected.end(), floats.begin(), floats.end());
  }
  CHECK(SameBits(DeviceDecode(blocks, 3, count, params), expected));
}

void TestCase(int64_t count, int kind, const ValueRange* range, int num_bits, int mantissa_bits,
              std::mt19937* random) {
  CurrentCase() = "count " + std::to_string(count) + " kind " + std::to_string(kind) +
                  " num_bits " + std::to_string(num_bits) + " mantissa_bits " +
                  std::to_string(mantissa_bits) + (range != nullptr ? " range" : "");
  ShuffleDevice((*random)());
  TestValues(SampleFloats(static_cast<Kind>(kind), count, random), range,
             {num_bits, mantissa_bits});
}

void TestSizes() {
  std::mt19937 random(7);
  const ValueRange narrow = {-0.5f, 0.25f};
  for (int64_t count : {0, 1, 2, 31, 32, 33, 63, 64, 65, 255, 256, 257, 4099}) {
    for (int kind = 0; kind < kNumKinds; ++kind) {
      const int num_bits = 6 + kind % 7;
      TestCase(count, kind, nullptr, num_bits, 1 + kind % (num_bits - 2), &random);
      TestCase(count, kind, &narrow, num_bits, 1 + kind % (num_bits - 2), &random);
    }
  }
  for (int64_t count : {65535, 65536, 65537, 131073}) {
    TestCase(count, kNormal, nullptr, 8, 4, &random);
    TestCase(count, kFinite, nullptr, 11, 6, &random);
    TestCase(count, kDenormal, &narrow, 7, 3, &random);
  }
}

void TestAllParameters() {
  std::mt19937 random(8);
  for (int num_bits = 6; num_bits <= 12; ++num_bits) {
    for (int mantissa_bits = 1; mantissa_bits <= num_bits - 2; ++mantissa_bits) {
      for (Kind kind : {kNormal, kNegative, kDenormal, kFinite}) {
        TestCase(777, kind, nullptr, num_bits, mantissa_bits, &random);
      }
    }
  }
}

void TestRanges() {
  std::mt19937 random(9);
  const float tiny = Float(1), max = std::numeric_limits<float>::max();
  for (const ValueRange& range :
       {ValueRange{0, 0}, ValueRange{-0.0f, -0.0f}, ValueRange{-tiny, tiny}, ValueRange{-max, max},
        ValueRange{0, max}, ValueRange{-1, 0}, ValueRange{-tiny, max}}) {
    for (Kind kind : {kNormal, kDenormal, kFinite}) TestCase(300, kind, &range, 9, 4, &random);
  }
}

// One value is enough, wherever it is.
void TestNonFinite() {
  for (int64_t count : {1, 300, 70000}) {
    for (float bad : {kInf, -kInf, kNan, -kNan}) {
      CurrentCase() = "non-finite, count " + std::to_string(count);
      std::vector<float> values(static_cast<size_t>(count), 1.0f);
      values[values.size() - 1] = bad;
      const ValueRange range = {-1, 1};
      TestValues(values, nullptr, {8, 3});
      if (count == 300) TestValues(values, &range, {8, 3});
    }
  }
}

// A header that no encoder writes makes the block NaN, and no other.
void TestCorruptHeaders() {
  const RangeFloatParams params = {8, 3};
  const std::vector<float> values = {1.0f, -2.0f, 0.5f, 0.0f, 4.0f};
  const int64_t count = static_cast<int64_t>(values.size());
  std::vector<uint32_t> good(static_cast<size_t>(RangeFloatNumWords(count, params)));
  CHECK(RangeFloatEncode(values.data(), count, nullptr, params, SerialFor, good.data(), nullptr)
            .ok());
  struct Change {
    const char* what;
    int word;
    uint32_t value;
  };
  const Change changes[] = {
      {"lo positive", 0, 0x3f800000u},     {"lo -0", 0, 0x80000000u},
      {"lo -Inf", 0, 0xff800000u},         {"lo NaN", 0, 0xffc00000u},
      {"hi negative", 1, 0xbf800000u},     {"hi -0", 1, 0x80000000u},
      {"hi Inf", 1, 0x7f800000u},          {"hi NaN", 1, 0x7fc00000u},
      {"other num_bits", 2, 9 | 3 << 4},   {"other mantissa_bits", 2, 8 | 4 << 4},
      {"unused bit", 2, 8 | 3 << 4 | 512}, {"flag and bounds", 2, 8 | 3 << 4 | 1u << 31},
  };
  for (const Change& change : changes) {
    CurrentCase() = change.what;
    std::vector<uint32_t> blocks = good;
    blocks[static_cast<size_t>(change.word)] = change.value;
    blocks.insert(blocks.end(), good.begin(), good.end());
    std::vector<float> expected(values.size(), Float(0x7fc00000u));
    expected.insert(expected.end(), values.begin(), values.end());  // which are lattice points
    CHECK(SameBits(DeviceDecode(blocks, 2, count, params), expected));
  }
  CurrentCase() = "codes that the table does not have";
  std::vector<float> expected(values.size(), Float(0x7fc00000u));
  std::vector<uint32_t> block(good.size(), 0);
  block[2] = good[2];
  std::fill(block.begin() + kRangeFloatHeaderWords, block.end(), ~0u);
  std::vector<float> decoded(values.size());
  CHECK(RangeFloatDecode(block.data(), 1, static_cast<int64_t>(block.size()), count, params,
                         SerialFor, decoded.data())
            .ok());
  CHECK(SameBits(DeviceDecode(block, 1, count, params), expected));
  CHECK(SameBits(decoded, expected));
}

void TestRefused() {
  CurrentCase() = "refused arguments";
  DeviceBuffer<float> f(16);
  DeviceBuffer<uint32_t> u(16), workspace(16);
  const auto encode = [&](int64_t count, const RangeFloatParams& params, const ValueRange* range,
                          size_t bytes) {
    return cuda::LaunchRangeFloatEncode(f.data(), count, range, params, workspace.data(), bytes,
                                        nullptr, u.data(), nullptr);
  };
  const auto decode = [&](int64_t num_workers, int64_t count, const RangeFloatParams& params) {
    return cuda::LaunchRangeFloatDecode(u.data(), num_workers, count, params, nullptr, f.data());
  };
  const size_t bytes = cuda::RangeFloatEncodeWorkspaceBytes();
  for (const RangeFloatParams& params : {RangeFloatParams{5, 2}, RangeFloatParams{13, 3},
                                         RangeFloatParams{8, 0}, RangeFloatParams{8, 7}}) {
    CHECK(encode(4, params, nullptr, bytes) == cudaErrorInvalidValue);
    CHECK(decode(1, 4, params) == cudaErrorInvalidValue);
  }
  const RangeFloatParams params = {8, 3};
  {
    const ScopedFlush flush;  // denormals of the wrong sign are wrong all the same
    for (const ValueRange& range : {ValueRange{1, 2}, ValueRange{-2, -1}, ValueRange{-kInf, 0},
                                    ValueRange{0, kInf}, ValueRange{kNan, 0}, ValueRange{0, kNan},
                                    ValueRange{Float(1), 0}, ValueRange{0, Float(0x80000001u)}}) {
      CHECK(encode(4, params, &range, bytes) == cudaErrorInvalidValue);
    }
  }
  CHECK(encode(-1, params, nullptr, bytes) == cudaErrorInvalidValue);
  CHECK(encode(4, params, nullptr, bytes - 1) == cudaErrorInvalidValue);
  CHECK(encode(cuda::kMaxSize + 1, params, nullptr, bytes) == cudaErrorInvalidValue);
  CHECK(decode(1, -1, params) == cudaErrorInvalidValue);
  CHECK(decode(-1, 4, params) == cudaErrorInvalidValue);
  CHECK(decode(cuda::kMaxSize, 300, params) == cudaErrorInvalidValue);
  CHECK(decode(0, 4, params) == cudaSuccess);
  CHECK(decode(3, 0, params) == cudaSuccess);
}

}  // namespace
}  // namespace gradcomp

int main() {
  gradcomp::TestSizes();
  gradcomp::TestAllParameters();
  gradcomp::TestRanges();
  gradcomp::TestNonFinite();
  gradcomp::TestCorruptHeaders();
  gradcomp::TestRefused();
  return gradcomp::FinishTest();
}
