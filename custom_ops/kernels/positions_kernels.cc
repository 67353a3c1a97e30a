// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "custom_ops/core/positions.h"
#include "custom_ops/kernels/kernel_util.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace gradcomp {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

class PositionsSumOp : public OpKernel {
 public:
  explicit PositionsSumOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("counted", &counted_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& positions = context->input(0);
    const Tensor& kept = context->input(1);
    const Tensor& size = context->input(2);
    int components = 0;
    OP_REQUIRES_OK(context, CheckRank(positions, "positions", 2));
    OP_REQUIRES_OK(context, ItemComponents(kept, "kept", 2, &components));
    OP_REQUIRES_OK(context, CheckRank(size, "size", 0));
    const int64_t num_workers = positions.dim_size(0);
    OP_REQUIRES(context, kept.dim_size(0) == num_workers,
                absl::InvalidArgumentError(
                    "positions and kept must be of the same number of workers, got shapes " +
                    positions.shape().DebugString() + " and " + kept.shape().DebugString()));
    const int64_t n = size.scalar<int64_t>()();
    const int64_t k = kept.dim_size(1);
    OP_REQUIRES(context, n >= k,
                absl::InvalidArgumentError("kept must hold at most size items a worker, got " +
                                           std::to_string(k) + " with size " + std::to_string(n)));
    // Also keeps a wrong size from asking for absurd amounts of memory.
    OP_REQUIRES(context, positions.dim_size(1) == PositionsNumWords(n, k, counted_),
                absl::InvalidArgumentError("positions of shape " + positions.shape().DebugString() +
                                           " cannot hold positions blocks of " + std::to_string(k) +
                                           " of " + std::to_string(n) + " items"));
    TensorShape sum_shape({n});
    if (components > 1) sum_shape.AddDim(components);
    Tensor* sum = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, sum_shape, &sum));
    OP_REQUIRES_OK(
        context, ToTensorFlowStatus(PositionsSum(
                     WordsOf(positions), FloatsOf(kept), num_workers, positions.dim_size(1), n,
                     components, k, IntraOpParallelFor(context), MutableFloatsOf(sum), counted_)));
  }

 private:
  bool counted_;
};

class PositionsReplaceOp : public OpKernel {
 public:
  explicit PositionsReplaceOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("counted", &counted_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& values = context->input(0);
    const Tensor& positions = context->input(1);
    const Tensor& kept = context->input(2);
    int components = 0, kept_components = 0;
    OP_REQUIRES_OK(context, ItemComponents(values, "values", 1, &components));
    OP_REQUIRES_OK(context, CheckRank(positions, "positions", 1));
    OP_REQUIRES_OK(context, ItemComponents(kept, "kept", 1, &kept_components));
    OP_REQUIRES(context, components == kept_components,
                absl::InvalidArgumentError(
                    "items of values and kept must have as many components, got shapes " +
                    values.shape().DebugString() + " and " + kept.shape().DebugString()));
    const int64_t n = values.dim_size(0);
    OP_REQUIRES(
        context, kept.dim_size(0) <= n,
        absl::InvalidArgumentError("kept must hold at most the items of values, got " +
                                   std::to_string(kept.dim_size(0)) + " of " + std::to_string(n)));
    Tensor* replaced = nullptr;
    OP_REQUIRES_OK(context,
                   context->forward_input_or_allocate_output({0}, 0, values.shape(), &replaced));
    const float* const from = FloatsOf(values);
    float* const to = MutableFloatsOf(replaced);
    const ParallelFor parallel_for = IntraOpParallelFor(context);
    if (from != to) {
      constexpr int64_t kCopyCyclesPerItem = 2;
      parallel_for(n, kCopyCyclesPerItem * components, [&](int64_t begin, int64_t end) {
        std::memcpy(to + begin * components, from + begin * components,
                    sizeof(float) * static_cast<size_t>((end - begin) * components));
      });
    }
    OP_REQUIRES_OK(context, ToTensorFlowStatus(PositionsReplace(
                                WordsOf(positions), FloatsOf(kept), positions.dim_size(0), n,
                                components, kept.dim_size(0), parallel_for, to, counted_)));
  }

 private:
  bool counted_;
};

class PositionsGatherOp : public OpKernel {
 public:
  explicit PositionsGatherOp(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    const Tensor& values = context->input(0);
    const Tensor& positions = context->input(1);
    const Tensor& count = context->input(2);
    int components = 0;
    OP_REQUIRES_OK(context, ItemComponents(values, "values", 1, &components));
    OP_REQUIRES_OK(context, CheckRank(positions, "positions", 1));
    OP_REQUIRES_OK(context, CheckRank(count, "count", 0));
    const int64_t n = values.dim_size(0);
    const int64_t k = count.scalar<int64_t>()();
    OP_REQUIRES(context, 0 <= k && k <= n,
                absl::InvalidArgumentError("count must be in 0.." + std::to_string(n) +
                                           " (the number of items), got " + std::to_string(k)));
    TensorShape kept_shape = values.shape();
    kept_shape.set_dim(0, k);
    Tensor* kept = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, kept_shape, &kept));
    OP_REQUIRES_OK(
        context, ToTensorFlowStatus(PositionsTake(
                     WordsOf(positions), FloatsOf(values), positions.dim_size(0), n, components, k,
                     IntraOpParallelFor(context), MutableFloatsOf(kept))));
  }
};

REGISTER_KERNEL_BUILDER(Name("Gradcomp>PositionsSum").Device(::tensorflow::DEVICE_CPU),
                        PositionsSumOp);
REGISTER_KERNEL_BUILDER(Name("Gradcomp>PositionsReplace").Device(::tensorflow::DEVICE_CPU),
                        PositionsReplaceOp);
REGISTER_KERNEL_BUILDER(Name("Gradcomp>PositionsGather").Device(::tensorflow::DEVICE_CPU),
                        PositionsGatherOp);

}  // namespace
}  // namespace gradcomp
