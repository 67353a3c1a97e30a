// SPDX-License-Identifier: Apache-2.0
// What encoding and decoding of the dithering block share; for dithering*.cc only.

#ifndef GRADCOMP_CORE_DITHERING_BLOCK_H_
#define GRADCOMP_CORE_DITHERING_BLOCK_H_

#include <cstdint>

#include "dithering.h"

namespace gradcomp {

// Values coded at a time, in arrays that stay in the first-level cache.
constexpr int64_t kDitheringTile = 128;

constexpr uint32_t kDitheringNonFinite = 0x80000000u;  // of word 0

// Word 0 of finite values.
inline uint32_t DitheringParameterWord(const DitheringParams& params) {
  return static_cast<uint32_t>(params.levels) | (params.standard ? 1u << 16 : 0u) |
         (params.norm == NormKind::kTwo ? 1u << 17 : 0u) | (params.natural_norms ? 1u << 18 : 0u);
}

// The dithering block of one worker, to be written or read.
template <typename Word>
struct DitheringBlock {
  DitheringBlock(Word* words, const DitheringLayout& layout)
      : header(words), norms(words + DitheringLayout::norms), codes(words + layout.codes) {}

  bool NonFinite() const { return (header[0] & kDitheringNonFinite) != 0; }

  Word* header;
  Word* norms;  // a float or a byte each
  Word* codes;
};

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_DITHERING_BLOCK_H_
