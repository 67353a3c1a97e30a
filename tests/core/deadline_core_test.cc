// SPDX-License-Identifier: Apache-2.0
// The watchdog: what expires, what does not, and when, with many threads arming and disarming.

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "custom_ops/core/deadline.h"
#include "tests/core/check.h"

namespace gradcomp {
namespace {

using Clock = Watchdog::Clock;
using std::chrono::milliseconds;

void WaitUntil(const std::function<bool()>& holds) {
  const auto limit = Clock::now() + std::chrono::seconds(20);
  while (!holds() && Clock::now() < limit) std::this_thread::sleep_for(milliseconds(1));
}

Watchdog::Ticket Arm(Watchdog* watchdog, Clock::time_point deadline,
                     std::function<void()> on_expiry) {
  Watchdog::Ticket ticket = 0;
  CHECK(watchdog->Arm(deadline, std::move(on_expiry), &ticket).ok());
  return ticket;
}

void TestExpiresInOrderOfDeadlinesAndNotBefore() {
  CurrentCase() = "order";
  std::mutex mutex;
  std::vector<int> expired;
  const auto num_expired = [&] {
    const std::lock_guard<std::mutex> lock(mutex);
    return expired.size();
  };
  Watchdog watchdog;
  const auto arm = [&](int delay) {
    const auto deadline = Clock::now() + milliseconds(delay);
    Arm(&watchdog, deadline, [&, delay, deadline] {
      const std::lock_guard<std::mutex> lock(mutex);
      CHECK(Clock::now() >= deadline);
      expired.push_back(delay);
    });
  };
  // The thread is asleep for the latest deadline when the earlier ones come.
  for (const int delay : {3000, 2000, 1000}) {
    arm(delay);
    std::this_thread::sleep_for(milliseconds(1));
  }
  arm(-10);
  WaitUntil([&] { return num_expired() == 1; });
  WaitUntil([&] { return num_expired() == 4; });
  const std::lock_guard<std::mutex> lock(mutex);
  CHECK((expired == std::vector<int>{-10, 1000, 2000, 3000}));
}

void TestDisarmedNeverExpires() {
  CurrentCase() = "disarm";
  std::atomic<int> expired{0};
  auto owned = std::make_shared<int>(0);
  Watchdog watchdog;
  const auto ticket =
      Arm(&watchdog, Clock::now() + milliseconds(50), [&expired, owned] { ++expired; });
  CHECK(owned.use_count() == 2);
  CHECK(watchdog.Disarm(ticket));
  CHECK(owned.use_count() == 1);
  CHECK(!watchdog.Disarm(ticket));
  CHECK(!watchdog.Disarm(ticket + 1));
  std::this_thread::sleep_for(milliseconds(120));
  CHECK(expired == 0);
}

void TestExpiredIsNotArmed() {
  CurrentCase() = "expired";
  std::atomic<int> expired{0};
  Watchdog watchdog;
  const auto ticket = Arm(&watchdog, Clock::now(), [&] { ++expired; });
  WaitUntil([&] { return expired == 1; });
  CHECK(expired == 1);
  CHECK(!watchdog.Disarm(ticket));
}

void TestCallbackMayUseTheWatchdog() {
  CurrentCase() = "from a callback";
  std::atomic<bool> second{false};
  Watchdog watchdog;
  const auto later = Arm(&watchdog, Clock::now() + std::chrono::hours(1), [] {});
  Arm(&watchdog, Clock::now(), [&] {
    CHECK(watchdog.Disarm(later));
    Arm(&watchdog, Clock::now(), [&] { second = true; });
  });
  WaitUntil([&] { return second.load(); });
  CHECK(second);
}

void TestDestructionDropsWhatIsArmed() {
  CurrentCase() = "destruction";
  std::atomic<int> expired{0};
  auto owned = std::make_shared<int>(0);
  {
    Watchdog watchdog;
    Arm(&watchdog, Clock::now() + std::chrono::hours(1), [&expired, owned] { ++expired; });
  }
  CHECK(owned.use_count() == 1);
  CHECK(expired == 0);
}

void TestManyThreads() {
  CurrentCase() = "many threads";
  std::atomic<int> expired{0};
  std::atomic<int> disarmed{0};
  Watchdog watchdog;
  constexpr int kThreads = 8;
  constexpr int kRounds = 2000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRounds; ++i) {
        const auto delay = std::chrono::microseconds((i * 7 + t) % 50);
        const auto ticket = Arm(&watchdog, Clock::now() + delay, [&] { ++expired; });
        if (i % 3 == 0) std::this_thread::yield();
        if (watchdog.Disarm(ticket)) ++disarmed;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  WaitUntil([&] { return expired + disarmed == kThreads * kRounds; });
  CHECK(expired + disarmed == kThreads * kRounds);
}

}  // namespace
}  // namespace gradcomp

int main() {
  gradcomp::TestExpiresInOrderOfDeadlinesAndNotBefore();
  gradcomp::TestDisarmedNeverExpires();
  gradcomp::TestExpiredIsNotArmed();
  gradcomp::TestCallbackMayUseTheWatchdog();
  gradcomp::TestDestructionDropsWhatIsArmed();
  gradcomp::TestManyThreads();
  return gradcomp::FinishTest();
}
