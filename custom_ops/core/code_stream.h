// SPDX-License-Identifier: Apache-2.0
// A tile of codes of 1 to 16 bits to words and back, whatever its length: bit_pack.h for quantizers
// whose codes may be narrower or wider than range float's.
//
// Tiles are multiples of 32 codes, but for the last one of a stream, so that each starts on a word.

#ifndef GRADCOMP_CORE_CODE_STREAM_H_
#define GRADCOMP_CORE_CODE_STREAM_H_

#include <cstdint>

#include "bit_pack.h"

namespace gradcomp {

// Writes the PackedWords(count, num_bits) words of `count` codes below 2^num_bits, 1..16. `codes`
// has room for whole groups of 32; what follows the codes becomes 0.
void PackTile(int num_bits, uint32_t* codes, int64_t count, uint32_t* words);

// The inverse; `codes` has room for whole groups.
void UnpackTile(int num_bits, const uint32_t* words, int64_t count, uint32_t* codes);

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_CODE_STREAM_H_
