// SPDX-License-Identifier: Apache-2.0
// Threads that try to change results: they flush denormals, and cut the work at odd places.

#ifndef GRADCOMP_TESTS_CORE_HOSTILE_THREADS_H_
#define GRADCOMP_TESTS_CORE_HOSTILE_THREADS_H_

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "custom_ops/core/parallel.h"
#include "tests/core/check.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace gradcomp {

// Sets flush-to-zero and denormals-are-zero on this thread for its life, as TensorFlow's pool does,
// and checks at the end that they are still set.
class ScopedFlush {
 public:
#if defined(__SSE2__)
  ScopedFlush() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
  ~ScopedFlush() {
    CHECK((_mm_getcsr() & 0x8040) == 0x8040);
    _mm_setcsr(saved_);
  }

 private:
  unsigned int saved_;
#elif defined(__aarch64__)
  ScopedFlush() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
    __asm__ volatile("msr fpcr, %0" : : "r"(saved_ | 1 << 24));
  }
  ~ScopedFlush() { __asm__ volatile("msr fpcr, %0" : : "r"(saved_)); }

 private:
  unsigned long saved_;
#endif
};

// A parallel-for that runs pieces of random size in random order on three flushing threads.
inline ParallelFor HostileFor(unsigned seed) {
  return [seed](int64_t total, int64_t, const ShardFn& fn) {
    std::mt19937 random(seed);
    std::vector<std::pair<int64_t, int64_t>> pieces;
    for (int64_t begin = 0; begin < total;) {
      const int64_t largest = std::max<int64_t>(1, total / 3);
      const int64_t size = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(largest));
      pieces.emplace_back(begin, std::min(begin + size, total));
      begin = pieces.back().second;
    }
    std::shuffle(pieces.begin(), pieces.end(), random);
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 3; ++t) {
      threads.emplace_back([&pieces, &fn, t] {
        const ScopedFlush flush;
        for (size_t i = t; i < pieces.size(); i += 3) fn(pieces[i].first, pieces[i].second);
      });
    }
    for (std::thread& thread : threads) thread.join();
  };
}

// `size` values with a guard on either side; Intact() tells whether the guards were left alone.
template <typename T>
class Guarded {
 public:
  explicit Guarded(int64_t size)
      : storage_(static_cast<size_t>(size) + 2 * kGuard, static_cast<T>(kSentinel)) {}
  T* data() { return storage_.data() + kGuard; }
  std::vector<T> ToVector() const { return {storage_.begin() + kGuard, storage_.end() - kGuard}; }
  bool Intact() const {
    for (size_t i = 0; i < kGuard; ++i) {
      if (storage_[i] != static_cast<T>(kSentinel)) return false;
      if (storage_[storage_.size() - 1 - i] != static_cast<T>(kSentinel)) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGuard = 16;
  static constexpr int kSentinel = -77;
  std::vector<T> storage_;
};

// Equal as bits, so that NaN equals itself and -0 differs from +0.
inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace gradcomp

#endif  // GRADCOMP_TESTS_CORE_HOSTILE_THREADS_H_
