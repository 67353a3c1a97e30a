// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "custom_ops/core/dithering.h"
#include "custom_ops/ops/quantizer_shapes.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace gradcomp {
namespace {

using ::tensorflow::shape_inference::InferenceContext;

// What the layout follows from; the kernel checks the rest.
absl::Status ReadLayoutParams(InferenceContext* c, DitheringParams* params) {
  std::string norm_code;
  TF_RETURN_IF_ERROR(c->GetAttr("levels", &params->levels));
  TF_RETURN_IF_ERROR(c->GetAttr("block", &params->block));
  TF_RETURN_IF_ERROR(c->GetAttr("norm_code", &norm_code));
  params->natural_norms = norm_code == "natural";
  return absl::OkStatus();
}

absl::Status DitheringEncodeShape(InferenceContext* c) {
  DitheringParams params = {};
  TF_RETURN_IF_ERROR(ReadLayoutParams(c, &params));
  return QuantizerEncodeShape(c, /*has_key=*/true, [&params](int64_t count) {
    return DitheringLayout(count, params).num_words;
  });
}

absl::Status DitheringDecodeShape(InferenceContext* c) {
  DitheringParams params = {};
  TF_RETURN_IF_ERROR(ReadLayoutParams(c, &params));
  return QuantizerDecodeShape(
      c, [&params](int64_t count) { return DitheringLayout(count, params).num_words; });
}

REGISTER_OP("Gradcomp>DitheringEncode")
    .Input("values: float32")
    .Input("residual: float32")
    .Input("key: int32")
    .Output("words: int32")
    .Output("error: float32")
    .Attr("levels: int >= 1")
    .Attr("kind: {'natural', 'standard'}")
    .Attr("norm: {'inf', '2'}")
    .Attr("norm_code: {'float32', 'natural'}")
    .Attr("block: int >= 0")
    .Attr("with_error: bool")
    .SetShapeFn(DitheringEncodeShape)
    .Doc(R"doc(
Rounds x = values + residual to levels between 0 and a block's norm, at random and without bias.

values: v floats, any shape.
residual: as many floats, or none: then x = values.
key: `[4]` seed, stream, bucket, step: equal keys and values give equal words.
words: `[w]` the dithering block of the wire format (custom_ops/core/FORMAT.md).
error: like `values`: x minus what it decodes to. 0 everywhere if any x is Inf or NaN, because then
  all decode to NaN. `[0]` without `with_error`.
levels: s, the levels other than zero: 1..127 natural, 1..32767 standard ones.
kind: "natural" for the levels 2^(1-s), ..., 1/2, 1; "standard" for 1/s, 2/s, ..., 1.
norm: "inf" for the largest magnitude of a block, "2" for its Euclidean norm.
norm_code: "float32", or "natural" for norms rounded at random to powers of two, a byte each.
block: values that share a norm, a multiple of 32 up to 65536; 0 for all values.
with_error: whether the error is wanted.
)doc");

REGISTER_OP("Gradcomp>DitheringDecode")
    .Input("words: int32")
    .Input("count: int64")
    .Output("decoded: float32")
    .Attr("levels: int >= 1")
    .Attr("kind: {'natural', 'standard'}")
    .Attr("norm: {'inf', '2'}")
    .Attr("norm_code: {'float32', 'natural'}")
    .Attr("block: int >= 0")
    .Attr("sum: bool")
    .SetShapeFn(DitheringDecodeShape)
    .Doc(R"doc(
Decodes the dithering blocks of all workers.

words: `[W, w]` a dithering block of the wire format for each of W workers.
count: scalar v: the number of values in each block.
decoded: `[W, v]`, or `[v]` with `sum`. NaN everywhere for a worker whose values held an Inf or NaN.
levels: as given to the encoder; and likewise kind, norm, norm_code and block.
sum: whether to add up the workers' values, in float32, in their order, from +0.
)doc");

}  // namespace
}  // namespace gradcomp
