// SPDX-License-Identifier: Apache-2.0
// Selection by threshold against a plain comparison of keys, and sampled thresholds.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "custom_ops/core/positions.h"
#include "custom_ops/core/random_k.h"
#include "custom_ops/core/threshold.h"
#include "custom_ops/core/top_k_math.h"
#include "tests/core/check.h"
#include "tests/core/hostile_threads.h"
#include "tests/core/positions_oracle.h"

namespace gradcomp {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> MakeValues(int kind, int64_t size, std::mt19937* random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(size));
  for (float& value : values) {
    uint32_t bits = (*random)();
    value = normal(*random);
    if (kind == 1) value = std::round(2 * value);
    if (kind == 2) bits &= 0x807fffffu;  // denormal
    if (kind >= 2) std::memcpy(&value, &bits, 4);
    if (std::isnan(value)) value = std::copysign(kNan, value);  // a sum would make it a quiet one
  }
  return values;
}

uint32_t KeyOf(const std::vector<float>& values, int components, int64_t row_length, int64_t i) {
  if (components == 1) return RealKey(values[i]);
  if (components > 2) {  // eight or fewer: each square is a partial sum
    double sums[8] = {};
    for (int c = 0; c < components; ++c) {
      const double x = values[i * components + c];
      sums[c] = x * x;
    }
    return EnergyKey(((sums[0] + sums[4]) + (sums[2] + sums[6])) +
                     ((sums[1] + sums[5]) + (sums[3] + sums[7])));
  }
  return ComplexKey(values[2 * i], values[2 * i + 1],
                    BinWeight(i % (row_length / 2 + 1), row_length));
}

uint32_t KeyOf(float threshold, int components) {
  return components == 1 ? RealKey(threshold) : ComplexKey(threshold, 0.0f, 1.0);
}

// Items with their keys, and in the order in which they are selected.
struct Items {
  std::vector<float> values;
  int components;
  int64_t row_length;
  std::vector<uint32_t> keys = {};
  std::vector<int64_t> order = {};
};

Items MakeItems(int64_t n, int components, int64_t row_length, int kind, std::mt19937* random) {
  Items items = {MakeValues(kind, n * components, random), components, row_length};
  for (int64_t i = 0; i < n; ++i) {
    items.keys.push_back(KeyOf(items.values, components, row_length, i));
    items.order.push_back(i);
  }
  std::stable_sort(items.order.begin(), items.order.end(),
                   [&](int64_t a, int64_t b) { return items.keys[a] > items.keys[b]; });
  return items;
}

// Items that reach the threshold, the largest `capacity` of them.
std::vector<int64_t> Oracle(const Items& items, uint32_t threshold, int64_t capacity) {
  auto end = items.order.begin();
  while (end != items.order.begin() + capacity && items.keys[*end] >= threshold) ++end;
  std::vector<int64_t> reached(items.order.begin(), end);
  std::sort(reached.begin(), reached.end());
  return reached;
}

void TestSelection(const Items& items, float threshold, int64_t capacity) {
  const auto& [values, components, row_length, keys, order] = items;
  const int64_t n = static_cast<int64_t>(keys.size());
  const std::vector<int64_t> expected = Oracle(items, KeyOf(threshold, components), capacity);
  std::vector<float> expected_kept;
  for (int64_t item : expected) {
    for (int c = 0; c < components; ++c) expected_kept.push_back(values[item * components + c]);
  }
  expected_kept.resize(static_cast<size_t>(capacity * components), 0.0f);
  for (unsigned seed = 0; seed < 2; ++seed) {
    Guarded<uint32_t> positions(PositionsNumWords(n, capacity, true));
    Guarded<float> kept(capacity * components);
    const ParallelFor parallel_for = seed == 0 ? ParallelFor(SerialFor) : HostileFor(seed);
    const ScopedFlush flush;
    // Once as they are, and once as a sum that goes where either part was.
    std::vector<float> first = values, second(values.size(), -0.0f);
    for (size_t i = 0; seed == 1 && i < first.size(); i += 2) std::swap(first[i], second[i]);
    std::vector<float>& sum = seed == 0 || capacity % 2 == 0 ? first : second;
    CHECK(ThresholdSelect(first.data(), seed == 0 ? nullptr : second.data(), n, components,
                          row_length, threshold, capacity, parallel_for, positions.data(),
                          kept.data(), sum.data())
              .ok());
    CHECK(SameBits(sum, values));
    CHECK(positions.ToVector() == OracleCountedPositions(expected, n, capacity));
    CHECK(SameBits(kept.ToVector(), expected_kept));
    CHECK(positions.Intact() && kept.Intact());
  }
}

