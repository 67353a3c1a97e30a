// SPDX-License-Identifier: Apache-2.0
// Temporary memory of a core function: not cleared, and a failed allocation is not an exception.

#ifndef GRADCOMP_CORE_SCRATCH_H_
#define GRADCOMP_CORE_SCRATCH_H_

#include <cstdint>
#include <memory>
#include <new>

#include "status.h"

namespace gradcomp {

// `size` uninitialised values of a plain type, or null when there is no memory for them.
template <typename T>
std::unique_ptr<T[]> AllocateScratch(int64_t size) {
  return std::unique_ptr<T[]>(new (std::nothrow) T[static_cast<size_t>(size)]);
}

inline Status OutOfScratch() { return Status::ResourceExhausted("no memory for scratch space"); }

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_SCRATCH_H_
