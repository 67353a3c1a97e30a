// SPDX-License-Identifier: Apache-2.0
// What every CPU kernel needs to call core functions: threads, status and raw tensor data.

#ifndef GRADCOMP_KERNELS_KERNEL_UTIL_H_
#define GRADCOMP_KERNELS_KERNEL_UTIL_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "custom_ops/core/item_shape.h"
#include "custom_ops/core/parallel.h"
#include "custom_ops/core/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/util/work_sharder.h"

namespace gradcomp {

inline absl::Status ToTensorFlowStatus(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return absl::OkStatus();
    case StatusCode::kInvalidArgument:
      return absl::InvalidArgumentError(status.message());
    case StatusCode::kResourceExhausted:
      return absl::ResourceExhaustedError(status.message());
  }
  return absl::InternalError(status.message());
}

// Core's parallel-for on the intra-op thread pool. Must not outlive `context`.
inline ParallelFor IntraOpParallelFor(::tensorflow::OpKernelContext* context) {
  const ::tensorflow::DeviceBase::CpuWorkerThreads* const threads =
      context->device()->tensorflow_cpu_worker_threads();
  return [threads](int64_t total, int64_t cost_per_unit, const ShardFn& fn) {
    // Not ThreadPool::ParallelFor, of which no overload is free of warnings in all versions.
    ::tensorflow::Shard(threads->num_threads, threads->workers, total, cost_per_unit, fn);
  };
}

// Payload words travel as int32 and are unsigned in core.
inline const uint32_t* WordsOf(const ::tensorflow::Tensor& tensor) {
  return reinterpret_cast<const uint32_t*>(tensor.flat<int32_t>().data());
}
inline uint32_t* MutableWordsOf(::tensorflow::Tensor* tensor) {
  return reinterpret_cast<uint32_t*>(tensor->flat<int32_t>().data());
}

inline const float* FloatsOf(const ::tensorflow::Tensor& tensor) {
  return tensor.flat<float>().data();
}
inline float* MutableFloatsOf(::tensorflow::Tensor* tensor) { return tensor->flat<float>().data(); }

// Checks that `tensor` has `leading` dimensions, for real items, or one more, whose size is the
// number of components of its items.
inline absl::Status ItemComponents(const ::tensorflow::Tensor& tensor, const char* name,
                                   int leading, int* components) {
  const ::tensorflow::TensorShape& shape = tensor.shape();
  if (shape.dims() == leading) {
    *components = 1;
    return absl::OkStatus();
  }
  const int64_t size = shape.dims() == leading + 1 ? shape.dim_size(leading) : 0;
  if (size < 2 || size > kMaxComponents) {
    return absl::InvalidArgumentError(
        std::string(name) + " must have " + std::to_string(leading) +
        " dimension(s), or one more of size 2.." + std::to_string(kMaxComponents) +
        " for items of several components; got shape " + shape.DebugString());
  }
  *components = static_cast<int>(size);
  return absl::OkStatus();
}

inline absl::Status CheckRank(const ::tensorflow::Tensor& tensor, const char* name, int rank) {
  if (tensor.dims() == rank) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string(name) + " must have rank " + std::to_string(rank) +
                                    ", got shape " + tensor.shape().DebugString());
}

}  // namespace gradcomp

#endif  // GRADCOMP_KERNELS_KERNEL_UTIL_H_
