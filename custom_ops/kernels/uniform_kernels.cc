// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/core/uniform.h"
#include "custom_ops/kernels/kernel_util.h"
#include "custom_ops/kernels/quantizer_util.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace gradcomp {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;

// What the two ops have in common: their parameters.
class UniformOp : public OpKernel {
 public:
  explicit UniformOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("num_bits", &params_.num_bits));
    OP_REQUIRES_OK(context, context->GetAttr("block", &params_.block));
    OP_REQUIRES_OK(context, ToTensorFlowStatus(ValidateUniform(params_)));
  }

 protected:
  int64_t NumWords(int64_t count) const { return UniformNumWords(count, params_); }

  UniformParams params_;
};

class UniformEncodeOp : public UniformOp {
 public:
  explicit UniformEncodeOp(OpKernelConstruction* context) : UniformOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("stochastic", &stochastic_));
    OP_REQUIRES_OK(context, context->GetAttr("with_error", &with_error_));
  }

  void Compute(OpKernelContext* context) override {
    RandomKey key;
    OP_REQUIRES_OK(context, ReadRandomKey(context->input(2), &key));
    QuantizerEncodeIo io;
    OP_REQUIRES_OK(context,
                   PrepareQuantizerEncode(
                       context, with_error_, [this](int64_t v) { return NumWords(v); }, &io));
    OP_REQUIRES_OK(context, ToTensorFlowStatus(UniformEncode(
                                io.values, io.residual, io.count, stochastic_ ? &key : nullptr,
                                params_, IntraOpParallelFor(context), io.words, io.error)));
  }

 private:
  bool stochastic_;
  bool with_error_;
};

class UniformDecodeOp : public UniformOp {
 public:
  explicit UniformDecodeOp(OpKernelConstruction* context) : UniformOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("sum", &sum_));
  }

  void Compute(OpKernelContext* context) override {
    QuantizerDecodeIo io;
    OP_REQUIRES_OK(context, PrepareQuantizerDecode(
                                context, "uniform block", sum_,
                                [this](int64_t v) { return NumWords(v); }, &io));
    OP_REQUIRES_OK(context, ToTensorFlowStatus(UniformDecode(
                                io.words, io.num_workers, io.words_per_worker, io.count, params_,
                                sum_, IntraOpParallelFor(context), io.decoded)));
  }

 private:
  bool sum_;
};

REGISTER_KERNEL_BUILDER(Name("Gradcomp>UniformEncode").Device(::tensorflow::DEVICE_CPU),
                        UniformEncodeOp);
REGISTER_KERNEL_BUILDER(Name("Gradcomp>UniformDecode").Device(::tensorflow::DEVICE_CPU),
                        UniformDecodeOp);

}  // namespace
}  // namespace gradcomp
