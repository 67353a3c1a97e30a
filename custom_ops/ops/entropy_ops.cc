// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/core/entropy.h"
#include "custom_ops/ops/quantizer_shapes.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace gradcomp {
namespace {

using ::tensorflow::shape_inference::InferenceContext;

absl::Status ReadParams(InferenceContext* c, EntropyParams* params) {
  float bits;
  TF_RETURN_IF_ERROR(c->GetAttr("bits", &bits));
  params->bits = bits;
  const Status status = ValidateEntropy(*params);
  return status.ok() ? absl::OkStatus() : absl::InvalidArgumentError(status.message());
}

absl::Status EntropyEncodeShape(InferenceContext* c) {
  EntropyParams params;
  TF_RETURN_IF_ERROR(ReadParams(c, &params));
  return QuantizerEncodeShape(c, /*has_key=*/false,
                              [&](int64_t count) { return EntropyNumWords(count, params); });
}

absl::Status EntropyDecodeShape(InferenceContext* c) {
  EntropyParams params;
  TF_RETURN_IF_ERROR(ReadParams(c, &params));
  return QuantizerDecodeShape(c, [&](int64_t count) { return EntropyNumWords(count, params); });
}

REGISTER_OP("Gradcomp>EntropyEncode")
    .Input("values: float32")
    .Input("residual: float32")
    .Output("words: int32")
    .Output("error: float32")
    .Attr("bits: float")
    .Attr("with_error: bool")
    .SetShapeFn(EntropyEncodeShape)
    .Doc(R"doc(
Codes x = values + residual with Huffman-coded exponents and mantissas cut at a common step.

values: v floats, any shape.
residual: as many floats, or none: then x = values.
words: `[w]` the entropy block of the wire format (custom_ops/core/FORMAT.md).
error: like `values`: x minus what it decodes to. 0 everywhere if any x is Inf or NaN, because then
  all decode to NaN. `[0]` without `with_error`.
bits: of a value on average, a multiple of 1/8 in 3..24.
with_error: whether the error is wanted.
)doc");

REGISTER_OP("Gradcomp>EntropyDecode")
    .Input("words: int32")
    .Input("count: int64")
    .Output("decoded: float32")
    .Attr("bits: float")
    .Attr("sum: bool")
    .SetShapeFn(EntropyDecodeShape)
    .Doc(R"doc(
Decodes the entropy blocks of all workers.

words: `[W, w]` an entropy block of the wire format for each of W workers.
count: scalar v: the number of values in each block.
decoded: `[W, v]`, or `[v]` with `sum`. NaN everywhere for a worker whose values held an Inf or NaN.
bits: as given to the encoder.
sum: whether to add up the workers' values, in float32, in their order, from +0.
)doc");

}  // namespace
}  // namespace gradcomp
