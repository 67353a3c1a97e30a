// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/core/threshold.h"
#include "custom_ops/kernels/kernel_util.h"
#include "custom_ops/kernels/quantizer_util.h"
#include "custom_ops/kernels/selection_util.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace gradcomp {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

class ThresholdSelectOp : public OpKernel {
 public:
  explicit ThresholdSelectOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("row_length", &row_length_));
  }

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, CheckRank(context->input(1), "threshold", 0));
    const float threshold = context->input(1).scalar<float>()();
    SelectionIo io;
    OP_REQUIRES_OK(context, PrepareSelection(context, 2, "capacity", true, &io));
    OP_REQUIRES_OK(context, ToTensorFlowStatus(ThresholdSelect(
                                io.values, io.residual, io.n, io.components, row_length_, threshold,
                                io.k, IntraOpParallelFor(context), io.positions, io.kept, io.sum)));
  }

 private:
  int64_t row_length_;
};

class SampledThresholdOp : public OpKernel {
 public:
  explicit SampledThresholdOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("row_length", &row_length_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& values = context->input(0);
    int components = 0;
    OP_REQUIRES_OK(context, ItemComponents(values, "values", 1, &components));
    RandomKey key;
    OP_REQUIRES_OK(context, ReadRandomKey(context->input(1), &key));
    OP_REQUIRES_OK(context, CheckRank(context->input(2), "count", 0));
    OP_REQUIRES_OK(context, CheckRank(context->input(3), "num_samples", 0));
    Tensor* threshold = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &threshold));
    OP_REQUIRES_OK(context,
                   ToTensorFlowStatus(SampledThreshold(
                       FloatsOf(values), values.dim_size(0), components, row_length_,
                       context->input(2).scalar<int64_t>()(), context->input(3).scalar<int64_t>()(),
                       key, IntraOpParallelFor(context), MutableFloatsOf(threshold))));
  }

 private:
  int64_t row_length_;
};

REGISTER_KERNEL_BUILDER(Name("Gradcomp>ThresholdSelect").Device(::tensorflow::DEVICE_CPU),
                        ThresholdSelectOp);
REGISTER_KERNEL_BUILDER(Name("Gradcomp>ThresholdSelectSum").Device(::tensorflow::DEVICE_CPU),
                        ThresholdSelectOp);
REGISTER_KERNEL_BUILDER(Name("Gradcomp>SampledThreshold").Device(::tensorflow::DEVICE_CPU),
                        SampledThresholdOp);

}  // namespace
}  // namespace gradcomp
