// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/core/one_bit.h"
#include "custom_ops/ops/quantizer_shapes.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace gradcomp {
namespace {

using ::tensorflow::shape_inference::InferenceContext;

absl::Status ReadParams(InferenceContext* c, OneBitParams* params) {
  TF_RETURN_IF_ERROR(c->GetAttr("block", &params->block));
  if (Status status = ValidateOneBit(*params); !status.ok()) {
    return absl::InvalidArgumentError(status.message());
  }
  return absl::OkStatus();
}

absl::Status OneBitEncodeShape(InferenceContext* c) {
  OneBitParams params;
  TF_RETURN_IF_ERROR(ReadParams(c, &params));
  return QuantizerEncodeShape(c, /*has_key=*/false,
                              [&](int64_t count) { return OneBitNumWords(count, params); });
}

absl::Status OneBitDecodeShape(InferenceContext* c) {
  OneBitParams params;
  TF_RETURN_IF_ERROR(ReadParams(c, &params));
  return QuantizerDecodeShape(c, [&](int64_t count) { return OneBitNumWords(count, params); });
}

REGISTER_OP("Gradcomp>OneBitEncode")
    .Input("values: float32")
    .Input("residual: float32")
    .Output("words: int32")
    .Output("error: float32")
    .Attr("block: int")
    .Attr("with_error: bool")
    .SetShapeFn(OneBitEncodeShape)
    .Doc(R"doc(
Keeps the signs of x = values + residual and the mean magnitude of each block.

values: v floats, any shape.
residual: as many floats, or none: then x = values.
words: `[w]` the one bit block of the wire format (custom_ops/core/FORMAT.md), about 1.07 bits a
  value.
error: like `values`: x minus what it decodes to. 0 everywhere if any x is Inf or NaN, because then
  all decode to NaN. `[0]` without `with_error`.
block: values that share a scale, a multiple of 4096; 0 for one scale in all.
with_error: whether the error is wanted.
)doc");

REGISTER_OP("Gradcomp>OneBitDecode")
    .Input("words: int32")
    .Input("count: int64")
    .Output("decoded: float32")
    .Attr("block: int")
    .Attr("sum: bool")
    .SetShapeFn(OneBitDecodeShape)
    .Doc(R"doc(
Decodes the one bit blocks of all workers.

words: `[W, w]` a one bit block of the wire format for each of W workers.
count: scalar v: the number of values in each block.
decoded: `[W, v]`, or `[v]` with `sum`. NaN everywhere for a worker whose values held an Inf or NaN.
block: as given to the encoder.
sum: whether to add up the workers' values, in float32, in their order, from +0.
)doc");

}  // namespace
}  // namespace gradcomp
