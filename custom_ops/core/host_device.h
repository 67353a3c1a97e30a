// SPDX-License-Identifier: Apache-2.0
// What code needs that is compiled for the CPU and for CUDA alike: the marker, and bit patterns.

#ifndef GRADCOMP_CORE_HOST_DEVICE_H_
#define GRADCOMP_CORE_HOST_DEVICE_H_

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define GRADCOMP_HOST_DEVICE __host__ __device__ __forceinline__
#elif defined(__GNUC__)
#define GRADCOMP_HOST_DEVICE inline __attribute__((always_inline))
#else
#define GRADCOMP_HOST_DEVICE inline
#endif

namespace gradcomp {

// The binary32 pattern of `x`.
GRADCOMP_HOST_DEVICE uint32_t BitsOf(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}

// The binary64 pattern of `x`.
GRADCOMP_HOST_DEVICE uint64_t BitsOf(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}

// The float with the binary32 pattern `bits`.
GRADCOMP_HOST_DEVICE float FloatOf(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof(x));
  return x;
}

constexpr uint32_t kSignBit = 0x80000000u;
constexpr uint32_t kInfinityBits = 0x7f800000u;  // magnitudes from here on are Inf or NaN
constexpr uint32_t kNanBits = 0x7fc00000u;       // the NaN that decoders produce

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_HOST_DEVICE_H_
