// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/core/magnitude_moments.h"
#include "custom_ops/kernels/kernel_util.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace gradcomp {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

class MagnitudeMomentsOp : public OpKernel {
 public:
  explicit MagnitudeMomentsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("row_length", &row_length_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& values = context->input(0);
    int components = 0;
    OP_REQUIRES_OK(context, ItemComponents(values, "values", 1, &components));
    OP_REQUIRES_OK(context, CheckRank(context->input(1), "bound", 0));
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({5}), &output));
    MagnitudeMoments moments;
    OP_REQUIRES_OK(
        context, ToTensorFlowStatus(ComputeMagnitudeMoments(
                     FloatsOf(values), values.dim_size(0), components, row_length_,
                     context->input(1).scalar<double>()(), IntraOpParallelFor(context), &moments)));
    auto fields = output->vec<double>();
    fields(0) = static_cast<double>(moments.count);
    fields(1) = moments.min;
    fields(2) = moments.mean;
    fields(3) = moments.variance;
    fields(4) = moments.mean_log;
  }

 private:
  int64_t row_length_;
};

REGISTER_KERNEL_BUILDER(Name("Gradcomp>MagnitudeMoments").Device(::tensorflow::DEVICE_CPU),
                        MagnitudeMomentsOp);

}  // namespace
}  // namespace gradcomp
