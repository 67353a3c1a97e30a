// SPDX-License-Identifier: Apache-2.0
#include "top_k_keys.h"

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "key_masks.h"
#include "multiversion.h"
#include "scratch.h"

namespace gradcomp {
namespace {

// Keys that take less time to sort in part than a histogram takes to clear.
constexpr int64_t kFewKeys = 512;
// Partial sums of a wide item's squares.
constexpr int kLanes = 8;
// Wide items whose sums are computed at a time.
constexpr int64_t kWideTile = 64;

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

void WideKeys(const float* values, int64_t count, int components, uint32_t* keys) {
  double sums[kWideTile];
  for (int64_t first = 0; first < count; first += kWideTile) {
    const int64_t size = std::min(kWideTile, count - first);
    SumsOfSquares(values + first * components, size, components, sums);
    for (int64_t i = 0; i < size; ++i) keys[first + i] = EnergyKey(sums[i]);
  }
}

// `sum` is the memory of one of the others or apart from both, which the compiler would have to
// assume it is not.
GRADCOMP_MULTIVERSION
void AddFloats(const float* values, const float* residual, int64_t count, float* sum) {
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC ivdep
#endif
  for (int64_t i = 0; i < count; ++i) sum[i] = values[i] + residual[i];
}

}  // namespace

GRADCOMP_MULTIVERSION
void SumsOfSquares(const float* values, int64_t count, int components, double* sums) {
  const int whole = components / kLanes * kLanes;
  for (int64_t item = 0; item < count; ++item, values += components) {
    double lanes[kLanes] = {};
    for (int i = 0; i < whole; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const double x = values[i + lane];
        lanes[lane] += x * x;
      }
    }
    for (int i = whole; i < components; ++i) {
      const double x = values[i];
      lanes[i - whole] += x * x;
    }
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    }
    sums[item] = lanes[0];
  }
}

const float* PendingSum::Add(int64_t first, int64_t count, float* tile) const {
  if (residual == nullptr) return values + first;
  if (tile == nullptr || !streamed) {
    AddFloats(values + first, residual + first, count, sum + first);
    return sum + first;
  }
  AddStreamed(values + first, residual + first, count, tile, sum + first);
  return tile;
}

uint32_t PendingSum::KeyAt(const KeyedItems& items, int64_t item) const {
  if (residual == nullptr) return items.KeyAt(item);
  float added[2];
  for (int i = 0; i < items.components; ++i) {
    const int64_t at = item * items.components + i;
    added[i] = values[at] + residual[at];
  }
  return items.NarrowKey(added, item);
}

void KeyedItems::Keys(int64_t first, int64_t count, const float* at, uint32_t* keys) const {
  if (components == 1) return RealKeys(at, count, keys);
  if (wide_keys) {
    std::copy_n(wide_keys.get() + first, count, keys);
    return;
  }
  if (IsWide(components)) return WideKeys(at, count, components, keys);
  ComplexKeys(at, count, row_length == 0 ? 1.0 : 2.0, keys);
  if (row_length == 0) return;
  // The bins that are their own conjugate are few: mend them afterwards.
  FixBins(first, count, 0, at, keys);
  if (row_length % 2 == 0) FixBins(first, count, row_length / 2, at, keys);
}

void KeyedItems::FixBins(int64_t first, int64_t count, int64_t bin, const float* at,
                         uint32_t* keys) const {
  const int64_t bins = RowBins();
  for (int64_t i = (bin - first % bins + bins) % bins; i < count; i += bins) {
    keys[i] = ComplexKey(at[2 * i], at[2 * i + 1], 1.0);
  }
}

int64_t KeyedItems::MarkTile(int64_t first, int64_t size, const float* at, uint32_t threshold,
                             uint64_t* masks, uint32_t* keys) const {
  if (components == 1 && size % 64 == 0) return MaskValues(at, size / 64, threshold, masks);
  const int64_t num_masks = (size + 63) / 64;
  Keys(first, size, at, keys);
  std::fill(keys + size, keys + num_masks * 64, 0);
  int64_t count = MaskKeys(keys, num_masks, threshold, masks);
  if (size % 64 != 0 && threshold == 0) {  // which the fill reaches, too
    masks[num_masks - 1] &= (uint64_t{1} << (size % 64)) - 1;
    count -= num_masks * 64 - size;
  }
  return count;
}

uint32_t KeyedItems::WideKeyAt(int64_t item) const {
  uint32_t key;
  WideKeys(values + item * components, 1, components, &key);
  return key;
}

Status KeyedItems::ComputeWideKeys(PendingSum* pending, const ParallelFor& parallel_for) {
  if (!IsWide(components)) return Status();
  std::unique_ptr<uint32_t[]> keys = AllocateScratch<uint32_t>(n);
  if (!keys) return OutOfScratch();
  RunShards(parallel_for, n, components, [&](int64_t begin, int64_t end) {
    const float* const at = pending->Add(begin * components, (end - begin) * components, nullptr);
    Keys(begin, end - begin, at, keys.get() + begin);
  });
  *pending = PendingSum(pending->total());
  wide_keys = std::move(keys);
  return Status();
}

Status KeyedItems::Validate() const {
  if (Status status = ValidateComponents(components); !status.ok()) return status;
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

// Narrows many keys down to one bin of a histogram first, because sorting steps are slow on
// unpredictable data.
uint32_t SelectLargest(const uint32_t* keys, int64_t size, int64_t rank) {
  if (size <= kFewKeys) {
    std::array<uint32_t, kFewKeys> few;
    std::copy_n(keys, size, few.begin());
    std::nth_element(few.begin(), few.begin() + (rank - 1), few.begin() + size,
                     std::greater<uint32_t>());
    return few[static_cast<size_t>(rank - 1)];
  }
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
