// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/core/uniform.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/quantizer_harness.h"

using namespace gradcomp;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput input(data, size);
  const bool stochastic = input.OneIn(2);
  const RandomKey key = input.Key();
  UniformParams params;
  params.num_bits = static_cast<int>(input.NumberOrAny(1, 8));
  params.block = input.OneIn(8) ? input.AnyNumber() : 32 * input.Number(1, 200);
  FuzzedQuantizer uniform;
  uniform.validity = ValidateUniform(params);
  uniform.num_words = [&](int64_t count) { return UniformNumWords(count, params); };
  uniform.encode = [&](const float* values, const float* residual, int64_t count,
                       const ParallelFor& parallel_for, uint32_t* words, float* error) {
    return UniformEncode(values, residual, count, stochastic ? &key : nullptr, params, parallel_for,
                         words, error);
  };
  uniform.decode = [&](const uint32_t* words, int64_t num_workers, int64_t words_per_worker,
                       int64_t count, bool sum, const ParallelFor& parallel_for, float* decoded) {
    return UniformDecode(words, num_workers, words_per_worker, count, params, sum, parallel_for,
                         decoded);
  };
  FuzzQuantizer(uniform, &input);
  return FinishInput();
}
