// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "custom_ops/core/dithering.h"
#include "custom_ops/kernels/kernel_util.h"
#include "custom_ops/kernels/quantizer_util.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace gradcomp {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;

// What the two ops have in common: their attributes.
class DitheringOp : public OpKernel {
 public:
  explicit DitheringOp(OpKernelConstruction* context) : OpKernel(context) {
    std::string kind, norm, norm_code;
    OP_REQUIRES_OK(context, context->GetAttr("levels", &params_.levels));
    OP_REQUIRES_OK(context, context->GetAttr("kind", &kind));
    OP_REQUIRES_OK(context, context->GetAttr("norm", &norm));
    OP_REQUIRES_OK(context, context->GetAttr("norm_code", &norm_code));
    OP_REQUIRES_OK(context, context->GetAttr("block", &params_.block));
    params_.standard = kind == "standard";
    params_.norm = norm == "2" ? NormKind::kTwo : NormKind::kInf;
    params_.natural_norms = norm_code == "natural";
    OP_REQUIRES_OK(context, ToTensorFlowStatus(ValidateDithering(params_)));
  }

 protected:
  int64_t NumWords(int64_t count) const { return DitheringLayout(count, params_).num_words; }

  DitheringParams params_ = {};
};

class DitheringEncodeOp : public DitheringOp {
 public:
  explicit DitheringEncodeOp(OpKernelConstruction* context) : DitheringOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("with_error", &with_error_));
  }

  void Compute(OpKernelContext* context) override {
    RandomKey key;
    OP_REQUIRES_OK(context, ReadRandomKey(context->input(2), &key));
    QuantizerEncodeIo io;
    OP_REQUIRES_OK(
        context, PrepareQuantizerEncode(
                     context, with_error_, [this](int64_t count) { return NumWords(count); }, &io));
    OP_REQUIRES_OK(context, ToTensorFlowStatus(
                                DitheringEncode(io.values, io.residual, io.count, key, params_,
                                                IntraOpParallelFor(context), io.words, io.error)));
  }

 private:
  bool with_error_;
};

class DitheringDecodeOp : public DitheringOp {
 public:
  explicit DitheringDecodeOp(OpKernelConstruction* context) : DitheringOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("sum", &sum_));
  }

  void Compute(OpKernelContext* context) override {
    QuantizerDecodeIo io;
    OP_REQUIRES_OK(context, PrepareQuantizerDecode(
                                context, "dithering block", sum_,
                                [this](int64_t count) { return NumWords(count); }, &io));
    OP_REQUIRES_OK(context, ToTensorFlowStatus(DitheringDecode(
                                io.words, io.num_workers, io.words_per_worker, io.count, params_,
                                sum_, IntraOpParallelFor(context), io.decoded)));
  }

 private:
  bool sum_;
};

REGISTER_KERNEL_BUILDER(Name("Gradcomp>DitheringEncode").Device(::tensorflow::DEVICE_CPU),
                        DitheringEncodeOp);
REGISTER_KERNEL_BUILDER(Name("Gradcomp>DitheringDecode").Device(::tensorflow::DEVICE_CPU),
                        DitheringDecodeOp);

}  // namespace
}  // namespace gradcomp
