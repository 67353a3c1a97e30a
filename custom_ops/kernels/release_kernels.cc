// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <memory>

#include "custom_ops/core/release.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace gradcomp {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

// Never destroyed: threads use it until the process is gone.
Releases& ProcessReleases() {
  static Releases* const releases = new Releases;
  return *releases;
}

// A handle owns its resource together with all tensors that share its buffer.
class HandleShare : public Share {
 public:
  explicit HandleShare(const Tensor& handle) : handle_(handle) {}
  bool IsLast() const override { return handle_.RefCountIsOne(); }

 private:
  const Tensor handle_;
};

class ReleaseInBackgroundOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    ProcessReleases().Release(std::make_unique<HandleShare>(context->input(0)));
  }
};

class AwaitReleasesOp : public OpKernel {
 public:
  explicit AwaitReleasesOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("seconds", &seconds_));
  }

  void Compute(OpKernelContext* /*context*/) override {
    ProcessReleases().WaitUntilIdle(
        std::chrono::milliseconds(static_cast<int64_t>(seconds_ * 1000)));
  }

 private:
  float seconds_;
};

class FinishReleasesOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* /*context*/) override { ProcessReleases().Finish(); }
};

REGISTER_KERNEL_BUILDER(Name("Gradcomp>ReleaseInBackground").Device(::tensorflow::DEVICE_CPU),
                        ReleaseInBackgroundOp);
// On every other device, too: handles are in host memory wherever their resources are used.
REGISTER_KERNEL_BUILDER(
    Name("Gradcomp>ReleaseInBackground").Device(::tensorflow::DEVICE_DEFAULT).HostMemory("handle"),
    ReleaseInBackgroundOp);
REGISTER_KERNEL_BUILDER(Name("Gradcomp>AwaitReleases").Device(::tensorflow::DEVICE_CPU),
                        AwaitReleasesOp);
REGISTER_KERNEL_BUILDER(Name("Gradcomp>FinishReleases").Device(::tensorflow::DEVICE_CPU),
                        FinishReleasesOp);

}  // namespace
}  // namespace gradcomp
