// SPDX-License-Identifier: Apache-2.0
// The positions block as FORMAT.md describes it, written item by item.

#ifndef GRADCOMP_TESTS_CORE_POSITIONS_ORACLE_H_
#define GRADCOMP_TESTS_CORE_POSITIONS_ORACLE_H_

#include <cstdint>
#include <vector>

namespace gradcomp {

inline bool OracleUsesLocal(int64_t n, int64_t k) {
  return (n + 65535) / 65536 + (k + 1) / 2 < (n + 31) / 32;
}

// The block of some of n items with room for `capacity`; `kept` holds their positions in ascending
// order.
inline std::vector<uint32_t> OracleLayout(const std::vector<int64_t>& kept, int64_t n,
                                          int64_t capacity) {
  const int64_t segments = (n + 65535) / 65536;
  if (!OracleUsesLocal(n, capacity)) {
    std::vector<uint32_t> bitmap((n + 31) / 32);
    for (int64_t item : kept) bitmap[item / 32] |= 1u << (item % 32);
    return bitmap;
  }
  std::vector<uint32_t> block(segments + (capacity + 1) / 2);
  for (size_t j = 0; j < kept.size(); ++j) {
    ++block[kept[j] / 65536];
    block[segments + j / 2] |= static_cast<uint32_t>(kept[j] % 65536) << (j % 2 == 0 ? 0 : 16);
  }
  return block;
}

// The positions block.
inline std::vector<uint32_t> OraclePositions(const std::vector<int64_t>& kept, int64_t n) {
  return OracleLayout(kept, n, static_cast<int64_t>(kept.size()));
}

// The counted positions block.
inline std::vector<uint32_t> OracleCountedPositions(const std::vector<int64_t>& kept, int64_t n,
                                                    int64_t capacity) {
  std::vector<uint32_t> block = OracleLayout(kept, n, capacity);
  block.insert(block.begin(), static_cast<uint32_t>(kept.size()));
  return block;
}

}  // namespace gradcomp

#endif  // GRADCOMP_TESTS_CORE_POSITIONS_ORACLE_H_
