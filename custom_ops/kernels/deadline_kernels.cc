// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>

#include "custom_ops/core/deadline.h"
#include "custom_ops/kernels/kernel_util.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/collective.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/platform/env.h"

namespace gradcomp {
namespace {

using ::tensorflow::CancellationManager;
using ::tensorflow::CollectiveExecutor;
using ::tensorflow::Env;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

// One for the process, and never destroyed: steps may still run when the process exits.
Watchdog& ProcessWatchdog() {
  static Watchdog* const watchdog = new Watchdog;
  return *watchdog;
}

// Far enough away to never come, and near enough for any clock.
constexpr double kLongestSeconds = 1e9;

class DeadlineStartOp : public OpKernel {
 public:
  explicit DeadlineStartOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("timeout_seconds", &timeout_seconds_));
    OP_REQUIRES_OK(context, context->GetAttr("what", &what_));
    OP_REQUIRES(context, timeout_seconds_ > 0,
                absl::InvalidArgumentError("timeout_seconds must be > 0, got " +
                                           std::to_string(timeout_seconds_)));
  }

  void Compute(OpKernelContext* context) override {
    CancellationManager* const cancellation = context->cancellation_manager();
    OP_REQUIRES(context, cancellation != nullptr && context->collective_executor() != nullptr,
                absl::FailedPreconditionError("a deadline needs a tf.function to end with"));
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({2}), &output));

    // The executor may serve other steps after this one. It must live until it is told.
    context->collective_executor()->Ref();
    const std::shared_ptr<CollectiveExecutor> executor(
        context->collective_executor(), [](CollectiveExecutor* executor) { executor->Unref(); });
    char seconds[32];
    std::snprintf(seconds, sizeof(seconds), "%g", timeout_seconds_);
    const std::string message =
        what_ + " took longer than " + seconds +
        " seconds: another worker is late, has stopped, or does not run the same program. Look for "
        "the first error in the logs of all workers. If a worker is only slow, allow more: "
        "communication_options=tf.distribute.experimental.CommunicationOptions(timeout_seconds=...)"
        ".";
    const std::chrono::duration<double> timeout(
        std::min<double>(timeout_seconds_, kLongestSeconds));
    Watchdog::Ticket ticket = 0;
    OP_REQUIRES_OK(context, ToTensorFlowStatus(ProcessWatchdog().Arm(
                                Watchdog::Clock::now() +
                                    std::chrono::duration_cast<Watchdog::Clock::duration>(timeout),
                                [executor, message] {
                                  // Elsewhere, as aborting runs what waits for the collectives.
                                  Env::Default()->SchedClosure([executor, message] {
                                    executor->StartAbort(absl::DeadlineExceededError(message));
                                  });
                                },
                                &ticket)));

    // A step that fails or is cancelled never comes to DeadlineStop.
    const auto token = cancellation->get_cancellation_token();
    const auto disarm = [ticket] { ProcessWatchdog().Disarm(ticket); };
    if (!cancellation->RegisterCallback(token, disarm)) disarm();
    output->vec<int64_t>()(0) = ticket;
    output->vec<int64_t>()(1) = token;
  }

 private:
  float timeout_seconds_;
  std::string what_;
};

class DeadlineStopOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& armed = context->input(1);
    OP_REQUIRES(context, armed.shape() == TensorShape({2}),
                absl::InvalidArgumentError("armed must have shape [2], got " +
                                           armed.shape().DebugString()));
    ProcessWatchdog().Disarm(armed.vec<int64_t>()(0));
    if (CancellationManager* const cancellation = context->cancellation_manager()) {
      cancellation->TryDeregisterCallback(armed.vec<int64_t>()(1));
    }
  }
};

REGISTER_KERNEL_BUILDER(Name("Gradcomp>DeadlineStart").Device(::tensorflow::DEVICE_CPU),
                        DeadlineStartOp);
REGISTER_KERNEL_BUILDER(Name("Gradcomp>DeadlineStop").Device(::tensorflow::DEVICE_CPU),
                        DeadlineStopOp);

// On other devices, too, so that no edge of the graph has to change devices.
REGISTER_KERNEL_BUILDER(Name("Gradcomp>DeadlineStart")
                            .Device(::tensorflow::DEVICE_DEFAULT)
                            .HostMemory("ordering")
                            .HostMemory("armed"),
                        DeadlineStartOp);
REGISTER_KERNEL_BUILDER(Name("Gradcomp>DeadlineStop")
                            .Device(::tensorflow::DEVICE_DEFAULT)
                            .HostMemory("ordering")
                            .HostMemory("armed"),
                        DeadlineStopOp);

}  // namespace
}  // namespace gradcomp
