// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/core/entropy.h"
#include "custom_ops/kernels/kernel_util.h"
#include "custom_ops/kernels/quantizer_util.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace gradcomp {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;

// What the two ops have in common: their parameter.
class EntropyOp : public OpKernel {
 public:
  explicit EntropyOp(OpKernelConstruction* context) : OpKernel(context) {
    float bits;
    OP_REQUIRES_OK(context, context->GetAttr("bits", &bits));
    params_.bits = bits;
    OP_REQUIRES_OK(context, ToTensorFlowStatus(ValidateEntropy(params_)));
  }

 protected:
  int64_t NumWords(int64_t count) const { return EntropyNumWords(count, params_); }

  EntropyParams params_;
};

class EntropyEncodeOp : public EntropyOp {
 public:
  explicit EntropyEncodeOp(OpKernelConstruction* context) : EntropyOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("with_error", &with_error_));
  }

  void Compute(OpKernelContext* context) override {
    QuantizerEncodeIo io;
    OP_REQUIRES_OK(context,
                   PrepareQuantizerEncode(
                       context, with_error_, [this](int64_t v) { return NumWords(v); }, &io));
    OP_REQUIRES_OK(context, ToTensorFlowStatus(EntropyEncode(io.values, io.residual, io.count,
                                                             params_, IntraOpParallelFor(context),
                                                             io.words, io.error)));
  }

 private:
  bool with_error_;
};

class EntropyDecodeOp : public EntropyOp {
 public:
  explicit EntropyDecodeOp(OpKernelConstruction* context) : EntropyOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("sum", &sum_));
  }

  void Compute(OpKernelContext* context) override {
    QuantizerDecodeIo io;
    OP_REQUIRES_OK(context, PrepareQuantizerDecode(
                                context, "entropy block", sum_,
                                [this](int64_t v) { return NumWords(v); }, &io));
    OP_REQUIRES_OK(context, ToTensorFlowStatus(EntropyDecode(
                                io.words, io.num_workers, io.words_per_worker, io.count, params_,
                                sum_, IntraOpParallelFor(context), io.decoded)));
  }

 private:
  bool sum_;
};

REGISTER_KERNEL_BUILDER(Name("Gradcomp>EntropyEncode").Device(::tensorflow::DEVICE_CPU),
                        EntropyEncodeOp);
REGISTER_KERNEL_BUILDER(Name("Gradcomp>EntropyDecode").Device(::tensorflow::DEVICE_CPU),
                        EntropyDecodeOp);

}  // namespace
}  // namespace gradcomp
