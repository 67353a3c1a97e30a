// SPDX-License-Identifier: Apache-2.0
// What the kernels of all quantizers have in common: the inputs and outputs of their two ops.
//
//   encode: values, residual[, key] -> words, error
//   decode: words, count -> decoded

#ifndef GRADCOMP_KERNELS_QUANTIZER_UTIL_H_
#define GRADCOMP_KERNELS_QUANTIZER_UTIL_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "custom_ops/core/philox.h"
#include "custom_ops/kernels/kernel_util.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace gradcomp {

// Arguments and results of an encode op, as core functions take them.
struct QuantizerEncodeIo {
  int64_t count = 0;                // v
  const float* values = nullptr;    // [v]
  const float* residual = nullptr;  // [v], or null for none
  uint32_t* words = nullptr;        // [w]
  float* error = nullptr;           // [v], or null; may be the memory of `residual` or `values`
};

// Checks inputs 0 (values) and 1 (residual) and allocates outputs 0 (words) and 1 (error).
// `num_words(count)` gives w. The error takes over the residual's memory, or else that of the
// values, if nothing else needs it.
template <typename NumWords>
absl::Status PrepareQuantizerEncode(::tensorflow::OpKernelContext* context, bool with_error,
                                    const NumWords& num_words, QuantizerEncodeIo* io) {
  const ::tensorflow::Tensor& values = context->input(0);
  const ::tensorflow::Tensor& residual = context->input(1);
  io->count = values.NumElements();
  const bool has_residual = residual.NumElements() != 0;
  if (has_residual && residual.NumElements() != io->count) {
    return absl::InvalidArgumentError(
        "residual must have as many elements as values, or none; got shapes " +
        residual.shape().DebugString() + " and " + values.shape().DebugString());
  }
  io->values = FloatsOf(values);
  io->residual = has_residual ? FloatsOf(residual) : nullptr;
  ::tensorflow::Tensor* words = nullptr;
  absl::Status status = context->allocate_output(
      0, ::tensorflow::TensorShape({static_cast<int64_t>(num_words(io->count))}), &words);
  if (!status.ok()) return status;
  io->words = MutableWordsOf(words);
  ::tensorflow::Tensor* error = nullptr;
  if (!with_error) return context->allocate_output(1, ::tensorflow::TensorShape({0}), &error);
  status = context->forward_input_or_allocate_output({1, 0}, 1, values.shape(), &error);
  if (!status.ok()) return status;
  io->error = MutableFloatsOf(error);
  return absl::OkStatus();
}

// Reads a key input: int32 [4] = (seed, stream, bucket, step).
inline absl::Status ReadRandomKey(const ::tensorflow::Tensor& tensor, RandomKey* key) {
  if (tensor.dims() != 1 || tensor.dim_size(0) != 4) {
    return absl::InvalidArgumentError("key must have shape [4] (seed, stream, bucket, step), got " +
                                      tensor.shape().DebugString());
  }
  const uint32_t* const words = WordsOf(tensor);
  *key = {words[0], words[1], words[2], words[3]};
  return absl::OkStatus();
}

// Arguments and result of a decode op, as core functions take them.
struct QuantizerDecodeIo {
  int64_t num_workers = 0;          // W
  int64_t words_per_worker = 0;     // w
  int64_t count = 0;                // v
  const uint32_t* words = nullptr;  // [W, w]
  float* decoded = nullptr;         // [W, v], or [v] for a sum
};

// Checks inputs 0 (words) and 1 (count) and allocates output 0. `num_words(count)` gives w; `block`
// names the block in errors.
template <typename NumWords>
absl::Status PrepareQuantizerDecode(::tensorflow::OpKernelContext* context, const char* block,
                                    bool sum, const NumWords& num_words, QuantizerDecodeIo* io) {
  const ::tensorflow::Tensor& words = context->input(0);
  const ::tensorflow::Tensor& count = context->input(1);
  absl::Status status = CheckRank(words, "words", 2);
  if (!status.ok()) return status;
  status = CheckRank(count, "count", 0);
  if (!status.ok()) return status;
  io->count = count.scalar<int64_t>()();
  if (io->count < 0) {
    return absl::InvalidArgumentError("count must be >= 0, got " + std::to_string(io->count));
  }
  io->num_workers = words.dim_size(0);
  io->words_per_worker = words.dim_size(1);
  // Also keeps a wrong count from asking for absurd amounts of memory.
  const int64_t expected = num_words(io->count);
  if (io->words_per_worker != expected) {
    return absl::InvalidArgumentError(std::string(block) + " of " + std::to_string(io->count) +
                                      " values must have " + std::to_string(expected) +
                                      " words, got words of shape " + words.shape().DebugString());
  }
  io->words = WordsOf(words);
  ::tensorflow::TensorShape shape({io->count});
  if (!sum) shape.InsertDim(0, io->num_workers);
  ::tensorflow::Tensor* decoded = nullptr;
  status = context->allocate_output(0, shape, &decoded);
  if (!status.ok()) return status;
  io->decoded = MutableFloatsOf(decoded);
  return absl::OkStatus();
}

}  // namespace gradcomp

#endif  // GRADCOMP_KERNELS_QUANTIZER_UTIL_H_
