// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/core/natural.h"
#include "custom_ops/ops/quantizer_shapes.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace gradcomp {
namespace {

using ::tensorflow::shape_inference::InferenceContext;

absl::Status NaturalEncodeShape(InferenceContext* c) {
  return QuantizerEncodeShape(c, /*has_key=*/true, NaturalNumWords);
}

absl::Status NaturalDecodeShape(InferenceContext* c) {
  return QuantizerDecodeShape(c, NaturalNumWords);
}

REGISTER_OP("Gradcomp>NaturalEncode")
    .Input("values: float32")
    .Input("residual: float32")
    .Input("key: int32")
    .Output("words: int32")
    .Output("error: float32")
    .Attr("with_error: bool")
    .SetShapeFn(NaturalEncodeShape)
    .Doc(R"doc(
Rounds x = values + residual to powers of two, at random and without bias, in 8 bits each.

values: v floats, any shape.
residual: as many floats, or none: then x = values.
key: `[4]` seed, stream, bucket, step: equal keys and values give equal words.
words: `[1 + ceil(ceil(v / 4096) / 4) + ceil(v / 4)]` the natural block of the wire format
  (custom_ops/core/FORMAT.md).
error: like `values`: x minus what it decodes to. 0 everywhere if any x is Inf or NaN, because then
  all decode to NaN. `[0]` without `with_error`.
with_error: whether the error is wanted.
)doc");

REGISTER_OP("Gradcomp>NaturalDecode")
    .Input("words: int32")
    .Input("count: int64")
    .Output("decoded: float32")
    .Attr("sum: bool")
    .SetShapeFn(NaturalDecodeShape)
    .Doc(R"doc(
Decodes the natural blocks of all workers.

words: `[W, w]` a natural block of the wire format for each of W workers.
count: scalar v: the number of values in each block.
decoded: `[W, v]`, or `[v]` with `sum`. NaN everywhere for a worker whose values held an Inf or NaN.
sum: whether to add up the workers' values, in float32, in their order, from +0.
)doc");

}  // namespace
}  // namespace gradcomp
