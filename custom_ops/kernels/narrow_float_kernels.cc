// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "custom_ops/core/narrow_float.h"
#include "custom_ops/kernels/kernel_util.h"
#include "custom_ops/kernels/quantizer_util.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace gradcomp {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;

// What the two ops have in common: their parameters.
class NarrowFloatOp : public OpKernel {
 public:
  explicit NarrowFloatOp(OpKernelConstruction* context) : OpKernel(context) {
    std::string dtype;
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype));
    OP_REQUIRES_OK(context, context->GetAttr("block", &params_.block));
    OP_REQUIRES_OK(context, ToTensorFlowStatus(NarrowTypeFromName(dtype, &params_.type)));
    OP_REQUIRES_OK(context, ToTensorFlowStatus(ValidateNarrowFloat(params_)));
  }

 protected:
  int64_t NumWords(int64_t count) const { return NarrowFloatNumWords(count, params_); }

  NarrowFloatParams params_;
};

class NarrowFloatEncodeOp : public NarrowFloatOp {
 public:
  explicit NarrowFloatEncodeOp(OpKernelConstruction* context) : NarrowFloatOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("with_error", &with_error_));
  }

  void Compute(OpKernelContext* context) override {
    QuantizerEncodeIo io;
    OP_REQUIRES_OK(context,
                   PrepareQuantizerEncode(
                       context, with_error_, [this](int64_t v) { return NumWords(v); }, &io));
    OP_REQUIRES_OK(context, ToTensorFlowStatus(NarrowFloatEncode(
                                io.values, io.residual, io.count, params_,
                                IntraOpParallelFor(context), io.words, io.error)));
  }

 private:
  bool with_error_;
};

class NarrowFloatDecodeOp : public NarrowFloatOp {
 public:
  explicit NarrowFloatDecodeOp(OpKernelConstruction* context) : NarrowFloatOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("sum", &sum_));
  }

  void Compute(OpKernelContext* context) override {
    QuantizerDecodeIo io;
    OP_REQUIRES_OK(context, PrepareQuantizerDecode(
                                context, "narrow float block", sum_,
                                [this](int64_t v) { return NumWords(v); }, &io));
    OP_REQUIRES_OK(context, ToTensorFlowStatus(NarrowFloatDecode(
                                io.words, io.num_workers, io.words_per_worker, io.count, params_,
                                sum_, IntraOpParallelFor(context), io.decoded)));
  }

 private:
  bool sum_;
};

REGISTER_KERNEL_BUILDER(Name("Gradcomp>NarrowFloatEncode").Device(::tensorflow::DEVICE_CPU),
                        NarrowFloatEncodeOp);
REGISTER_KERNEL_BUILDER(Name("Gradcomp>NarrowFloatDecode").Device(::tensorflow::DEVICE_CPU),
                        NarrowFloatDecodeOp);

}  // namespace
}  // namespace gradcomp
