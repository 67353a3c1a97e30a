// SPDX-License-Identifier: Apache-2.0
// A main for fuzz targets where there is no libFuzzer: gives a target the files that are named, and
// then inputs at random. It takes the arguments that libFuzzer calls by the same names:
//
//   NAME_fuzz [-runs=N] [-max_total_time=SECONDS] [-seed=S] [FILE...]
//
// Without a limit, files alone are run if there are any, else 10000 inputs. The same seed gives the
// same inputs. An input that ends the process is written to crash-S-N (seed and number of the
// input), to be given back as a file.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz_input.h"

// The interface of the sanitizers. Every end goes through the address sanitizer's, which calls
// back.
extern "C" void __sanitizer_set_death_callback(void (*callback)());
extern "C" const char* __ubsan_default_options() { return "abort_on_error=1:print_stacktrace=1"; }
extern "C" const char* __asan_default_options() {
  return "handle_abort=1:allocator_may_return_null=1";
}

namespace {

using Bytes = std::vector<uint8_t>;

constexpr size_t kMaxBytes = 512;
constexpr size_t kPoolSize = 64;

// The input that runs, and the file it goes to if it is the last one.
Bytes current;
std::string current_name;

void WriteInput() {
  std::ofstream(current_name, std::ios::binary)
      .write(reinterpret_cast<const char*>(current.data()),
             static_cast<std::streamsize>(current.size()));
  std::fprintf(stderr, "the input is in %s\n", current_name.c_str());
}

void Run(const Bytes& bytes, const std::string& name) {
  current = Bytes(bytes);  // of exactly this size, so that reading beyond it is seen
  current_name = name;
  LLVMFuzzerTestOneInput(current.data(), current.size());
}

Bytes ReadFile(const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "cannot read %s\n", path);
    std::exit(1);
  }
  return Bytes(std::istreambuf_iterator<char>(file), {});
}

// New bytes, or those of an earlier input after a few changes.
Bytes MakeInput(const std::vector<Bytes>& pool, std::mt19937* random) {
  Bytes bytes((*random)() % kMaxBytes);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>((*random)());
  if (pool.empty() || (*random)() % 2 == 0) return bytes;
  const Bytes fresh = bytes;
  bytes = pool[(*random)() % pool.size()];
  for (int changes = 1 + static_cast<int>((*random)() % 4); changes > 0; --changes) {
    const size_t at = bytes.empty() ? 0 : (*random)() % bytes.size();
    switch ((*random)() % 4) {
      case 0:
        if (!bytes.empty()) bytes[at] ^= static_cast<uint8_t>(1u << (*random)() % 8);
        break;
      case 1:
        if (!bytes.empty()) bytes[at] = static_cast<uint8_t>((*random)());
        break;
      case 2:
        bytes.resize(at);
        break;
      default:
        bytes.resize(at);
        bytes.insert(bytes.end(), fresh.begin(), fresh.end());
    }
  }
  return bytes;
}

}  // namespace

int main(int num_arguments, char** arguments) {
  __sanitizer_set_death_callback(WriteInput);
  int64_t runs = -1, seconds = -1, seed = 1;
  std::vector<Bytes> pool;
  for (int i = 1; i < num_arguments; ++i) {
    const std::string argument = arguments[i];
    const auto value = [&](const char* name, int64_t* to) {
      if (argument.rfind(name, 0) != 0) return false;
      *to = std::atoll(argument.c_str() + std::string(name).size());
      return true;
    };
    if (value("-runs=", &runs) || value("-max_total_time=", &seconds) || value("-seed=", &seed)) {
      continue;
    }
    if (argument[0] == '-') {
      std::fprintf(stderr, "%s is not an argument; see driver.cc\n", arguments[i]);
      return 1;
    }
    pool.push_back(ReadFile(arguments[i]));
    Run(pool.back(), "crash-of-file");
  }
  if (runs < 0 && seconds < 0) runs = pool.empty() ? 10000 : 0;
  const auto start = std::chrono::steady_clock::now();
  int64_t done = 0;
  for (; runs < 0 || done < runs; ++done) {
    if (seconds >= 0 && std::chrono::steady_clock::now() - start >= std::chrono::seconds(seconds)) {
      break;
    }
    std::mt19937 random(static_cast<uint32_t>(seed * 1000003 + done));
    const Bytes bytes = MakeInput(pool, &random);
    Run(bytes, "crash-" + std::to_string(seed) + "-" + std::to_string(done));
    // Later inputs grow out of some of the earlier ones.
    if (pool.size() < kPoolSize) {
      pool.push_back(bytes);
    } else if (random() % 16 == 0) {
      pool[random() % pool.size()] = bytes;
    }
  }
  std::fprintf(stderr, "%lld inputs\n", static_cast<long long>(done));
  return 0;
}
