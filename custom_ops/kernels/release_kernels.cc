// SPDX-License-Identifier: Apache-2.0
#include <condition_variable>
#include <mutex>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/env.h"

namespace gradcomp {
namespace {

using ::tensorflow::Env;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

constexpr int64_t kPollMicroseconds = 100 * 1000;

// Counts the resources that are being destroyed, and ends it all before the process exits.
class Releases {
 public:
  // Returns whether a resource may be destroyed now; if so, call End after it.
  bool Begin() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!finished_) ++num_running_;
    return !finished_;
  }

  void End() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (--num_running_ == 0) idle_.notify_all();
  }

  bool finished() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return finished_;
  }

  // Lets nothing begin any more, and waits for what has begun.
  void Finish() {
    std::unique_lock<std::mutex> lock(mutex_);
    finished_ = true;
    idle_.wait(lock, [this] { return num_running_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable idle_;
  int num_running_ = 0;
  bool finished_ = false;
};

// Never destroyed: threads use it until the process is gone.
Releases& ProcessReleases() {
  static Releases* const releases = new Releases;
  return *releases;
}

class ReleaseInBackgroundOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    // Owned by the thread alone: in a process that ends, the handle must outlive it.
    auto* const handle = new Tensor(context->input(0));
    Env::Default()->SchedClosure([handle] {
      Releases& releases = ProcessReleases();
      // Reference counts tell nobody when they fall, so the thread asks.
      while (!handle->RefCountIsOne()) {
        if (releases.finished()) return;
        Env::Default()->SleepForMicroseconds(kPollMicroseconds);
      }
      if (!releases.Begin()) return;
      delete handle;
      releases.End();
    });
  }
};

class FinishReleasesOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* /*context*/) override { ProcessReleases().Finish(); }
};

// On every device, for a handle is in host memory even where its resource serves a GPU.
REGISTER_KERNEL_BUILDER(Name("Gradcomp>ReleaseInBackground").Device(::tensorflow::DEVICE_CPU),
                        ReleaseInBackgroundOp);
REGISTER_KERNEL_BUILDER(
    Name("Gradcomp>ReleaseInBackground").Device(::tensorflow::DEVICE_GPU).HostMemory("handle"),
    ReleaseInBackgroundOp);
REGISTER_KERNEL_BUILDER(Name("Gradcomp>FinishReleases").Device(::tensorflow::DEVICE_CPU),
                        FinishReleasesOp);

}  // namespace
}  // namespace gradcomp
