// SPDX-License-Identifier: Apache-2.0
// Shape functions that the ops of all quantizers share. `num_words(count)` gives the words of a
// block of `count` values.

#ifndef GRADCOMP_OPS_QUANTIZER_SHAPES_H_
#define GRADCOMP_OPS_QUANTIZER_SHAPES_H_

#include <cstdint>

#include "tensorflow/core/framework/shape_inference.h"

namespace gradcomp {

// Inputs values, residual and, with `has_key`, key; outputs words and error; attribute with_error.
template <typename NumWords>
absl::Status QuantizerEncodeShape(::tensorflow::shape_inference::InferenceContext* c, bool has_key,
                                  const NumWords& num_words) {
  using ::tensorflow::shape_inference::DimensionHandle;
  using ::tensorflow::shape_inference::ShapeHandle;
  if (has_key) {
    ShapeHandle key;
    DimensionHandle four;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &key));
    TF_RETURN_IF_ERROR(c->WithValue(c->Dim(key, 0), 4, &four));
  }
  const DimensionHandle count = c->NumElements(c->input(0));
  c->set_output(0, c->Vector(c->ValueKnown(count)
                                 ? c->MakeDim(static_cast<int64_t>(num_words(c->Value(count))))
                                 : c->UnknownDim()));
  bool with_error = false;
  TF_RETURN_IF_ERROR(c->GetAttr("with_error", &with_error));
  c->set_output(1, with_error ? c->input(0) : c->Vector(0));
  return absl::OkStatus();
}

// Inputs words and count; output decoded; attribute sum.
template <typename NumWords>
absl::Status QuantizerDecodeShape(::tensorflow::shape_inference::InferenceContext* c,
                                  const NumWords& num_words) {
  using ::tensorflow::shape_inference::DimensionHandle;
  using ::tensorflow::shape_inference::ShapeHandle;
  ShapeHandle words, unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &words));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &unused));
  DimensionHandle count;
  TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(1, &count));
  if (c->ValueKnown(count)) {
    DimensionHandle known;
    TF_RETURN_IF_ERROR(
        c->WithValue(c->Dim(words, 1), static_cast<int64_t>(num_words(c->Value(count))), &known));
  }
  bool sum = false;
  TF_RETURN_IF_ERROR(c->GetAttr("sum", &sum));
  c->set_output(0, sum ? c->Vector(count) : c->Matrix(c->Dim(words, 0), count));
  return absl::OkStatus();
}

}  // namespace gradcomp

#endif  // GRADCOMP_OPS_QUANTIZER_SHAPES_H_
