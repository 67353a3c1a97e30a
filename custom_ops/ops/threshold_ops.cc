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

// Of both ops: with a fourth input, the residual, there is a third output, the sum.
absl::Status ThresholdSelectShape(InferenceContext* c) {
  ShapeHandle values = c->input(0), unused;
  if (c->num_inputs() == 4) TF_RETURN_IF_ERROR(c->Merge(values, c->input(3), &values));
  TF_RETURN_IF_ERROR(ItemsShape(c, values, 1, &values));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &unused));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 0, &unused));
  DimensionHandle capacity;
  TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(2, &capacity));
  DimensionHandle num_words = c->UnknownDim();
  if (c->RankKnown(values) && c->ValueKnown(c->Dim(values, 0)) && c->ValueKnown(capacity)) {
    num_words =
        c->MakeDim(PositionsNumWords(c->Value(c->Dim(values, 0)), c->Value(capacity), true));
  }
  c->set_output(0, c->Vector(num_words));
  ShapeHandle kept = c->UnknownShape();
  if (c->RankKnown(values)) TF_RETURN_IF_ERROR(c->ReplaceDim(values, 0, capacity, &kept));
  c->set_output(1, kept);
  if (c->num_inputs() == 4) c->set_output(2, values);
  return absl::OkStatus();
}

absl::Status SampledThresholdShape(InferenceContext* c) {
  ShapeHandle values, key, unused;
  DimensionHandle four;
  TF_RETURN_IF_ERROR(ItemsShape(c, c->input(0), 1, &values));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &key));
  TF_RETURN_IF_ERROR(c->WithValue(c->Dim(key, 0), 4, &four));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 0, &unused));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(3), 0, &unused));
  c->set_output(0, c->Scalar());
  return absl::OkStatus();
}

REGISTER_OP("Gradcomp>ThresholdSelect")
    .Input("values: float32")
    .Input("threshold: float32")
    .Input("capacity: int64")
    .Output("positions: int32")
    .Output("kept: float32")
    .Attr("row_length: int >= 0 = 0")
    .SetShapeFn(ThresholdSelectShape)
    .Doc(R"doc(
Selects the items whose magnitude reaches a threshold, up to a capacity.

If more items reach it than fit, those of largest magnitude are kept, ties broken by lowest index.

values: `[n]` real items or `[n, c]` items of c components, whose magnitude is their Euclidean norm;
  `c = 2` are complex ones (real part first). Inf and NaN always reach it.
threshold: scalar >= 0.
capacity: scalar K, 1 <= K <= n: the largest number of items to keep.
positions: `[p]` the counted positions block of the wire format (custom_ops/core/FORMAT.md).
kept: `[K]` or `[K, c]` the items kept, in ascending order of position, then zeros.
row_length: L. If positive, `values` is `[n, 2]`, the rows of `L/2 + 1` bins of real transforms of
  length L, and bins that stand for a conjugate pair count twice (in energy).
)doc");

REGISTER_OP("Gradcomp>ThresholdSelectSum")
    .Input("values: float32")
    .Input("threshold: float32")
    .Input("capacity: int64")
    .Input("residual: float32")
    .Output("positions: int32")
    .Output("kept: float32")
    .Output("sum: float32")
    .Attr("row_length: int >= 0 = 0")
    .SetShapeFn(ThresholdSelectShape)
    .Doc(R"doc(
Adds two tensors and selects the items of their sum that reach a threshold, as ThresholdSelect does.

residual: added to `values`, of the same shape.
sum: `values + residual`, in the memory of one of them if nothing else needs it.
)doc");

REGISTER_OP("Gradcomp>SampledThreshold")
    .Input("values: float32")
    .Input("key: int32")
    .Input("count: int64")
    .Input("num_samples: int64")
    .Output("threshold: float32")
    .Attr("row_length: int >= 0 = 0")
    .SetShapeFn(SampledThresholdShape)
    .Doc(R"doc(
A threshold that about k of the n items reach, judged by a sample of them.

values: `[n]` or `[n, c]` items, as in ThresholdSelect.
key: `[4]` (seed, stream, bucket, step) of the sample, which is the draw of random-k.
count: scalar k, 1 <= k <= n.
num_samples: scalar s, 1 <= s <= n.
threshold: scalar, the magnitude of rank ceil(k * s / n) in the sample.
row_length: as in ThresholdSelect.
)doc");

}  // namespace
}  // namespace gradcomp
