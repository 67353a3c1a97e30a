// SPDX-License-Identifier: Apache-2.0
// An emulated CUDA device, on which CUDA sources compiled by g++ run in one host thread: enough of
// the language and the runtime for custom_ops/cuda/ (cuda_launch.h lists what it uses), and strict
// where a GPU would only misbehave now and then.
//
// A thread runs until it finishes or reaches a barrier. Blocks, and the threads between two
// barriers, run in random order, so that a missing barrier shows as a wrong result. Shared memory
// is garbage at the start of every block. Threads that wait at different barriers, or for threads
// that have returned, end the program with a message. Device memory is host memory of exactly the
// size asked for, so that the address sanitizer sees what a kernel does outside it.
//
// Not emulated is whatever comes of threads being truly simultaneous: that a plain addition from
// two threads may lose one of them, for example.

#ifndef GRADCOMP_TESTS_CUDA_CUDA_EMULATION_H_
#define GRADCOMP_TESTS_CUDA_CUDA_EMULATION_H_

#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

// ---- Types and errors of the runtime -----------------------------------------------------------

struct dim3 {
  unsigned int x, y, z;
};
inline dim3 threadIdx = {0, 0, 0}, blockIdx = {0, 0, 0}, blockDim = {1, 1, 1}, gridDim = {1, 1, 1};

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
using cudaStream_t = struct CUstream_st*;

// ---- The scheduler -----------------------------------------------------------------------------

namespace gradcomp::cuda_emulation {

constexpr int kWarpSize = 32;
constexpr int64_t kMaxBlockThreads = 1024;
constexpr size_t kStackBytes = 64 * 1024;

// Shared variables, all of whole words, lie in a section of their own between these.
extern "C" uint32_t __start_gradcomp_shared[] __attribute__((weak));
extern "C" uint32_t __stop_gradcomp_shared[] __attribute__((weak));

// For functions that jump or return twice: no variable of a caller may be in a register meanwhile,
// and the sanitizer is told of the change of stacks by hand.
#define GRADCOMP_NO_INLINE __attribute__((noinline, no_sanitize("address")))

using Registers = void* [5];  // what __builtin_setjmp saves

// A stack that threads run on, and the registers of what is suspended on it.
struct Fiber {
  std::unique_ptr<char[]> stack;
  ucontext_t start;
  bool is_started = false;
  Registers registers;
};

// A thread of the block that is running.
struct Thread {
  enum State { kReady, kWaiting, kFinished } state = kReady;
  Fiber* fiber = nullptr;  // where it has been suspended; null before it starts
  int barrier = 0;         // the source line it waits at
  bool is_ballot = false;  // whether it waits for its warp, or else for the block
  bool vote = false;
  uint32_t ballot = 0;
};

class Device {
 public:
  static Device& Get() {
    static Device* const device = new Device();
    return *device;
  }

  // Chooses another random order of whatever has no order.
  void Seed(unsigned int seed) { random_.seed(seed); }

  // Runs a kernel to its end.
  void Launch(const char* name, int64_t blocks, int64_t threads,
              const std::function<void()>& kernel) {
    if (blocks < 1 || blocks > 0x7fffffff || threads < 1 || threads > kMaxBlockThreads) {
      last_error_ = cudaErrorInvalidConfiguration;
      return;
    }
    name_ = name;
    kernel_ = &kernel;
    gridDim.x = static_cast<unsigned int>(blocks);
    blockDim.x = static_cast<unsigned int>(threads);
    std::vector<unsigned int> order(static_cast<size_t>(blocks));
    std::iota(order.begin(), order.end(), 0u);
    Shuffle(&order);
    for (unsigned int block : order) {
      blockIdx.x = block;
      RunBlock(static_cast<size_t>(threads));
    }
  }

  // Suspends the calling thread until all threads of its block have come here.
  void SyncThreads(int line) { Wait(line, false); }

  // Suspends the calling thread until all 32 of its warp have come here. Bit i of the result is the
  // vote of the i-th.
  uint32_t Ballot(int line, uint32_t lanes, bool vote) {
    if (lanes != ~0u) Fail("__ballot_sync without all lanes");
    threads_[current_].vote = vote;
    Wait(line, true);
    return threads_[current_].ballot;
  }

  cudaError_t TakeLastError() {
    const cudaError_t error = last_error_;
    last_error_ = cudaSuccess;
    return error;
  }

 private:
  [[noreturn]] void Fail(const char* what) const {
    std::fprintf(stderr, "emulated device: %s in %s, block %u\n", what, name_, blockIdx.x);
    std::abort();
  }

