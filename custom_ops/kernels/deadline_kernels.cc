// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>

#include "custom_ops/core/watchdog.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/collective.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace gradcomp {
namespace {

using ::tensorflow::CancellationManager;
using ::tensorflow::CollectiveExecutor;
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

class DeadlineStartOp : public OpKernel {
 public:
  explicit DeadlineStartOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("timeout_seconds", &timeout_seconds_));
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
        "The collective after " + name() + " took longer than " + seconds +
        " seconds: another worker is late, has stopped, or does not run the same program.";
    const Watchdog::Ticket ticket = ProcessWatchdog().Arm(
        Watchdog::Clock::now() + std::chrono::duration_cast<Watchdog::Clock::duration>(
                                     std::chrono::duration<double>(timeout_seconds_)),
        [executor, message] { executor->StartAbort(absl::DeadlineExceededError(message)); });

    // A step that fails or is cancelled never comes to DeadlineStop.
    const auto token = cancellation->get_cancellation_token();
    const auto disarm = [ticket] { ProcessWatchdog().Disarm(ticket); };
    if (!cancellation->RegisterCallback(token, disarm)) disarm();
    output->vec<int64_t>()(0) = ticket;
    output->vec<int64_t>()(1) = token;
  }

 private:
  float timeout_seconds_;
};

class DeadlineStopOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& ticket = context->input(0);
    OP_REQUIRES(context, ticket.shape() == TensorShape({2}),
                absl::InvalidArgumentError("ticket must have shape [2], got " +
                                           ticket.shape().DebugString()));
    ProcessWatchdog().Disarm(ticket.vec<int64_t>()(0));
    context->cancellation_manager()->TryDeregisterCallback(ticket.vec<int64_t>()(1));
  }
};

REGISTER_KERNEL_BUILDER(Name("Gradcomp>DeadlineStart").Device(::tensorflow::DEVICE_CPU),
                        DeadlineStartOp);
REGISTER_KERNEL_BUILDER(Name("Gradcomp>DeadlineStop").Device(::tensorflow::DEVICE_CPU),
                        DeadlineStopOp);

// On a GPU, too, so that no edge of the graph has to change devices: the ticket is in host memory.
REGISTER_KERNEL_BUILDER(
    Name("Gradcomp>DeadlineStart").Device(::tensorflow::DEVICE_GPU).HostMemory("ticket"),
    DeadlineStartOp);
REGISTER_KERNEL_BUILDER(
    Name("Gradcomp>DeadlineStop").Device(::tensorflow::DEVICE_GPU).HostMemory("ticket"),
    DeadlineStopOp);

}  // namespace
}  // namespace gradcomp
