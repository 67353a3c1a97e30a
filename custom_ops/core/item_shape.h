// SPDX-License-Identifier: Apache-2.0
// How many floats an item has: 1 if it is real, 2 if it is complex, more if it is a block of
// neighbours that is kept or dropped as one (a wide item).

#ifndef GRADCOMP_CORE_ITEM_SHAPE_H_
#define GRADCOMP_CORE_ITEM_SHAPE_H_

#include <string>

#include "status.h"

namespace gradcomp {

constexpr int kMaxComponents = 65536;

inline bool IsWide(int components) { return components > 2; }

inline Status ValidateComponents(int components) {
  if (components >= 1 && components <= kMaxComponents) return Status();
  return Status::InvalidArgument("components must be in 1.." + std::to_string(kMaxComponents) +
                                 ", got " + std::to_string(components));
}

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_ITEM_SHAPE_H_
