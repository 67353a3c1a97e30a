// SPDX-License-Identifier: Apache-2.0
// Stores past the caches, for results that are too large to be found there when they are read.
//
// An ordinary store reads the line it is about to overwrite from memory first: of a pass that reads
// two arrays and writes a third, that is a quarter of the traffic. Results are made in a tile in
// the first-level cache, and go from there. A result that overwrites what was read gains nothing:
// its lines are in the cache already.

#ifndef GRADCOMP_CORE_STREAM_STORE_H_
#define GRADCOMP_CORE_STREAM_STORE_H_

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "multiversion.h"

namespace gradcomp {

// Floats that may still be in a cache when they are read next. Tests have fewer, to stream more.
#if !defined(GRADCOMP_CACHED_FLOATS)
#define GRADCOMP_CACHED_FLOATS (int64_t{1} << 22)
#endif

// Whether to store a result of values and a residual past the caches: it is too large for them, and
// has memory of its own. Its tiles must start at multiples of 16 bytes.
inline bool IsStreamed(const float* values, const float* residual, const float* result,
                       int64_t num_floats) {
#if defined(__SSE2__)
  return num_floats > GRADCOMP_CACHED_FLOATS && result != values && result != residual &&
         reinterpret_cast<uintptr_t>(result) % 16 == 0;
#else
  (void)values, (void)residual, (void)result, (void)num_floats;
  return false;
#endif
}

// Copies `count` floats to `to`, past the caches if `streamed`: then `to` is a multiple of 16
// bytes.
GRADCOMP_ALWAYS_INLINE void StoreTile(const float* from, int64_t count, bool streamed, float* to) {
  int64_t i = 0;
#if defined(__SSE2__)
  if (streamed) {
    for (; i + 4 <= count; i += 4) _mm_stream_ps(to + i, _mm_loadu_ps(from + i));
  }
#else
  (void)streamed;
#endif
  std::memcpy(to + i, from + i, sizeof(float) * static_cast<size_t>(count - i));
}

// sum[i] = values[i] + residual[i], past the caches, and the same to `tile`. Loads and stores take
// turns, which keeps memory busier than adding up a tile and storing it then.
inline void AddStreamed(const float* values, const float* residual, int64_t count, float* tile,
                        float* sum) {
  int64_t i = 0;
#if defined(__SSE2__)
  for (; i + 4 <= count; i += 4) {
    const __m128 four = _mm_add_ps(_mm_loadu_ps(values + i), _mm_loadu_ps(residual + i));
    _mm_storeu_ps(tile + i, four);
    _mm_stream_ps(sum + i, four);
  }
#endif
  for (; i < count; ++i) sum[i] = tile[i] = values[i] + residual[i];
}

// After this, other threads see what has been stored. RunShards() calls it when a shard ends.
inline void FenceStreamedStores() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_STREAM_STORE_H_
