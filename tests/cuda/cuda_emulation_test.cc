// SPDX-License-Identifier: Apache-2.0
// The emulated device finds the mistakes that it is there to find.

#include "tests/cuda/cuda_emulation.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/core/check.h"

namespace gradcomp {
namespace {

constexpr int kThreads = 64;
constexpr int kBlocks = 3;

// Reverses each block's values, with or without the barrier that this needs.
__global__ void ReverseKernel(int* values, bool has_barrier) {
  __shared__ int shared[kThreads];
  int* const own = values + blockIdx.x * blockDim.x;
  shared[threadIdx.x] = own[threadIdx.x];
  if (has_barrier) __syncthreads();
  own[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

bool Reverses(bool has_barrier, unsigned int seed) {
  cuda_emulation::Device::Get().Seed(seed);
  std::vector<int> values;
  for (int i = 0; i < kBlocks * kThreads; ++i) values.push_back(i);
  GRADCOMP_LAUNCH(ReverseKernel, kBlocks, kThreads, nullptr, values.data(), has_barrier);
  bool reversed = true;
  for (int i = 0; i < kBlocks * kThreads; ++i) {
    reversed &= values[i] == i / kThreads * kThreads + kThreads - 1 - i % kThreads;
  }
  return reversed;
}

void TestMissingBarrierShows() {
  CurrentCase() = "barrier";
  for (unsigned int seed = 0; seed < 20; ++seed) {
    CHECK(Reverses(true, seed));
    CHECK(!Reverses(false, seed));
  }
}

// Every thread reads the shared word and then counts in it.
__global__ void CountKernel(uint32_t* first_seen, uint32_t* last_seen) {
  __shared__ uint32_t count;
  const uint32_t seen = count;
  __syncthreads();
  if (threadIdx.x == 0) {
    first_seen[blockIdx.x] = seen;
    count = 0;
  }
  __syncthreads();
  atomicAdd(&count, 1u);
  __syncthreads();
  if (threadIdx.x == 0) last_seen[blockIdx.x] = count;
}

void TestSharedMemoryIsGarbage() {
  CurrentCase() = "shared memory";
  std::vector<uint32_t> first(kBlocks), last(kBlocks);
  GRADCOMP_LAUNCH(CountKernel, kBlocks, kThreads, nullptr, first.data(), last.data());
  CHECK(first == std::vector<uint32_t>(kBlocks, 0xa5a5a5a5u));
  CHECK(last == std::vector<uint32_t>(kBlocks, kThreads));
}

__global__ void OrderKernel(std::vector<unsigned int>* order) {
  order->push_back(blockIdx.x * blockDim.x + threadIdx.x);
  __syncthreads();
  order->push_back(blockIdx.x * blockDim.x + threadIdx.x);
}

// Each thread runs once before and once after the barrier, in orders that differ.
void TestOrders() {
  CurrentCase() = "orders";
  std::vector<unsigned int> order;
  GRADCOMP_LAUNCH(OrderKernel, 1, kThreads, nullptr, &order);
  std::vector<unsigned int> before(order.begin(), order.begin() + kThreads);
  std::vector<unsigned int> after(order.begin() + kThreads, order.end());
  CHECK(before != after);
  CHECK(!std::is_sorted(before.begin(), before.end()));
  std::sort(before.begin(), before.end());
  std::sort(after.begin(), after.end());
  CHECK(before == after && before.front() == 0 && before.back() == kThreads - 1);
}

__global__ void BallotKernel(uint32_t* words) {
  const uint32_t word = __ballot_sync(~0u, threadIdx.x % 5 == 0);
  const uint32_t inverse = __ballot_sync(~0u, threadIdx.x % 5 != 0);
  if (threadIdx.x % 32 == 0) words[threadIdx.x / 32] = word == ~inverse ? word : 0;
}

void TestBallot() {
  CurrentCase() = "ballot";
  std::vector<uint32_t> words(2), expected(2);
  for (int i = 0; i < kThreads; i += 5) expected[i / 32] |= 1u << (i % 32);
  GRADCOMP_LAUNCH(BallotKernel, 1, kThreads, nullptr, words.data());
  CHECK(words == expected);
}

void TestConfigurations() {
  CurrentCase() = "configurations";
  int value = 0;
  const auto error = [&](int64_t blocks, int threads) {
    GRADCOMP_LAUNCH(ReverseKernel, blocks, threads, nullptr, &value, true);
    return cudaGetLastError();
  };
  CHECK(error(1, 1) == cudaSuccess);
  CHECK(error(0, 1) == cudaErrorInvalidConfiguration);
  CHECK(error(1, 0) == cudaErrorInvalidConfiguration);
  CHECK(error(1, 1025) == cudaErrorInvalidConfiguration);
  CHECK(error(int64_t{1} << 31, 1) == cudaErrorInvalidConfiguration);
  CHECK(cudaGetLastError() == cudaSuccess);
}

// Half of the threads skip a barrier by returning, or wait at another one.
__global__ void DivergentKernel(bool returns) {
  if (threadIdx.x % 2 == 0) {
    if (returns) return;
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void HalfBallotKernel(uint32_t* word) {
  if (threadIdx.x % 2 == 0) *word = __ballot_sync(~0u, true);
}

__global__ void OutsideKernel(uint32_t* words, int shared_index) {
  __shared__ uint32_t shared[kThreads];
  shared[shared_index] = threadIdx.x;
  __syncthreads();
  words[threadIdx.x] = shared[0];
}

// Whether `run` ends its process other than by returning. What it prints is not shown.
bool Dies(const std::function<void()>& run) {
  const pid_t child = fork();
  if (child == 0) {
    close(STDERR_FILENO);
    run();
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

void TestMistakesEndTheProgram() {
  CurrentCase() = "mistakes";
  CHECK(Dies([] { GRADCOMP_LAUNCH(DivergentKernel, 1, kThreads, nullptr, true); }));
  CHECK(Dies([] { GRADCOMP_LAUNCH(DivergentKernel, 1, kThreads, nullptr, false); }));
  std::vector<uint32_t> words(kThreads);
  CHECK(Dies([&] { GRADCOMP_LAUNCH(HalfBallotKernel, 1, kThreads, nullptr, words.data()); }));
#if defined(__SANITIZE_ADDRESS__)
  const auto index_dies = [&](uint32_t* data, int shared_index) {
    return Dies([&] { GRADCOMP_LAUNCH(OutsideKernel, 1, kThreads, nullptr, data, shared_index); });
  };
  CHECK(!index_dies(words.data(), 0));
  CHECK(index_dies(words.data() + 1, 0));
  CHECK(index_dies(words.data() - 1, 0));
  CHECK(index_dies(words.data(), kThreads));
#endif
}

}  // namespace
}  // namespace gradcomp

int main() {
  gradcomp::TestMissingBarrierShows();
  gradcomp::TestSharedMemoryIsGarbage();
  gradcomp::TestOrders();
  gradcomp::TestBallot();
  gradcomp::TestConfigurations();
  gradcomp::TestMistakesEndTheProgram();
  return gradcomp::FinishTest();
}
