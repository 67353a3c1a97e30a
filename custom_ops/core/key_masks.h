// SPDX-License-Identifier: Apache-2.0
// Many keys, or signs, as masks: a bit each.

#ifndef GRADCOMP_CORE_KEY_MASKS_H_
#define GRADCOMP_CORE_KEY_MASKS_H_

#include <cstdint>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__CUDACC__) && \
    !defined(GRADCOMP_NO_MULTIVERSION)
#define GRADCOMP_KEY_MASKS_X86
#endif

namespace gradcomp {

// Sets bit i mod 64 of masks[i div 64] if keys[i] >= threshold, and clears it otherwise, for
// 64 * num_masks keys. Returns how many bits are set.
int64_t MaskKeys(const uint32_t* keys, int64_t num_masks, uint32_t threshold, uint64_t* masks);

// The same for the keys of real items (RealKey() in top_k_math.h).
int64_t MaskValues(const float* values, int64_t num_masks, uint32_t threshold, uint64_t* masks);

// The same for the sign bits of floats.
int64_t MaskSigns(const float* values, int64_t num_masks, uint64_t* masks);

#if defined(GRADCOMP_KEY_MASKS_X86)
// What they do on machines without AVX-512.
int64_t MaskKeysAvx2(const uint32_t* keys, int64_t num_masks, uint32_t threshold, uint64_t* masks);
int64_t MaskValuesAvx2(const float* values, int64_t num_masks, uint32_t threshold, uint64_t* masks);
int64_t MaskSignsAvx2(const float* values, int64_t num_masks, uint64_t* masks);
#endif

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_KEY_MASKS_H_
