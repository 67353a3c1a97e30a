// SPDX-License-Identifier: Apache-2.0
// The positions block as FORMAT.md describes it, written item by item.

#ifndef GRADCOMP_TESTS_CORE_POSITIONS_ORACLE_H_
#define GRADCOMP_TESTS_CORE_POSITIONS_ORACLE_H_

#include <cstdint>
#include <vector>

namespace gradcomp {

inline int OracleLowBits(int64_t n, int64_t k) {
  int bits = 0;
  while (bits < 31 && (int64_t{2} << bits) * (k > 0 ? k : 1) <= n) ++bits;
  return bits;
}

inline int64_t OracleLowWords(int64_t n, int64_t k) { return (k * OracleLowBits(n, k) + 31) / 32; }

inline int64_t OracleBuckets(int64_t n, int64_t k) {
  const int64_t size = int64_t{1} << OracleLowBits(n, k);
  return (n + size - 1) / size;
}

inline bool OracleUsesEliasFano(int64_t n, int64_t k) {
  const int64_t words = OracleLowWords(n, k) + (k + OracleBuckets(n, k) + 31) / 32;
  return 3 * words < 2 * ((n + 31) / 32);
}

// The block of some of n items with room for `capacity`; `kept` holds their positions in ascending
// order.
inline std::vector<uint32_t> OracleLayout(const std::vector<int64_t>& kept, int64_t n,
                                          int64_t capacity) {
  if (!OracleUsesEliasFano(n, capacity)) {
    std::vector<uint32_t> bitmap((n + 31) / 32);
    for (int64_t item : kept) bitmap[item / 32] |= 1u << (item % 32);
    return bitmap;
  }
  const int bits = OracleLowBits(n, capacity);
  const int64_t low_words = OracleLowWords(n, capacity);
  std::vector<uint32_t> block(low_words + (capacity + OracleBuckets(n, capacity) + 31) / 32);
  for (int64_t j = 0; j < static_cast<int64_t>(kept.size()); ++j) {
    for (int i = 0; i < bits; ++i) {
      const int64_t bit = j * bits + i;
      block[bit / 32] |= static_cast<uint32_t>(kept[j] >> i & 1) << (bit % 32);
    }
    const int64_t bit = (kept[j] >> bits) + j;
    block[low_words + bit / 32] |= 1u << (bit % 32);
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
