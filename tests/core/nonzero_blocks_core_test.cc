// SPDX-License-Identifier: Apache-2.0
// Block masks against FORMAT.md, value by value; packing and unpacking; and masks that do not fit.

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "custom_ops/core/nonzero_blocks.h"
#include "tests/core/check.h"
#include "tests/core/hostile_threads.h"

namespace gradcomp {
namespace {

constexpr float kDenormal = std::numeric_limits<float>::denorm_min();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// All blocks are zeros of both signs, but for some: of those, few values are not zero.
std::vector<float> SparseValues(int64_t n, int64_t block_size, unsigned share,
                                std::mt19937* random) {
  const float nonzero[] = {1.0f, -2.5f, kDenormal, -kDenormal, kInf, -kInf, kNan};
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = (*random)() % 2 == 0 ? 0.0f : -0.0f;
  for (int64_t begin = 0; begin < n; begin += block_size) {
    if ((*random)() % 100 >= share) continue;
    const int64_t size = std::min(block_size, n - begin);
    for (int i = 0; i < 2; ++i) {
      const int64_t at = begin + static_cast<int64_t>((*random)() % static_cast<uint64_t>(size));
      values[static_cast<size_t>(at)] = nonzero[(*random)() % 7];
    }
  }
  return values;
}

struct Oracle {
  std::vector<uint32_t> mask;
  int64_t count = 0;
  std::vector<float> packed;
  std::vector<float> unpacked;
};

// What is packed is what the mask says, or if it is null, what is not zero.
Oracle OracleOf(const std::vector<float>& values, int64_t block_size,
                const std::vector<uint32_t>* mask) {
  const int64_t n = static_cast<int64_t>(values.size());
  const int64_t num_blocks = (n + block_size - 1) / block_size;
  Oracle oracle;
  oracle.mask.resize(static_cast<size_t>((num_blocks + 31) / 32));
  oracle.unpacked.resize(values.size(), 0.0f);
  for (int64_t block = 0; block < num_blocks; ++block) {
    const int64_t begin = block * block_size, end = std::min(begin + block_size, n);
    bool is_set = false;
    if (mask != nullptr) {
      is_set = ((*mask)[static_cast<size_t>(block / 32)] >> (block % 32) & 1) != 0;
    } else {
      for (int64_t i = begin; i < end; ++i) {
        const float value = values[static_cast<size_t>(i)];
        is_set = is_set || std::fpclassify(value) != FP_ZERO;
      }
    }
    if (!is_set) continue;
    oracle.mask[static_cast<size_t>(block / 32)] |= uint32_t{1} << (block % 32);
    ++oracle.count;
    std::copy(values.begin() + begin, values.begin() + end, oracle.unpacked.begin() + begin);
    oracle.packed.insert(oracle.packed.end(), values.begin() + begin, values.begin() + end);
    oracle.packed.resize(static_cast<size_t>(oracle.count * block_size), 0.0f);
  }
  return oracle;
}

void TestPacking(const std::vector<float>& values, int64_t block_size, const Oracle& expected,
                 const ParallelFor& parallel_for) {
  const int64_t n = static_cast<int64_t>(values.size());
  const int64_t num_words = static_cast<int64_t>(expected.mask.size());
  int64_t count = -1;
  CHECK(BlocksCount(expected.mask.data(), num_words, n, block_size, &count).ok());
  CHECK(count == expected.count);
  Guarded<float> packed(expected.count * block_size);
  CHECK(BlocksTake(expected.mask.data(), num_words, values.data(), n, block_size, count,
                   parallel_for, packed.data())
            .ok());
  CHECK(packed.Intact() && SameBits(packed.ToVector(), expected.packed));
  std::vector<float> received = expected.packed;
  const bool has_last = count > 0 && (expected.mask.back() >> ((CeilDiv(n, block_size) - 1) % 32));
  // Padding that another worker has filled with something.
  if (has_last && n % block_size != 0) received.back() = kNan;
  Guarded<float> unpacked(n);
  CHECK(BlocksPut(expected.mask.data(), num_words, received.data(), count, n, block_size,
                  parallel_for, unpacked.data())
            .ok());
  CHECK(unpacked.Intact() && SameBits(unpacked.ToVector(), expected.unpacked));
}

void TestBlocks(int64_t n, int64_t block_size, unsigned share, std::mt19937* random) {
  CurrentCase() = "n " + std::to_string(n) + " block_size " + std::to_string(block_size) +
                  " share " + std::to_string(share);
  const ParallelFor parallel_for = (*random)() % 2 == 0 ? ParallelFor(SerialFor) : HostileFor(7);
  const std::vector<float> values = SparseValues(n, block_size, share, random);
  const Oracle own = OracleOf(values, block_size, nullptr);
  Guarded<uint32_t> mask(BlockMaskWords(n, block_size));
  {
    const ScopedFlush flush;  // denormals are not zeros all the same
    CHECK(NonzeroBlocks(values.data(), n, block_size, parallel_for, mask.data()).ok());
  }
  CHECK(mask.Intact() && mask.ToVector() == own.mask);
  TestPacking(values, block_size, own, parallel_for);

  // A mask that other workers have added blocks to.
  std::vector<uint32_t> joined = own.mask;
  const int64_t num_blocks = CeilDiv(n, block_size);
  for (int64_t block = 0; block < num_blocks; block += 1 + (*random)() % 5) {
    joined[static_cast<size_t>(block / 32)] |= uint32_t{1} << (block % 32);
  }
  TestPacking(values, block_size, OracleOf(values, block_size, &joined), parallel_for);
}

// A single value anywhere, and not its neighbours, decides.
void TestEveryPlace() {
  CurrentCase() = "every place";
  for (int64_t block_size : {1, 3, 64, 65, 200}) {
    const int64_t n = 401;
    std::vector<float> values(static_cast<size_t>(n), -0.0f);
    for (int64_t i = 0; i < n; ++i) {
      values[static_cast<size_t>(i)] = kDenormal;
      std::vector<uint32_t> mask(static_cast<size_t>(BlockMaskWords(n, block_size)), 0xffffffffu);
      CHECK(NonzeroBlocks(values.data(), n, block_size, SerialFor, mask.data()).ok());
      std::vector<uint32_t> expected(mask.size());
      expected[static_cast<size_t>(i / block_size / 32)] = uint32_t{1} << (i / block_size % 32);
      CHECK(mask == expected);
      values[static_cast<size_t>(i)] = -0.0f;
    }
  }
}

void ExpectRefused(const std::vector<uint32_t>& mask, int64_t n, int64_t block_size, int64_t count,
                   const std::string& named) {
  const int64_t num_words = static_cast<int64_t>(mask.size());
  CurrentCase() = named + ", n " + std::to_string(n);
  Guarded<float> nothing(0);
  const auto check = [&named](const Status& status) {
    CHECK(status.code() == StatusCode::kInvalidArgument);
    CHECK(status.message().find(named) != std::string::npos);
  };
  check(BlocksTake(mask.data(), num_words, nothing.data(), n, block_size, count, SerialFor,
                   nothing.data()));
  check(BlocksPut(mask.data(), num_words, nothing.data(), count, n, block_size, SerialFor,
                  nothing.data()));
  CHECK(nothing.Intact());
}

void TestRefused() {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  for (int64_t block_size : {int64_t{-1}, int64_t{0}, int64_t{65537}, kMax}) {
    ExpectRefused({0}, 10, block_size, 0, "block_size must be in 1..65536");
  }
  ExpectRefused({0}, -1, 8, 0, "n must be >= 0");
  ExpectRefused({0}, kMax, 1, 0, "words, got 1");
  ExpectRefused({0}, kMax, 65536, 0, "words, got 1");
  ExpectRefused({}, 1, 8, 0, "1 words, got 0");
  ExpectRefused({0}, 0, 8, 0, "0 words, got 1");
  ExpectRefused({0, 0}, 256, 8, 0, "1 words, got 2");
  ExpectRefused({1u << 5}, 40, 8, 1, "beyond its 5 blocks");
  ExpectRefused({0, 1u << 31}, 8 * 33, 8, 1, "beyond its 33 blocks");
  ExpectRefused({7}, 40, 8, 2, "3 set bits");
  ExpectRefused({7}, 40, 8, 4, "3 set bits");
  ExpectRefused({7}, 40, 8, -1, "3 set bits");
  CurrentCase() = "values that cannot be cut";
  float nothing = 0.0f;
  uint32_t no_word = 0;
  CHECK(!NonzeroBlocks(&nothing, -1, 8, SerialFor, &no_word).ok());
  CHECK(!NonzeroBlocks(&nothing, 1, 0, SerialFor, &no_word).ok());
  CHECK(!NonzeroBlocks(&nothing, 1, 65537, SerialFor, &no_word).ok());
}

}  // namespace
}  // namespace gradcomp

int main() {
  std::mt19937 random(5);
  for (unsigned share : {0u, 3u, 50u, 100u}) {
    for (int64_t block_size : {1, 2, 7, 16, 63, 64, 65, 256, 1000, 65536}) {
      for (int64_t num_blocks : {0, 1, 2, 31, 32, 33, 64, 200}) {
        if (block_size * num_blocks > 70'000) continue;
        const int64_t n = block_size * num_blocks;
        gradcomp::TestBlocks(n, block_size, share, &random);
        if (n > 0) gradcomp::TestBlocks(n - block_size / 2, block_size, share, &random);
        gradcomp::TestBlocks(n + 1, block_size, share, &random);
      }
    }
  }
  gradcomp::TestEveryPlace();
  gradcomp::TestRefused();
  return gradcomp::FinishTest();
}
