// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/core/positions.h"
#include "custom_ops/core/top_k_chunked.h"
#include "custom_ops/kernels/kernel_util.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace gradcomp {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

class TopKChunkedSelectOp : public OpKernel {
 public:
  explicit TopKChunkedSelectOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("chunk", &chunk_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& values = context->input(0);
    OP_REQUIRES_OK(context, CheckRank(values, "values", 1));
    OP_REQUIRES_OK(context, CheckRank(context->input(1), "count", 0));
    OP_REQUIRES_OK(context, CheckRank(context->input(2), "last_count", 0));
    const int64_t n = values.dim_size(0);
    const TopKChunks chunks = {chunk_, context->input(1).scalar<int64_t>()(),
                               context->input(2).scalar<int64_t>()()};
    OP_REQUIRES_OK(context, ToTensorFlowStatus(chunks.Validate(n)));
    const int64_t k = chunks.NumKept(n);
    Tensor* positions = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, TensorShape({PositionsNumWords(n, k)}), &positions));
    Tensor* kept = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({k}), &kept));
    OP_REQUIRES_OK(context, ToTensorFlowStatus(TopKChunkedSelect(
                                FloatsOf(values), n, chunks, IntraOpParallelFor(context),
                                MutableWordsOf(positions), MutableFloatsOf(kept))));
  }

 private:
  int64_t chunk_;
};

REGISTER_KERNEL_BUILDER(Name("Gradcomp>TopKChunkedSelect").Device(::tensorflow::DEVICE_CPU),
                        TopKChunkedSelectOp);

}  // namespace
}  // namespace gradcomp
