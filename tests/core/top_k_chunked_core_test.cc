// SPDX-License-Identifier: Apache-2.0
// Top-k in chunks against a stable sort of every chunk.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "custom_ops/core/positions.h"
#include "custom_ops/core/top_k_chunked.h"
#include "tests/core/check.h"
#include "tests/core/hostile_threads.h"
#include "tests/core/positions_oracle.h"

namespace gradcomp {
namespace {

// The key of FORMAT.md, section "Top-k".
uint32_t OracleKey(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return std::min(bits & 0x7fffffffu, 0x7f800000u);
}

std::vector<int64_t> Oracle(const std::vector<float>& values, const TopKChunks& chunks) {
  const int64_t n = static_cast<int64_t>(values.size());
  std::vector<int64_t> selected;
  for (int64_t first = 0; first < n; first += chunks.size) {
    const int64_t size = std::min(chunks.size, n - first);
    const int64_t count = size == chunks.size ? chunks.count : chunks.last_count;
    std::vector<int64_t> order(static_cast<size_t>(size));
    for (int64_t i = 0; i < size; ++i) order[i] = first + i;
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return OracleKey(values[a]) > OracleKey(values[b]);
    });
    std::sort(order.begin(), order.begin() + count);
    selected.insert(selected.end(), order.begin(), order.begin() + count);
  }
  return selected;
}

void TestSelection(const std::vector<float>& values, const TopKChunks& chunks) {
  const int64_t n = static_cast<int64_t>(values.size());
  const std::vector<int64_t> expected = Oracle(values, chunks);
  const int64_t k = static_cast<int64_t>(expected.size());
  CHECK(chunks.NumKept(n) == k);
  std::vector<float> expected_kept;
  for (int64_t item : expected) expected_kept.push_back(values[item]);
  for (unsigned seed = 0; seed < 2; ++seed) {
    Guarded<uint32_t> positions(PositionsNumWords(n, k));
    Guarded<float> kept(k);
    const ParallelFor parallel_for = seed == 0 ? ParallelFor(SerialFor) : HostileFor(seed);
    const ScopedFlush flush;
    const Status status =
        TopKChunkedSelect(values.data(), n, chunks, parallel_for, positions.data(), kept.data());
    if (!CHECK(status.ok())) return;
    CHECK(positions.ToVector() == OraclePositions(expected, n));
    CHECK(SameBits(kept.ToVector(), expected_kept));
    CHECK(positions.Intact() && kept.Intact());
  }
}

enum Kind { kNormal, kTies, kZero, kSparse, kFalling, kRising, kBits, kDenormal, kNumKinds };

// kFalling and kRising change their scale from chunk to chunk: what was enough for one is far too
// much or too little for the next.
std::vector<float> MakeValues(Kind kind, int64_t size, int64_t chunk, std::mt19937* random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) {
    const int scale = static_cast<int>(i / chunk % 16) * 4;
    uint32_t bits = (*random)();
    float value = normal(*random);
    if (kind == kTies) value = std::round(2 * value);
    if (kind == kZero) value = bits % 2 == 0 ? 0.0f : -0.0f;
    if (kind == kSparse && bits % 64 != 0) value = 0.0f;
    if (kind == kFalling) value = std::ldexp(value, -scale);
    if (kind == kRising) value = std::ldexp(value, scale);
    if (kind == kDenormal) bits &= 0x807fffffu;
    if (kind == kBits || kind == kDenormal) std::memcpy(&value, &bits, 4);
    values[i] = value;
  }
  return values;
}

void TestSizes() {
  std::mt19937 random(8);
  for (int64_t chunk : {64, 128, 1024, 4096}) {
    for (int64_t n : {int64_t{1}, chunk - 1, chunk, chunk + 1, 5 * chunk, 7 * chunk + 67}) {
      for (int kind = 0; kind < kNumKinds; ++kind) {
        const std::vector<float> values = MakeValues(static_cast<Kind>(kind), n, chunk, &random);
        const int64_t rest = n % chunk;
        for (int64_t count : {int64_t{1}, chunk / 50 + 1, chunk / 2, chunk}) {
          const int64_t last_count = (rest * count + chunk - 1) / chunk;
          CurrentCase() = "chunk " + std::to_string(chunk) + " n " + std::to_string(n) + " kind " +
                          std::to_string(kind) + " count " + std::to_string(count);
          TestSelection(values, {chunk, count, last_count});
        }
      }
    }
  }
  CurrentCase() = "largest chunk";
  TestSelection(MakeValues(kNormal, 200001, 65536, &random), {65536, 656, 34});
}

void TestSpecialValuesRankFirst() {
  CurrentCase() = "special values";
  std::vector<float> values(130, std::numeric_limits<float>::max());
  values[3] = std::numeric_limits<float>::quiet_NaN();
  values[60] = -std::numeric_limits<float>::infinity();
  values[129] = std::numeric_limits<float>::infinity();
  TestSelection(values, {64, 1, 1});  // 3, 64, 129
  TestSelection(values, {64, 2, 2});  // 3, 60, 64, 65, 128, 129
}

void TestRefused() {
  CurrentCase() = "refused arguments";
  const std::vector<float> values(200);
  uint32_t positions[7];
  float kept[200];
  const auto code = [&](int64_t n, const TopKChunks& chunks) {
    return TopKChunkedSelect(values.data(), n, chunks, SerialFor, positions, kept).code();
  };
  CHECK(code(200, {64, 64, 8}) == StatusCode::kOk);
  CHECK(code(128, {64, 1, 0}) == StatusCode::kOk);
  CHECK(code(7, {64, 1, 7}) == StatusCode::kOk);
  for (int64_t size : {-64, 0, 1, 32, 63, 96, 131072}) {
    CHECK(code(128, {size, 1, 0}) == StatusCode::kInvalidArgument);
  }
  for (int64_t count : {-1, 0, 65}) {
    CHECK(code(128, {64, count, 0}) == StatusCode::kInvalidArgument);
  }
  for (int64_t last_count : {-1, 0, 9}) {
    CHECK(code(200, {64, 1, last_count}) == StatusCode::kInvalidArgument);
  }
  CHECK(code(128, {64, 1, 1}) == StatusCode::kInvalidArgument);
  CHECK(code(0, {64, 1, 0}) == StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gradcomp

int main() {
  gradcomp::TestSizes();
  gradcomp::TestSpecialValuesRankFirst();
  gradcomp::TestRefused();
  return gradcomp::FinishTest();
}
