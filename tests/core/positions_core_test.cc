// SPDX-License-Identifier: Apache-2.0
// Positions blocks against FORMAT.md, item by item, and corrupt ones.

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/core/item_shape.h"
#include "custom_ops/core/positions.h"
#include "tests/core/check.h"
#include "tests/core/hostile_threads.h"
#include "tests/core/positions_oracle.h"

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

// Any finite float, with many denormals and zeros of both signs among them.
std::vector<float> RandomFloats(int64_t size, std::mt19937* random) {
  std::vector<float> values(static_cast<size_t>(size));
  for (float& value : values) {
    uint32_t bits = (*random)() & 0xbfffffffu;
    if (bits % 3 == 0) bits &= 0x800fffffu;
    if (bits % 7 == 0) bits &= 0x80000000u;
    std::memcpy(&value, &bits, 4);
  }
  return values;
}

void TestBlock(int64_t n, int64_t k, int components, std::mt19937* random) {
  CurrentCase() = "n " + std::to_string(n) + " k " + std::to_string(k) + " components " +
                  std::to_string(components);
  constexpr int64_t kWorkers = 3;
  const int64_t num_words =
      static_cast<int64_t>(OraclePositions(RandomPositions(n, k, random), n).size());
  CHECK(num_words == PositionsNumWords(n, k));
  const ParallelFor parallel_for = n % 2 == 0 ? ParallelFor(SerialFor) : HostileFor(7);

  std::vector<uint32_t> blocks;
  std::vector<float> all_kept;
  std::vector<float> expected_sum(static_cast<size_t>(n * components), 0.0f);
  for (int64_t worker = 0; worker < kWorkers; ++worker) {
    const std::vector<int64_t> kept_items = RandomPositions(n, k, random);
    const std::vector<uint32_t> block = OraclePositions(kept_items, n);
    std::vector<float> values = RandomFloats(n * components, random);
    std::vector<uint64_t> selected(static_cast<size_t>(SelectionWords(n)));
    std::vector<float> expected_kept;
    for (int64_t item : kept_items) {
      selected[item / 64] |= uint64_t{1} << (item % 64);
      for (int c = 0; c < components; ++c) {
        expected_kept.push_back(values[item * components + c]);
        expected_sum[item * components + c] += values[item * components + c];
      }
    }

    Guarded<uint32_t> positions(num_words);
    Guarded<float> kept(k * components);
    {
      const ScopedFlush flush;
      CHECK(PositionsGather(selected.data(), values.data(), n, components, k, parallel_for,
                            positions.data(), kept.data())
                .ok());
    }
    CHECK(positions.ToVector() == block);
    Guarded<float> taken(k * components);
    CHECK(PositionsTake(block.data(), values.data(), num_words, n, components, k, parallel_for,
                        taken.data())
              .ok());
    CHECK(SameBits(taken.ToVector(), expected_kept) && taken.Intact());
    CHECK(SameBits(kept.ToVector(), expected_kept));
    CHECK(positions.Intact() && kept.Intact());

    const std::vector<float> news = RandomFloats(k * components, random);
    Guarded<float> replaced(n * components);
    std::copy(values.begin(), values.end(), replaced.data());
    CHECK(PositionsReplace(block.data(), news.data(), num_words, n, components, k, parallel_for,
                           replaced.data())
              .ok());
    for (int64_t j = 0; j < k; ++j) {
      for (int c = 0; c < components; ++c) {
        values[kept_items[j] * components + c] = news[j * components + c];
      }
    }
    CHECK(SameBits(replaced.ToVector(), values));
    CHECK(replaced.Intact());

    blocks.insert(blocks.end(), block.begin(), block.end());
    all_kept.insert(all_kept.end(), expected_kept.begin(), expected_kept.end());
  }
  Guarded<float> sum(n * components);
  {
    const ScopedFlush flush;
    CHECK(PositionsSum(blocks.data(), all_kept.data(), kWorkers, num_words, n, components, k,
                       parallel_for, sum.data())
              .ok());
  }
  CHECK(SameBits(sum.ToVector(), expected_sum));
  CHECK(sum.Intact());
}

