// SPDX-License-Identifier: Apache-2.0
#include "top_k_keys.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

namespace gradcomp {
namespace {

GRADCOMP_MULTIVERSION
void RealKeys(const float* values, int64_t count, uint32_t* keys) {
  for (int64_t i = 0; i < count; ++i) keys[i] = RealKey(values[i]);
}

GRADCOMP_MULTIVERSION
void ComplexKeys(const float* values, int64_t count, double weight, uint32_t* keys) {
  for (int64_t i = 0; i < count; ++i) {
    keys[i] = ComplexKey(values[2 * i], values[2 * i + 1], weight);
  }
}

}  // namespace

void KeyedItems::Keys(int64_t first, int64_t count, uint32_t* keys) const {
  if (components == 1) return RealKeys(values + first, count, keys);
  ComplexKeys(values + 2 * first, count, row_length == 0 ? 1.0 : 2.0, keys);
  if (row_length == 0) return;
  // The bins that are their own conjugate are few: mend them afterwards.
  FixBins(first, count, 0, keys);
  if (row_length % 2 == 0) FixBins(first, count, row_length / 2, keys);
}

void KeyedItems::FixBins(int64_t first, int64_t count, int64_t bin, uint32_t* keys) const {
  const int64_t bins = RowBins();
  for (int64_t i = (bin - first % bins + bins) % bins; i < count; i += bins) {
    keys[i] = ComplexKey(values[2 * (first + i)], values[2 * (first + i) + 1], 1.0);
  }
}

Status KeyedItems::Validate() const {
  if (components != 1 && components != 2) {
    return Status::InvalidArgument("components must be 1 or 2, got " + std::to_string(components));
  }
  if (row_length < 0 || (row_length > 0 && components != 2)) {
    return Status::InvalidArgument("row_length must be 0, or positive with complex items; got " +
                                   std::to_string(row_length));
  }
  if (row_length > 0 && n % (row_length / 2 + 1) != 0) {
    return Status::InvalidArgument("with row_length " + std::to_string(row_length) +
                                   " the number of items must be a multiple of " +
                                   std::to_string(row_length / 2 + 1) + ", got " +
                                   std::to_string(n));
  }
  return Status();
}

// Narrows the keys down to one bin of a histogram first, because sorting steps are slow on
// unpredictable data.
uint32_t SelectLargest(const uint32_t* keys, int64_t size, int64_t rank) {
  uint32_t smallest = keys[0], largest = keys[0];
  for (int64_t i = 1; i < size; ++i) {
    smallest = std::min(smallest, keys[i]);
    largest = std::max(largest, keys[i]);
  }
  constexpr int kBinBits = 11;
  int shift = 0;
  while ((largest - smallest) >> shift >> kBinBits != 0) ++shift;
  std::vector<int64_t> histogram(1 << kBinBits);
  for (int64_t i = 0; i < size; ++i) ++histogram[(keys[i] - smallest) >> shift];
  uint32_t bin = (largest - smallest) >> shift;
  while (histogram[bin] < rank) rank -= histogram[bin--];
  if (shift == 0) return smallest + bin;
  std::vector<uint32_t> in_bin;
  in_bin.reserve(static_cast<size_t>(histogram[bin]));
  for (int64_t i = 0; i < size; ++i) {
    if ((keys[i] - smallest) >> shift == bin) in_bin.push_back(keys[i]);
  }
  std::nth_element(in_bin.begin(), in_bin.begin() + (rank - 1), in_bin.end(),
                   std::greater<uint32_t>());
  return in_bin[static_cast<size_t>(rank - 1)];
}

}  // namespace gradcomp
