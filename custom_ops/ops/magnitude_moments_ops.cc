// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/ops/shape_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace gradcomp {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

absl::Status MagnitudeMomentsShape(InferenceContext* c) {
  ShapeHandle values, unused;
  TF_RETURN_IF_ERROR(ItemsShape(c, c->input(0), 1, &values));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &unused));
  c->set_output(0, c->Vector(5));
  return absl::OkStatus();
}

REGISTER_OP("Gradcomp>MagnitudeMoments")
    .Input("values: float32")
    .Input("bound: float64")
    .Output("moments: float64")
    .Attr("row_length: int >= 0 = 0")
    .SetShapeFn(MagnitudeMomentsShape)
    .Doc(R"doc(
Moments of the finite magnitudes above a bound, in binary64 and in a fixed order.

values: `[n]` real items or `[n, c]` items of c components, whose magnitude is their Euclidean norm;
  `c = 2` are complex ones (real part first).
bound: scalar >= 0; 0 leaves out the zeros.
moments: `[5]` their count, minimum, mean, variance (mean squared deviation) and mean natural
  logarithm; zeros if there are none.
row_length: L. If positive, `values` is `[n, 2]`, the rows of `L/2 + 1` bins of real transforms of
  length L, and the energy of bins that stand for a conjugate pair counts twice.
)doc");

}  // namespace
}  // namespace gradcomp