// Counted blocks with room for k items: all workers' counts differ, and one is 0.
void TestCountedBlock(int64_t n, int64_t k, int components, std::mt19937* random) {
  CurrentCase() = "counted n " + std::to_string(n) + " k " + std::to_string(k) + " components " +
                  std::to_string(components);
  const ParallelFor parallel_for = n % 2 == 0 ? ParallelFor(SerialFor) : HostileFor(11);
  const int64_t num_words = PositionsNumWords(n, k, true);
  std::vector<uint32_t> blocks;
  std::vector<float> all_kept;
  std::vector<float> expected_sum(static_cast<size_t>(n * components), 0.0f);
  for (const int64_t found : {k, k / 2, int64_t{0}}) {
    const std::vector<int64_t> kept_items = RandomPositions(n, found, random);
    const std::vector<uint32_t> block = OracleCountedPositions(kept_items, n, k);
    const std::vector<float> values = RandomFloats(n * components, random);
    std::vector<uint64_t> selected(static_cast<size_t>(SelectionWords(n)));
    std::vector<float> expected_kept;
    std::vector<float> expected_replaced = values;
    for (int64_t item : kept_items) {
      selected[item / 64] |= uint64_t{1} << (item % 64);
      for (int c = 0; c < components; ++c) {
        const int64_t i = item * components + c;
        expected_kept.push_back(values[i]);
        expected_sum[i] += values[i];
        expected_replaced[i] = 0.5f;
      }
    }
    expected_kept.resize(static_cast<size_t>(k * components), 0.0f);
    Guarded<uint32_t> positions(num_words);
    Guarded<float> kept(k * components);
    CHECK(PositionsGather(selected.data(), values.data(), n, components, k, parallel_for,
                          positions.data(), kept.data(), true)
              .ok());
    CHECK(positions.ToVector() == block);
    CHECK(SameBits(kept.ToVector(), expected_kept));
    CHECK(positions.Intact() && kept.Intact());

    std::vector<float> replaced = values;
    const std::vector<float> news(static_cast<size_t>(k * components), 0.5f);
    CHECK(PositionsReplace(block.data(), news.data(), num_words, n, components, k, parallel_for,
                           replaced.data(), true)
              .ok());
    CHECK(SameBits(replaced, expected_replaced));

    // What lies beyond the count must not be seen.
    std::fill(expected_kept.begin() + found * components, expected_kept.end(), 7.0f);
    blocks.insert(blocks.end(), block.begin(), block.end());
    all_kept.insert(all_kept.end(), expected_kept.begin(), expected_kept.end());
  }
  Guarded<float> sum(n * components);
  {
    const ScopedFlush flush;
    CHECK(PositionsSum(blocks.data(), all_kept.data(), 3, num_words, n, components, k, parallel_for,
                       sum.data(), true)
              .ok());
  }
  CHECK(SameBits(sum.ToVector(), expected_sum));
  CHECK(sum.Intact());
}

void TestBlocks() {
  std::mt19937 random(5);
  for (int64_t n : {1, 2, 31, 32, 33, 63, 64, 65, 4099, 8192, 65535, 65536, 65537, 196613}) {
    for (int64_t k : {int64_t{0}, int64_t{1}, n / 50, n / 20, n * 3 / 20, n}) {
      for (int components : {1, 2}) {
        TestBlock(n, k, components, &random);
        TestCountedBlock(n, k, components, &random);
      }
    }
  }
  TestBlock(1000003, 10001, 1, &random);
  TestBlock(1000003, 150001, 2, &random);
}

void TestWideBlocks() {
  std::mt19937 random(6);
  for (int64_t n : {1, 2, 33, 65, 1000}) {
    for (int64_t k : {int64_t{0}, int64_t{1}, n / 20, n / 3, n}) {
      for (int components : {3, 17, 256}) {
        TestBlock(n, k, components, &random);
        TestCountedBlock(n, k, components, &random);
      }
    }
  }
  for (int64_t k : {5, 9000}) {  // in either layout
    TestBlock(70001, k, 3, &random);
    TestCountedBlock(70001, k, 3, &random);
  }
  TestBlock(3, 2, kMaxComponents, &random);
}

