// SPDX-License-Identifier: Apache-2.0
// Sums over the threads of a block, on the emulated device.

#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "custom_ops/cuda/block_scan.h"
#include "tests/core/check.h"
#include "tests/cuda/device_buffer.h"

namespace gradcomp::cuda {
namespace {

// Two sums in a row: the second must not disturb threads that are still in the first.
__global__ void SumsKernel(const uint32_t* first, const uint32_t* second, uint32_t* sums) {
  uint32_t* const own = sums + 4 * threadIdx.x;
  own[0] = BlockExclusiveSum(first[threadIdx.x], &own[1]);
  own[2] = BlockExclusiveSum(second[threadIdx.x], &own[3]);
}

__global__ void OffsetsKernel(const uint32_t* counts, int64_t size, uint32_t* offsets) {
  BlockOffsets(counts, size, offsets);
}

std::vector<uint32_t> RandomNumbers(int64_t size, std::mt19937* random) {
  std::vector<uint32_t> numbers(static_cast<size_t>(size));
  for (uint32_t& number : numbers) number = (*random)();  // sums wrap at 2^32
  return numbers;
}

void TestSums() {
  std::mt19937 random(1);
  for (int threads : {32, 64, 256, 1024}) {
    CurrentCase() = std::to_string(threads) + " threads";
    ShuffleDevice(random());
    const std::vector<uint32_t> first = RandomNumbers(threads, &random);
    const std::vector<uint32_t> second = RandomNumbers(threads, &random);
    const uint32_t first_total = std::accumulate(first.begin(), first.end(), 0u);
    const uint32_t second_total = std::accumulate(second.begin(), second.end(), 0u);
    std::vector<uint32_t> expected;
    uint32_t first_sum = 0, second_sum = 0;
    for (int i = 0; i < threads; ++i) {
      expected.insert(expected.end(), {first_sum, first_total, second_sum, second_total});
      first_sum += first[i];
      second_sum += second[i];
    }
    DeviceBuffer<uint32_t> d_first(first), d_second(second), d_sums(4 * threads);
    GRADCOMP_LAUNCH(SumsKernel, 1, threads, nullptr, d_first.data(), d_second.data(),
                    d_sums.data());
    CHECK(d_sums.ToVector() == expected);
  }
}

void TestOffsets() {
  std::mt19937 random(2);
  for (int64_t size : {0, 1, 2, 63, 64, 65, 1000, 4099}) {
    for (int threads : {64, 1024}) {
      CurrentCase() = std::to_string(size) + " counts, " + std::to_string(threads) + " threads";
      ShuffleDevice(random());
      std::vector<uint32_t> counts = RandomNumbers(size, &random);
      std::vector<uint32_t> expected = {0};
      for (uint32_t count : counts) expected.push_back(expected.back() + count);
      DeviceBuffer<uint32_t> d_counts(counts), d_offsets(size + 1);
      GRADCOMP_LAUNCH(OffsetsKernel, 1, threads, nullptr, d_counts.data(), size, d_offsets.data());
      CHECK(d_offsets.ToVector() == expected);
      counts.push_back(0);
      DeviceBuffer<uint32_t> d_in_place(counts);
      GRADCOMP_LAUNCH(OffsetsKernel, 1, threads, nullptr, d_in_place.data(), size,
                      d_in_place.data());
      CHECK(d_in_place.ToVector() == expected);
    }
  }
}

}  // namespace
}  // namespace gradcomp::cuda

int main() {
  gradcomp::cuda::TestSums();
  gradcomp::cuda::TestOffsets();
  return gradcomp::FinishTest();
}
