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
using ::tensorflow::Tensor;

class TopKSelectGpuOp : public OpKernel {
 public:
  explicit TopKSelectGpuOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("row_length", &row_length_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& values = context->input(0);
    int components = 0;
    OP_REQUIRES_OK(context, ItemComponents(values, "values", 1, &components));
    OP_REQUIRES_OK(context, RefuseWide(this, components));
    const int64_t n = values.dim_size(0);
    OP_REQUIRES_OK(context, CheckSizeForGpu(n));
    OP_REQUIRES(context, row_length_ == 0 || (components == 2 && n % (row_length_ / 2 + 1) == 0),
                absl::InvalidArgumentError("row_length " + std::to_string(row_length_) +
                                           " needs complex items, a multiple of " +
                                           std::to_string(row_length_ / 2 + 1) +
                                           " of them; got shape " + values.shape().DebugString()));
    SelectionIo io;
    OP_REQUIRES_OK(context, PrepareSelection(context, 1, "count", false, &io));
    Workspace workspace;
    OP_REQUIRES_OK(context, workspace.Allocate(context, cuda::TopKSelectWorkspaceBytes(n)));
    OP_REQUIRES_OK(context,
                   ToTensorFlowStatus(cuda::LaunchTopKSelect(
                       io.values, io.residual, n, components, row_length_, io.k, workspace.data(),
                       workspace.bytes(), StreamOf(context), io.positions, io.kept, io.sum)));
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
