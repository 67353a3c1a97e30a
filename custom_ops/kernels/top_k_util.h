// SPDX-License-Identifier: Apache-2.0
// The inputs and outputs of the two top-k ops, on CPU and GPU:
//
//   TopKSelect:     values, count -> positions, kept
//   TopKSelectSum:  values, count, residual -> positions, kept, sum

#ifndef GRADCOMP_KERNELS_TOP_K_UTIL_H_
#define GRADCOMP_KERNELS_TOP_K_UTIL_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "custom_ops/core/positions.h"
#include "custom_ops/kernels/kernel_util.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace gradcomp {

// Arguments and results of a selection, as core functions take them.
struct TopKSelectIo {
  int64_t n = 0;
  int components = 0;
  int64_t k = 0;
  const float* values = nullptr;    // [n, components]
  const float* residual = nullptr;  // [n, components], or null for none
  uint32_t* positions = nullptr;    // [PositionsNumWords(n, k)]
  float* kept = nullptr;            // [k, components]
  float* sum = nullptr;             // [n, components], or null; may be the memory of an addend
};

// Checks the inputs and allocates the outputs. The sum takes over the values' memory, or else the
// residual's, if nothing else needs it.
inline absl::Status PrepareTopKSelect(::tensorflow::OpKernelContext* context, TopKSelectIo* io) {
  const ::tensorflow::Tensor& values = context->input(0);
  const ::tensorflow::Tensor& count = context->input(1);
  absl::Status status = ItemComponents(values, "values", 1, &io->components);
  if (!status.ok()) return status;
  status = CheckRank(count, "count", 0);
  if (!status.ok()) return status;
  io->n = values.dim_size(0);
  io->k = count.scalar<int64_t>()();
  if (io->k < 1 || io->k > io->n) {
    return absl::InvalidArgumentError("count must be in 1.." + std::to_string(io->n) +
                                      " (the number of items), got " + std::to_string(io->k));
  }
  io->values = FloatsOf(values);
  ::tensorflow::Tensor* positions = nullptr;
  status = context->allocate_output(0, ::tensorflow::TensorShape({PositionsNumWords(io->n, io->k)}),
                                    &positions);
  if (!status.ok()) return status;
  io->positions = MutableWordsOf(positions);
  ::tensorflow::TensorShape kept_shape = values.shape();
  kept_shape.set_dim(0, io->k);
  ::tensorflow::Tensor* kept = nullptr;
  status = context->allocate_output(1, kept_shape, &kept);
  if (!status.ok()) return status;
  io->kept = MutableFloatsOf(kept);
  if (context->num_inputs() == 2) return absl::OkStatus();

  const ::tensorflow::Tensor& residual = context->input(2);
  if (residual.shape() != values.shape()) {
    return absl::InvalidArgumentError("residual must have the shape of values, " +
                                      values.shape().DebugString() + ", got " +
                                      residual.shape().DebugString());
  }
  io->residual = FloatsOf(residual);
  ::tensorflow::Tensor* sum = nullptr;
  status = context->forward_input_or_allocate_output({0, 2}, 2, values.shape(), &sum);
  if (!status.ok()) return status;
  io->sum = MutableFloatsOf(sum);
  return absl::OkStatus();
}

}  // namespace gradcomp

#endif  // GRADCOMP_KERNELS_TOP_K_UTIL_H_
