// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/core/narrow_float.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/quantizer_harness.h"

using namespace gradcomp;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput input(data, size);
  NarrowFloatParams params;
  params.type = static_cast<NarrowType>(input.NumberOrAny(0, 3));
  params.block = input.OneIn(8) ? input.AnyNumber() : 32 * input.Number(1, 200);
  FuzzedQuantizer narrow_float;
  narrow_float.validity = ValidateNarrowFloat(params);
  narrow_float.num_words = [&](int64_t count) { return NarrowFloatNumWords(count, params); };
  narrow_float.encode = [&](const float* values, const float* residual, int64_t count,
                            const ParallelFor& parallel_for, uint32_t* words, float* error) {
    return NarrowFloatEncode(values, residual, count, params, parallel_for, words, error);
  };
  narrow_float.decode = [&](const uint32_t* words, int64_t num_workers, int64_t words_per_worker,
                            int64_t count, bool sum, const ParallelFor& parallel_for,
                            float* decoded) {
    return NarrowFloatDecode(words, num_workers, words_per_worker, count, params, sum, parallel_for,
                             decoded);
  };
  FuzzQuantizer(narrow_float, &input);
  return FinishInput();
}
