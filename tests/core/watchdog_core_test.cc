// SPDX-License-Identifier: Apache-2.0
// The watchdog: what expires, what does not, and when, with many threads arming and disarming.

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "custom_ops/core/watchdog.h"
#include "tests/core/check.h"

namespace gradcomp {
namespace {

using Clock = Watchdog::Clock;
using std::chrono::milliseconds;

void WaitUntil(const std::function<bool()>& holds) {
  const auto limit = Clock::now() + std::chrono::seconds(20);
  while (!holds() && Clock::now() < limit) std::this_thread::sleep_for(milliseconds(1));
}

void TestExpiresInOrderOfDeadlinesAndNotBefore() {
  CurrentCase() = "order";
  std::mutex mutex;
  std::vector<int> expired;
  std::vector<bool> in_time;
  Watchdog watchdog;
  const auto start = Clock::now();
  // The thread is asleep for the latest deadline when the earlier ones come.
  for (const int delay : {900, 600, 300, 0, -10}) {
    const auto deadline = start + milliseconds(delay);
    watchdog.Arm(deadline, [&, delay, deadline] {
      const std::lock_guard<std::mutex> lock(mutex);
      in_time.push_back(Clock::now() >= deadline);
      expired.push_back(delay);
    });
    std::this_thread::sleep_for(milliseconds(2));
  }
  const auto num_expired = [&] {
    const std::lock_guard<std::mutex> lock(mutex);
    return expired.size();
  };
  WaitUntil([&] { return num_expired() == 5; });
  const std::lock_guard<std::mutex> lock(mutex);
  CHECK((expired == std::vector<int>{0, -10, 300, 600, 900}));
  for (const bool was_in_time : in_time) CHECK(was_in_time);
}

void TestDisarmedNeverExpires() {
  CurrentCase() = "disarm";
  std::atomic<int> expired{0};
  auto owned = std::make_shared<int>(0);
  Watchdog watchdog;
  const auto ticket =
      watchdog.Arm(Clock::now() + milliseconds(50), [&expired, owned] { ++expired; });
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
  const auto ticket = watchdog.Arm(Clock::now(), [&] { ++expired; });
  WaitUntil([&] { return expired == 1; });
  CHECK(expired == 1);
  CHECK(!watchdog.Disarm(ticket));
}

void TestCallbackMayUseTheWatchdog() {
  CurrentCase() = "from a callback";
  std::atomic<bool> second{false};
  Watchdog watchdog;
  const auto later = watchdog.Arm(Clock::now() + std::chrono::hours(1), [] {});
  watchdog.Arm(Clock::now(), [&] {
    CHECK(watchdog.Disarm(later));
    watchdog.Arm(Clock::now(), [&] { second = true; });
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
    watchdog.Arm(Clock::now() + std::chrono::hours(1), [&expired, owned] { ++expired; });
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
        const auto ticket = watchdog.Arm(Clock::now() + delay, [&] { ++expired; });
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
