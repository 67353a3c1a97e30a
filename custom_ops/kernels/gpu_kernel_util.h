// SPDX-License-Identifier: Apache-2.0
// What every GPU kernel needs to call the CUDA launchers: stream, workspace and status. Only for
// files that are compiled with GOOGLE_CUDA and EIGEN_USE_GPU.

#ifndef GRADCOMP_KERNELS_GPU_KERNEL_UTIL_H_
#define GRADCOMP_KERNELS_GPU_KERNEL_UTIL_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "custom_ops/core/item_shape.h"
#include "custom_ops/cuda/cuda_launch.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "unsupported/Eigen/CXX11/Tensor"  // defines the GPU device that op_kernel.h names

namespace gradcomp {

inline cudaStream_t StreamOf(::tensorflow::OpKernelContext* context) {
  return context->eigen_gpu_device().stream();
}

// The kernels check their arguments before they launch, so an error is the device's or our own.
inline absl::Status ToTensorFlowStatus(cudaError_t error) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(std::string("CUDA: ") + cudaGetErrorString(error));
}

// Device memory that is free again when the work already on the stream is done.
class Workspace {
 public:
  absl::Status Allocate(::tensorflow::OpKernelContext* context, size_t bytes) {
    bytes_ = bytes;
    return context->allocate_temp(
        ::tensorflow::DT_UINT8, ::tensorflow::TensorShape({static_cast<int64_t>(bytes)}), &tensor_);
  }
  void* data() { return tensor_.flat<uint8_t>().data(); }
  size_t bytes() const { return bytes_; }

 private:
  ::tensorflow::Tensor tensor_;
  size_t bytes_ = 0;
};

inline absl::Status RefuseWide(const ::tensorflow::OpKernel* kernel, int components) {
  if (!IsWide(components)) return absl::OkStatus();
  return absl::UnimplementedError("items of more than 2 components need the CPU: place " +
                                  kernel->name() + " on it");
}

inline absl::Status CheckSizeForGpu(int64_t size) {
  if (size <= cuda::kMaxSize) return absl::OkStatus();
  return absl::InvalidArgumentError("the GPU kernels take at most " +
                                    std::to_string(cuda::kMaxSize) + " items, got " +
                                    std::to_string(size));
}

}  // namespace gradcomp

#endif  // GRADCOMP_KERNELS_GPU_KERNEL_UTIL_H_
