// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "custom_ops/core/range_float.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/quantizer_harness.h"

using namespace gradcomp;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput input(data, size);
  RangeFloatParams params;
  params.num_bits = static_cast<int>(input.NumberOrAny(6, 12));
  params.mantissa_bits =
      static_cast<int>(input.NumberOrAny(1, std::clamp(params.num_bits, 3, 12) - 2));
  const bool has_range = input.OneIn(4);
  const std::vector<float> bounds = input.Floats(2);
  const ValueRange range = {-std::fabs(bounds[0]), std::fabs(bounds[1])};
  FuzzedQuantizer range_float;
  range_float.validity = ValidateRangeFloat(params);
  if (has_range && !(std::isfinite(range.lo) && std::isfinite(range.hi))) return 0;
  range_float.num_words = [&](int64_t count) { return RangeFloatNumWords(count, params); };
  range_float.encode = [&](const float* values, const float*, int64_t count,
                           const ParallelFor& parallel_for, uint32_t* words, float* error) {
    return RangeFloatEncode(values, count, has_range ? &range : nullptr, params, parallel_for,
                            words, error);
  };
  range_float.decode = [&](const uint32_t* words, int64_t num_workers, int64_t words_per_worker,
                           int64_t count, bool, const ParallelFor& parallel_for, float* decoded) {
    return RangeFloatDecode(words, num_workers, words_per_worker, count, params, parallel_for,
                            decoded);
  };
  range_float.takes_residual = false;
  range_float.sums = false;
  FuzzQuantizer(range_float, &input);
  return FinishInput();
}