void TestSelections() {
  std::mt19937 random(3);
  for (int64_t size : {1, 2, 63, 64, 65, 1023, 1025, 4099, 8191, 8193, 70001}) {
    for (int64_t row_length : {-1, 0, 2, 126, -5}) {  // -c: items of c components
      const int components = static_cast<int>(row_length < 0 ? -row_length : 2);
      if (size > 10000 && components > 2) continue;
      const int64_t length = std::max<int64_t>(row_length, 0);
      const int64_t bins = length / 2 + 1;
      const int64_t n = (size + bins - 1) / bins * bins;
      for (int kind = 0; kind < 4; ++kind) {
        const Items items = MakeItems(n, components, length, kind, &random);
        for (float threshold : {0.0f, 1e-45f, 1e-39f, 0.7f, 2.0f, 1e30f, kInf}) {
          for (int64_t capacity : {int64_t{1}, n / 50 + 1, n}) {
            CurrentCase() = "n " + std::to_string(n) + " row_length " + std::to_string(row_length) +
                            " kind " + std::to_string(kind) + " threshold " +
                            std::to_string(threshold) + " capacity " + std::to_string(capacity);
            TestSelection(items, threshold, capacity);
          }
        }
      }
    }
  }
}

void TestSampled() {
  std::mt19937 random(4);
  const RandomKey key = {9, 8, 7, 6};
  for (int64_t n : {1, 100, 5001}) {
    for (int components : {1, 2, 7}) {
      for (int kind = 0; kind < 4; ++kind) {
        const std::vector<float> values = MakeValues(kind, n * components, &random);
        for (int64_t samples : {int64_t{1}, n / 7 + 1, n}) {
          for (int64_t k : {int64_t{1}, n / 9 + 1, n}) {
            CurrentCase() = "sampled n " + std::to_string(n) + " kind " + std::to_string(kind) +
                            " samples " + std::to_string(samples) + " k " + std::to_string(k);
            std::vector<int64_t> items(static_cast<size_t>(samples));
            RandomKItems(key, n, samples, 0, samples, items.data());
            std::vector<uint32_t> keys;
            for (int64_t item : items) keys.push_back(KeyOf(values, components, 0, item));
            std::sort(keys.begin(), keys.end(), std::greater<uint32_t>());
            const uint32_t expected = keys[static_cast<size_t>((k * samples + n - 1) / n - 1)];
            float threshold = -1.0f;
            {
              const ScopedFlush flush;
              CHECK(SampledThreshold(values.data(), n, components, 0, k, samples, key,
                                     HostileFor(5), &threshold)
                        .ok());
            }
            // The largest float whose key is not above that of the sampled item.
            CHECK(KeyOf(threshold, components) <= expected);
            if (std::nextafter(threshold, kInf) < kInf) {
              CHECK(KeyOf(std::nextafter(threshold, kInf), components) > expected);
            }
          }
        }
      }
    }
  }
}

void TestRefused() {
  CurrentCase() = "refused arguments";
  const float values[8] = {};
  uint32_t positions[8];
  float kept[8], found;
  const auto select = [&](int64_t n, int components, int64_t row_length, float threshold,
                          int64_t capacity) {
    return ThresholdSelect(values, nullptr, n, components, row_length, threshold, capacity,
                           SerialFor, positions, kept, nullptr)
        .code();
  };
  CHECK(select(4, 2, 2, 0.0f, 4) == StatusCode::kOk);
  CHECK(select(4, 1, 0, -1.0f, 1) == StatusCode::kInvalidArgument);
  CHECK(select(4, 1, 0, std::nanf(""), 1) == StatusCode::kInvalidArgument);
  CHECK(select(4, 1, 0, 1.0f, 0) == StatusCode::kInvalidArgument);
  CHECK(select(4, 1, 0, 1.0f, 5) == StatusCode::kInvalidArgument);
  CHECK(select(0, 1, 0, 1.0f, 1) == StatusCode::kInvalidArgument);
  // Refused before it looks at the values: the count of a counted block is one word.
  const int64_t n = int64_t{1} << 33;
  CHECK(select(n, 1, 0, 1.0f, int64_t{1} << 32) == StatusCode::kInvalidArgument);
  CHECK(select(4, 1, 2, 1.0f, 1) == StatusCode::kInvalidArgument);
  CHECK(select(2, 0, 0, 1.0f, 1) == StatusCode::kInvalidArgument);
  CHECK(select(2, 3, 2, 1.0f, 1) == StatusCode::kInvalidArgument);
  const auto sampled = [&](int64_t n, int64_t k, int64_t samples) {
    return SampledThreshold(values, n, 1, 0, k, samples, {1, 2, 3, 4}, SerialFor, &found).code();
  };
  CHECK(sampled(4, 1, 1) == StatusCode::kOk);
  CHECK(sampled(0, 1, 1) == StatusCode::kInvalidArgument);
  CHECK(sampled(4, 0, 1) == StatusCode::kInvalidArgument);
  CHECK(sampled(4, 5, 1) == StatusCode::kInvalidArgument);
  CHECK(sampled(4, 1, 0) == StatusCode::kInvalidArgument);
  CHECK(sampled(4, 1, 5) == StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gradcomp

int main() {
  gradcomp::TestSelections();
  gradcomp::TestSampled();
  gradcomp::TestRefused();
  return gradcomp::FinishTest();
}
