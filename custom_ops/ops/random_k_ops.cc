// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/core/positions.h"
#include "custom_ops/ops/shape_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace gradcomp {
namespace {

using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

absl::Status RandomKPositionsShape(InferenceContext* c) {
  ShapeHandle key, unused;
  DimensionHandle four, n, k;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &key));
  TF_RETURN_IF_ERROR(c->WithValue(c->Dim(key, 0), 4, &four));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &unused));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 0, &unused));
  TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(1, &n));
  TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(2, &k));
  const bool known = c->ValueKnown(n) && c->ValueKnown(k);
  c->set_output(0, c->Vector(known ? c->MakeDim(PositionsNumWords(c->Value(n), c->Value(k)))
                                   : c->UnknownDim()));
  return absl::OkStatus();
}

absl::Status RandomKScaleShape(InferenceContext* c) {
  ShapeHandle kept, unused;
  TF_RETURN_IF_ERROR(ItemsShape(c, c->input(0), 1, &kept));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &unused));
  c->set_output(0, kept);
  return absl::OkStatus();
}

REGISTER_OP("Gradcomp>RandomKPositions")
    .Input("key: int32")
    .Input("size: int64")
    .Input("count: int64")
    .Output("positions: int32")
    .SetShapeFn(RandomKPositionsShape)
    .Doc(R"doc(
Draws k of n positions: one, uniformly, from each of k strata of about n/k items.

The same on every worker and device that has the same key, so positions need not travel.

key: `[4]` (seed, stream, bucket, step).
size: scalar n, 1 <= n < 2^32: the number of items.
count: scalar k, 1 <= k <= n: the number of positions.
positions: `[p]` the positions block of the wire format.
)doc");

REGISTER_OP("Gradcomp>RandomKScale")
    .Input("kept: float32")
    .Input("size: int64")
    .Output("scaled: float32")
    .SetShapeFn(RandomKScaleShape)
    .Doc(R"doc(
Multiplies each item kept by random-k by the number of items in its stratum.

That makes random-k unbiased. In place where nothing else reads `kept`.

kept: `[k]` real items or `[k, c]` items of c components, one from each stratum, in order.
size: scalar n, 1 <= n < 2^32: the number of items they were drawn from.
scaled: like `kept`.
)doc");

}  // namespace
}  // namespace gradcomp
