// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/core/positions.h"
#include "custom_ops/cuda/positions_cuda.h"
#include "custom_ops/kernels/gpu_kernel_util.h"
#include "custom_ops/kernels/kernel_util.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace gradcomp {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

// Counted blocks are read on the CPU only: say so when the graph is built.
absl::Status RefuseCounted(OpKernelConstruction* context) {
  bool counted = false;
  absl::Status status = context->GetAttr("counted", &counted);
  if (!status.ok() || !counted) return status;
  return absl::UnimplementedError("counted positions blocks need the CPU: place " +
                                  context->def().name() + " on it");
}

class PositionsSumGpuOp : public OpKernel {
 public:
  explicit PositionsSumGpuOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, RefuseCounted(context));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& positions = context->input(0);
    const Tensor& kept = context->input(1);
    const Tensor& size = context->input(2);
    int components = 0;
    OP_REQUIRES_OK(context, CheckRank(positions, "positions", 2));
    OP_REQUIRES_OK(context, ItemComponents(kept, "kept", 2, &components));
    OP_REQUIRES_OK(context, RefuseWide(this, components));
    OP_REQUIRES_OK(context, CheckRank(size, "size", 0));
    const int64_t num_workers = positions.dim_size(0);
    OP_REQUIRES(context, kept.dim_size(0) == num_workers,
                absl::InvalidArgumentError(
                    "positions and kept must be of the same number of workers, got shapes " +
                    positions.shape().DebugString() + " and " + kept.shape().DebugString()));
    const int64_t n = size.scalar<int64_t>()();
    const int64_t k = kept.dim_size(1);
    OP_REQUIRES_OK(context, CheckSizeForGpu(n));
    OP_REQUIRES(context, n >= k,
                absl::InvalidArgumentError("kept must hold at most size items a worker, got " +
                                           std::to_string(k) + " with size " + std::to_string(n)));
    // Also keeps a wrong size from asking for absurd amounts of memory.
    OP_REQUIRES(context, positions.dim_size(1) == PositionsNumWords(n, k),
                absl::InvalidArgumentError("positions of shape " + positions.shape().DebugString() +
                                           " cannot hold positions blocks of " + std::to_string(k) +
                                           " of " + std::to_string(n) + " items"));
    TensorShape sum_shape({n});
    if (components > 1) sum_shape.AddDim(components);
    Tensor* sum = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, sum_shape, &sum));
    Workspace workspace;
    OP_REQUIRES_OK(
        context, workspace.Allocate(context, cuda::PositionsSumWorkspaceBytes(num_workers, n, k)));
    OP_REQUIRES_OK(context, ToTensorFlowStatus(cuda::LaunchPositionsSum(
                                WordsOf(positions), FloatsOf(kept), num_workers, n, components, k,
                                workspace.data(), workspace.bytes(), StreamOf(context),
                                MutableFloatsOf(sum))));
  }
};

class PositionsReplaceGpuOp : public OpKernel {
 public:
  explicit PositionsReplaceGpuOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, RefuseCounted(context));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& values = context->input(0);
    const Tensor& positions = context->input(1);
    const Tensor& kept = context->input(2);
    int components = 0, kept_components = 0;
    OP_REQUIRES_OK(context, ItemComponents(values, "values", 1, &components));
    OP_REQUIRES_OK(context, RefuseWide(this, components));
    OP_REQUIRES_OK(context, CheckRank(positions, "positions", 1));
    OP_REQUIRES_OK(context, ItemComponents(kept, "kept", 1, &kept_components));
    OP_REQUIRES(context, components == kept_components,
                absl::InvalidArgumentError(
                    "items of values and kept must have as many components, got shapes " +
                    values.shape().DebugString() + " and " + kept.shape().DebugString()));
    const int64_t n = values.dim_size(0);
    const int64_t k = kept.dim_size(0);
    OP_REQUIRES_OK(context, CheckSizeForGpu(n));
    OP_REQUIRES(context, k <= n,
                absl::InvalidArgumentError("kept must hold at most the items of values, got " +
                                           std::to_string(k) + " of " + std::to_string(n)));
    OP_REQUIRES(
        context, positions.dim_size(0) == PositionsNumWords(n, k),
        absl::InvalidArgumentError("positions of shape " + positions.shape().DebugString() +
                                   " cannot hold the positions block of " + std::to_string(k) +
                                   " of " + std::to_string(n) + " items"));
    Tensor* replaced = nullptr;
    OP_REQUIRES_OK(context,
                   context->forward_input_or_allocate_output({0}, 0, values.shape(), &replaced));
    const float* const from = FloatsOf(values);
    float* const to = MutableFloatsOf(replaced);
    const cudaStream_t stream = StreamOf(context);
    if (from != to) {
      OP_REQUIRES_OK(context, ToTensorFlowStatus(cudaMemcpyAsync(
                                  to, from, sizeof(float) * static_cast<size_t>(n * components),
                                  cudaMemcpyDeviceToDevice, stream)));
    }
    Workspace workspace;
    OP_REQUIRES_OK(context,
                   workspace.Allocate(context, cuda::PositionsReplaceWorkspaceBytes(n, k)));
    OP_REQUIRES_OK(context, ToTensorFlowStatus(cuda::LaunchPositionsReplace(
                                WordsOf(positions), FloatsOf(kept), n, components, k,
                                workspace.data(), workspace.bytes(), stream, to)));
  }
};

REGISTER_KERNEL_BUILDER(
    Name("Gradcomp>PositionsSum").Device(::tensorflow::DEVICE_GPU).HostMemory("size"),
    PositionsSumGpuOp);
REGISTER_KERNEL_BUILDER(Name("Gradcomp>PositionsReplace").Device(::tensorflow::DEVICE_GPU),
                        PositionsReplaceGpuOp);

}  // namespace
}  // namespace gradcomp
