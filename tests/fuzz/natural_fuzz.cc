// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/core/natural.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/quantizer_harness.h"

using namespace gradcomp;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput input(data, size);
  const RandomKey key = input.Key();
  FuzzedQuantizer natural;
  natural.num_words = [](int64_t count) { return NaturalNumWords(count); };
  natural.encode = [&](const float* values, const float* residual, int64_t count,
                       const ParallelFor& parallel_for, uint32_t* words, float* error) {
    return NaturalEncode(values, residual, count, key, parallel_for, words, error);
  };
  natural.decode = NaturalDecode;
  FuzzQuantizer(natural, &input);
  return FinishInput();
}
