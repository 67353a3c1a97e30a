// SPDX-License-Identifier: Apache-2.0
// Prefix codes of limited length, as FORMAT.md, section "Entropy block", builds them: optimal
// lengths by package-merge (Larmore and Hirschberg, "A Fast Algorithm for Optimal Length-Limited
// Huffman Codes", JACM 1990), and canonical codewords, which follow from the lengths.
//
// A symbol of length 0 does not occur, with one exception: a code of a single symbol has no bits,
// so that all its lengths are 0.

#ifndef GRADCOMP_CORE_PREFIX_CODE_H_
#define GRADCOMP_CORE_PREFIX_CODE_H_

#include <array>
#include <cstdint>

namespace gradcomp {

constexpr int kCodeSymbols = 256;
constexpr int kMaxCodeLength = 12;

using CodeLengths = std::array<uint8_t, kCodeSymbols>;
using Codewords = std::array<uint16_t, kCodeSymbols>;
using SymbolCounts = std::array<int64_t, kCodeSymbols>;

// The lengths, at most kMaxCodeLength, that take the fewest bits for symbols that occur `counts`
// times (>= 0, at most 2^48 in all).
CodeLengths LimitedCodeLengths(const SymbolCounts& counts);

// Whether these lengths leave no sequence of bits without a meaning: no length is above
// kMaxCodeLength, and the lengths other than 0 fill the code. Not for a code of a single symbol.
bool IsCompleteCode(const CodeLengths& lengths);

// The codewords of a complete code, as they lie in a stream: first bit lowest.
Codewords CanonicalCodewords(const CodeLengths& lengths);

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_PREFIX_CODE_H_
