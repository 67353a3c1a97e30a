// SPDX-License-Identifier: Apache-2.0
// Denormals as IEEE-754 has them, whatever the calling thread is set to.
//
// TensorFlow's pool threads run with flush-to-zero and denormals-are-zero set. FORMAT.md forbids
// both, because then the bits of a payload would depend on the thread that made them.

#ifndef GRADCOMP_CORE_FP_ENVIRONMENT_H_
#define GRADCOMP_CORE_FP_ENVIRONMENT_H_

#include <cstdint>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace gradcomp {

// While an object of this class lives, its thread neither flushes denormal results to zero nor
// reads denormal operands as zero; the previous mode comes back when it is destroyed. Does
// nothing on machines other than x86 with SSE2 and aarch64.
class ScopedIeeeMode {
 public:
  ScopedIeeeMode() : saved_(Read()) {
    if ((saved_ & kFlushBits) != 0) Write(saved_ & ~kFlushBits);
  }
  ~ScopedIeeeMode() {
    if ((saved_ & kFlushBits) != 0) Write(saved_);
  }
  ScopedIeeeMode(const ScopedIeeeMode&) = delete;
  ScopedIeeeMode& operator=(const ScopedIeeeMode&) = delete;

 private:
#if defined(__SSE2__)
  using Control = uint32_t;
  static constexpr Control kFlushBits = 0x8040;  // FTZ (bit 15) and DAZ (bit 6) of MXCSR
  static Control Read() { return _mm_getcsr(); }
  static void Write(Control control) {
    CompilerFence();
    _mm_setcsr(control);
    CompilerFence();
  }
#elif defined(__aarch64__) && defined(__GNUC__)
  using Control = uint64_t;
  static constexpr Control kFlushBits = uint64_t{1} << 24;  // FZ of FPCR
  static Control Read() {
    Control control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    return control;
  }
  static void Write(Control control) {
    CompilerFence();
    __asm__ volatile("msr fpcr, %0" : : "r"(control));
    CompilerFence();
  }
#else
  using Control = uint32_t;
  static constexpr Control kFlushBits = 0;
  static Control Read() { return 0; }
  static void Write(Control) {}
#endif

  // The compiler does not know that arithmetic depends on the mode; keeping loads and stores on
  // their side of the switch keeps the arithmetic between them there too.
  static void CompilerFence() {
#if defined(__GNUC__)
    __asm__ volatile("" : : : "memory");
#endif
  }

  const Control saved_;
};

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_FP_ENVIRONMENT_H_
