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

// Checks a dimension of positions words against n and k as far as all three are known.
absl::Status CheckNumWords(InferenceContext* c, DimensionHandle num_words, DimensionHandle n,
                           DimensionHandle k, bool counted) {
  if (!c->ValueKnown(n) || !c->ValueKnown(k)) return absl::OkStatus();
  DimensionHandle unused;
  return c->WithValue(num_words, PositionsNumWords(c->Value(n), c->Value(k), counted), &unused);
}

absl::Status PositionsSumShape(InferenceContext* c) {
  ShapeHandle positions, kept, unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &positions));
  TF_RETURN_IF_ERROR(ItemsShape(c, c->input(1), 2, &kept));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 0, &unused));
  DimensionHandle n;
  TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(2, &n));
  if (!c->RankKnown(kept)) {
    c->set_output(0, c->UnknownShape());
    return absl::OkStatus();
  }
  DimensionHandle num_workers;
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(positions, 0), c->Dim(kept, 0), &num_workers));
  bool counted = false;
  TF_RETURN_IF_ERROR(c->GetAttr("counted", &counted));
  TF_RETURN_IF_ERROR(CheckNumWords(c, c->Dim(positions, 1), n, c->Dim(kept, 1), counted));
  c->set_output(0, c->Rank(kept) == 2 ? c->Vector(n) : c->Matrix(n, c->Dim(kept, 2)));
  return absl::OkStatus();
}

absl::Status PositionsReplaceShape(InferenceContext* c) {
  ShapeHandle values, positions, kept;
  TF_RETURN_IF_ERROR(ItemsShape(c, c->input(0), 1, &values));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &positions));
  TF_RETURN_IF_ERROR(ItemsShape(c, c->input(2), 1, &kept));
  if (c->RankKnown(values) && c->RankKnown(kept)) {
    TF_RETURN_IF_ERROR(c->WithRank(kept, c->Rank(values), &kept));
    if (c->Rank(values) == 2) {
      DimensionHandle components;
      TF_RETURN_IF_ERROR(c->Merge(c->Dim(values, 1), c->Dim(kept, 1), &components));
    }
    bool counted = false;
    TF_RETURN_IF_ERROR(c->GetAttr("counted", &counted));
    TF_RETURN_IF_ERROR(
        CheckNumWords(c, c->Dim(positions, 0), c->Dim(values, 0), c->Dim(kept, 0), counted));
  }
  c->set_output(0, values);
  return absl::OkStatus();
}

absl::Status PositionsGatherShape(InferenceContext* c) {
  ShapeHandle values, positions, unused;
  TF_RETURN_IF_ERROR(ItemsShape(c, c->input(0), 1, &values));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &positions));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 0, &unused));
  DimensionHandle k;
  TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(2, &k));
  ShapeHandle kept = c->UnknownShape();
  if (c->RankKnown(values)) {
    TF_RETURN_IF_ERROR(CheckNumWords(c, c->Dim(positions, 0), c->Dim(values, 0), k, false));
    TF_RETURN_IF_ERROR(c->ReplaceDim(values, 0, k, &kept));
  }
  c->set_output(0, kept);
  return absl::OkStatus();
}

REGISTER_OP("Gradcomp>PositionsSum")
    .Input("positions: int32")
    .Input("kept: float32")
    .Input("size: int64")
    .Output("sum: float32")
    .Attr("counted: bool = false")
    .SetShapeFn(PositionsSumShape)
    .Doc(R"doc(
Sums the kept items of all workers into a dense tensor.

In float32 and in the order of the workers, from +0, so that every worker gets the same bits.

positions: `[W, p]` a positions block of the wire format for each of W workers.
kept: `[W, k]` real items or `[W, k, c]` items of c components, in ascending order of position.
size: scalar n: the number of items of the sum.
sum: `[n]` or `[n, c]`.
counted: the blocks are counted ones, with room for k items; what `kept` has beyond a block's count
  is ignored.
)doc");

REGISTER_OP("Gradcomp>PositionsReplace")
    .Input("values: float32")
    .Input("positions: int32")
    .Input("kept: float32")
    .Output("replaced: float32")
    .Attr("counted: bool = false")
    .SetShapeFn(PositionsReplaceShape)
    .Doc(R"doc(
Replaces the items at the positions, in place where nothing else reads `values`.

With the quantization error of the kept items as `kept`, the result is the residual.

values: `[n]` real items or `[n, c]` items of c components.
positions: `[p]` a positions block of the wire format.
kept: `[k]` or `[k, c]` the new items, in ascending order of position.
replaced: like `values`.
counted: the block is a counted one, with room for k items; what `kept` has beyond its count is
  ignored.
)doc");

REGISTER_OP("Gradcomp>PositionsGather")
    .Input("values: float32")
    .Input("positions: int32")
    .Input("count: int64")
    .Output("kept: float32")
    .SetShapeFn(PositionsGatherShape)
    .Doc(R"doc(
Reads the items at the positions.

For positions that are chosen without looking at the values, as those of random-k are.

values: `[n]` real items or `[n, c]` items of c components.
positions: `[p]` a positions block of the wire format.
count: scalar k: the number of positions in the block.
kept: `[k]` or `[k, c]` the items, in ascending order of position, bits unchanged.
)doc");

}  // namespace
}  // namespace gradcomp
