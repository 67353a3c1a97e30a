// SPDX-License-Identifier: Apache-2.0
// The strata of random-k, and which item of a stratum is drawn, for CPU and CUDA (FORMAT.md,
// section "Random-k").
//
// Stratum j of k holds the items floor(j * n / k) .. floor((j + 1) * n / k) - 1: with k <= n at
// least one, and sizes that differ by at most one. For 1 <= k <= n <= kRandomKMaxItems every
// product below fits in 64 bits.

#ifndef GRADCOMP_CORE_RANDOM_K_MATH_H_
#define GRADCOMP_CORE_RANDOM_K_MATH_H_

#include <cstdint>

#include "host_device.h"

namespace gradcomp {

constexpr int64_t kRandomKMaxItems = 0xffffffff;

// floor(j * n / k), for 0 <= j <= k. Of n = q * k + r, the part j * q needs no division.
GRADCOMP_HOST_DEVICE int64_t StratumBegin(int64_t j, int64_t n, int64_t k) {
  const uint64_t stratum = static_cast<uint64_t>(j), size = static_cast<uint64_t>(k);
  const uint64_t items = static_cast<uint64_t>(n);
  return static_cast<int64_t>(stratum * (items / size) + stratum * (items % size) / size);
}

// One of `size` items, the one at floor(size * word / 2^32). With `word` uniform, every item has
// probability 1 / size, up to 2^-32.
GRADCOMP_HOST_DEVICE int64_t DrawnItem(uint32_t word, int64_t size) {
  return static_cast<int64_t>(static_cast<uint64_t>(size) * word >> 32);
}

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_RANDOM_K_MATH_H_
