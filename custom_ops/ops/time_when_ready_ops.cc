// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace gradcomp {
namespace {

// Not stateful: a function's stateful operations wait for one another.
REGISTER_OP("Gradcomp>TimeWhenReady")
    .Input("tensor: T")
    .Output("seconds: double")
    .Attr("T: type")
    .SetShapeFn(::tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Returns when a tensor was there.

tensor: of any type and shape; it is not read.
seconds: scalar, seconds since the epoch.
)doc");

}  // namespace
}  // namespace gradcomp
