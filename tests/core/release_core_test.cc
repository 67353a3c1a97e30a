// SPDX-License-Identifier: Apache-2.0
// Background releases: when a thing is destroyed, where, and what happens to the rest at the end.

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "custom_ops/core/release.h"
#include "tests/core/check.h"

// Shares that Finish leaves behind are leaked, as they should be.
extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }

namespace gradcomp {
namespace {

using std::chrono::milliseconds;

// A thing that takes its time to be destroyed, and tells where it was.
struct Thing {
  std::atomic<int>* num_begun;
  std::atomic<int>* num_destroyed;
  std::atomic<bool>* on_main_thread;
  std::thread::id main_thread = std::this_thread::get_id();
  milliseconds duration{0};

  ~Thing() {
    ++*num_begun;
    std::this_thread::sleep_for(duration);
    if (std::this_thread::get_id() == main_thread) *on_main_thread = true;
    ++*num_destroyed;
  }
};

class ThingShare : public Share {
 public:
  explicit ThingShare(std::shared_ptr<Thing> thing) : thing_(std::move(thing)) {}
  bool IsLast() const override { return thing_.use_count() == 1; }

 private:
  std::shared_ptr<Thing> thing_;
};

struct Fixture {
  // Leaked: threads of a test may still use it.
  Releases& releases = *new Releases;
  std::atomic<int>& num_begun = *new std::atomic<int>(0);
  std::atomic<int>& num_destroyed = *new std::atomic<int>(0);
  std::atomic<bool>& on_main_thread = *new std::atomic<bool>(false);

  std::shared_ptr<Thing> Make(int duration = 0) {
    auto thing = std::make_shared<Thing>();
    thing->num_begun = &num_begun;
    thing->num_destroyed = &num_destroyed;
    thing->on_main_thread = &on_main_thread;
    thing->duration = milliseconds(duration);
    return thing;
  }

  void Release(const std::shared_ptr<Thing>& thing) {
    releases.Release(std::make_unique<ThingShare>(thing));
  }
};

void TestDestroysOnceItIsAlone() {
  CurrentCase() = "alone";
  Fixture f;
  auto thing = f.Make();
  f.Release(thing);
  CHECK(!f.releases.WaitUntilIdle(milliseconds(200)));
  CHECK(f.num_destroyed == 0);
  thing.reset();
  CHECK(f.releases.WaitUntilIdle(milliseconds(20000)));
  CHECK(f.num_destroyed == 1);
  CHECK(!f.on_main_thread);
}

void TestThingsDoNotWaitForEachOther() {
  CurrentCase() = "slow ones";
  Fixture f;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) f.Release(f.Make(500));
  CHECK(f.releases.WaitUntilIdle(milliseconds(20000)));
  CHECK(f.num_destroyed == 20);
  CHECK(std::chrono::steady_clock::now() - start < milliseconds(5000));
}

void TestFinishWaitsForWhatHasBegunAndLeaksTheRest() {
  CurrentCase() = "finish";
  Fixture f;
  auto owned = f.Make();
  f.Release(owned);
  for (int i = 0; i < 5; ++i) f.Release(f.Make(300));
  while (f.num_begun < 5) std::this_thread::sleep_for(milliseconds(1));
  f.releases.Finish();
  CHECK(f.num_destroyed == 5);
  owned.reset();
  f.Release(f.Make());
  CHECK(f.releases.WaitUntilIdle(milliseconds(20000)));
  CHECK(f.num_destroyed == 5);
}

void TestManyThreads() {
  CurrentCase() = "many threads";
  Fixture f;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) f.Release(f.Make());
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(f.releases.WaitUntilIdle(milliseconds(20000)));
  CHECK(f.num_destroyed == 400);
}

}  // namespace
}  // namespace gradcomp

int main() {
  gradcomp::TestDestroysOnceItIsAlone();
  gradcomp::TestThingsDoNotWaitForEachOther();
  gradcomp::TestFinishWaitsForWhatHasBegunAndLeaksTheRest();
  gradcomp::TestManyThreads();
  return gradcomp::FinishTest();
}
