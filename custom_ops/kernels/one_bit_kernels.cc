// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/core/one_bit.h"
#include "custom_ops/kernels/kernel_util.h"
#include "custom_ops/kernels/quantizer_util.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace gradcomp {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;

// What the two ops have in common: their parameters.
class OneBitOp : public OpKernel {
 public:
  explicit OneBitOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("block", &params_.block));
    OP_REQUIRES_OK(context, ToTensorFlowStatus(ValidateOneBit(params_)));
  }

 protected:
  int64_t NumWords(int64_t count) const { return OneBitNumWords(count, params_); }

  OneBitParams params_;
};

class OneBitEncodeOp : public OneBitOp {
 public:
  explicit OneBitEncodeOp(OpKernelConstruction* context) : OneBitOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("with_error", &with_error_));
  }

  void Compute(OpKernelContext* context) override {
    QuantizerEncodeIo io;
    OP_REQUIRES_OK(context,
                   PrepareQuantizerEncode(
                       context, with_error_, [this](int64_t v) { return NumWords(v); }, &io));
    OP_REQUIRES_OK(
        context, ToTensorFlowStatus(OneBitEncode(io.values, io.residual, io.count, params_,
                                                 IntraOpParallelFor(context), io.words, io.error)));
  }

 private:
  bool with_error_;
};

class OneBitDecodeOp : public OneBitOp {
 public:
  explicit OneBitDecodeOp(OpKernelConstruction* context) : OneBitOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("sum", &sum_));
  }

  void Compute(OpKernelContext* context) override {
    QuantizerDecodeIo io;
    OP_REQUIRES_OK(context, PrepareQuantizerDecode(
                                context, "one bit block", sum_,
                                [this](int64_t v) { return NumWords(v); }, &io));
    OP_REQUIRES_OK(context, ToTensorFlowStatus(OneBitDecode(
                                io.words, io.num_workers, io.words_per_worker, io.count, params_,
                                sum_, IntraOpParallelFor(context), io.decoded)));
  }

 private:
  bool sum_;
};

REGISTER_KERNEL_BUILDER(Name("Gradcomp>OneBitEncode").Device(::tensorflow::DEVICE_CPU),
                        OneBitEncodeOp);
REGISTER_KERNEL_BUILDER(Name("Gradcomp>OneBitDecode").Device(::tensorflow::DEVICE_CPU),
                        OneBitDecodeOp);

}  // namespace
}  // namespace gradcomp
