// SPDX-License-Identifier: Apache-2.0
// Random-k against FORMAT.md, stratum by stratum, with 128-bit integers.

#include <random>
#include <string>
#include <vector>

#include "custom_ops/core/philox.h"
#include "custom_ops/core/positions.h"
#include "custom_ops/core/random_k.h"
#include "tests/core/check.h"
#include "tests/core/hostile_threads.h"
#include "tests/core/positions_oracle.h"

namespace gradcomp {
namespace {

__extension__ typedef unsigned __int128 Wide;

int64_t OracleBegin(int64_t j, int64_t n, int64_t k) {
  return static_cast<int64_t>(static_cast<Wide>(j) * static_cast<Wide>(n) / static_cast<Wide>(k));
}

int64_t OracleItem(const RandomKey& key, int64_t j, int64_t n, int64_t k) {
  const uint64_t quad = static_cast<uint64_t>(j) / 4;
  const uint32_t word =
      Philox({static_cast<uint32_t>(quad), static_cast<uint32_t>(quad >> 32), key.bucket, key.step},
             {key.seed, key.stream})[static_cast<size_t>(j % 4)];
  const int64_t begin = OracleBegin(j, n, k);
  const int64_t size = OracleBegin(j + 1, n, k) - begin;
  return begin + static_cast<int64_t>(static_cast<Wide>(size) * word >> 32);
}

void TestDraw(int64_t n, int64_t k) {
  CurrentCase() = "n " + std::to_string(n) + " k " + std::to_string(k);
  const RandomKey key = {0xdeadbeefu, static_cast<uint32_t>(n), 7, static_cast<uint32_t>(k)};
  std::vector<int64_t> expected;
  for (int64_t j = 0; j < k; ++j) expected.push_back(OracleItem(key, j, n, k));
  for (unsigned seed = 0; seed < 3; ++seed) {
    Guarded<uint32_t> positions(PositionsNumWords(n, k));
    const ParallelFor parallel_for = seed == 0 ? ParallelFor(SerialFor) : HostileFor(seed);
    CHECK(RandomKPositions(key, n, k, parallel_for, positions.data()).ok());
    CHECK(positions.ToVector() == OraclePositions(expected, n));
    CHECK(positions.Intact());
  }
}

void TestDraws() {
  for (int64_t n : {1, 2, 3, 31, 32, 33, 65, 4099, 65535, 65536, 65537, 131073, 196613}) {
    for (int64_t k : {int64_t{1}, int64_t{2}, n / 50, n / 20, n / 3, n * 2 / 3, n - 1, n}) {
      if (1 <= k && k <= n) TestDraw(n, k);
    }
  }
  TestDraw(1000003, 10001);
  TestDraw(kRandomKMaxItems, 5);
}

// Parts of the draw, and the strata at the largest sizes, where products are close to 2^64.
void TestStrata() {
  std::mt19937_64 random(1);
  const RandomKey key = {1, 2, 3, 4};
  for (int64_t n : {int64_t{1000}, int64_t{1} << 31, kRandomKMaxItems}) {
    for (int64_t k : {int64_t{1}, n / 1000, n / 3, n - 1, n}) {
      CurrentCase() = "strata n " + std::to_string(n) + " k " + std::to_string(k);
      for (int trial = 0; trial < 50; ++trial) {
        const int64_t first = static_cast<int64_t>(random() % static_cast<uint64_t>(k));
        const int64_t count = std::min<int64_t>(k - first, 1 + static_cast<int64_t>(random() % 9));
        std::vector<int64_t> items(static_cast<size_t>(count));
        RandomKItems(key, n, k, first, count, items.data());
        for (int64_t i = 0; i < count; ++i) {
          const int64_t begin = OracleBegin(first + i, n, k);
          CHECK(StratumBegin(first + i, n, k) == begin);
          CHECK(items[i] == OracleItem(key, first + i, n, k));
        }
      }
    }
  }
}

void TestScale() {
  std::mt19937 random(2);
  for (int64_t k : {1, 2, 5, 1000, 1025}) {
    for (int64_t n : {k, k + 1, 3 * k - 1, int64_t{123456789}}) {
      for (int components : {1, 2, 9}) {
        CurrentCase() = "scale n " + std::to_string(n) + " k " + std::to_string(k);
        std::vector<float> kept, expected;
        for (int64_t i = 0; i < k * components; ++i) {
          const int64_t j = i / components;
          // Denormals among them, which must survive on flushing threads.
          kept.push_back(FloatOf(random() & (i % 3 == 0 ? 0x807fffffu : 0xbfffffffu)));
          const float size = static_cast<float>(OracleBegin(j + 1, n, k) - OracleBegin(j, n, k));
          expected.push_back(kept.back() * size);
        }
        Guarded<float> scaled(k * components);
        {
          const ScopedFlush flush;
          CHECK(RandomKScale(kept.data(), n, components, k, HostileFor(3), scaled.data()).ok());
        }
        CHECK(SameBits(scaled.ToVector(), expected));
        CHECK(scaled.Intact());
        CHECK(RandomKScale(kept.data(), n, components, k, SerialFor, kept.data()).ok());
        CHECK(SameBits(kept, expected));
      }
    }
  }
}

void TestRefused() {
  CurrentCase() = "refused arguments";
  uint32_t words[8];
  const auto code = [&](int64_t n, int64_t k) {
    return RandomKPositions({1, 2, 3, 4}, n, k, SerialFor, words).code();
  };
  CHECK(code(5, 5) == StatusCode::kOk);
  for (int64_t k : {-1, 0, 6}) CHECK(code(5, k) == StatusCode::kInvalidArgument);
  for (int64_t n : {int64_t{-1}, int64_t{0}, kRandomKMaxItems + 1}) {
    CHECK(code(n, 1) == StatusCode::kInvalidArgument);
  }
  float kept[3] = {};
  CHECK(RandomKScale(kept, 5, 3, 1, SerialFor, kept).ok());
  CHECK(RandomKScale(kept, 5, 0, 1, SerialFor, kept).code() == StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gradcomp

int main() {
  gradcomp::TestDraws();
  gradcomp::TestStrata();
  gradcomp::TestScale();
  gradcomp::TestRefused();
  return gradcomp::FinishTest();
}
