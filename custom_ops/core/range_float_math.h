// SPDX-License-Identifier: Apache-2.0
// Arithmetic of the range float code for one value, for CPU and CUDA. FORMAT.md, section "Range
// float block", defines every name used here.

#ifndef GRADCOMP_CORE_RANGE_FLOAT_MATH_H_
#define GRADCOMP_CORE_RANGE_FLOAT_MATH_H_

#include <cstdint>

#include "host_device.h"

namespace gradcomp {

// The code table of one payload.
struct RangeFloatTable {
  int32_t shift;         // s: mantissa bits dropped, 13..22
  int32_t half_step;     // H = 2^(s-1)
  int32_t lattice_max;   // index of the largest finite lattice point
  int32_t first;         // p: lattice index of eps, at least 1
  int32_t positive;      // P: number of positive codes
  int32_t negative;      // Q: number of negative codes
  int32_t nonzero_bits;  // pattern of eps / 2: magnitudes below it get code 0
};

// u(x) for the pattern of abs(x), which is finite.
GRADCOMP_HOST_DEVICE int32_t RangeFloatLattice(int32_t magnitude, int32_t shift, int32_t half_step,
                                               int32_t lattice_max) {
  const int32_t index = (magnitude + half_step) >> shift;
  return index < lattice_max ? index : lattice_max;
}

// The pattern of eps / 2 for the pattern of eps, a lattice point other than 0. The half is exact:
// among normal numbers always, and among denormals because lattice points have trailing zeros.
GRADCOMP_HOST_DEVICE int32_t RangeFloatHalfBits(int32_t eps_bits) {
  constexpr int32_t kExponentOne = 1 << 23;
  // Below exponent 2 a half is denormal, and a pattern counts multiples of 2^-149.
  return eps_bits >= 2 * kExponentOne ? eps_bits - kExponentOne : eps_bits >> 1;
}

// The table for lo <= 0 <= hi, both finite; 6 <= num_bits <= 12, 1 <= mantissa_bits <= num_bits-2.
GRADCOMP_HOST_DEVICE RangeFloatTable MakeRangeFloatTable(float lo, float hi, int num_bits,
                                                         int mantissa_bits) {
  RangeFloatTable table;
  table.shift = 23 - mantissa_bits;
  table.half_step = 1 << (table.shift - 1);
  table.lattice_max = 0x7f7fffff >> table.shift;
  const int32_t upper = RangeFloatLattice(static_cast<int32_t>(BitsOf(hi) & ~kSignBit), table.shift,
                                          table.half_step, table.lattice_max);
  const int32_t lower = RangeFloatLattice(static_cast<int32_t>(BitsOf(lo) & ~kSignBit), table.shift,
                                          table.half_step, table.lattice_max);
  const int32_t codes = (1 << num_bits) - 1;
  const int32_t larger = upper > lower ? upper : lower;
  const int32_t smaller = upper > lower ? lower : upper;
  table.first = larger - codes + 1;  // all codes to one sign: more than b, so at least 1
  if (table.first <= smaller) {
    // Both signs get codes: ceil(x / 2) is (x + 1) / 2 for x > 0, and other x end up at 1.
    const int32_t twice = larger + smaller + 2 - codes;
    table.first = twice > 0 ? (twice + 1) / 2 : 1;
  }
  table.positive = upper >= table.first ? upper - table.first + 1 : 0;
  table.negative = lower >= table.first ? lower - table.first + 1 : 0;
  table.nonzero_bits = RangeFloatHalfBits(table.first << table.shift);
  return table;
}

// A value's code, and the pattern of the float it decodes to.
struct RangeFloatCode {
  int32_t code;
  uint32_t decoded_bits;
};

// Encodes the finite float with the pattern `bits`.
GRADCOMP_HOST_DEVICE RangeFloatCode RangeFloatEncodeOne(uint32_t bits,
                                                        const RangeFloatTable& table) {
  const int32_t magnitude = static_cast<int32_t>(bits & ~kSignBit);
  const uint32_t sign = bits & kSignBit;
  const int32_t limit = sign != 0 ? table.negative : table.positive;
  int32_t step = RangeFloatLattice(magnitude, table.shift, table.half_step, table.lattice_max) -
                 table.first + 1;
  // Between eps / 2 and eps the lattice index may still be below p: round up to eps.
  step = step > 1 ? step : 1;
  step = magnitude >= table.nonzero_bits ? step : 0;
  step = step < limit ? step : limit;
  const int32_t offset = sign != 0 ? table.positive : 0;
  const uint32_t pattern = static_cast<uint32_t>(step - 1 + table.first) << table.shift;
  RangeFloatCode result;
  result.code = step != 0 ? step + offset : 0;
  result.decoded_bits = step != 0 ? pattern | sign : 0u;
  return result;
}

// The pattern of the float that `code` (0 .. 2^N - 1) decodes to; NaN if the table has no such
// code.
GRADCOMP_HOST_DEVICE uint32_t RangeFloatDecodeOne(int32_t code, const RangeFloatTable& table) {
  const bool is_negative = code > table.positive;
  const int32_t step = is_negative ? code - table.positive : code;
  uint32_t bits = static_cast<uint32_t>(step - 1 + table.first) << table.shift;
  bits |= is_negative ? kSignBit : 0u;
  bits = code == 0 ? 0u : bits;
  return code > table.positive + table.negative ? kNanBits : bits;
}

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_RANGE_FLOAT_MATH_H_
