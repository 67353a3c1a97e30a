// SPDX-License-Identifier: Apache-2.0
// The inputs and outputs that selections have in common, on CPU and GPU:
//
//   values, ..., the number of items[, residual] -> positions, kept[, sum]

#ifndef GRADCOMP_KERNELS_SELECTION_UTIL_H_
#define GRADCOMP_KERNELS_SELECTION_UTIL_H_

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
struct SelectionIo {
  int64_t n = 0;
  int components = 0;
  int64_t k = 0;                    // how many are kept at most
  const float* values = nullptr;    // [n, components]
  const float* residual = nullptr;  // [n, components], or null for none
  uint32_t* positions = nullptr;    // [PositionsNumWords(n, k, counted)]
  float* kept = nullptr;            // [k, components]
  float* sum = nullptr;             // [n, components], or null; may be the memory of an addend
};

// Checks the inputs and allocates the outputs. Input `count_index` is a number of items called
// `name`, and the one after it, if there is one, the residual. The sum takes over the values'
// memory, or else the residual's, if nothing else needs it.
inline absl::Status PrepareSelection(::tensorflow::OpKernelContext* context, int count_index,
                                     const char* name, bool counted, SelectionIo* io) {
  const ::tensorflow::Tensor& values = context->input(0);
  const ::tensorflow::Tensor& count = context->input(count_index);
  absl::Status status = ItemComponents(values, "values", 1, &io->components);
  if (!status.ok()) return status;
  status = CheckRank(count, name, 0);
  if (!status.ok()) return status;
  io->n = values.dim_size(0);
  io->k = count.scalar<int64_t>()();
  if (io->k < 1 || io->k > io->n) {
    return absl::InvalidArgumentError(std::string(name) + " must be in 1.." +
                                      std::to_string(io->n) + " (the number of items), got " +
                                      std::to_string(io->k));
  }
  io->values = FloatsOf(values);
  ::tensorflow::Tensor* positions = nullptr;
  status = context->allocate_output(
      0, ::tensorflow::TensorShape({PositionsNumWords(io->n, io->k, counted)}), &positions);
  if (!status.ok()) return status;
  io->positions = MutableWordsOf(positions);
  ::tensorflow::TensorShape kept_shape = values.shape();
  kept_shape.set_dim(0, io->k);
  ::tensorflow::Tensor* kept = nullptr;
  status = context->allocate_output(1, kept_shape, &kept);
  if (!status.ok()) return status;
  io->kept = MutableFloatsOf(kept);
  const int residual_index = count_index + 1;
  if (context->num_inputs() == residual_index) return absl::OkStatus();

  const ::tensorflow::Tensor& residual = context->input(residual_index);
  if (residual.shape() != values.shape()) {
    return absl::InvalidArgumentError("residual must have the shape of values, " +
                                      values.shape().DebugString() + ", got " +
                                      residual.shape().DebugString());
  }
  io->residual = FloatsOf(residual);
  ::tensorflow::Tensor* sum = nullptr;
  status = context->forward_input_or_allocate_output({0, residual_index}, 2, values.shape(), &sum);
  if (!status.ok()) return status;
  io->sum = MutableFloatsOf(sum);
  return absl::OkStatus();
}

}  // namespace gradcomp

#endif  // GRADCOMP_KERNELS_SELECTION_UTIL_H_
