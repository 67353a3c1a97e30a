// SPDX-License-Identifier: Apache-2.0
// Destroys what takes long to destroy on threads of their own.

#ifndef GRADCOMP_CORE_RELEASE_H_
#define GRADCOMP_CORE_RELEASE_H_

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>

namespace gradcomp {

// A share in something; destroying it gives the share up.
class Share {
 public:
  virtual ~Share() = default;

  // Whether nobody else has a share, so that giving up this one destroys the thing.
  virtual bool IsLast() const = 0;
};

// Gives up shares in the background, each once it is the last one. Thread-safe. Must outlive its
// threads: for a whole process, never destroy it.
class Releases {
 public:
  Releases() = default;
  Releases(const Releases&) = delete;
  Releases& operator=(const Releases&) = delete;

  // Returns at once. The other shares are expected to go soon: the thread asks in short intervals
  // at first, as reference counts tell nobody when they fall.
  void Release(std::unique_ptr<Share> share);

  // Waits until nothing is left to be given up, but no longer than `limit`. Returns whether that
  // came about.
  bool WaitUntilIdle(std::chrono::milliseconds limit);

  // Waits for what is being destroyed, and destroys nothing from now on: shares are leaked.
  void Finish();

 private:
  void Run(std::unique_ptr<Share> share);
  bool IsFinished();

  std::mutex mutex_;
  std::condition_variable changed_;
  int num_pending_ = 0;     // shares not given up yet
  int num_destroying_ = 0;  // of these, being destroyed
  bool finished_ = false;
};

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_RELEASE_H_
