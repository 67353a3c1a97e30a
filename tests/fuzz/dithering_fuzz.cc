// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/core/dithering.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/quantizer_harness.h"

using namespace gradcomp;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput input(data, size);
  const RandomKey key = input.Key();
  const uint8_t kind = input.Byte();
  DitheringParams params;
  params.standard = kind % 2 != 0;
  params.norm = kind / 2 % 2 != 0 ? NormKind::kTwo : NormKind::kInf;
  params.natural_norms = kind / 4 % 2 != 0;
  params.levels = static_cast<int32_t>(input.NumberOrAny(1, params.standard ? 32767 : 127));
  params.block = input.OneIn(8) ? input.AnyNumber() : 32 * input.Number(0, 200);
  FuzzedQuantizer dithering;
  dithering.validity = ValidateDithering(params);
  dithering.num_words = [&](int64_t count) { return DitheringLayout(count, params).num_words; };
  dithering.encode = [&](const float* values, const float* residual, int64_t count,
                         const ParallelFor& parallel_for, uint32_t* words, float* error) {
    return DitheringEncode(values, residual, count, key, params, parallel_for, words, error);
  };
  dithering.decode = [&](const uint32_t* words, int64_t num_workers, int64_t words_per_worker,
                         int64_t count, bool sum, const ParallelFor& parallel_for, float* decoded) {
    return DitheringDecode(words, num_workers, words_per_worker, count, params, sum, parallel_for,
                           decoded);
  };
  FuzzQuantizer(dithering, &input);
  return FinishInput();
}
