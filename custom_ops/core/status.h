// SPDX-License-Identifier: Apache-2.0
// The result of a core function: success, or a code with a message for people.
//
// Core code never prints, throws on bad input or aborts: it returns one of these, and the caller
// (an op kernel, a test) decides what to do.

#ifndef GRADCOMP_CORE_STATUS_H_
#define GRADCOMP_CORE_STATUS_H_

#include <string>
#include <utility>

namespace gradcomp {

enum class StatusCode {
  kOk = 0,
  kInvalidArgument = 1,    // an argument or a received payload breaks the contract
  kResourceExhausted = 2,  // scratch memory could not be allocated
};

class [[nodiscard]] Status {
 public:
  Status() = default;

  static Status InvalidArgument(std::string message) {
    return Status(StatusCode::kInvalidArgument, std::move(message));
  }
  static Status ResourceExhausted(std::string message) {
    return Status(StatusCode::kResourceExhausted, std::move(message));
  }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_STATUS_H_
