// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/core/uniform.h"
#include "custom_ops/ops/quantizer_shapes.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace gradcomp {
namespace {

using ::tensorflow::shape_inference::InferenceContext;

absl::Status ReadParams(InferenceContext* c, UniformParams* params) {
  TF_RETURN_IF_ERROR(c->GetAttr("num_bits", &params->num_bits));
  TF_RETURN_IF_ERROR(c->GetAttr("block", &params->block));
  if (Status status = ValidateUniform(*params); !status.ok()) {
    return absl::InvalidArgumentError(status.message());
  }
  return absl::OkStatus();
}

absl::Status UniformEncodeShape(InferenceContext* c) {
  UniformParams params;
  TF_RETURN_IF_ERROR(ReadParams(c, &params));
  return QuantizerEncodeShape(c, /*has_key=*/true,
                              [&](int64_t count) { return UniformNumWords(count, params); });
}

absl::Status UniformDecodeShape(InferenceContext* c) {
  UniformParams params;
  TF_RETURN_IF_ERROR(ReadParams(c, &params));
  return QuantizerDecodeShape(c, [&](int64_t count) { return UniformNumWords(count, params); });
}

REGISTER_OP("Gradcomp>UniformEncode")
    .Input("values: float32")
    .Input("residual: float32")
    .Input("key: int32")
    .Output("words: int32")
    .Output("error: float32")
    .Attr("num_bits: int")
    .Attr("block: int")
    .Attr("stochastic: bool")
    .Attr("with_error: bool")
    .SetShapeFn(UniformEncodeShape)
    .Doc(R"doc(
Rounds x = values + residual to evenly spaced levels between each block's extremes.

values: v floats, any shape.
residual: as many floats, or none: then x = values.
key: `[4]` seed, stream, bucket, step of the random numbers; not read unless `stochastic`.
words: `[1 + 2 * ceil(v / block) + ceil(v * num_bits / 32)]` the uniform block of the wire format
  (custom_ops/core/FORMAT.md).
error: like `values`: x minus what it decodes to. 0 everywhere if any x is Inf or NaN, because then
  all decode to NaN. `[0]` without `with_error`.
num_bits: bits of a code, 1..8.
block: values that share their extremes, a multiple of 32 in 32..65536.
stochastic: whether to round at random, without bias, instead of to nearest.
with_error: whether the error is wanted.
)doc");

REGISTER_OP("Gradcomp>UniformDecode")
    .Input("words: int32")
    .Input("count: int64")
    .Output("decoded: float32")
    .Attr("num_bits: int")
    .Attr("block: int")
    .Attr("sum: bool")
    .SetShapeFn(UniformDecodeShape)
    .Doc(R"doc(
Decodes the uniform blocks of all workers.

words: `[W, w]` a uniform block of the wire format for each of W workers.
count: scalar v: the number of values in each block.
decoded: `[W, v]`, or `[v]` with `sum`. NaN everywhere for a worker whose values held an Inf or NaN.
num_bits: as given to the encoder.
block: as given to the encoder.
sum: whether to add up the workers' values, in float32, in their order, from +0.
)doc");

}  // namespace
}  // namespace gradcomp
