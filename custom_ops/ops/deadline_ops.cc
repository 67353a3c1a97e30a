// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace gradcomp {
namespace {

REGISTER_OP("Gradcomp>DeadlineStart")
    .Input("ordering: resource")
    .Output("armed: int64")
    .Attr("timeout_seconds: float")
    .Attr("what: string")
    .SetIsStateful()
    .SetShapeFn([](::tensorflow::shape_inference::InferenceContext* c) {
      c->set_output(0, c->Vector(2));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Aborts all collectives with DEADLINE_EXCEEDED unless DeadlineStop runs in time.

The deadline ends with the step or function call that it was started in.

ordering: a resource that the collective uses, too: what uses it in one tf.function runs in the
  order of the program, and independently of everything that does not.
armed: `[2]`, for DeadlineStop.
timeout_seconds: the time allowed, > 0.
what: what takes too long, for the error's message.
)doc");

REGISTER_OP("Gradcomp>DeadlineStop")
    .Input("ordering: resource")
    .Input("armed: int64")
    .SetIsStateful()
    .SetShapeFn(::tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Ends a deadline: what it was for is done.

ordering: as for DeadlineStart.
armed: `[2]`, from a DeadlineStart on the same device and in the same function.
)doc");

}  // namespace
}  // namespace gradcomp