  void RunBlock(size_t num_threads) {
    FillSharedMemory();
    threads_.assign(num_threads, Thread());
    order_.resize(num_threads);
    std::iota(order_.begin(), order_.end(), 0u);
    do {
      RunReadyThreads();
    } while (ReleaseWaiting());
  }

  void RunReadyThreads() {
    Shuffle(&order_);
    next_ = 0;
    while (next_ < order_.size()) {
      TakeNext();
      Thread& thread = threads_[current_];
      if (thread.state != Thread::kReady) continue;
      Fiber* const fiber = thread.fiber != nullptr ? thread.fiber : IdleFiber();
      thread.fiber = nullptr;
      Resume(fiber);
    }
  }

  void TakeNext() {
    current_ = order_[next_++];
    threadIdx.x = current_;
  }

  // Makes threads ready whose barrier is complete. Returns false if all have finished.
  bool ReleaseWaiting() {
    const auto is_at_barrier = [this](const Thread& thread) {
      return thread.state == Thread::kWaiting && !thread.is_ballot &&
             thread.barrier == threads_[0].barrier;
    };
    const auto has_finished = [](const Thread& thread) {
      return thread.state == Thread::kFinished;
    };
    if (std::all_of(threads_.begin(), threads_.end(), has_finished)) return false;
    if (std::all_of(threads_.begin(), threads_.end(), is_at_barrier)) {
      for (Thread& thread : threads_) thread.state = Thread::kReady;
      return true;
    }
    bool is_released = false;
    for (size_t first = 0; first + kWarpSize <= threads_.size(); first += kWarpSize) {
      is_released |= ReleaseWarp(&threads_[first]);
    }
    if (!is_released) Fail("threads wait at different barriers, or for finished threads,");
    return true;
  }

  static bool ReleaseWarp(Thread* warp) {
    uint32_t ballot = 0;
    for (int i = 0; i < kWarpSize; ++i) {
      if (warp[i].state != Thread::kWaiting || !warp[i].is_ballot ||
          warp[i].barrier != warp[0].barrier) {
        return false;
      }
      ballot |= static_cast<uint32_t>(warp[i].vote) << i;
    }
    for (int i = 0; i < kWarpSize; ++i) {
      warp[i].ballot = ballot;
      warp[i].state = Thread::kReady;
    }
    return true;
  }

  // Volatile, or the compiler makes it a memset, which minds the sanitizer's zones between
  // variables.
  __attribute__((no_sanitize("address"))) static void FillSharedMemory() {
    for (volatile uint32_t* word = __start_gradcomp_shared; word < __stop_gradcomp_shared; ++word) {
      *word = 0xa5a5a5a5u;
    }
  }

  // An unbiased order does not matter here, but speed does.
  void Shuffle(std::vector<unsigned int>* order) {
    for (size_t i = order->size(); i > 1; --i) {
      std::swap((*order)[i - 1], (*order)[random_() % i]);
    }
  }

  // ---- Fibers. The host runs the scheduler; threads of the device run on fibers.

  Fiber* IdleFiber() {
    if (idle_.empty()) AddFiber();
    Fiber* const fiber = idle_.back();
    idle_.pop_back();
    return fiber;
  }

  GRADCOMP_NO_INLINE void AddFiber() {
    fibers_.push_back(std::make_unique<Fiber>());
    idle_.push_back(fibers_.back().get());
    idle_.back()->stack.reset(new char[kStackBytes]);
    ucontext_t* const start = &idle_.back()->start;
    getcontext(start);
    start->uc_stack.ss_sp = idle_.back()->stack.get();
    start->uc_stack.ss_size = kStackBytes;
    start->uc_link = nullptr;
    makecontext(start, [] { Get().FiberMain(); }, 0);
  }

  // On a fiber: runs the current thread and, if it has not been suspended, those that follow.
  [[noreturn]] void FiberMain() {
    FinishSwitch(nullptr);
    while (true) {
      (*kernel_)();
      threads_[current_].state = Thread::kFinished;
      if (next_ < order_.size() && IsNew(threads_[order_[next_]])) {
        TakeNext();
      } else {
        idle_.push_back(running_);
        SwitchToHost();
      }
    }
  }

  static bool IsNew(const Thread& thread) {
    return thread.state == Thread::kReady && thread.fiber == nullptr;
  }

