// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace gradcomp {
namespace {

REGISTER_OP("Gradcomp>ReleaseInBackground")
    .Input("handle: resource")
    .SetIsStateful()
    .SetShapeFn(::tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Shares a handle's ownership of its resource with a thread that is the last to give it up.

The resource is thus destroyed there, and not where the last other owner lets go of it.

handle: scalar, a handle that owns its resource, as those of anonymous iterators do.
)doc");

REGISTER_OP("Gradcomp>AwaitReleases")
    .Attr("seconds: float")
    .SetIsStateful()
    .SetShapeFn(::tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Waits until what is to be released in the background is, but no longer than `seconds`.
)doc");

REGISTER_OP("Gradcomp>FinishReleases")
    .SetIsStateful()
    .SetShapeFn(::tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Waits for resources that are being destroyed, and destroys no more: those left are leaked.

For the end of a process: a resource may hold Python objects, which cannot be dropped any later.
)doc");

}  // namespace
}  // namespace gradcomp
