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

// Of both ops: with a third input, the residual, there is a third output, the sum.
absl::Status TopKSelectShape(InferenceContext* c) {
  ShapeHandle values = c->input(0), unused;
  if (c->num_inputs() == 3) TF_RETURN_IF_ERROR(c->Merge(values, c->input(2), &values));
  TF_RETURN_IF_ERROR(ItemsShape(c, values, 1, &values));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &unused));
  DimensionHandle k;
  TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(1, &k));
  DimensionHandle num_words = c->UnknownDim();
  if (c->RankKnown(values) && c->ValueKnown(c->Dim(values, 0)) && c->ValueKnown(k)) {
    num_words = c->MakeDim(PositionsNumWords(c->Value(c->Dim(values, 0)), c->Value(k)));
  }
  c->set_output(0, c->Vector(num_words));
  ShapeHandle kept = c->UnknownShape();
  if (c->RankKnown(values)) TF_RETURN_IF_ERROR(c->ReplaceDim(values, 0, k, &kept));
  c->set_output(1, kept);
  if (c->num_inputs() == 3) c->set_output(2, values);
  return absl::OkStatus();
}

REGISTER_OP("Gradcomp>TopKSelect")
    .Input("values: float32")
    .Input("count: int64")
    .Output("positions: int32")
    .Output("kept: float32")
    .Attr("row_length: int >= 0 = 0")
    .SetShapeFn(TopKSelectShape)
    .Doc(R"doc(
Selects the items of largest magnitude, exactly, ties broken by lowest index.

values: `[n]` real items or `[n, c]` items of c components, which rank by their sum of squares;
  `c = 2` are complex ones (real part first). Inf and NaN rank first.
count: scalar k, 1 <= k <= n: the number of items to keep.
positions: `[p]` the positions block of the wire format (custom_ops/core/FORMAT.md).
kept: `[k]` or `[k, c]` the items kept, in ascending order of position.
row_length: L. If positive, `values` is `[n, 2]`, the rows of `L/2 + 1` bins of real transforms of
  length L, and bins that stand for a conjugate pair count twice in the ranking.
)doc");

REGISTER_OP("Gradcomp>TopKSelectSum")
    .Input("values: float32")
    .Input("count: int64")
    .Input("residual: float32")
    .Output("positions: int32")
    .Output("kept: float32")
    .Output("sum: float32")
    .Attr("row_length: int >= 0 = 0")
    .SetShapeFn(TopKSelectShape)
    .Doc(R"doc(
Adds two tensors and selects the items of largest magnitude of their sum, as TopKSelect does.

residual: added to `values`, of the same shape.
sum: `values + residual`, in the memory of one of them if nothing else needs it.
)doc");

}  // namespace
}  // namespace gradcomp