// Sum and replace refuse the block and leave everything outside their output alone; with wide
// items, their output too.
void ExpectRefused(const char* what, const std::vector<uint32_t>& block, int64_t n, int64_t k) {
  CurrentCase() = what;
  const int64_t num_words = static_cast<int64_t>(block.size());
  // Exact sizes on the heap: the address sanitizer sees any access beyond them.
  const std::vector<uint32_t> words(block);
  for (int components : {1, 2, 3}) {
    const std::vector<float> kept(static_cast<size_t>(k * components), 1.0f);
    Guarded<float> dense(n * components);
    const std::vector<float> before = dense.ToVector();
    CHECK(PositionsSum(words.data(), kept.data(), 1, num_words, n, components, k, SerialFor,
                       dense.data())
              .code() == StatusCode::kInvalidArgument);
    CHECK(PositionsReplace(words.data(), kept.data(), num_words, n, components, k, SerialFor,
                           dense.data())
              .code() == StatusCode::kInvalidArgument);
    CHECK(dense.Intact());
    if (IsWide(components)) CHECK(SameBits(dense.ToVector(), before));
    Guarded<float> taken(k * components);
    CHECK(PositionsTake(words.data(), dense.data(), num_words, n, components, k, SerialFor,
                        taken.data())
              .code() == StatusCode::kInvalidArgument);
    CHECK(taken.Intact());
  }
}

void ExpectCountedRefused(const char* what, const std::vector<uint32_t>& block, int64_t n,
                          int64_t k) {
  CurrentCase() = what;
  const int64_t num_words = static_cast<int64_t>(block.size());
  const std::vector<uint32_t> words(block);
  const std::vector<float> kept(static_cast<size_t>(k), 1.0f);
  Guarded<float> dense(n);
  CHECK(
      PositionsSum(words.data(), kept.data(), 1, num_words, n, 1, k, SerialFor, dense.data(), true)
          .code() == StatusCode::kInvalidArgument);
  CHECK(
      PositionsReplace(words.data(), kept.data(), num_words, n, 1, k, SerialFor, dense.data(), true)
          .code() == StatusCode::kInvalidArgument);
  CHECK(dense.Intact());
}

void TestCorruptCounted() {
  const std::vector<uint32_t> bitmap = OracleCountedPositions({0, 31, 32}, 40, 5);
  for (uint32_t count : {0u, 2u, 4u, 6u, 0x80000003u, 0xffffffffu}) {
    std::vector<uint32_t> bad = bitmap;
    bad[0] = count;
    ExpectCountedRefused("bitmap with another count", bad, 40, 5);
  }
  std::vector<uint32_t> bad = bitmap;
  bad[0] = 6;
  bad[1] |= 0xe;
  ExpectCountedRefused("bitmap with more than its capacity", bad, 40, 5);
  bad = bitmap;
  bad.pop_back();
  ExpectCountedRefused("bitmap one word too short", bad, 40, 5);

  // Room for 4 of 200: 5 low bits, 7 buckets.
  const std::vector<uint32_t> good = OracleCountedPositions({70, 199}, 200, 4);
  CHECK((good == std::vector<uint32_t>{2, 6 | 7 << 5, 1u << 2 | 1u << 7}));
  for (uint32_t count : {0u, 1u, 3u, 4u, 5u, 0xffffffffu}) {
    bad = good;
    bad[0] = count;
    ExpectCountedRefused("another count than upper bits", bad, 200, 4);
  }
  for (int bit : {10, 19, 20, 31}) {
    bad = good;
    bad[1] |= 1u << bit;
    ExpectCountedRefused("low bits without an item", bad, 200, 4);
  }
  for (int bit : {8, 10, 31}) {
    bad = good;
    bad[2] ^= 1u << 7 | 1u << bit;
    ExpectCountedRefused("a bucket that does not exist", bad, 200, 4);
  }
  bad = good;
  bad[0] = 5;
  bad[2] |= 1u << 3 | 1u << 5 | 1u << 6;
  ExpectCountedRefused("upper bits beyond the capacity", bad, 200, 4);
}

