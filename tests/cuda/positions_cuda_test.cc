// SPDX-License-Identifier: Apache-2.0
// Positions blocks on the device against the core, bit for bit, and corrupt ones.

#include "custom_ops/cuda/positions_cuda.h"

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "custom_ops/core/positions.h"
#include "tests/core/check.h"
#include "tests/core/hostile_threads.h"
#include "tests/core/positions_oracle.h"
#include "tests/cuda/device_buffer.h"
#include "tests/cuda/sample_floats.h"

namespace gradcomp {
namespace {

std::vector<int64_t> RandomPositions(int64_t n, int64_t k, std::mt19937* random) {
  std::vector<int64_t> kept;
  int64_t left = k;
  for (int64_t item = 0; item < n; ++item) {
    if (static_cast<int64_t>((*random)() % static_cast<uint64_t>(n - item)) < left) {
      kept.push_back(item);
      --left;
    }
  }
  return kept;
}

// A bitmap with one bit an item; one word too long if that makes it whole 64-bit words.
std::vector<uint32_t> Selection(const std::vector<int64_t>& kept, int64_t n) {
  std::vector<uint32_t> bitmap(static_cast<size_t>(2 * SelectionWords(n)));
  for (int64_t item : kept) bitmap[item / 32] |= 1u << (item % 32);
  return bitmap;
}

std::vector<float> DeviceSum(const std::vector<uint32_t>& blocks, const std::vector<float>& kept,
                             int64_t num_workers, int64_t n, int components, int64_t k) {
  DeviceBuffer<uint32_t> d_blocks(blocks);
  DeviceBuffer<float> d_kept(kept), d_sum(n * components);
  DeviceBuffer<char> workspace(
      static_cast<int64_t>(cuda::PositionsSumWorkspaceBytes(num_workers, n, k)));
  CHECK(cuda::LaunchPositionsSum(d_blocks.data(), d_kept.data(), num_workers, n, components, k,
                                 workspace.data(), workspace.Bytes(), nullptr,
                                 d_sum.data()) == cudaSuccess);
  return d_sum.ToVector();
}

std::vector<float> DeviceReplace(const std::vector<uint32_t>& block, const std::vector<float>& kept,
                                 const std::vector<float>& values, int64_t n, int components,
                                 int64_t k) {
  DeviceBuffer<uint32_t> d_block(block);
  DeviceBuffer<float> d_kept(kept), d_values(values);
  DeviceBuffer<char> workspace(static_cast<int64_t>(cuda::PositionsReplaceWorkspaceBytes(n, k)));
  CHECK(cuda::LaunchPositionsReplace(d_block.data(), d_kept.data(), n, components, k,
                                     workspace.data(), workspace.Bytes(), nullptr,
                                     d_values.data()) == cudaSuccess);
  return d_values.ToVector();
}

// Gather and replace for each of several workers, then the sum of all.
void TestBlock(int64_t n, int64_t k, int components, int64_t num_workers, Kind kind,
               std::mt19937* random) {
  CurrentCase() = "n " + std::to_string(n) + " k " + std::to_string(k) + " components " +
                  std::to_string(components) + " kind " + std::to_string(kind);
  ShuffleDevice((*random)());
  const int64_t num_words = PositionsNumWords(n, k);
  std::vector<uint32_t> blocks;
  std::vector<float> all_kept;
  for (int64_t worker = 0; worker < num_workers; ++worker) {
    const std::vector<uint32_t> selected = Selection(RandomPositions(n, k, random), n);
    std::vector<uint64_t> selected64(static_cast<size_t>(SelectionWords(n)));
    std::memcpy(selected64.data(), selected.data(), selected64.size() * sizeof(uint64_t));
    const std::vector<float> values = SampleFloats(kind, n * components, random);
    std::vector<uint32_t> block(static_cast<size_t>(num_words));
    std::vector<float> kept(static_cast<size_t>(k * components));
    CHECK(PositionsGather(selected64.data(), values.data(), n, components, k, SerialFor,
                          block.data(), kept.data())
              .ok());

    // No more words than the launcher may read.
    DeviceBuffer<uint32_t> d_selected(
        std::vector<uint32_t>(selected.begin(), selected.begin() + PositionsBitmapWords(n)));
    DeviceBuffer<uint32_t> d_block(num_words);
    DeviceBuffer<float> d_values(values), d_kept(k * components);
    DeviceBuffer<char> workspace(static_cast<int64_t>(cuda::PositionsGatherWorkspaceBytes(n)));
    CHECK(cuda::LaunchPositionsGather(d_selected.data(), d_values.data(), n, components, k,
                                      workspace.data(), workspace.Bytes(), nullptr, d_block.data(),
                                      d_kept.data()) == cudaSuccess);
    CHECK(d_block.ToVector() == block);
    CHECK(SameBits(d_kept.ToVector(), kept));

    const std::vector<float> news = SampleFloats(kind, k * components, random);
    std::vector<float> replaced = values;
    CHECK(PositionsReplace(block.data(), news.data(), num_words, n, components, k, SerialFor,
                           replaced.data())
              .ok());
    CHECK(SameBits(DeviceReplace(block, news, values, n, components, k), replaced));

    blocks.insert(blocks.end(), block.begin(), block.end());
    all_kept.insert(all_kept.end(), kept.begin(), kept.end());
  }
  std::vector<float> sum(static_cast<size_t>(n * components));
  CHECK(PositionsSum(blocks.data(), all_kept.data(), num_workers, num_words, n, components, k,
                     SerialFor, sum.data())
            .ok());
  CHECK(SameNumbers(DeviceSum(blocks, all_kept, num_workers, n, components, k), sum));
}

void TestBlocks() {
  std::mt19937 random(5);
  int kind = 0;
  for (int64_t n : {1, 2, 31, 32, 33, 63, 64, 65, 255, 256, 257, 4099}) {
    for (int64_t k : {int64_t{0}, int64_t{1}, n / 50, n * 3 / 20, n - 1, n}) {
      for (int components : {1, 2}) {
        for (int64_t num_workers : {0, 1, 3}) {
          TestBlock(n, k, components, num_workers, static_cast<Kind>(kind++ % kNumKinds), &random);
        }
      }
    }
  }
}

void TestLargeBlocks() {
  std::mt19937 random(6);
  int kind = 0;
  for (int64_t n : {65535, 65536, 65537, 131073}) {
    for (int64_t k : {n / 50, n / 50 + 1, n / 10, n}) {
      const int components = kind % 2 + 1;
      TestBlock(n, k, components, 2, static_cast<Kind>(kind++ % kNumKinds), &random);
    }
  }
  CurrentCase() = "both layouts";
  CHECK(PositionsLayoutOf(131073, 131073 / 10) == PositionsLayout::kEliasFano);
  CHECK(PositionsLayoutOf(131073, 131073) == PositionsLayout::kBitmap);
  // More tiles than the threads of the scan.
  TestBlock(300001, 6000, 1, 2, kFinite, &random);
  TestBlock(300001, 30000, 1, 2, kFinite, &random);
  TestBlock(300001, 45000, 1, 2, kFinite, &random);
}

// A selection of another number of items than k writes nothing outside the arrays.
void TestGatherOfWrongCount() {
  CurrentCase() = "gather of a wrong count";
  for (int64_t n : {100, 70000}) {
    for (uint32_t word : {0u, ~0u}) {
      const int64_t k = n / 50;
      DeviceBuffer<uint32_t> d_selected(
          std::vector<uint32_t>(static_cast<size_t>(PositionsBitmapWords(n)), word));
      DeviceBuffer<uint32_t> d_block(PositionsNumWords(n, k));
      DeviceBuffer<float> d_values(n), d_kept(k);
      DeviceBuffer<char> workspace(static_cast<int64_t>(cuda::PositionsGatherWorkspaceBytes(n)));
      CHECK(cuda::LaunchPositionsGather(d_selected.data(), d_values.data(), n, 1, k,
                                        workspace.data(), workspace.Bytes(), nullptr,
                                        d_block.data(), d_kept.data()) == cudaSuccess);
      CHECK(static_cast<int64_t>(d_kept.ToVector().size()) == k);
    }
  }
}

// Sums are rounded after every worker: another order, or a wider sum, gives other bits.
void TestOrderOfSum() {
  CurrentCase() = "order of the sum";
  for (int64_t n : {8, 4096}) {  // a bitmap, an Elias-Fano block
    const std::vector<uint32_t> block = OraclePositions({7}, n);
    CHECK((static_cast<int64_t>(block.size()) == PositionsNumWords(n, 1)));
    std::vector<uint32_t> blocks;
    for (int worker = 0; worker < 4; ++worker) {
      blocks.insert(blocks.end(), block.begin(), block.end());
    }
    // (((0 + 1) + 2^24) + 1) - 2^24: both ones are lost. Any other order keeps one at least, or
    // two.
    const std::vector<float> sum = DeviceSum(blocks, {1.0f, 0x1p24f, 1.0f, -0x1p24f}, 4, n, 1, 1);
    CHECK(sum[7] == 0.0f);
    CHECK(sum[6] == 0.0f && !std::signbit(sum[6]));
  }
}

// The second of two workers sends `bad`; the first keeps the same number of items, correctly. NaN
// is expected in the items first..last-1, and what the first worker sent is not touched elsewhere.
void ExpectNan(const char* what, const std::vector<uint32_t>& good,
               const std::vector<uint32_t>& bad, int64_t n, int64_t k, int64_t first,
               int64_t last) {
  CurrentCase() = what;
  for (int components : {1, 2}) {
    const std::vector<float> ones(static_cast<size_t>(k * components), 1.0f);
    std::vector<float> two_ones = ones;
    two_ones.insert(two_ones.end(), ones.begin(), ones.end());
    std::vector<uint32_t> blocks = good;
    blocks.insert(blocks.end(), bad.begin(), bad.end());
    const std::vector<float> sum = DeviceSum(blocks, two_ones, 2, n, components, k);
    const std::vector<float> values(static_cast<size_t>(n * components), 5.0f);
    const std::vector<float> replaced = DeviceReplace(bad, ones, values, n, components, k);
    bool sum_is_nan = true, replaced_is_nan = true, others_are_finite = true;
    for (int64_t i = 0; i < n * components; ++i) {
      if (first * components <= i && i < last * components) {
        sum_is_nan &= std::isnan(sum[i]);
        replaced_is_nan &= std::isnan(replaced[i]);
      } else {
        others_are_finite &= std::isfinite(sum[i]) && std::isfinite(replaced[i]);
      }
    }
    CHECK(sum_is_nan);
    CHECK(replaced_is_nan);
    CHECK(others_are_finite);
  }
}

void TestCorruptBitmaps() {
  const std::vector<uint32_t> good = OraclePositions({0, 31, 32, 39}, 40);
  std::vector<uint32_t> bad = good;
  bad[0] |= 2;
  ExpectNan("one bit too many", good, bad, 40, 4, 0, 40);
  bad = good;
  bad[1] &= ~1u;
  ExpectNan("one bit too few", good, bad, 40, 4, 0, 40);
  bad = good;
  bad[1] = 1u | 1u << 8;
  ExpectNan("a bit beyond the last item", good, bad, 40, 4, 0, 40);
  bad = {~0u, ~0u};
  ExpectNan("all bits set", good, bad, 40, 4, 0, 40);
}

void TestCorruptEliasFano() {
  const int64_t n = 200;
  const std::vector<uint32_t> good = OraclePositions({3, 70, 75, 199}, n);
  // 5 low bits each; the buckets 0, 2, 2 and 6 of 0..6, the last one of 8 items.
  CurrentCase() = "layout of the Elias-Fano block";
  if (!CHECK((good == std::vector<uint32_t>{0x3acc3, 0x219}))) return;
  const auto expect_nan = [&](const char* what, uint32_t lows, uint32_t upper) {
    ExpectNan(what, good, {lows, upper}, n, 4, 0, n);
  };
  const auto lows = [](uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    return a | b << 5 | c << 10 | d << 15;
  };
  expect_nan("position n", lows(3, 6, 11, 8), good[1]);
  expect_nan("the last position of the last bucket", lows(3, 6, 11, 31), good[1]);
  expect_nan("a position twice", lows(3, 6, 6, 7), good[1]);
  expect_nan("descending positions", lows(3, 11, 6, 7), good[1]);
  expect_nan("padding of the low bits", good[0] | 1u << 20, good[1]);
  expect_nan("an item too many", good[0], good[1] | 1u << 5);
  expect_nan("an item too few", good[0], good[1] ^ 1u << 3);
  expect_nan("all upper bits set", good[0], ~0u);
  expect_nan("no upper bit set", good[0], 0);
  for (int bit : {10, 11, 31}) {
    expect_nan("a bucket that does not exist", good[0], good[1] ^ (1u << 9 | 1u << bit));
  }
}

// Nothing that a block can contain leads outside the arrays, which the address sanitizer watches.
void TestGarbage() {
  CurrentCase() = "garbage";
  std::mt19937 random(8);
  for (int64_t n : {33, 5000, 131073}) {
    for (int64_t k : {n / 100, n / 2}) {
      const int64_t num_words = PositionsNumWords(n, k);
      for (int round = 0; round < 3; ++round) {
        std::vector<uint32_t> blocks(static_cast<size_t>(2 * num_words));
        for (uint32_t& word : blocks) word = round == 2 ? ~0u : random() >> (round * 16);
        const std::vector<float> kept(static_cast<size_t>(2 * k), 1.0f);
        CHECK(static_cast<int64_t>(DeviceSum(blocks, kept, 2, n, 1, k).size()) == n);
        CHECK(static_cast<int64_t>(DeviceSum(blocks, kept, 1, n, 2, k).size()) == 2 * n);
        const std::vector<float> values(static_cast<size_t>(n));
        CHECK(static_cast<int64_t>(DeviceReplace(blocks, kept, values, n, 1, k).size()) == n);
      }
    }
  }
}

void TestRefused() {
  CurrentCase() = "refused arguments";
  float f[8] = {};
  uint32_t u[8] = {};
  const auto gather = [&](int64_t n, int components, int64_t k, size_t bytes) {
    return cuda::LaunchPositionsGather(u, f, n, components, k, u, bytes, nullptr, u, f);
  };
  const auto sum = [&](int64_t workers, int64_t n, int components, int64_t k, size_t bytes) {
    return cuda::LaunchPositionsSum(u, f, workers, n, components, k, u, bytes, nullptr, f);
  };
  const auto replace = [&](int64_t n, int components, int64_t k, size_t bytes) {
    return cuda::LaunchPositionsReplace(u, f, n, components, k, u, bytes, nullptr, f);
  };
  CHECK(gather(4, 3, 1, 64) == cudaErrorInvalidValue);
  CHECK(gather(4, 1, 5, 64) == cudaErrorInvalidValue);
  CHECK(gather(4, 1, -1, 64) == cudaErrorInvalidValue);
  CHECK(gather(4, 1, 1, cuda::PositionsGatherWorkspaceBytes(4) - 1) == cudaErrorInvalidValue);
  CHECK(gather(cuda::kMaxSize + 1, 1, 1, size_t{1} << 40) == cudaErrorInvalidValue);
  CHECK(sum(1, 4, 0, 1, 64) == cudaErrorInvalidValue);
  CHECK(sum(-1, 4, 1, 1, 64) == cudaErrorInvalidValue);
  CHECK(sum(1, 4, 1, 5, 64) == cudaErrorInvalidValue);
  CHECK(sum(2, 4, 1, 1, cuda::PositionsSumWorkspaceBytes(2, 4, 1) - 1) == cudaErrorInvalidValue);
  CHECK(sum(cuda::kMaxSize, 4, 1, 1, size_t{1} << 40) == cudaErrorInvalidValue);
  CHECK(replace(4, 3, 1, 64) == cudaErrorInvalidValue);
  CHECK(replace(4, 1, 5, 64) == cudaErrorInvalidValue);
  CHECK(replace(4, 1, 1, cuda::PositionsReplaceWorkspaceBytes(4, 1) - 1) == cudaErrorInvalidValue);
  CHECK(gather(0, 1, 0, 64) == cudaSuccess);
  CHECK(sum(3, 0, 1, 0, 64) == cudaSuccess);
  CHECK(replace(0, 2, 0, 64) == cudaSuccess);
}

}  // namespace
}  // namespace gradcomp

int main() {
  gradcomp::TestBlocks();
  gradcomp::TestLargeBlocks();
  gradcomp::TestGatherOfWrongCount();
  gradcomp::TestOrderOfSum();
  gradcomp::TestCorruptBitmaps();
  gradcomp::TestCorruptEliasFano();
  gradcomp::TestGarbage();
  gradcomp::TestRefused();
  return gradcomp::FinishTest();
}
