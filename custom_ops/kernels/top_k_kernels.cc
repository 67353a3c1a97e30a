// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/core/top_k.h"
#include "custom_ops/kernels/kernel_util.h"
#include "custom_ops/kernels/selection_util.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace gradcomp {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;

class TopKSelectOp : public OpKernel {
 public:
  explicit TopKSelectOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("row_length", &row_length_));
  }

  void Compute(OpKernelContext* context) override {
    SelectionIo io;
    OP_REQUIRES_OK(context, PrepareSelection(context, 1, "count", false, &io));
    OP_REQUIRES_OK(context, ToTensorFlowStatus(TopKSelect(
                                io.values, io.residual, io.n, io.components, row_length_, io.k,
                                IntraOpParallelFor(context), io.positions, io.kept, io.sum)));
  }

 private:
  int64_t row_length_;
};

REGISTER_KERNEL_BUILDER(Name("Gradcomp>TopKSelect").Device(::tensorflow::DEVICE_CPU), TopKSelectOp);
REGISTER_KERNEL_BUILDER(Name("Gradcomp>TopKSelectSum").Device(::tensorflow::DEVICE_CPU),
                        TopKSelectOp);

}  // namespace
}  // namespace gradcomp
