// SPDX-License-Identifier: Apache-2.0
// Many deadlines, one thread.

#ifndef GRADCOMP_CORE_DEADLINE_H_
#define GRADCOMP_CORE_DEADLINE_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "status.h"

namespace gradcomp {

// Calls a function when a deadline passes, unless it is disarmed before. Arming and disarming cost
// a lock and a map entry, so that every exchange of a training step can have its own deadline.
// Thread-safe.
class Watchdog {
 public:
  using Clock = std::chrono::steady_clock;
  using Ticket = int64_t;

  Watchdog() = default;
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Drops what is armed, and waits for an `on_expiry` that is running.
  ~Watchdog();

  // Calls `on_expiry` once, soon after `deadline`, on the watchdog's thread. It must return at
  // once, as all other deadlines wait for it; it may use the watchdog.
  //
  // Errors: ResourceExhausted if the system gives no thread; nothing is armed then.
  Status Arm(Clock::time_point deadline, std::function<void()> on_expiry, Ticket* ticket);

  // Returns whether the ticket was armed. If not, it has expired or was disarmed before; its
  // `on_expiry` may still be running.
  bool Disarm(Ticket ticket);

 private:
  void Watch();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<std::pair<Clock::time_point, Ticket>, std::function<void()>> armed_;
  std::map<Ticket, Clock::time_point> deadlines_;
  // When the thread looks next. It sleeps through what is armed later than that, or disarmed.
  Clock::time_point next_look_ = Clock::time_point::max();
  Ticket last_ticket_ = 0;
  bool stopping_ = false;
  std::thread thread_;  // started by the first Arm
};

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_DEADLINE_H_