void TestCorruptBitmaps() {
  const std::vector<uint32_t> good = OraclePositions({0, 31, 32, 39}, 40);
  std::vector<uint32_t> bad = good;
  bad[0] |= 2;
  ExpectRefused("one bit too many", bad, 40, 4);
  bad = good;
  bad[1] &= ~1u;
  ExpectRefused("one bit too few", bad, 40, 4);
  bad = good;
  bad[1] = 1u | 1u << 8;
  ExpectRefused("bit beyond the last item", bad, 40, 4);
  bad = good;
  bad.push_back(0);
  ExpectRefused("one word too many", bad, 40, 4);
  bad = good;
  bad.pop_back();
  ExpectRefused("one word too few", bad, 40, 4);
}

void TestCorruptEliasFano() {
  // 5 low bits; the items are in the buckets 0, 2, 2 and 6, the last one, of 8 items.
  const std::vector<uint32_t> good = OraclePositions({3, 70, 75, 199}, 200);
  CHECK((good == std::vector<uint32_t>{0x3acc3, 0x219}));  // as in FORMAT.md
  const auto with_lows = [](uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    return std::vector<uint32_t>{a | b << 5 | c << 10 | d << 15, 0x219};
  };
  CHECK(with_lows(3, 6, 11, 7) == good);
  ExpectRefused("position n", with_lows(3, 6, 11, 8), 200, 4);
  ExpectRefused("last position of the last bucket", with_lows(3, 6, 11, 31), 200, 4);
  ExpectRefused("a position twice", with_lows(3, 6, 6, 7), 200, 4);
  ExpectRefused("descending positions", with_lows(3, 11, 6, 7), 200, 4);
  for (int bit : {20, 31}) {
    ExpectRefused("padding of the low bits", {good[0] | 1u << bit, good[1]}, 200, 4);
  }
  ExpectRefused("an item too many", {good[0], good[1] | 1u << 5}, 200, 4);
  ExpectRefused("an item too few", {good[0], good[1] ^ 1u << 3}, 200, 4);
  ExpectRefused("no item", {good[0], 0}, 200, 4);
  ExpectRefused("all upper bits set", {good[0], ~0u}, 200, 4);
  for (int bit : {10, 11, 31}) {
    ExpectRefused("a bucket that does not exist", {good[0], good[1] ^ (1u << 9 | 1u << bit)}, 200,
                  4);
  }
  ExpectRefused("a word too many", {good[0], good[1], 0}, 200, 4);
  ExpectRefused("a word too few", {good[0]}, 200, 4);
  ExpectRefused("an item where none is kept", {1}, 200, 0);
}

// Whatever words come, they are refused or read in bounds, which the address sanitizer watches.
void TestGarbage() {
  CurrentCase() = "garbage";
  std::mt19937 random(9);
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{200, 4}, {5000, 700}, {300000, 9}}) {
    const int64_t num_words = PositionsNumWords(n, k);
    const int64_t low_words = EliasFanoShapeOf(n, k).low_words;
    const std::vector<float> kept(static_cast<size_t>(k), 1.0f);
    for (int round = 0; round < 100; ++round) {
      // Random low bits, under upper bits that are right but for the last one in odd rounds.
      std::vector<int64_t> items = RandomPositions(n, k, &random);
      std::vector<uint32_t> words = OraclePositions(items, n);
      for (int64_t i = 0; i < low_words; ++i) words[i] = random();
      if (round % 2 != 0)
        words[low_words + random() % (num_words - low_words)] ^= 1u << random() % 32;
      Guarded<float> dense(n);
      const bool sum_is_ok =
          PositionsSum(words.data(), kept.data(), 1, num_words, n, 1, k, SerialFor, dense.data())
              .ok();
      CHECK(dense.Intact());
      CHECK(!sum_is_ok || round % 2 == 0);
    }
  }
}

