// SPDX-License-Identifier: Apache-2.0
// Device memory for the CUDA tests, on a GPU or an emulated device.

#ifndef GRADCOMP_TESTS_CUDA_DEVICE_BUFFER_H_
#define GRADCOMP_TESTS_CUDA_DEVICE_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "custom_ops/cuda/cuda_launch.h"
#include "tests/core/check.h"

namespace gradcomp {

// `size` values in device memory, all bytes of which are garbage, or a copy of a vector.
template <typename T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(int64_t size) : size_(static_cast<size_t>(size)) {
    Allocate();
    CHECK(cudaMemset(data_, kGarbage, Bytes()) == cudaSuccess);
  }
  explicit DeviceBuffer(const std::vector<T>& values) : size_(values.size()) {
    Allocate();
    CHECK(cudaMemcpy(data_, values.data(), Bytes(), cudaMemcpyHostToDevice) == cudaSuccess);
  }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  T* data() { return static_cast<T*>(data_); }
  size_t Bytes() const { return size_ * sizeof(T); }

  // Waits for the device.
  std::vector<T> ToVector() const {
    std::vector<T> values(size_);
    CHECK(cudaMemcpy(values.data(), data_, Bytes(), cudaMemcpyDeviceToHost) == cudaSuccess);
    return values;
  }

 private:
  static constexpr int kGarbage = 0xa5;

  void Allocate() { CHECK(cudaMalloc(&data_, Bytes()) == cudaSuccess); }

  size_t size_;
  void* data_ = nullptr;
};

// Makes an emulated device run threads and blocks in another random order; a GPU has its own.
inline void ShuffleDevice([[maybe_unused]] unsigned int seed) {
#if defined(GRADCOMP_CUDA_EMULATION)
  cuda_emulation::Device::Get().Seed(seed);
#endif
}

}  // namespace gradcomp

#endif  // GRADCOMP_TESTS_CUDA_DEVICE_BUFFER_H_
