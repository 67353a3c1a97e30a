// SPDX-License-Identifier: Apache-2.0
#include "deadline.h"

#include <string>
#include <system_error>

namespace gradcomp {

Watchdog::~Watchdog() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

Status Watchdog::Arm(Clock::time_point deadline, std::function<void()> on_expiry, Ticket* ticket) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread([this] { Watch(); });
    } catch (const std::system_error& error) {
      return Status::ResourceExhausted(std::string("no thread to watch deadlines: ") +
                                       error.what());
    }
  }
  *ticket = ++last_ticket_;
  deadlines_.emplace(*ticket, deadline);
  armed_.emplace(std::make_pair(deadline, *ticket), std::move(on_expiry));
  if (deadline < next_look_) wake_.notify_one();
  return Status();
}

bool Watchdog::Disarm(Ticket ticket) {
  std::function<void()> dropped;  // destroyed after the lock is released: it may own anything
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto deadline = deadlines_.find(ticket);
  if (deadline == deadlines_.end()) return false;
  const auto entry = armed_.find({deadline->second, ticket});
  dropped = std::move(entry->second);
  armed_.erase(entry);
  deadlines_.erase(deadline);
  return true;
}

void Watchdog::Watch() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    if (armed_.empty()) {
      next_look_ = Clock::time_point::max();
      wake_.wait(lock);
      continue;
    }
    const auto first = armed_.begin();
    const auto [deadline, ticket] = first->first;
    if (deadline > Clock::now()) {
      next_look_ = deadline;
      wake_.wait_until(lock, deadline);
      continue;
    }
    std::function<void()> on_expiry = std::move(first->second);
    armed_.erase(first);
    deadlines_.erase(ticket);
    lock.unlock();
    on_expiry();
    on_expiry = nullptr;
    lock.lock();
  }
}

}  // namespace gradcomp
