// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "custom_ops/core/narrow_float.h"
#include "custom_ops/ops/quantizer_shapes.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace gradcomp {
namespace {

using ::tensorflow::shape_inference::InferenceContext;

absl::Status ReadParams(InferenceContext* c, NarrowFloatParams* params) {
  std::string dtype;
  TF_RETURN_IF_ERROR(c->GetAttr("dtype", &dtype));
  TF_RETURN_IF_ERROR(c->GetAttr("block", &params->block));
  Status status = NarrowTypeFromName(dtype, &params->type);
  if (status.ok()) status = ValidateNarrowFloat(*params);
  return status.ok() ? absl::OkStatus() : absl::InvalidArgumentError(status.message());
}

absl::Status NarrowFloatEncodeShape(InferenceContext* c) {
  NarrowFloatParams params;
  TF_RETURN_IF_ERROR(ReadParams(c, &params));
  return QuantizerEncodeShape(c, /*has_key=*/false,
                              [&](int64_t count) { return NarrowFloatNumWords(count, params); });
}

absl::Status NarrowFloatDecodeShape(InferenceContext* c) {
  NarrowFloatParams params;
  TF_RETURN_IF_ERROR(ReadParams(c, &params));
  return QuantizerDecodeShape(c, [&](int64_t count) { return NarrowFloatNumWords(count, params); });
}

REGISTER_OP("Gradcomp>NarrowFloatEncode")
    .Input("values: float32")
    .Input("residual: float32")
    .Output("words: int32")
    .Output("error: float32")
    .Attr("dtype: string")
    .Attr("block: int")
    .Attr("with_error: bool")
    .SetShapeFn(NarrowFloatEncodeShape)
    .Doc(R"doc(
Rounds x = values + residual to a narrower float, to nearest and ties to even.

values: v floats, any shape.
residual: as many floats, or none: then x = values.
words: `[w]` the narrow float block of the wire format (custom_ops/core/FORMAT.md).
error: like `values`: x minus what it decodes to. 0 everywhere if any x is Inf or NaN, because then
  all decode to NaN. `[0]` without `with_error`.
dtype: "float16", "bfloat16", "float8_e4m3" or "float8_e5m2".
block: float8: values that share a power of two as their scale, a multiple of 32 in 32..65536.
with_error: whether the error is wanted.
)doc");

REGISTER_OP("Gradcomp>NarrowFloatDecode")
    .Input("words: int32")
    .Input("count: int64")
    .Output("decoded: float32")
    .Attr("dtype: string")
    .Attr("block: int")
    .Attr("sum: bool")
    .SetShapeFn(NarrowFloatDecodeShape)
    .Doc(R"doc(
Decodes the narrow float blocks of all workers.

words: `[W, w]` a narrow float block of the wire format for each of W workers.
count: scalar v: the number of values in each block.
decoded: `[W, v]`, or `[v]` with `sum`. NaN everywhere for a worker whose values held an Inf or NaN.
dtype: as given to the encoder.
block: as given to the encoder.
sum: whether to add up the workers' values, in float32, in their order, from +0.
)doc");

}  // namespace
}  // namespace gradcomp
