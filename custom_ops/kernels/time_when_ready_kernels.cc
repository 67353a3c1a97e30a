// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/platform/env_time.h"

namespace gradcomp {
namespace {

using ::tensorflow::EnvTime;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

class TimeWhenReadyOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  // Runs at once where its input was made, instead of waiting for a thread.
  bool IsExpensive() override { return false; }

  void Compute(OpKernelContext* context) override {
    const double seconds = 1e-9 * static_cast<double>(EnvTime::NowNanos());
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &output));
    output->scalar<double>()() = seconds;
  }
};

REGISTER_KERNEL_BUILDER(Name("Gradcomp>TimeWhenReady").Device(::tensorflow::DEVICE_CPU),
                        TimeWhenReadyOp);

}  // namespace
}  // namespace gradcomp
