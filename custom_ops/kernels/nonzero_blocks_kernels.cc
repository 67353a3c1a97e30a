// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/core/nonzero_blocks.h"
#include "custom_ops/kernels/kernel_util.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace gradcomp {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

class NonzeroBlocksOp : public OpKernel {
 public:
  explicit NonzeroBlocksOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("block_size", &block_size_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& values = context->input(0);
    const int64_t n = values.NumElements();
    Tensor* mask = nullptr;
    OP_REQUIRES_OK(
        context, context->allocate_output(0, TensorShape({BlockMaskWords(n, block_size_)}), &mask));
    OP_REQUIRES_OK(context, ToTensorFlowStatus(NonzeroBlocks(FloatsOf(values), n, block_size_,
                                                             IntraOpParallelFor(context),
                                                             MutableWordsOf(mask))));
  }

 private:
  int64_t block_size_;
};

class BlocksTakeOp : public OpKernel {
 public:
  explicit BlocksTakeOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("block_size", &block_size_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& mask = context->input(0);
    const Tensor& values = context->input(1);
    OP_REQUIRES_OK(context, CheckRank(mask, "mask", 1));
    const int64_t n = values.NumElements();
    int64_t count = 0;
    OP_REQUIRES_OK(context, ToTensorFlowStatus(BlocksCount(WordsOf(mask), mask.dim_size(0), n,
                                                           block_size_, &count)));
    Tensor* packed = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, TensorShape({count, block_size_}), &packed));
    OP_REQUIRES_OK(context, ToTensorFlowStatus(BlocksTake(
                                WordsOf(mask), mask.dim_size(0), FloatsOf(values), n, block_size_,
                                count, IntraOpParallelFor(context), MutableFloatsOf(packed))));
  }

 private:
  int64_t block_size_;
};

class BlocksPutOp : public OpKernel {
 public:
  explicit BlocksPutOp(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    const Tensor& mask = context->input(0);
    const Tensor& packed = context->input(1);
    const Tensor& size = context->input(2);
    OP_REQUIRES_OK(context, CheckRank(mask, "mask", 1));
    OP_REQUIRES_OK(context, CheckRank(packed, "packed", 2));
    OP_REQUIRES_OK(context, CheckRank(size, "size", 0));
    const int64_t n = size.scalar<int64_t>()();
    const int64_t block_size = packed.dim_size(1);
    // Also keeps a wrong size from asking for absurd amounts of memory.
    int64_t count = 0;
    OP_REQUIRES_OK(context, ToTensorFlowStatus(BlocksCount(WordsOf(mask), mask.dim_size(0), n,
                                                           block_size, &count)));
    Tensor* values = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({n}), &values));
    OP_REQUIRES_OK(context,
                   ToTensorFlowStatus(BlocksPut(
                       WordsOf(mask), mask.dim_size(0), FloatsOf(packed), packed.dim_size(0), n,
                       block_size, IntraOpParallelFor(context), MutableFloatsOf(values))));
  }
};

REGISTER_KERNEL_BUILDER(Name("Gradcomp>NonzeroBlocks").Device(::tensorflow::DEVICE_CPU),
                        NonzeroBlocksOp);
REGISTER_KERNEL_BUILDER(Name("Gradcomp>BlocksTake").Device(::tensorflow::DEVICE_CPU), BlocksTakeOp);
REGISTER_KERNEL_BUILDER(Name("Gradcomp>BlocksPut").Device(::tensorflow::DEVICE_CPU), BlocksPutOp);

}  // namespace
}  // namespace gradcomp
