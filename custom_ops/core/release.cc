// SPDX-License-Identifier: Apache-2.0
#include "release.h"

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>

namespace gradcomp {
namespace {

constexpr std::chrono::milliseconds kFirstInterval(1);
constexpr std::chrono::milliseconds kLongestInterval(128);

}  // namespace

void Releases::Release(std::unique_ptr<Share> share) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++num_pending_;
  }
  Share* const raw = share.release();
  try {
    std::thread([this, raw] { Run(std::unique_ptr<Share>(raw)); }).detach();
  } catch (const std::system_error&) {
    // Without a thread, whoever has the last share destroys the thing: slow, but not wrong.
    delete raw;
    const std::lock_guard<std::mutex> lock(mutex_);
    --num_pending_;
    changed_.notify_all();
  }
}

bool Releases::WaitUntilIdle(std::chrono::milliseconds limit) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, limit, [this] { return num_pending_ == 0; });
}

void Releases::Finish() {
  std::unique_lock<std::mutex> lock(mutex_);
  finished_ = true;
  changed_.wait(lock, [this] { return num_destroying_ == 0; });
}

bool Releases::IsFinished() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return finished_;
}

void Releases::Run(std::unique_ptr<Share> share) {
  auto interval = kFirstInterval;
  while (!share->IsLast() && !IsFinished()) {
    std::this_thread::sleep_for(interval);
    interval = std::min(2 * interval, kLongestInterval);
  }
  std::unique_lock<std::mutex> lock(mutex_);
  if (finished_) {
    static_cast<void>(share.release());
  } else {
    ++num_destroying_;
    lock.unlock();
    share.reset();
    lock.lock();
    --num_destroying_;
  }
  --num_pending_;
  changed_.notify_all();
}

}  // namespace gradcomp
