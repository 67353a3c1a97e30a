// SPDX-License-Identifier: Apache-2.0
// Division rounded up, for sizes.

#ifndef GRADCOMP_CORE_CEIL_DIV_H_
#define GRADCOMP_CORE_CEIL_DIV_H_

#include <cstdint>

namespace gradcomp {

// a / b rounded up, for a >= 0 and b > 0; cannot overflow.
constexpr int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_CEIL_DIV_H_