  void Wait(int line, bool is_ballot) {
    Thread& thread = threads_[current_];
    thread.state = Thread::kWaiting;
    thread.fiber = running_;
    thread.barrier = line;
    thread.is_ballot = is_ballot;
    SwitchToHost();
  }

  // The compiler's own setjmp and longjmp: the library's functions for contexts make a system call
  // for the signal mask, and its longjmp makes the address sanitizer clear whole stacks.
  GRADCOMP_NO_INLINE void Resume(Fiber* fiber) {
    running_ = fiber;
    void* host_frames = nullptr;
    StartSwitch(&host_frames, fiber->stack.get(), kStackBytes);
    if (__builtin_setjmp(host_registers_) == 0) {
      if (running_->is_started) Jump(running_->registers);
      running_->is_started = true;
      setcontext(&running_->start);
    }
    FinishSwitch(host_frames);
  }

  GRADCOMP_NO_INLINE void SwitchToHost() {
    void* frames = nullptr;
    StartSwitch(&frames, host_stack_, host_stack_bytes_);
    if (__builtin_setjmp(running_->registers) == 0) Jump(host_registers_);
    FinishSwitch(frames);
  }

  [[noreturn]] GRADCOMP_NO_INLINE static void Jump(void** registers) {
    __builtin_longjmp(registers, 1);
  }

  // The address sanitizer has to know which stack it is looking at.
#if defined(__SANITIZE_ADDRESS__)
  void StartSwitch(void** frames, const void* stack, size_t bytes) {
    __sanitizer_start_switch_fiber(frames, stack, bytes);
  }
  void FinishSwitch(void* frames) {
    const void* stack = nullptr;
    size_t bytes = 0;
    __sanitizer_finish_switch_fiber(frames, &stack, &bytes);
    if (host_stack_ != nullptr) return;
    host_stack_ = stack;  // the first switch comes from the host
    host_stack_bytes_ = bytes;
  }
#else
  void StartSwitch(void**, const void*, size_t) {}
  void FinishSwitch(void*) {}
#endif

  const char* name_ = "";
  const std::function<void()>* kernel_ = nullptr;
  cudaError_t last_error_ = cudaSuccess;
  std::minstd_rand random_;

  std::vector<Thread> threads_;
  std::vector<unsigned int> order_;  // in which the threads run
  size_t next_ = 0;                  // of the order
  unsigned int current_ = 0;         // the thread that is running

  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
  Fiber* running_ = nullptr;
  Registers host_registers_;
  const void* host_stack_ = nullptr;
  size_t host_stack_bytes_ = 0;
};

}  // namespace gradcomp::cuda_emulation

// ---- The language ------------------------------------------------------------------------------

#define __global__
#define __device__
#define __forceinline__ inline
// Blocks run one after the other, so one copy serves all. g++ watches the bounds of what is in a
// section only if told so: -fsanitize-sections=gradcomp_shared.
#define __shared__ __attribute__((section("gradcomp_shared"))) static

#define __syncthreads() ::gradcomp::cuda_emulation::Device::Get().SyncThreads(__LINE__)
#define __ballot_sync(lanes, vote) \
  ::gradcomp::cuda_emulation::Device::Get().Ballot(__LINE__, lanes, vote)

#define GRADCOMP_LAUNCH(kernel, blocks, threads, stream, ...)                   \
  (static_cast<void>(stream), ::gradcomp::cuda_emulation::Device::Get().Launch( \
                                  #kernel, blocks, threads, [&] { kernel(__VA_ARGS__); }))

inline int __popc(unsigned int word) { return __builtin_popcount(word); }

template <typename T>
T atomicAdd(T* address, T value) {
  const T old = *address;
  *address = old + value;
  return old;
}
template <typename T>
T atomicMax(T* address, T value) {
  const T old = *address;
  *address = std::max(old, value);
  return old;
}
template <typename T>
T atomicOr(T* address, T value) {
  const T old = *address;
  *address = old | value;
  return old;
}

// ---- Functions of the runtime ------------------------------------------------------------------

inline cudaError_t cudaGetLastError() {
  return gradcomp::cuda_emulation::Device::Get().TakeLastError();
}
inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "error of the emulated device";
}
inline cudaError_t cudaMalloc(void** memory, size_t bytes) {
  *memory = std::malloc(bytes);
  return *memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
inline cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemset(void* memory, int byte, size_t bytes) {
  std::memset(memory, byte, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* memory, int byte, size_t bytes, cudaStream_t) {
  return cudaMemset(memory, byte, bytes);
}
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

#endif  // GRADCOMP_TESTS_CUDA_CUDA_EMULATION_H_
