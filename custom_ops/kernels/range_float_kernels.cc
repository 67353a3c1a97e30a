// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/core/range_float.h"
#include "custom_ops/kernels/kernel_util.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace gradcomp {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

// What the two ops have in common: their attributes.
class RangeFloatOp : public OpKernel {
 public:
  explicit RangeFloatOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("num_bits", &params_.num_bits));
    OP_REQUIRES_OK(context, context->GetAttr("mantissa_bits", &params_.mantissa_bits));
    OP_REQUIRES_OK(context, ToTensorFlowStatus(ValidateRangeFloat(params_)));
  }

 protected:
  RangeFloatParams params_;
};

class RangeFloatEncodeOp : public RangeFloatOp {
 public:
  using RangeFloatOp::RangeFloatOp;

  void Compute(OpKernelContext* context) override {
    const Tensor& values = context->input(0);
    const Tensor& range = context->input(1);
    OP_REQUIRES(context, range.dims() == 1 && (range.dim_size(0) == 0 || range.dim_size(0) == 2),
                absl::InvalidArgumentError("range must have shape [0] or [2], got " +
                                           range.shape().DebugString()));
    const bool has_range = range.dim_size(0) == 2;
    ValueRange bounds = {0.0f, 0.0f};
    if (has_range) bounds = {FloatsOf(range)[0], FloatsOf(range)[1]};
    const int64_t count = values.NumElements();
    Tensor* words = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(
                                0, TensorShape({RangeFloatNumWords(count, params_)}), &words));
    Tensor* error = nullptr;
    OP_REQUIRES_OK(context,
                   context->forward_input_or_allocate_output({0}, 1, values.shape(), &error));
    OP_REQUIRES_OK(
        context, ToTensorFlowStatus(RangeFloatEncode(
                     FloatsOf(values), count, has_range ? &bounds : nullptr, params_,
                     IntraOpParallelFor(context), MutableWordsOf(words), MutableFloatsOf(error))));
  }
};

class RangeFloatDecodeOp : public RangeFloatOp {
 public:
  using RangeFloatOp::RangeFloatOp;

  void Compute(OpKernelContext* context) override {
    const Tensor& words = context->input(0);
    const Tensor& count_input = context->input(1);
    OP_REQUIRES_OK(context, CheckRank(words, "words", 2));
    OP_REQUIRES_OK(context, CheckRank(count_input, "count", 0));
    const int64_t count = count_input.scalar<int64_t>()();
    OP_REQUIRES(context, count >= 0,
                absl::InvalidArgumentError("count must be >= 0, got " + std::to_string(count)));
    // Also keeps a wrong count from asking for absurd amounts of memory.
    OP_REQUIRES(
        context, words.dim_size(1) == RangeFloatNumWords(count, params_),
        absl::InvalidArgumentError("words of shape " + words.shape().DebugString() +
                                   " cannot hold range float blocks of " + std::to_string(count) +
                                   " values of " + std::to_string(params_.num_bits) + " bits"));
    Tensor* values = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, TensorShape({words.dim_size(0), count}), &values));
    OP_REQUIRES_OK(context, ToTensorFlowStatus(RangeFloatDecode(
                                WordsOf(words), words.dim_size(0), words.dim_size(1), count,
                                params_, IntraOpParallelFor(context), MutableFloatsOf(values))));
  }
};

REGISTER_KERNEL_BUILDER(Name("Gradcomp>RangeFloatEncode").Device(::tensorflow::DEVICE_CPU),
                        RangeFloatEncodeOp);
REGISTER_KERNEL_BUILDER(Name("Gradcomp>RangeFloatDecode").Device(::tensorflow::DEVICE_CPU),
                        RangeFloatDecodeOp);

}  // namespace
}  // namespace gradcomp
