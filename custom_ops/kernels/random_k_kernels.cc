// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/core/positions.h"
#include "custom_ops/core/random_k.h"
#include "custom_ops/kernels/kernel_util.h"
#include "custom_ops/kernels/quantizer_util.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace gradcomp {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

class RandomKPositionsOp : public OpKernel {
 public:
  explicit RandomKPositionsOp(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    RandomKey key;
    OP_REQUIRES_OK(context, ReadRandomKey(context->input(0), &key));
    OP_REQUIRES_OK(context, CheckRank(context->input(1), "size", 0));
    OP_REQUIRES_OK(context, CheckRank(context->input(2), "count", 0));
    const int64_t n = context->input(1).scalar<int64_t>()();
    const int64_t k = context->input(2).scalar<int64_t>()();
    OP_REQUIRES(
        context, 1 <= n && n <= kRandomKMaxItems,
        absl::InvalidArgumentError("size must be in 1.." + std::to_string(kRandomKMaxItems) +
                                   ", got " + std::to_string(n)));
    OP_REQUIRES(context, 1 <= k && k <= n,
                absl::InvalidArgumentError("count must be in 1.." + std::to_string(n) +
                                           " (the number of items), got " + std::to_string(k)));
    Tensor* positions = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, TensorShape({PositionsNumWords(n, k)}), &positions));
    OP_REQUIRES_OK(context,
                   ToTensorFlowStatus(RandomKPositions(key, n, k, IntraOpParallelFor(context),
                                                       MutableWordsOf(positions))));
  }
};

class RandomKScaleOp : public OpKernel {
 public:
  explicit RandomKScaleOp(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    const Tensor& kept = context->input(0);
    int components = 0;
    OP_REQUIRES_OK(context, ItemComponents(kept, "kept", 1, &components));
    OP_REQUIRES_OK(context, CheckRank(context->input(1), "size", 0));
    const int64_t n = context->input(1).scalar<int64_t>()();
    Tensor* scaled = nullptr;
    OP_REQUIRES_OK(context,
                   context->forward_input_or_allocate_output({0}, 0, kept.shape(), &scaled));
    OP_REQUIRES_OK(context, ToTensorFlowStatus(RandomKScale(
                                FloatsOf(kept), n, components, kept.dim_size(0),
                                IntraOpParallelFor(context), MutableFloatsOf(scaled))));
  }
};

REGISTER_KERNEL_BUILDER(Name("Gradcomp>RandomKPositions").Device(::tensorflow::DEVICE_CPU),
                        RandomKPositionsOp);
REGISTER_KERNEL_BUILDER(Name("Gradcomp>RandomKScale").Device(::tensorflow::DEVICE_CPU),
                        RandomKScaleOp);

}  // namespace
}  // namespace gradcomp
