// SPDX-License-Identifier: Apache-2.0
// Top-k selection against a stable sort by FORMAT.md's keys.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "custom_ops/core/item_shape.h"
#include "custom_ops/core/positions.h"
#include "custom_ops/core/top_k.h"
#include "custom_ops/core/top_k_math.h"
#include "tests/core/check.h"
#include "tests/core/hostile_threads.h"
#include "tests/core/positions_oracle.h"

namespace gradcomp {
namespace {

struct Shape {
  int components;
  int64_t row_length;
};

std::vector<uint32_t> OracleWideKeys(const std::vector<float>& values, int components) {
  std::vector<uint32_t> keys;
  for (size_t first = 0; first < values.size(); first += static_cast<size_t>(components)) {
    double sums[8] = {};
    for (int i = 0; i < components; ++i) {
      const double x = values[first + static_cast<size_t>(i)];
      sums[i % 8] += x * x;
    }
    const double energy =
        ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
    uint64_t bits;
    std::memcpy(&bits, &energy, 8);
    keys.push_back(std::min(static_cast<uint32_t>(bits >> 32) & 0x7fffffffu, 0x7ff00000u));
  }
  return keys;
}

// The keys of FORMAT.md, section "Top-k".
std::vector<uint32_t> OracleKeys(const std::vector<float>& values, const Shape& shape) {
  std::vector<uint32_t> keys;
  if (shape.components == 1) {
    for (float value : values) {
      uint32_t bits;
      std::memcpy(&bits, &value, 4);
      keys.push_back(std::min(bits & 0x7fffffffu, 0x7f800000u));
    }
    return keys;
  }
  if (shape.components > 2) return OracleWideKeys(values, shape.components);
  const int64_t length = shape.row_length;
  for (size_t i = 0; i < values.size() / 2; ++i) {
    double weight = 1.0;
    if (length > 0) {
      const int64_t bin = static_cast<int64_t>(i) % (length / 2 + 1);
      weight = bin == 0 || (length % 2 == 0 && bin == length / 2) ? 1.0 : 2.0;
    }
    const double re = values[2 * i], im = values[2 * i + 1];
    const double energy = weight * (re * re + im * im);
    uint64_t bits;
    std::memcpy(&bits, &energy, 8);
    keys.push_back(std::min(static_cast<uint32_t>(bits >> 32) & 0x7fffffffu, 0x7ff00000u));
  }
  return keys;
}

// All items in the order in which they are selected.
std::vector<int64_t> OracleOrder(const std::vector<float>& values, const Shape& shape) {
  const std::vector<uint32_t> keys = OracleKeys(values, shape);
  std::vector<int64_t> order(keys.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return keys[a] > keys[b]; });
  return order;
}

std::vector<int64_t> OracleTopK(const std::vector<int64_t>& order, int64_t k) {
  std::vector<int64_t> items(order.begin(), order.begin() + k);
  std::sort(items.begin(), items.end());
  return items;
}

enum Kind { kNormal, kTies, kZero, kEqual, kSparse, kSorted, kBits, kDenormal, kNumKinds };

std::vector<float> MakeValues(Kind kind, int64_t size, std::mt19937* random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(size));
  for (float& value : values) {
    value = normal(*random);
    uint32_t bits = (*random)();
    if (kind == kTies) value = std::round(2 * value);
    if (kind == kZero) value = bits % 2 == 0 ? 0.0f : -0.0f;
    if (kind == kEqual) value = bits % 2 == 0 ? 1.5f : -1.5f;
    if (kind == kSparse && bits % 8 != 0) value = 0.0f;
    if (kind == kDenormal) bits &= 0x807fffffu;
    if (kind == kBits || kind == kDenormal) std::memcpy(&value, &bits, 4);
  }
  if (kind == kSorted) std::sort(values.begin(), values.end());
  return values;
}

