// SPDX-License-Identifier: Apache-2.0
// Moments against sums in long double, and their bits against threads and denormals.

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "custom_ops/core/magnitude_moments.h"
#include "custom_ops/core/top_k_math.h"
#include "tests/core/check.h"
#include "tests/core/hostile_threads.h"

namespace gradcomp {
namespace {

bool Close(double actual, long double expected, long double scale) {
  return std::fabs(actual - expected) <= 1e-12L * scale;
}

bool SameBits(const MagnitudeMoments& a, const MagnitudeMoments& b) {
  return a.count == b.count && std::memcmp(&a.min, &b.min, 4 * sizeof(double)) == 0;
}

void TestMoments(const std::vector<float>& values, int components, int64_t row_length,
                 double bound) {
  const int64_t n = static_cast<int64_t>(values.size()) / components;
  std::vector<long double> y;
  for (int64_t i = 0; i < n; ++i) {
    double magnitude = std::fabs(static_cast<double>(values[i * components]));
    if (components == 2) {
      const double re = values[2 * i], im = values[2 * i + 1];
      const double weight = BinWeight(i % (row_length / 2 + 1), row_length);
      magnitude = std::sqrt(weight * (re * re + im * im));
    }
    if (components == 3) {  // in the order of FORMAT.md
      const double x = values[3 * i], y = values[3 * i + 1], z = values[3 * i + 2];
      magnitude = std::sqrt((x * x + z * z) + y * y);
    }
    if (magnitude > bound && std::isfinite(magnitude)) y.push_back(magnitude);
  }
  long double sum = 0, sum_log = 0, squares = 0, min = std::numeric_limits<double>::infinity();
  for (long double magnitude : y) {
    sum += magnitude;
    sum_log += std::log(magnitude);
    min = std::min(min, magnitude);
  }
  const long double count = static_cast<long double>(y.size());
  for (long double magnitude : y) squares += (magnitude - sum / count) * (magnitude - sum / count);

  MagnitudeMoments serial, hostile;
  CHECK(ComputeMagnitudeMoments(values.data(), n, components, row_length, bound, SerialFor, &serial)
            .ok());
  {
    const ScopedFlush flush;
    CHECK(ComputeMagnitudeMoments(values.data(), n, components, row_length, bound, HostileFor(1),
                                  &hostile)
              .ok());
  }
  CHECK(SameBits(serial, hostile));
  CHECK(serial.count == static_cast<int64_t>(y.size()));
  if (y.empty()) {
    CHECK(SameBits(serial, MagnitudeMoments()));
    return;
  }
  const long double excess = sum / count - bound;
  CHECK(serial.min == static_cast<double>(min));
  CHECK(Close(serial.mean, sum / count, sum / count));
  CHECK(Close(serial.variance, squares / count, squares / count + excess * excess));
  CHECK(Close(serial.mean_log, sum_log / count, 1 + std::fabs(sum_log / count)));
}

void TestSizes() {
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  for (int64_t size : {0, 1, 63, 64, 65, 511, 513, 16383, 16384, 16385, 50001}) {
    for (int64_t row_length : {-1, 0, 1, 2, 126, 127, -3}) {  // -c: items of c components
      const int components = static_cast<int>(row_length < 0 ? -row_length : 2);
      const int64_t length = std::max<int64_t>(row_length, 0);
      const int64_t n = (size + length / 2) / (length / 2 + 1) * (length / 2 + 1);
      for (int kind = 0; kind < 4; ++kind) {
        std::vector<float> values(static_cast<size_t>(n * components));
        for (float& value : values) {
          uint32_t bits = random();
          value = kind == 1 ? std::round(normal(random)) : normal(random);
          if (kind == 2) bits &= 0x807fffffu;  // denormal
          if (kind >= 2) std::memcpy(&value, &bits, 4);
        }
        for (double bound : {0.0, 1e-40, 0.5, 2.0, std::numeric_limits<double>::infinity()}) {
          CurrentCase() = "n " + std::to_string(n) + " row_length " + std::to_string(row_length) +
                          " kind " + std::to_string(kind) + " bound " + std::to_string(bound);
          TestMoments(values, components, length, bound);
        }
      }
    }
  }
}

// Mantissas just below 2: the largest product of a block.
void TestLargestProducts() {
  for (uint32_t bits : {0x3fffffffu, 0x7f7fffffu, 0x007fffffu, 0x00000001u}) {
    CurrentCase() = "all of bits " + std::to_string(bits);
    std::vector<float> values(100000);
    for (float& value : values) std::memcpy(&value, &bits, 4);
    TestMoments(values, 1, 0, 0.0);
  }
}

void TestRefused() {
  CurrentCase() = "refused arguments";
  const float values[8] = {};
  MagnitudeMoments moments;
  const auto code = [&](int components, int64_t row_length, double bound) {
    return ComputeMagnitudeMoments(values, 4, components, row_length, bound, SerialFor, &moments)
        .code();
  };
  CHECK(code(2, 2, 0.0) == StatusCode::kOk);
  CHECK(code(1, 0, -1.0) == StatusCode::kInvalidArgument);
  CHECK(code(1, 0, std::nan("")) == StatusCode::kInvalidArgument);
  CHECK(code(0, 0, 0.0) == StatusCode::kInvalidArgument);
  CHECK(code(1, 2, 0.0) == StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gradcomp

int main() {
  gradcomp::TestSizes();
  gradcomp::TestLargestProducts();
  gradcomp::TestRefused();
  return gradcomp::FinishTest();
}
