// SPDX-License-Identifier: Apache-2.0
// Conversions between binary32 and narrower floats for one value, for CPU and CUDA. FORMAT.md,
// section "Narrow float block", defines every name used here.

#ifndef GRADCOMP_CORE_NARROW_FLOAT_MATH_H_
#define GRADCOMP_CORE_NARROW_FLOAT_MATH_H_

#include <cstdint>

#include "host_device.h"

namespace gradcomp {

// A format of 1 sign bit, some exponent bits and M mantissa bits, as the conversions need it.
// Magnitudes below `min_normal` have codes that count the format's denormal step; `magic` is the
// power of two whose last mantissa bit is worth that step. Formats with a block scale take values
// of at most 1.75, the mantissa of their largest number: 1.0 has the code of the last exponent.
struct NarrowFormat {
  int32_t shift;       // 23 - M: mantissa bits dropped
  int32_t rebias;      // pattern of binary32 minus that of the format (shifted), for normal numbers
  int32_t min_normal;  // pattern of the smallest normal number
  int32_t magic;       // pattern of `magic`
  int32_t limit;       // code of the largest finite magnitude
  int32_t sign_shift;  // binary32's sign bit goes down by as many bits
};

// The format with the smallest normal number 2^min_exponent (in binary32's scale) and M mantissa
// bits. Not for bfloat16, whose denormals are those of binary32.
constexpr NarrowFormat MakeNarrowFormat(int num_bits, int mantissa_bits, int min_exponent,
                                        int32_t limit) {
  return {23 - mantissa_bits,
          (min_exponent + 126) << 23,
          (min_exponent + 127) << 23,
          (min_exponent - mantissa_bits + 23 + 127) << 23,
          limit,
          32 - num_bits};
}

// 1 5 10, 1 8 7, 1 4 3 and 1 5 2 bits. The last two relative to their last exponent, 8 and 15.
constexpr NarrowFormat kNarrowFloat16 = MakeNarrowFormat(16, 10, -14, 0x7bff);
constexpr NarrowFormat kNarrowBfloat16 = {16, 0, 0, 0, 0x7f7f, 16};
constexpr NarrowFormat kNarrowE4m3 = MakeNarrowFormat(8, 3, -6 - 8, 0x7e);
constexpr NarrowFormat kNarrowE5m2 = MakeNarrowFormat(8, 2, -14 - 15, 0x7b);

// The code of the finite float with the pattern `bits`: to nearest, ties to even, codes of
// magnitudes at most `limit`, which is that of the format or below.
GRADCOMP_HOST_DEVICE uint32_t NarrowEncodeOne(uint32_t bits, const NarrowFormat& format,
                                              int32_t limit) {
  const uint32_t magnitude = bits & ~kSignBit;
  const uint32_t half = (1u << (format.shift - 1)) - 1;
  const uint32_t odd = magnitude >> format.shift & 1u;
  const uint32_t rebased = magnitude + half + odd - static_cast<uint32_t>(format.rebias);
  const int32_t normal = static_cast<int32_t>(rebased) >> format.shift;
  // The addition rounds to a multiple of the denormal step.
  const float rounded = FloatOf(magnitude) + FloatOf(static_cast<uint32_t>(format.magic));
  const int32_t denormal = static_cast<int32_t>(BitsOf(rounded)) - format.magic;
  const bool is_normal = magnitude >= static_cast<uint32_t>(format.min_normal);
  const int32_t code = is_normal ? normal : denormal;
  return static_cast<uint32_t>(code < limit ? code : limit) |
         (bits & kSignBit) >> format.sign_shift;
}

// The float that `code` stands for, before any block scale. Any bits give a number: a decoder does
// not look for codes that do not occur.
GRADCOMP_HOST_DEVICE float NarrowDecodeOne(uint32_t code, const NarrowFormat& format) {
  const uint32_t sign = code << format.sign_shift & kSignBit;
  const int32_t magnitude = static_cast<int32_t>(code & ((kSignBit >> format.sign_shift) - 1));
  const int32_t normal = (magnitude << format.shift) + format.rebias;
  // Denormal codes: the addition puts them into the last bits of `magic`, and is undone exactly.
  const float magic = FloatOf(static_cast<uint32_t>(format.magic));
  const float denormal = FloatOf(static_cast<uint32_t>(format.magic + magnitude)) - magic;
  const uint32_t bits =
      normal < format.min_normal ? BitsOf(denormal) : static_cast<uint32_t>(normal);
  return FloatOf(bits | sign);
}

// The scale byte S of a block whose largest magnitude has the pattern `largest`: the smallest with
// that magnitude at most 1.75 * 2^(S - 127).
GRADCOMP_HOST_DEVICE int32_t NarrowScaleByte(int32_t largest) {
  if (largest <= 0x700000) return 0;  // 1.75 * 2^-127, a denormal
  const int32_t exponent = largest >> 23;
  if (exponent == 0) return 1;
  return exponent + ((largest & 0x7fffff) > 0x600000 ? 1 : 0);
}

// 2^exponent for -149 <= exponent <= 127.
GRADCOMP_HOST_DEVICE float PowerOfTwo(int32_t exponent) {
  return FloatOf(exponent >= -126 ? static_cast<uint32_t>(exponent + 127) << 23
                                  : 1u << (exponent + 149));
}

// How one block of a float8 format is scaled.
struct NarrowScale {
  float down;     // values are multiplied by it before coding
  float up_half;  // what a code stands for is doubled, which is exact, and multiplied by it
  int32_t limit;  // largest code of a magnitude
};

// The scale of the byte S. 2^(S - 127) itself would not be finite for S = 255, and neither would
// 1.0 times that be: the codes from 1.0 (0x78) on are not used then.
GRADCOMP_HOST_DEVICE NarrowScale MakeNarrowScale(int32_t scale_byte, const NarrowFormat& format) {
  NarrowScale scale;
  scale.down = PowerOfTwo(127 - scale_byte);
  scale.up_half = PowerOfTwo(scale_byte - 128);
  scale.limit = scale_byte < 255 ? format.limit : 0x77;
  return scale;
}

GRADCOMP_HOST_DEVICE uint32_t NarrowEncodeScaled(float x, const NarrowFormat& format,
                                                 const NarrowScale& scale) {
  return NarrowEncodeOne(BitsOf(x * scale.down), format, scale.limit);
}

GRADCOMP_HOST_DEVICE float NarrowDecodeScaled(uint32_t code, const NarrowFormat& format,
                                              const NarrowScale& scale) {
  const float relative = NarrowDecodeOne(code, format);
  return (relative + relative) * scale.up_half;
}

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_NARROW_FLOAT_MATH_H_