std::vector<float> ItemsAt(const std::vector<float>& values, int components,
                           const std::vector<int64_t>& items) {
  std::vector<float> result;
  for (int64_t item : items) {
    const auto first = values.begin() + item * components;
    result.insert(result.end(), first, first + components);
  }
  return result;
}

// Runs one selection in both thread modes and compares it with the oracle.
void TestSelection(const std::vector<float>& values, const Shape& shape, int64_t k,
                   const std::vector<int64_t>& order) {
  const int64_t n = static_cast<int64_t>(values.size()) / shape.components;
  const std::vector<int64_t> expected = OracleTopK(order, k);
  const std::vector<float> expected_kept = ItemsAt(values, shape.components, expected);
  for (unsigned seed = 0; seed < 2; ++seed) {
    Guarded<uint32_t> positions(PositionsNumWords(n, k));
    Guarded<float> kept(k * shape.components);
    const ParallelFor parallel_for = seed == 0 ? ParallelFor(SerialFor) : HostileFor(seed);
    const ScopedFlush flush;
    const Status status = TopKSelect(values.data(), nullptr, n, shape.components, shape.row_length,
                                     k, parallel_for, positions.data(), kept.data(), nullptr);
    if (!CHECK(status.ok())) return;
    CHECK(positions.ToVector() == OraclePositions(expected, n));
    CHECK(SameBits(kept.ToVector(), expected_kept));
    CHECK(positions.Intact() && kept.Intact());
  }
}

void TestSelection(const std::vector<float>& values, const Shape& shape, int64_t k) {
  TestSelection(values, shape, k, OracleOrder(values, shape));
}

// The same for the sum of two parts, which goes to memory of its own or to that of either part.
void TestSelectionOfSum(const std::vector<float>& values, const std::vector<float>& residual,
                        const Shape& shape, int64_t k) {
  const int64_t n = static_cast<int64_t>(values.size()) / shape.components;
  std::vector<float> expected_sum(values.size());
  for (size_t i = 0; i < values.size(); ++i) expected_sum[i] = values[i] + residual[i];
  const std::vector<int64_t> expected = OracleTopK(OracleOrder(expected_sum, shape), k);
  for (unsigned place = 0; place < 3; ++place) {
    Guarded<uint32_t> positions(PositionsNumWords(n, k));
    Guarded<float> kept(k * shape.components), own(n * shape.components);
    std::vector<float> first = values, second = residual;
    float* const sum = place == 0 ? own.data() : place == 1 ? first.data() : second.data();
    const ParallelFor parallel_for = place == 0 ? ParallelFor(SerialFor) : HostileFor(place);
    const ScopedFlush flush;
    const Status status =
        TopKSelect(first.data(), second.data(), n, shape.components, shape.row_length, k,
                   parallel_for, positions.data(), kept.data(), sum);
    if (!CHECK(status.ok())) return;
    CHECK(positions.ToVector() == OraclePositions(expected, n));
    CHECK(SameBits(kept.ToVector(), ItemsAt(expected_sum, shape.components, expected)));
    CHECK(SameBits(std::vector<float>(sum, sum + expected_sum.size()), expected_sum));
    CHECK(place == 1 || SameBits(first, values));
    CHECK(place == 2 || SameBits(second, residual));
    CHECK(positions.Intact() && kept.Intact() && own.Intact());
  }
}

void TestSizes() {
  std::mt19937 random(2);
  const Shape shapes[] = {{1, 0}, {2, 0}, {2, 1}, {2, 2}, {2, 3}, {2, 126}};
  for (int64_t size : {1, 2, 31, 32, 33, 63, 64, 65, 1023, 1024, 1025, 4099, 8191, 8193}) {
    for (const Shape& shape : shapes) {
      const int64_t bins = shape.row_length / 2 + 1;
      const int64_t n = (size + bins - 1) / bins * bins;
      for (int kind = 0; kind < kNumKinds; ++kind) {
        const std::vector<float> values =
            MakeValues(static_cast<Kind>(kind), n * shape.components, &random);
        const std::vector<int64_t> order = OracleOrder(values, shape);
        for (int64_t k : {int64_t{1}, n / 50, n * 3 / 20 + 1, n - 1, n}) {
          if (k < 1) continue;
          CurrentCase() = "n " + std::to_string(n) + " components " +
                          std::to_string(shape.components) + " row_length " +
                          std::to_string(shape.row_length) + " kind " + std::to_string(kind) +
                          " k " + std::to_string(k);
          TestSelection(values, shape, k, order);
        }
      }
    }
  }
}

