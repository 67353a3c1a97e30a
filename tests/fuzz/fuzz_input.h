// SPDX-License-Identifier: Apache-2.0
// What every fuzz target is made of: the bytes of an input as parameters, sizes, floats and damage
// to a payload.
//
// A fuzzer that only changes bytes rarely gets past the checks of a header. So the bytes do not
// stand for a payload alone: they say which payload an encoder makes and what is then changed in
// it. Bytes that are missing read as 0, which everywhere means the plain case.
//
// Buffers are vectors of exactly the promised size, on the heap, so that the address sanitizer sees
// the first access beyond them.

#ifndef GRADCOMP_TESTS_FUZZ_FUZZ_INPUT_H_
#define GRADCOMP_TESTS_FUZZ_FUZZ_INPUT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "custom_ops/core/parallel.h"
#include "custom_ops/core/philox.h"
#include "tests/core/hostile_threads.h"

// What fuzzers call for each input.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace gradcomp {

class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  uint8_t Byte();
  uint32_t Word();  // little-endian

  // True for one value of a byte in `odds`.
  bool OneIn(int odds) { return Byte() % odds == odds - 1; }

  // A number in lo..hi, at most 2^24 of them.
  int64_t Number(int64_t lo, int64_t hi);

  // A number in lo..hi, or now and then any other.
  int64_t NumberOrAny(int64_t lo, int64_t hi);

  // Any number at all; those where arithmetic overflows and types end are frequent.
  int64_t AnyNumber();

  // 0..3
  int64_t NumWorkers();

  // How many values there are, 0..80000: mostly few, and often around a multiple of 32 or 4096.
  int64_t Size();

  RandomKey Key();

  // Floats of one kind: normal numbers, zeros in between, denormals, the edges of the range, or any
  // bits, Inf and NaN among them.
  std::vector<float> Floats(int64_t count);

  // Words that are the rest of the input, over and over. Does not use it up.
  std::vector<uint32_t> Words(int64_t count) const;

  // Changes up to three words, those of a header above all.
  void Damage(std::vector<uint32_t>* words);

 private:
  const uint8_t* data_;
  size_t size_;
};

// How one call of a core function is made: its threads, and whether denormals are flushed.
class CallWays {
 public:
  explicit CallWays(bool hostile, unsigned seed = 0)
      : flush_(hostile ? std::make_unique<ScopedFlush>() : nullptr),
        parallel_for_(hostile ? HostileFor(seed) : ParallelFor(SerialFor)) {}

  const ParallelFor& parallel_for() const { return parallel_for_; }

 private:
  std::unique_ptr<ScopedFlush> flush_;
  ParallelFor parallel_for_;
};

// Equal as bits, but any NaN equals any other: which one a sum of several gives is not defined.
bool SameNumbers(const std::vector<float>& a, const std::vector<float>& b);

// The return value of a target. Ends the process if a check failed, so that the fuzzer notices.
int FinishInput();

}  // namespace gradcomp

#endif  // GRADCOMP_TESTS_FUZZ_FUZZ_INPUT_H_
