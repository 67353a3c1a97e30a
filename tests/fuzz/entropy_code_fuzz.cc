// SPDX-License-Identifier: Apache-2.0
// Codes of an entropy block: any words are refused or are a code, and that code the same words
// again.

#include <vector>

#include "custom_ops/core/entropy_code.h"
#include "tests/core/check.h"
#include "tests/fuzz/fuzz_input.h"

using namespace gradcomp;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput input(data, size);
  const EntropyStep step = {static_cast<int32_t>(input.Number(kEntropyMinStep, kEntropyMaxStep)),
                            static_cast<int32_t>(input.Number(0, kMantissaBits))};
  std::vector<uint32_t> words;
  if (input.OneIn(4)) {
    words = input.Words(input.Number(0, 40));
  } else {
    SymbolCounts counts = {};
    for (int64_t i = input.Number(0, 40); i >= 0; --i) {
      counts[static_cast<size_t>(input.Number(0, 254))] += input.Number(0, 1000);
    }
    const EntropyCode made = MakeEntropyCode(counts, step);
    words.resize(static_cast<size_t>(made.num_words()));
    WriteEntropyCode(made, words.data());
    input.Damage(&words);
  }
  EntropyCode code;
  if (!ReadEntropyCode(words.data(), static_cast<int64_t>(words.size()), step, &code).ok()) {
    return FinishInput();
  }
  CHECK(code.is_lone() || IsCompleteCode(code.lengths));
  CHECK(code.num_words() <= static_cast<int64_t>(words.size()));
  words.resize(static_cast<size_t>(code.num_words()));
  std::vector<uint32_t> again(words.size(), 0xdeadbeefu);
  WriteEntropyCode(code, again.data());
  CHECK(again == words);
  return FinishInput();
}
