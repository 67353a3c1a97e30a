// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/core/distinct_rows.h"
#include "custom_ops/kernels/kernel_util.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace gradcomp {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

template <typename Value, typename Index>
class DistinctRowsOp : public OpKernel {
 public:
  explicit DistinctRowsOp(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    const Tensor& values = context->input(0);
    const Tensor& indices = context->input(1);
    OP_REQUIRES_OK(context, CheckRank(values, "values", 2));
    OP_REQUIRES_OK(context, CheckRank(indices, "indices", 1));
    const int64_t n = indices.dim_size(0);
    OP_REQUIRES(
        context, values.dim_size(0) == n,
        absl::InvalidArgumentError("values must have a row for each of the " + std::to_string(n) +
                                   " indices, got shape " + values.shape().DebugString()));
    const auto index_of = indices.flat<Index>();
    const RowGroups groups = GroupRows(index_of.data(), n);
    const int64_t row_size = values.dim_size(1);
    Tensor* sums = nullptr;
    Tensor* distinct = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, TensorShape({groups.size(), row_size}), &sums));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({groups.size()}), &distinct));
    for (int64_t group = 0; group < groups.size(); ++group) {
      distinct->flat<Index>()(group) = index_of(groups.positions[groups.starts[group]]);
    }
    SumGroups(groups, values.flat<Value>().data(), row_size, IntraOpParallelFor(context),
              sums->flat<Value>().data());
  }
};

#define GRADCOMP_REGISTER(Value, Index)                           \
  REGISTER_KERNEL_BUILDER(Name("Gradcomp>DistinctRows")           \
                              .Device(::tensorflow::DEVICE_CPU)   \
                              .TypeConstraint<Value>("T")         \
                              .TypeConstraint<Index>("Tindices"), \
                          DistinctRowsOp<Value, Index>)
GRADCOMP_REGISTER(float, int32_t);
GRADCOMP_REGISTER(float, int64_t);
GRADCOMP_REGISTER(double, int32_t);
GRADCOMP_REGISTER(double, int64_t);
#undef GRADCOMP_REGISTER

}  // namespace
}  // namespace gradcomp
