// SPDX-License-Identifier: Apache-2.0
// What an entropy block keeps of one value. FORMAT.md, section "Entropy block", defines every name
// used here.

#ifndef GRADCOMP_CORE_ENTROPY_MATH_H_
#define GRADCOMP_CORE_ENTROPY_MATH_H_

#include <algorithm>
#include <cstdint>

#include "host_device.h"

namespace gradcomp {

constexpr int32_t kMantissaBits = 23;
constexpr uint32_t kMantissaMask = (1u << kMantissaBits) - 1;

struct EntropyStep {
  int32_t exponent;  // q: bits worth less than 2^(q - 127) are cut; -22..254
  int32_t width;     // w: mantissa bits of the data, 0..23; the others are 0 in every value
};

// A value as symbol, sign and kept mantissa bits, and what that decodes to.
struct EntropyValue {
  uint32_t symbol;  // the biased exponent, or 0 for what becomes zero
  uint32_t tail;    // sign + 2 * mantissa; 0 for symbol 0
  float decoded;
};

// Mantissa bits that follow `symbol` > 0.
GRADCOMP_HOST_DEVICE int32_t EntropyKeptBits(int32_t symbol, const EntropyStep& step) {
  const int32_t above = symbol - step.exponent;
  const int32_t kept = above < 0 ? 0 : above;
  return kept < step.width ? kept : step.width;
}

// The smallest exponent that does not become zero. Denormals (exponent 0) always do.
GRADCOMP_HOST_DEVICE int32_t EntropyLowest(const EntropyStep& step) {
  return step.exponent > 1 ? step.exponent : 1;
}

// What is added, half of the last kept bit, where bits were cut: the middle of their range.
GRADCOMP_HOST_DEVICE uint32_t EntropyHalf(int32_t kept, const EntropyStep& step) {
  return kept < step.width ? 1u << (kMantissaBits - 1 - kept) : 0u;
}

// Cuts the finite float with the pattern `bits`.
GRADCOMP_HOST_DEVICE EntropyValue EntropyCut(uint32_t bits, const EntropyStep& step) {
  const int32_t exponent = static_cast<int32_t>(bits >> kMantissaBits & 0xffu);
  const int32_t kept = EntropyKeptBits(exponent, step);
  const int32_t dropped = kMantissaBits - kept;
  const uint32_t tail = bits >> 31 | (bits & kMantissaMask) >> dropped << 1;
  const uint32_t decoded = bits >> dropped << dropped | EntropyHalf(kept, step);
  const uint32_t mask = exponent < EntropyLowest(step) ? 0u : ~0u;
  return {static_cast<uint32_t>(exponent) & mask, tail & mask, FloatOf(decoded & mask)};
}

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_ENTROPY_MATH_H_
