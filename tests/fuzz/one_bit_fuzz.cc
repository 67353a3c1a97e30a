// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/core/one_bit.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/quantizer_harness.h"

using namespace gradcomp;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput input(data, size);
  OneBitParams params;
  params.block = input.OneIn(8) ? input.AnyNumber() : 4096 * input.Number(0, 3);
  FuzzedQuantizer one_bit;
  one_bit.validity = ValidateOneBit(params);
  one_bit.num_words = [&](int64_t count) { return OneBitNumWords(count, params); };
  one_bit.encode = [&](const float* values, const float* residual, int64_t count,
                       const ParallelFor& parallel_for, uint32_t* words, float* error) {
    return OneBitEncode(values, residual, count, params, parallel_for, words, error);
  };
  one_bit.decode = [&](const uint32_t* words, int64_t num_workers, int64_t words_per_worker,
                       int64_t count, bool sum, const ParallelFor& parallel_for, float* decoded) {
    return OneBitDecode(words, num_workers, words_per_worker, count, params, sum, parallel_for,
                        decoded);
  };
  FuzzQuantizer(one_bit, &input);
  return FinishInput();
}
