// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace gradcomp {
namespace {

using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

absl::Status DistinctRowsShape(InferenceContext* c) {
  ShapeHandle values, indices;
  DimensionHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &values));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &indices));
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(values, 0), c->Dim(indices, 0), &unused));
  const DimensionHandle count = c->UnknownDim();
  c->set_output(0, c->Matrix(count, c->Dim(values, 1)));
  c->set_output(1, c->Vector(count));
  return absl::OkStatus();
}

REGISTER_OP("Gradcomp>DistinctRows")
    .Input("values: T")
    .Input("indices: Tindices")
    .Output("sums: T")
    .Output("distinct: Tindices")
    .Attr("T: {float32, float64}")
    .Attr("Tindices: {int32, int64}")
    .SetShapeFn(DistinctRowsShape)
    .Doc(R"doc(
Adds up the rows that have the same index, in the order in which they come.

values: `[n, size]` rows.
indices: `[n]` their indices, any numbers in any order.
sums: `[u, size]` a row for each of the u distinct indices.
distinct: `[u]` these indices, ascending.
)doc");

}  // namespace
}  // namespace gradcomp
