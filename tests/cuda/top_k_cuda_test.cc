// SPDX-License-Identifier: Apache-2.0
// Top-k selection on the device against the core, bit for bit.

#include "custom_ops/cuda/top_k_cuda.h"

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "custom_ops/core/positions.h"
#include "custom_ops/core/top_k.h"
#include "tests/core/check.h"
#include "tests/core/hostile_threads.h"
#include "tests/cuda/device_buffer.h"
#include "tests/cuda/sample_floats.h"

namespace gradcomp {
namespace {

struct Shape {
  int components;
  int64_t row_length;
};

void TestSelection(const std::vector<float>& values, const Shape& shape, int64_t k) {
  const int64_t n = static_cast<int64_t>(values.size()) / shape.components;
  std::vector<uint32_t> positions(static_cast<size_t>(PositionsNumWords(n, k)));
  std::vector<float> kept(static_cast<size_t>(k * shape.components));
  CHECK(TopKSelect(values.data(), nullptr, n, shape.components, shape.row_length, k, SerialFor,
                   positions.data(), kept.data(), nullptr)
            .ok());
  DeviceBuffer<float> d_values(values), d_kept(k * shape.components);
  DeviceBuffer<uint32_t> d_positions(PositionsNumWords(n, k));
  DeviceBuffer<char> workspace(static_cast<int64_t>(cuda::TopKSelectWorkspaceBytes(n)));
  CHECK(cuda::LaunchTopKSelect(d_values.data(), nullptr, n, shape.components, shape.row_length, k,
                               workspace.data(), workspace.Bytes(), nullptr, d_positions.data(),
                               d_kept.data(), nullptr) == cudaSuccess);
  CHECK(d_positions.ToVector() == positions);
  CHECK(SameBits(d_kept.ToVector(), kept));
  CHECK(SameBits(d_values.ToVector(), values));
}

void TestCase(int64_t n, const Shape& shape, int kind, int64_t k, std::mt19937* random) {
  CurrentCase() = "n " + std::to_string(n) + " components " + std::to_string(shape.components) +
                  " row_length " + std::to_string(shape.row_length) + " kind " +
                  std::to_string(kind) + " k " + std::to_string(k);
  ShuffleDevice((*random)());
  TestSelection(SampleFloats(static_cast<Kind>(kind), n * shape.components, random), shape, k);
}

void TestSizes() {
  std::mt19937 random(2);
  for (int64_t n : {1, 2, 31, 32, 33, 63, 64, 65, 255, 256, 257}) {
    for (int kind = 0; kind < kNumKinds; ++kind) {
      for (int64_t k : {int64_t{1}, n / 2, n - 1, n}) {
        if (k >= 1) TestCase(n, {kind % 2 + 1, 0}, kind, k, &random);
      }
    }
  }
}

void TestRows() {
  std::mt19937 random(3);
  for (int64_t row_length : {1, 2, 3, 4, 126, 127, 2048}) {
    const int64_t bins = row_length / 2 + 1;
    for (int64_t rows : {1, 5}) {
      for (Kind kind : {kNormal, kTies, kDenormal, kFinite, kBits}) {
        TestCase(rows * bins, {2, row_length}, kind, (rows * bins + 2) / 3, &random);
      }
    }
  }
}

void TestLargeSizes() {
  std::mt19937 random(4);
  for (int64_t n : {4099, 65535, 65536, 65537, 131073}) {
    int kind = static_cast<int>(n % 3);
    for (int64_t k : {int64_t{1}, n / 50, n * 3 / 20, n / 2 + 1, n}) {
      TestCase(n, {kind % 2 + 1, 0}, kind % kNumKinds, k, &random);
      kind += 3;
    }
  }
  // Ties over several tiles and segments, of which the first are kept.
  for (Kind kind : {kZero, kEqual, kTies, kSparse}) {
    TestCase(131073, {1, 0}, kind, 131073 / 50, &random);
    TestCase(65537, {1, 0}, kind, 40000, &random);
  }
  // The scan and the histogram have several tiles a thread and several blocks.
  TestCase(300001, {1, 0}, kNormal, 45000, &random);
}

void TestSum() {
  CurrentCase() = "sum";
  std::mt19937 random(5);
  for (int components : {1, 2}) {
    const int64_t n = 70001, k = 900;
    const std::vector<float> values = SampleFloats(kNormal, n * components, &random);
    const std::vector<float> residual = SampleFloats(kNormal, n * components, &random);
    std::vector<uint32_t> positions(static_cast<size_t>(PositionsNumWords(n, k)));
    std::vector<float> kept(static_cast<size_t>(k * components)), sum(values.size());
    CHECK(TopKSelect(values.data(), residual.data(), n, components, 0, k, SerialFor,
                     positions.data(), kept.data(), sum.data())
              .ok());
    DeviceBuffer<float> d_values(values), d_residual(residual), d_kept(k * components);
    DeviceBuffer<uint32_t> d_positions(PositionsNumWords(n, k));
    DeviceBuffer<char> workspace(static_cast<int64_t>(cuda::TopKSelectWorkspaceBytes(n)));
    CHECK(cuda::LaunchTopKSelect(d_values.data(), d_residual.data(), n, components, 0, k,
                                 workspace.data(), workspace.Bytes(), nullptr, d_positions.data(),
                                 d_kept.data(), d_values.data()) == cudaSuccess);
    CHECK(d_positions.ToVector() == positions);
    CHECK(SameBits(d_kept.ToVector(), kept));
    CHECK(SameBits(d_values.ToVector(), sum));
    CHECK(SameBits(d_residual.ToVector(), residual));
  }
}

void TestSpecialValuesRankFirst() {
  CurrentCase() = "special values";
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float max = std::numeric_limits<float>::max();
  TestSelection({max, nan, -inf, max, -nan, inf}, {1, 0}, 3);
  TestSelection({max, max, 0, nan, -inf, 0, 1, 1}, {2, 0}, 2);
  TestSelection({max, max, max, max, inf, nan, 0, 0}, {2, 2}, 1);
}

void TestRefused() {
  CurrentCase() = "refused arguments";
  DeviceBuffer<float> values(16), kept(16);
  DeviceBuffer<uint32_t> positions(16);
  DeviceBuffer<char> workspace(1 << 16);
  const auto launch = [&](int64_t n, int components, int64_t row_length, int64_t k, size_t bytes) {
    return cuda::LaunchTopKSelect(values.data(), nullptr, n, components, row_length, k,
                                  workspace.data(), bytes, nullptr, positions.data(), kept.data(),
                                  nullptr);
  };
  const size_t bytes = cuda::TopKSelectWorkspaceBytes(4);
  CHECK(launch(4, 2, 2, 1, bytes) == cudaSuccess);
  CHECK(launch(4, 1, 0, 0, bytes) == cudaErrorInvalidValue);
  CHECK(launch(4, 1, 0, 5, bytes) == cudaErrorInvalidValue);
  CHECK(launch(0, 1, 0, 1, bytes) == cudaErrorInvalidValue);
  CHECK(launch(2, 3, 0, 1, bytes) == cudaErrorInvalidValue);
  CHECK(launch(4, 1, 2, 1, bytes) == cudaErrorInvalidValue);
  CHECK(launch(4, 2, -1, 1, bytes) == cudaErrorInvalidValue);
  CHECK(launch(4, 2, 4, 1, bytes) == cudaErrorInvalidValue);  // 4 is no multiple of 3 bins
  CHECK(launch(4, 1, 0, 1, bytes - 1) == cudaErrorInvalidValue);
  CHECK(launch(cuda::kMaxSize + 1, 1, 0, 1, size_t{1} << 40) == cudaErrorInvalidValue);
}

}  // namespace
}  // namespace gradcomp

int main() {
  gradcomp::TestSizes();
  gradcomp::TestRows();
  gradcomp::TestLargeSizes();
  gradcomp::TestSum();
  gradcomp::TestSpecialValuesRankFirst();
  gradcomp::TestRefused();
  return gradcomp::FinishTest();
}
