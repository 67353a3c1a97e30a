// SPDX-License-Identifier: Apache-2.0
// Masks of keys against one comparison after the other.

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "custom_ops/core/bit_list.h"
#include "custom_ops/core/key_masks.h"
#include "tests/core/check.h"

namespace gradcomp {
namespace {

// Patterns of all kinds: zeros, denormals, infinities and NaN of both signs among them.
std::vector<uint32_t> Patterns(int64_t num_masks, std::mt19937* random) {
  const uint32_t special[] = {0,           0x80000000u, 1,           0x80000001u, 0x7f800000u,
                              0xff800000u, 0x7f800001u, 0x7fffffffu, 0xffffffffu, 0x7ff00000u};
  std::vector<uint32_t> patterns(static_cast<size_t>(64 * num_masks));
  for (uint32_t& pattern : patterns) {
    const uint32_t bits = (*random)();
    pattern = bits % 4 == 0 ? special[bits / 4 % 10] : static_cast<uint32_t>((*random)());
  }
  return patterns;
}

// FORMAT.md, section "Top-k".
uint32_t OracleRealKey(uint32_t pattern) { return std::min(pattern & 0x7fffffffu, 0x7f800000u); }

template <typename Reaches>
std::vector<uint64_t> OracleMasks(const std::vector<uint32_t>& patterns, const Reaches& reaches) {
  std::vector<uint64_t> masks(patterns.size() / 64);
  for (size_t i = 0; i < patterns.size(); ++i) {
    if (reaches(patterns[i])) masks[i / 64] |= uint64_t{1} << (i % 64);
  }
  return masks;
}

// Calls `mask(masks)` and compares what it writes and returns.
template <typename Mask>
void Expect(const std::vector<uint64_t>& expected, const Mask& mask) {
  std::vector<uint64_t> masks(expected.size() + 1, 0x5555555555555555u);
  int64_t bits = 0;
  for (uint64_t word : expected) bits += __builtin_popcountll(word);
  CHECK(mask(masks.data()) == bits);
  CHECK(masks.back() == 0x5555555555555555u);
  masks.pop_back();
  CHECK(masks == expected);
}

void TestMasks() {
  std::mt19937 random(7);
  for (int64_t num_masks : {0, 1, 2, 3, 16}) {
    const std::vector<uint32_t> keys = Patterns(num_masks, &random);
    std::vector<float> values(keys.size());
    if (num_masks > 0) std::memcpy(values.data(), keys.data(), keys.size() * sizeof(float));
    for (uint32_t threshold : {0u, 1u, 0x3f800000u, 0x7f800000u, 0x7f800001u, 0x7ff00001u,
                               0x80000000u, 0xffffffffu, static_cast<uint32_t>(random())}) {
      const auto of_keys =
          OracleMasks(keys, [threshold](uint32_t key) { return key >= threshold; });
      const auto of_values = OracleMasks(
          keys, [threshold](uint32_t pattern) { return OracleRealKey(pattern) >= threshold; });
      const auto mask_keys = [&](uint64_t* masks) {
        return MaskKeys(keys.data(), num_masks, threshold, masks);
      };
      const auto mask_values = [&](uint64_t* masks) {
        return MaskValues(values.data(), num_masks, threshold, masks);
      };
      Expect(of_keys, mask_keys);
      Expect(of_values, mask_values);
#if defined(GRADCOMP_KEY_MASKS_X86)
      if (!__builtin_cpu_supports("avx2")) continue;
      Expect(of_keys, [&](uint64_t* masks) {
        return MaskKeysAvx2(keys.data(), num_masks, threshold, masks);
      });
      Expect(of_values, [&](uint64_t* masks) {
        return MaskValuesAvx2(values.data(), num_masks, threshold, masks);
      });
#endif
    }
    const auto of_signs = OracleMasks(keys, [](uint32_t pattern) { return pattern >> 31 != 0; });
    Expect(of_signs, [&](uint64_t* masks) { return MaskSigns(values.data(), num_masks, masks); });
#if defined(GRADCOMP_KEY_MASKS_X86)
    if (!__builtin_cpu_supports("avx2")) continue;
    Expect(of_signs,
           [&](uint64_t* masks) { return MaskSignsAvx2(values.data(), num_masks, masks); });
#endif
  }
}

void TestBitList() {
  std::mt19937_64 random(11);
  for (int sparsity = 0; sparsity < 8; ++sparsity) {
    for (int64_t num_masks = 0; num_masks <= kListedMasks; ++num_masks) {
      std::vector<uint64_t> masks(static_cast<size_t>(num_masks));
      for (uint64_t& mask : masks) {
        mask = ~uint64_t{0};
        for (int i = 0; i < sparsity; ++i) mask &= random();
      }
      std::vector<uint16_t> expected;
      for (int64_t i = 0; i < 64 * num_masks; ++i) {
        if ((masks[i / 64] >> (i % 64) & 1) != 0) expected.push_back(static_cast<uint16_t>(i));
      }
      std::vector<uint16_t> bits(kBitListRoom);
      const int64_t count = ListBits(masks.data(), num_masks, bits.data());
      bits.resize(static_cast<size_t>(count));
      CHECK(bits == expected);
    }
  }
}

}  // namespace
}  // namespace gradcomp

int main() {
  gradcomp::TestMasks();
  gradcomp::TestBitList();
  return gradcomp::FinishTest();
}
