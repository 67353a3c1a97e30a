// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/core/range_float.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace gradcomp {
namespace {

using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

absl::Status ReadParams(InferenceContext* c, RangeFloatParams* params) {
  TF_RETURN_IF_ERROR(c->GetAttr("num_bits", &params->num_bits));
  return c->GetAttr("mantissa_bits", &params->mantissa_bits);
}

absl::Status RangeFloatEncodeShape(InferenceContext* c) {
  RangeFloatParams params;
  TF_RETURN_IF_ERROR(ReadParams(c, &params));
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &unused));
  const DimensionHandle count = c->NumElements(c->input(0));
  c->set_output(
      0, c->Vector(c->ValueKnown(count) ? c->MakeDim(RangeFloatNumWords(c->Value(count), params))
                                        : c->UnknownDim()));
  c->set_output(1, c->input(0));
  return absl::OkStatus();
}

absl::Status RangeFloatDecodeShape(InferenceContext* c) {
  RangeFloatParams params;
  TF_RETURN_IF_ERROR(ReadParams(c, &params));
  ShapeHandle words, unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &words));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &unused));
  DimensionHandle count;
  TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(1, &count));
  if (c->ValueKnown(count)) {
    DimensionHandle num_words;
    TF_RETURN_IF_ERROR(
        c->WithValue(c->Dim(words, 1), RangeFloatNumWords(c->Value(count), params), &num_words));
  }
  c->set_output(0, c->Matrix(c->Dim(words, 0), count));
  return absl::OkStatus();
}

REGISTER_OP("Gradcomp>RangeFloatEncode")
    .Input("values: float32")
    .Input("range: float32")
    .Output("words: int32")
    .Output("error: float32")
    .Attr("num_bits: int >= 6")
    .Attr("mantissa_bits: int >= 1")
    .SetShapeFn(RangeFloatEncodeShape)
    .Doc(R"doc(
Quantizes floats to N bits with binary32's spacing inside the range of the values.

values: v floats, any shape.
range: `[0]` to take the bounds from the values, or `[2]`: lo <= 0 <= hi, finite; values outside
  saturate.
words: `[3 + ceil(v * N / 32)]` the range float block of the wire format
  (custom_ops/core/FORMAT.md).
error: like `values`: values minus what they decode to. 0 everywhere if any value is Inf or NaN,
  because then all decode to NaN.
num_bits: N, bits of a code, 6..12.
mantissa_bits: mantissa bits kept, 1..N-2.
)doc");

REGISTER_OP("Gradcomp>RangeFloatDecode")
    .Input("words: int32")
    .Input("count: int64")
    .Output("values: float32")
    .Attr("num_bits: int >= 6")
    .Attr("mantissa_bits: int >= 1")
    .SetShapeFn(RangeFloatDecodeShape)
    .Doc(R"doc(
Decodes the range float blocks of all workers.

words: `[W, w]` a range float block of the wire format for each of W workers.
count: scalar v: the number of values in each block.
values: `[W, v]`. NaN everywhere for a worker whose values held an Inf or NaN.
num_bits: N, bits of a code, 6..12; must be what the blocks were made with.
mantissa_bits: mantissa bits kept, 1..N-2; likewise.
)doc");

}  // namespace
}  // namespace gradcomp
