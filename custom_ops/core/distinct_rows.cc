// SPDX-License-Identifier: Apache-2.0
#include "distinct_rows.h"

#include <array>
#include <type_traits>

namespace gradcomp {
namespace {

constexpr int kDigitBits = 11;  // the counters of a digit fit in the first-level cache
constexpr int kDigits = 1 << kDigitBits;

template <typename Key>
struct Entry {
  Key key;
  int64_t position;
};

// Sorts by one digit of the keys; entries of the same digit keep their order.
template <typename Key>
void SortByDigit(const std::vector<Entry<Key>>& from, int shift, std::vector<Entry<Key>>* to) {
  const auto digit = [shift](const Entry<Key>& entry) { return (entry.key >> shift) % kDigits; };
  std::array<int64_t, kDigits + 1> places{};
  for (const Entry<Key>& entry : from) ++places[digit(entry) + 1];
  for (int i = 0; i < kDigits; ++i) places[i + 1] += places[i];
  for (const Entry<Key>& entry : from) (*to)[places[digit(entry)]++] = entry;
}

}  // namespace

template <typename Index>
RowGroups GroupRows(const Index* indices, int64_t n) {
  using Key = std::make_unsigned_t<Index>;
  constexpr int kBits = 8 * sizeof(Key);
  constexpr Key kSign = Key{1} << (kBits - 1);  // flipped, it puts negative indices first
  std::vector<Entry<Key>> entries(n), sorted(n);
  Key varying = 0;  // bits in which keys differ
  for (int64_t i = 0; i < n; ++i) {
    entries[i] = {static_cast<Key>(static_cast<Key>(indices[i]) ^ kSign), i};
    varying |= entries[i].key ^ entries[0].key;
  }
  for (int shift = 0; shift < kBits; shift += kDigitBits) {
    if ((varying >> shift) % kDigits == 0) continue;
    SortByDigit(entries, shift, &sorted);
    entries.swap(sorted);
  }
  RowGroups groups;
  groups.positions.resize(n);
  for (int64_t i = 0; i < n; ++i) {
    groups.positions[i] = entries[i].position;
    if (i == 0 || entries[i].key != entries[i - 1].key) groups.starts.push_back(i);
  }
  groups.starts.push_back(n);
  return groups;
}

template <typename Value>
void SumGroups(const RowGroups& groups, const Value* values, int64_t row_size,
               const ParallelFor& parallel_for, Value* sums) {
  const auto sum_some = [&](int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group) {
      Value* const sum = sums + group * row_size;
      const int64_t start = groups.starts[group];
      const Value* const first = values + groups.positions[start] * row_size;
      for (int64_t j = 0; j < row_size; ++j) sum[j] = Value{0} + first[j];  // -0 becomes +0
      for (int64_t i = start + 1; i < groups.starts[group + 1]; ++i) {
        const Value* const row = values + groups.positions[i] * row_size;
        for (int64_t j = 0; j < row_size; ++j) sum[j] += row[j];
      }
    }
  };
  const int64_t num_rows = static_cast<int64_t>(groups.positions.size());
  const int64_t rows_per_group = groups.size() > 0 ? num_rows / groups.size() : 0;
  RunShards(parallel_for, groups.size(), (rows_per_group + 1) * (row_size + 1), sum_some);
}

template RowGroups GroupRows(const int32_t*, int64_t);
template RowGroups GroupRows(const int64_t*, int64_t);
template void SumGroups(const RowGroups&, const float*, int64_t, const ParallelFor&, float*);
template void SumGroups(const RowGroups&, const double*, int64_t, const ParallelFor&, double*);

}  // namespace gradcomp
