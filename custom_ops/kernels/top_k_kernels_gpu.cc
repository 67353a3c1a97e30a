// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/cuda/top_k_cuda.h"
#include "custom_ops/kernels/gpu_kernel_util.h"
#include "custom_ops/kernels/kernel_util.h"
#include "custom_ops/kernels/selection_util.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace gradcomp {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;

class TopKSelectGpuOp : public OpKernel {
 public:
  explicit TopKSelectGpuOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("row_length", &row_length_));
  }

  void Compute(OpKernelContext* context) override {
    SelectionIo io;
    OP_REQUIRES_OK(context, PrepareSelection(context, 1, "count", false, &io));
    OP_REQUIRES_OK(context, RefuseWide(this, io.components));
    OP_REQUIRES_OK(context, CheckSizeForGpu(io.n));
    OP_REQUIRES(
        context, row_length_ == 0 || (io.components == 2 && io.n % (row_length_ / 2 + 1) == 0),
        absl::InvalidArgumentError("row_length " + std::to_string(row_length_) +
                                   " needs complex items, a multiple of " +
                                   std::to_string(row_length_ / 2 + 1) + " of them; got shape " +
                                   context->input(0).shape().DebugString()));
    Workspace workspace;
    OP_REQUIRES_OK(context, workspace.Allocate(context, cuda::TopKSelectWorkspaceBytes(io.n)));
    OP_REQUIRES_OK(context, ToTensorFlowStatus(cuda::LaunchTopKSelect(
                                io.values, io.residual, io.n, io.components, row_length_, io.k,
                                workspace.data(), workspace.bytes(), StreamOf(context),
                                io.positions, io.kept, io.sum)));
  }

 private:
  int64_t row_length_;
};

REGISTER_KERNEL_BUILDER(
    Name("Gradcomp>TopKSelect").Device(::tensorflow::DEVICE_GPU).HostMemory("count"),
    TopKSelectGpuOp);
REGISTER_KERNEL_BUILDER(
    Name("Gradcomp>TopKSelectSum").Device(::tensorflow::DEVICE_GPU).HostMemory("count"),
    TopKSelectGpuOp);

}  // namespace
}  // namespace gradcomp
