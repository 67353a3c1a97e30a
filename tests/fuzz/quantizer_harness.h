// SPDX-License-Identifier: Apache-2.0
// What the fuzz targets of all quantizers do with an input.

#ifndef GRADCOMP_TESTS_FUZZ_QUANTIZER_HARNESS_H_
#define GRADCOMP_TESTS_FUZZ_QUANTIZER_HARNESS_H_

#include <cstdint>
#include <functional>

#include "custom_ops/core/parallel.h"
#include "custom_ops/core/status.h"
#include "tests/fuzz/fuzz_input.h"

namespace gradcomp {

// A quantizer with its parameters, as quantizer headers describe these functions.
struct FuzzedQuantizer {
  Status validity;  // of the parameters
  std::function<int64_t(int64_t count)> num_words;
  std::function<Status(const float* values, const float* residual, int64_t count,
                       const ParallelFor& parallel_for, uint32_t* words, float* error)>
      encode;
  std::function<Status(const uint32_t* words, int64_t num_workers, int64_t words_per_worker,
                       int64_t count, bool sum, const ParallelFor& parallel_for, float* decoded)>
      decode;
  bool takes_residual = true;  // else `residual` is always null
  bool sums = true;            // else `sum` is always false
};

// Does one of three things, and checks the promises of the header:
// - encodes any floats, and decodes what that gives;
// - decodes payloads that are damaged or made up;
// - calls both with sizes or parameters that are impossible.
void FuzzQuantizer(const FuzzedQuantizer& quantizer, FuzzInput* input);

}  // namespace gradcomp

#endif  // GRADCOMP_TESTS_FUZZ_QUANTIZER_HARNESS_H_
