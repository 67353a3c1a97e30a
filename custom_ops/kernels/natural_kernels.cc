// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/core/natural.h"
#include "custom_ops/kernels/kernel_util.h"
#include "custom_ops/kernels/quantizer_util.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace gradcomp {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;

class NaturalEncodeOp : public OpKernel {
 public:
  explicit NaturalEncodeOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("with_error", &with_error_));
  }

  void Compute(OpKernelContext* context) override {
    RandomKey key;
    OP_REQUIRES_OK(context, ReadRandomKey(context->input(2), &key));
    QuantizerEncodeIo io;
    OP_REQUIRES_OK(context, PrepareQuantizerEncode(context, with_error_, NaturalNumWords, &io));
    OP_REQUIRES_OK(context, ToTensorFlowStatus(NaturalEncode(io.values, io.residual, io.count, key,
                                                             IntraOpParallelFor(context), io.words,
                                                             io.error)));
  }

 private:
  bool with_error_;
};

class NaturalDecodeOp : public OpKernel {
 public:
  explicit NaturalDecodeOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("sum", &sum_));
  }

  void Compute(OpKernelContext* context) override {
    QuantizerDecodeIo io;
    OP_REQUIRES_OK(context,
                   PrepareQuantizerDecode(context, "natural block", sum_, NaturalNumWords, &io));
    OP_REQUIRES_OK(context, ToTensorFlowStatus(NaturalDecode(
                                io.words, io.num_workers, io.words_per_worker, io.count, sum_,
                                IntraOpParallelFor(context), io.decoded)));
  }

 private:
  bool sum_;
};

REGISTER_KERNEL_BUILDER(Name("Gradcomp>NaturalEncode").Device(::tensorflow::DEVICE_CPU),
                        NaturalEncodeOp);
REGISTER_KERNEL_BUILDER(Name("Gradcomp>NaturalDecode").Device(::tensorflow::DEVICE_CPU),
                        NaturalDecodeOp);

}  // namespace
}  // namespace gradcomp
