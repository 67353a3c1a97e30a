// SPDX-License-Identifier: Apache-2.0
// Checks for the core tests: a failed one is printed and counted, and the test goes on.

#ifndef GRADCOMP_TESTS_CORE_CHECK_H_
#define GRADCOMP_TESTS_CORE_CHECK_H_

#include <cstdio>
#include <string>

namespace gradcomp {

inline int& NumFailures() {
  static int failures = 0;
  return failures;
}

// Says which case is being checked when a check fails.
inline std::string& CurrentCase() {
  static std::string name;
  return name;
}

inline bool CheckThat(bool holds, const char* what, const char* file, int line) {
  if (!holds && ++NumFailures() <= 20) {
    std::fprintf(stderr, "%s:%d: failed: %s [%s]\n", file, line, what, CurrentCase().c_str());
  }
  return holds;
}

// The exit status of a test: call it last in main.
inline int FinishTest() {
  std::fprintf(stderr, "%d failed checks\n", NumFailures());
  return NumFailures() == 0 ? 0 : 1;
}

}  // namespace gradcomp

#define CHECK(condition) ::gradcomp::CheckThat((condition), #condition, __FILE__, __LINE__)

#endif  // GRADCOMP_TESTS_CORE_CHECK_H_