void TestWide() {
  std::mt19937 random(5);
  for (int components : {3, 7, 8, 9, 256, 1000}) {
    for (int64_t n : {1, 2, 64, 65, 300}) {
      for (int kind = 0; kind < kNumKinds; ++kind) {
        const std::vector<float> values =
            MakeValues(static_cast<Kind>(kind), n * components, &random);
        const std::vector<int64_t> order = OracleOrder(values, {components, 0});
        for (int64_t k : {int64_t{1}, n / 50, n / 3, n}) {
          if (k < 1) continue;
          CurrentCase() = "n " + std::to_string(n) + " components " + std::to_string(components) +
                          " kind " + std::to_string(kind) + " k " + std::to_string(k);
          TestSelection(values, {components, 0}, k, order);
        }
      }
    }
  }
  for (int kind : {kNormal, kTies, kSparse}) {  // sampled
    CurrentCase() = "wide, kind " + std::to_string(kind);
    TestSelection(MakeValues(static_cast<Kind>(kind), 3 * 70001, &random), {3, 0}, 5000);
  }
}

// Sizes that are sampled, around the segment limit and with several segments.
void TestLargeSizes() {
  std::mt19937 random(3);
  for (int64_t n : {32768, 32769, 65535, 65536, 65537, 131070}) {
    for (int kind = 0; kind < kNumKinds; ++kind) {
      const Shape shape = {kind % 2 + 1, 0};
      const std::vector<float> values =
          MakeValues(static_cast<Kind>(kind), n * shape.components, &random);
      const std::vector<int64_t> order = OracleOrder(values, shape);
      for (int64_t k : {int64_t{1}, n / 50, n / 8 - 60, n / 8 + 60, n * 3 / 20, n}) {
        CurrentCase() =
            "n " + std::to_string(n) + " kind " + std::to_string(kind) + " k " + std::to_string(k);
        TestSelection(values, shape, k, order);
      }
    }
  }
  CurrentCase() = "n 1000003";
  TestSelection(MakeValues(kNormal, 1000003, &random), {1, 0}, 150001);
  CurrentCase() = "33 rows of 4096";
  TestSelection(MakeValues(kNormal, 2 * 33 * 2049, &random), {2, 4096}, 10142);
}

void TestSums() {
  std::mt19937 random(6);
  const Shape shapes[] = {{1, 0}, {2, 0}, {2, 126}, {9, 0}};
  for (int64_t size : {1, 63, 1025, 8193, 70001}) {
    for (const Shape& shape : shapes) {
      const int64_t bins = shape.row_length / 2 + 1;
      const int64_t n = (size + bins - 1) / bins * bins;
      for (Kind kind : {kNormal, kTies, kSparse, kDenormal}) {
        CurrentCase() = "sum, n " + std::to_string(n) + " components " +
                        std::to_string(shape.components) + " kind " + std::to_string(kind);
        const std::vector<float> values = MakeValues(kind, n * shape.components, &random);
        TestSelectionOfSum(values, MakeValues(kind, n * shape.components, &random), shape,
                           n / 50 + 1);
      }
    }
  }
  // Brackets that miss lead to a second pass, which must not add again.
  CurrentCase() = "sum, misled sample";
  const int64_t n = 100000;
  std::vector<float> values = MakeValues(kNormal, n, &random);
  const std::vector<float> residual = MakeValues(kNormal, n, &random);
  for (int64_t i = 0; i < kTopKSampleSize; ++i) {
    const int64_t item = TopKSampleItem(i, n);
    values[item] = -residual[item];
  }
  TestSelectionOfSum(values, residual, {1, 0}, n - kTopKSampleSize - 5);
}

