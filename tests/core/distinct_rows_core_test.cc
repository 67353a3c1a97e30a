// SPDX-License-Identifier: Apache-2.0
// Groups of equal indices and their sums against an ordered map, and their bits against threads
// and denormals.

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "custom_ops/core/distinct_rows.h"
#include "tests/core/check.h"
#include "tests/core/hostile_threads.h"

namespace gradcomp {
namespace {

template <typename Value>
bool SameBits(const std::vector<Value>& a, const std::vector<Value>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(Value)) == 0);
}

template <typename Value, typename Index>
void TestRows(const std::vector<Index>& indices, int64_t row_size,
              const std::vector<Value>& values) {
  const int64_t n = static_cast<int64_t>(indices.size());
  std::map<Index, std::vector<int64_t>> expected;
  for (int64_t i = 0; i < n; ++i) expected[indices[i]].push_back(i);
  std::vector<Value> expected_sums;
  std::vector<int64_t> expected_positions;
  for (const auto& [index, positions] : expected) {
    std::vector<Value> sum(row_size, Value{0});
    for (int64_t position : positions) {
      expected_positions.push_back(position);
      for (int64_t j = 0; j < row_size; ++j) sum[j] += values[position * row_size + j];
    }
    expected_sums.insert(expected_sums.end(), sum.begin(), sum.end());
  }

  const RowGroups groups = GroupRows(indices.data(), n);
  CHECK(groups.positions == expected_positions);
  if (!CHECK(groups.size() == static_cast<int64_t>(expected.size()))) return;
  CHECK(groups.starts.front() == 0 && groups.starts.back() == n);
  int64_t group = 0;
  for (const auto& [index, positions] : expected) {
    CHECK(groups.starts[group + 1] - groups.starts[group] ==
          static_cast<int64_t>(positions.size()));
    CHECK(indices[groups.positions[groups.starts[group]]] == index);
    ++group;
  }

  std::vector<Value> sums(expected_sums.size(), Value{-7});
  SumGroups(groups, values.data(), row_size, SerialFor, sums.data());
  CHECK(SameBits(sums, expected_sums));
  std::vector<Value> hostile(expected_sums.size(), Value{-7});
  {
    const ScopedFlush flush;
    SumGroups(groups, values.data(), row_size, HostileFor(1), hostile.data());
  }
  CHECK(SameBits(hostile, expected_sums));
}

template <typename Value, typename Index>
void TestRandom(int64_t n, Index low, Index high, int64_t row_size, std::mt19937* rng) {
  CurrentCase() = "n " + std::to_string(n) + ", from " + std::to_string(low) + " to " +
                  std::to_string(high) + ", row size " + std::to_string(row_size);
  std::uniform_int_distribution<Index> draw(low, high);
  std::normal_distribution<Value> normal;
  std::vector<Index> indices(n);
  for (Index& index : indices) index = draw(*rng);
  std::vector<Value> values(n * row_size);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = normal(*rng);
    if (i % 7 == 3) values[i] = -Value{0};
    if (i % 11 == 5) values[i] *= std::numeric_limits<Value>::min();  // mostly denormal
  }
  TestRows(indices, row_size, values);
}

template <typename Value, typename Index>
void TestSizes(std::mt19937* rng) {
  using Limits = std::numeric_limits<Index>;
  for (int64_t n : {0, 1, 2, 3, 100, 2049, 5000}) {
    for (int64_t row_size : {0, 1, 3, 17}) {
      TestRandom<Value, Index>(n, 0, 40, row_size, rng);
      TestRandom<Value, Index>(n, -5000, 5000, row_size, rng);
      TestRandom<Value, Index>(n, Limits::min(), Limits::max(), row_size, rng);
      TestRandom<Value, Index>(n, Limits::max() - 1, Limits::max(), row_size, rng);
    }
  }
}

}  // namespace
}  // namespace gradcomp

int main() {
  std::mt19937 rng(5);
  gradcomp::TestSizes<float, int32_t>(&rng);
  gradcomp::TestSizes<float, int64_t>(&rng);
  gradcomp::TestSizes<double, int32_t>(&rng);
  gradcomp::TestSizes<double, int64_t>(&rng);
  return gradcomp::FinishTest();
}
