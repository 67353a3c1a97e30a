// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/core/positions.h"
#include "custom_ops/core/top_k.h"
#include "custom_ops/kernels/kernel_util.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace gradcomp {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

class TopKSelectOp : public OpKernel {
 public:
  explicit TopKSelectOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("row_length", &row_length_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& values = context->input(0);
    const Tensor& count = context->input(1);
    int components = 0;
    OP_REQUIRES_OK(context, ItemComponents(values, "values", 1, &components));
    OP_REQUIRES_OK(context, CheckRank(count, "count", 0));
    const int64_t n = values.dim_size(0);
    const int64_t k = count.scalar<int64_t>()();
    OP_REQUIRES(context, 1 <= k && k <= n,
                absl::InvalidArgumentError("count must be in 1.." + std::to_string(n) +
                                           " (the number of items), got " + std::to_string(k)));
    Tensor* positions = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, TensorShape({PositionsNumWords(n, k)}), &positions));
    TensorShape kept_shape = values.shape();
    kept_shape.set_dim(0, k);
    Tensor* kept = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(1, kept_shape, &kept));
    OP_REQUIRES_OK(
        context, ToTensorFlowStatus(TopKSelect(FloatsOf(values), n, components, row_length_, k,
                                               IntraOpParallelFor(context),
                                               MutableWordsOf(positions), MutableFloatsOf(kept))));
  }

 private:
  int64_t row_length_;
};

REGISTER_KERNEL_BUILDER(Name("Gradcomp>TopKSelect").Device(::tensorflow::DEVICE_CPU), TopKSelectOp);

}  // namespace
}  // namespace gradcomp