// The sample sees other values than there are, so that the first bracket misses: all sampled items
// are zero or the smallest (the bracket is too low), or all are the largest (it is too high). The
// counts include those around which a bracket, or what is above it, holds just enough.
void TestMisledSample() {
  std::mt19937 random(4);
  const int64_t n = 100000;
  for (float sampled : {0.0f, 1e-6f, 1e6f}) {
    std::vector<float> values = MakeValues(kNormal, n, &random);
    for (int64_t i = 0; i < kTopKSampleSize; ++i) {
      const int64_t item = TopKSampleItem(i, n);
      if (!CHECK(item >= 0 && item < n)) return;
      values[item] *= sampled;
    }
    const int64_t others = n - kTopKSampleSize;
    std::vector<int64_t> counts = {1, 5000, 50000, 90000, others - 1, others, others + 1};
    for (int64_t k = 6; k < 14; ++k) counts.push_back(k);
    for (int64_t k = n - 24; k < n; k += sampled == 1e-6f ? 1 : 8) counts.push_back(k);
    const std::vector<int64_t> order = OracleOrder(values, {1, 0});
    for (int64_t k : counts) {
      CurrentCase() = "sampled " + std::to_string(sampled) + " k " + std::to_string(k);
      TestSelection(values, {1, 0}, k, order);
    }
  }
}

void TestSpecialValuesRankFirst() {
  CurrentCase() = "special values";
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float max = std::numeric_limits<float>::max();
  TestSelection({max, nan, -inf, max, -nan, inf}, {1, 0}, 3);      // 1, 2, 4: lowest index
  TestSelection({max, max, 0, nan, -inf, 0, 1, 1}, {2, 0}, 2);     // 1, 2
  TestSelection({max, max, max, max, inf, nan, 0, 0}, {2, 2}, 1);  // 2
  TestSelection({max, max, max, 0, nan, 0, -inf, 0, 1, 0, 0, 0}, {3, 0}, 2);  // 1, 2
}

void TestRefused() {
  CurrentCase() = "refused arguments";
  const float values[8] = {};
  uint32_t positions[8];
  float kept[8];
  const auto code = [&](int64_t n, int components, int64_t row_length, int64_t k) {
    return TopKSelect(values, nullptr, n, components, row_length, k, SerialFor, positions, kept,
                      nullptr)
        .code();
  };
  CHECK(code(4, 2, 2, 1) == StatusCode::kOk);
  CHECK(code(4, 1, 0, 0) == StatusCode::kInvalidArgument);
  CHECK(code(4, 1, 0, 5) == StatusCode::kInvalidArgument);
  CHECK(code(0, 1, 0, 1) == StatusCode::kInvalidArgument);
  CHECK(code(2, 3, 0, 1) == StatusCode::kOk);
  CHECK(code(2, 0, 0, 1) == StatusCode::kInvalidArgument);
  CHECK(code(2, kMaxComponents + 1, 0, 1) == StatusCode::kInvalidArgument);
  CHECK(code(2, 3, 2, 1) == StatusCode::kInvalidArgument);
  CHECK(code(4, 1, 2, 1) == StatusCode::kInvalidArgument);
  CHECK(code(4, 2, -1, 1) == StatusCode::kInvalidArgument);
  CHECK(code(4, 2, 4, 1) == StatusCode::kInvalidArgument);  // 4 is no multiple of 3 bins
}

}  // namespace
}  // namespace gradcomp

int main() {
  gradcomp::TestSizes();
  gradcomp::TestLargeSizes();
  gradcomp::TestWide();
  gradcomp::TestSums();
  gradcomp::TestMisledSample();
  gradcomp::TestSpecialValuesRankFirst();
  gradcomp::TestRefused();
  return gradcomp::FinishTest();
}