void TestLayouts() {
  CurrentCase() = "layouts";
  const auto is_bitmap = [](int64_t n, int64_t k) {
    return PositionsLayoutOf(n, k) == PositionsLayout::kBitmap;
  };
  // A bitmap of 32 words. For k = 128, l = 3 and there are 12 + 8; for 129, 9 + 13, which saves
  // less than a third.
  CHECK(PositionsNumWords(1024, 128) == 12 + 8 && !is_bitmap(1024, 128));
  CHECK(PositionsNumWords(1024, 129) == 32 && is_bitmap(1024, 129));
  CHECK(PositionsNumWords(1024, 0) == 1);
  CHECK(PositionsNumWords(1024, 1024) == 32);
  CHECK(PositionsNumWords(0, 0) == 0 && is_bitmap(0, 0));
  // Low bits end at 31.
  CHECK(EliasFanoShapeOf(int64_t{1} << 31, 1).low_bits == 31);
  CHECK(EliasFanoShapeOf(int64_t{1} << 40, 1).low_bits == 31);
  CHECK(PositionsNumWords(int64_t{1} << 40, 1) == 1 + (1 + 512 + 31) / 32);
}

void TestRefusedArguments() {
  CurrentCase() = "refused arguments";
  const uint64_t selected[1] = {7};
  const float values[8] = {};
  uint32_t positions[1];
  float kept[8];
  const auto code = [&](int64_t n, int components, int64_t k) {
    return PositionsGather(selected, values, n, components, k, SerialFor, positions, kept).code();
  };
  CHECK(code(4, 2, 3) == StatusCode::kOk);
  CHECK(code(4, 2, 2) == StatusCode::kInvalidArgument);
  CHECK(code(4, 2, 4) == StatusCode::kInvalidArgument);
  CHECK(code(4, 0, 3) == StatusCode::kInvalidArgument);
  CHECK(code(4, -1, 3) == StatusCode::kInvalidArgument);
  CHECK(code(4, kMaxComponents + 1, 3) == StatusCode::kInvalidArgument);
  CHECK(code(2, 1, 3) == StatusCode::kInvalidArgument);
  uint32_t counted[2];
  CHECK(PositionsGather(selected, values, 4, 1, 2, SerialFor, counted, kept, true).code() ==
        StatusCode::kInvalidArgument);
  CHECK(PositionsSum(positions, kept, -1, 1, 8, 1, 0, SerialFor, kept).code() ==
        StatusCode::kInvalidArgument);
}

// Sizes come from arguments, before anything says that so much memory exists.
void TestHugeSizes() {
  CurrentCase() = "huge sizes";
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  CHECK(PositionsNumWords(kLargest, kLargest) == int64_t{1} << 58);
  CHECK(PositionsNumWords(kLargest, 0, true) == (int64_t{1} << 27) + 1);
  CHECK(SelectionWords(kLargest) == int64_t{1} << 57);
  const uint32_t word = 0;
  float item;
  const auto sum = [&](int64_t n, int64_t k, int64_t num_words, bool counted) {
    return PositionsSum(&word, &item, 1, num_words, n, 1, k, SerialFor, &item, counted).code();
  };
  CHECK(sum(kLargest, 0, 1, false) == StatusCode::kInvalidArgument);
  CHECK(sum(kLargest, kLargest, 1, true) == StatusCode::kInvalidArgument);
  // The count of a counted block is one word.
  const int64_t n = int64_t{1} << 33, k = int64_t{1} << 32;
  CHECK(sum(n, k, PositionsNumWords(n, k, true), true) == StatusCode::kInvalidArgument);
  // More scratch memory than there are addresses.
  CHECK(sum(kLargest, kLargest, int64_t{1} << 58, false) == StatusCode::kResourceExhausted);
  CHECK(PositionsGather(nullptr, &item, kLargest, 1, 0, SerialFor, nullptr, &item).code() ==
        StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace gradcomp

// An allocation that fails gives null, as it does without the address sanitizer.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }

int main() {
  gradcomp::TestBlocks();
  gradcomp::TestWideBlocks();
  gradcomp::TestCorruptBitmaps();
  gradcomp::TestCorruptEliasFano();
  gradcomp::TestCorruptCounted();
  gradcomp::TestGarbage();
  gradcomp::TestLayouts();
  gradcomp::TestRefusedArguments();
  gradcomp::TestHugeSizes();
  return gradcomp::FinishTest();
}
