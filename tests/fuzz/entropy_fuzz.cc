// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/core/entropy.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/quantizer_harness.h"

using namespace gradcomp;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput input(data, size);
  const EntropyParams params = {static_cast<double>(input.NumberOrAny(24, 192)) / 8.0};
  FuzzedQuantizer entropy;
  entropy.validity = ValidateEntropy(params);
  entropy.num_words = [&](int64_t count) { return EntropyNumWords(count, params); };
  entropy.encode = [&](const float* values, const float* residual, int64_t count,
                       const ParallelFor& parallel_for, uint32_t* words, float* error) {
    return EntropyEncode(values, residual, count, params, parallel_for, words, error);
  };
  entropy.decode = [&](const uint32_t* words, int64_t num_workers, int64_t words_per_worker,
                       int64_t count, bool sum, const ParallelFor& parallel_for, float* decoded) {
    return EntropyDecode(words, num_workers, words_per_worker, count, params, sum, parallel_for,
                         decoded);
  };
  FuzzQuantizer(entropy, &input);
  return FinishInput();
}
