// SPDX-License-Identifier: Apache-2.0
// The codes of an entropy block, and how it finds those that make it fit.

#ifndef GRADCOMP_CORE_ENTROPY_CODE_H_
#define GRADCOMP_CORE_ENTROPY_CODE_H_

#include <array>
#include <cstdint>

#include "ceil_div.h"
#include "entropy_math.h"
#include "prefix_code.h"
#include "status.h"

namespace gradcomp {

constexpr int64_t kEntropyStream = 1024;  // values in a stream, which is read from first to last
constexpr int32_t kEntropyMinStep = -22;
constexpr int32_t kEntropyMaxStep = 254;
constexpr uint32_t kEntropyNonFinite = 0x80000000u;
constexpr int64_t kEntropyHeaderWords = 2;
constexpr int kEntropyWidthShift = 9;  // where the width lies in word 0, above the step

// The longest value: its symbol, its sign and its mantissa.
constexpr int64_t kEntropyMaxValueBits = kMaxCodeLength + 1 + kMantissaBits;
constexpr int64_t kEntropyMaxStreamBytes = kEntropyStream * kEntropyMaxValueBits / 8;

// A step and the code of the symbols that it leaves.
struct EntropyCode {
  EntropyStep step;
  CodeLengths lengths;
  int32_t first;  // of the exponents whose lengths travel; 0 if there is none
  int32_t range;  // how many there are

  int64_t num_words() const { return 1 + CeilDiv(range, 8); }

  // Whether all values have the same symbol, `first`, which takes no bits.
  bool is_lone() const { return range <= 1 && lengths[static_cast<size_t>(first)] == 0; }

  // Bits of a value with this symbol.
  int32_t Bits(int32_t symbol) const {
    const int32_t length = lengths[static_cast<size_t>(symbol)];
    return symbol == 0 ? length : length + 1 + EntropyKeptBits(symbol, step);
  }
};

// Bits of a value by its exponent, also where that becomes zero.
using EntropyCosts = std::array<uint16_t, kCodeSymbols>;
EntropyCosts CostsOf(const EntropyCode& code);

// The code for values with these exponents: `counts[e]` of them have exponent e < 255.
EntropyCode MakeEntropyCode(const SymbolCounts& counts, const EntropyStep& step);

// The smallest step with which `num_streams` streams of these values, with whatever else is in a
// block, surely fit in `num_words` words.
EntropyStep ChooseEntropyStep(const SymbolCounts& counts, int32_t width, int64_t num_streams,
                              int64_t num_words);

// Words before the streams: header, codes and sizes of streams.
inline int64_t EntropyStreamsAt(int64_t code_words, int64_t num_streams) {
  return kEntropyHeaderWords + code_words + CeilDiv(num_streams, 2);
}

// Writes the num_words() words of a code.
void WriteEntropyCode(const EntropyCode& code, uint32_t* words);

// Reads a code with this step from the first of `num_words` words. InvalidArgument for one that
// FORMAT.md says is refused.
Status ReadEntropyCode(const uint32_t* words, int64_t num_words, const EntropyStep& step,
                       EntropyCode* code);

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_ENTROPY_CODE_H_
