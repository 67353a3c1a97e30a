// SPDX-License-Identifier: Apache-2.0
// Random-k: which k of n items are kept follows from a key that all workers share, so that no
// positions travel (FORMAT.md, section "Random-k").
//
// The items are cut into k strata of n/k items, and each gives one, drawn uniformly: the positions
// ascend by construction, and any part of them can be computed on its own.

#ifndef GRADCOMP_CORE_RANDOM_K_H_
#define GRADCOMP_CORE_RANDOM_K_H_

#include <cstdint>

#include "parallel.h"
#include "philox.h"
#include "random_k_math.h"
#include "status.h"

namespace gradcomp {

// The items drawn from the strata first .. first + count - 1, in ascending order. 1 <= k <= n <=
// kRandomKMaxItems, 0 <= first, first + count <= k.
void RandomKItems(const RandomKey& key, int64_t n, int64_t k, int64_t first, int64_t count,
                  int64_t* items);

// Writes the positions block of the drawn items.
//
//   positions  [PositionsNumWords(n, k)], every word is written.
//
// Errors: InvalidArgument unless 1 <= k <= n <= kRandomKMaxItems.
// The same bits for any `parallel_for`. Thread-safe.
Status RandomKPositions(const RandomKey& key, int64_t n, int64_t k, const ParallelFor& parallel_for,
                        uint32_t* positions);

// Makes the kept items unbiased: an item drawn from a stratum of m items is multiplied by m, the
// inverse of the probability with which it is kept. In float32, with m rounded to float32.
//
//   kept    [k, components]
//   scaled  [k, components], may be `kept`
//
// Errors: as RandomKPositions; InvalidArgument for a bad number of components (item_shape.h).
Status RandomKScale(const float* kept, int64_t n, int components, int64_t k,
                    const ParallelFor& parallel_for, float* scaled);

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_RANDOM_K_H_
