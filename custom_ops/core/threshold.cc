// SPDX-License-Identifier: Apache-2.0
#include "threshold.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>

#include "fp_environment.h"
#include "marked_items.h"
#include "positions.h"
#include "random_k.h"
#include "scratch.h"
#include "top_k.h"
#include "top_k_keys.h"

namespace gradcomp {
namespace {

// Items drawn at a time.
constexpr int64_t kTile = 1024;
constexpr int64_t kSampleCycles = 40;

uint32_t ThresholdKey(float threshold, int components) {
  return components == 1 ? RealKey(threshold) : ComplexKey(threshold, 0.0f, 1.0);
}

// The largest float whose key is at most `key`; see SampledThreshold().
float ThresholdOfKey(uint32_t key, int components) {
  const float inf = std::numeric_limits<float>::infinity();
  if (components == 1) return FloatOf(key);
  if (key >= kMaxEnergyKey) return inf;
  // Start from the root of the largest energy with this key, rounded up: too large, if anything.
  const uint64_t bits = (uint64_t{key} << 32) | 0xffffffffu;
  double energy;
  std::memcpy(&energy, &bits, sizeof(energy));
  float threshold = static_cast<float>(std::sqrt(energy));
  threshold = std::min(std::nextafter(threshold, inf), std::numeric_limits<float>::max());
  while (ThresholdKey(threshold, 2) > key) threshold = std::nextafter(threshold, 0.0f);
  return threshold;
}

}  // namespace

Status ThresholdSelect(const float* values, const float* residual, int64_t n, int components,
                       int64_t row_length, float threshold, int64_t capacity,
                       const ParallelFor& parallel_for, uint32_t* positions, float* kept,
                       float* sum) {
  const ScopedIeeeMode ieee_mode;
  PendingSum pending(values, residual, sum, n * components);
  KeyedItems items = {pending.total(), n, components, row_length};
  if (Status status = items.Validate(); !status.ok()) return status;
  if (!(threshold >= 0.0f)) {
    return Status::InvalidArgument("threshold must be at least 0, got " +
                                   std::to_string(threshold));
  }
  if (capacity < 1 || capacity > n) {
    return Status::InvalidArgument("capacity must be in 1.." + std::to_string(n) +
                                   " (the number of items), got " + std::to_string(capacity));
  }
  if (capacity > kPositionsMaxCapacity) {
    return Status::InvalidArgument("capacity must be at most " +
                                   std::to_string(kPositionsMaxCapacity) + ", got " +
                                   std::to_string(capacity));
  }
  if (Status status = items.ComputeWideKeys(&pending, parallel_for); !status.ok()) return status;
  int64_t found = 0;
  {
    MarkedItems marked(items);
    if (Status status = marked.Init(); !status.ok()) return status;
    const uint32_t threshold_key = ThresholdKey(threshold, components);
    std::atomic<int64_t> num_marked{0};
    std::atomic<bool> has_memory{true};
    RunShards(parallel_for, marked.num_chunks(), MarkedItems::kScanCycles,
              [&](int64_t begin, int64_t end) {
                for (int64_t chunk = begin; chunk < end; ++chunk) {
                  // Beyond the capacity, what remains is to add up the rest.
                  const bool fits = num_marked.load(std::memory_order_relaxed) <= capacity;
                  const uint32_t bound = fits ? threshold_key : kMaxEnergyKey + 1;
                  if (!marked.Mark(pending, chunk, bound)) has_memory = false;
                  num_marked += marked.count(chunk);
                }
              });
    if (!has_memory) return OutOfScratch();
    found = num_marked;
    if (found <= capacity) {
      return marked.Write(capacity, /*counted=*/true, parallel_for, positions, kept);
    }
  }
  // The items that reach a threshold rank before all others, so the top ones are among them.
  positions[0] = static_cast<uint32_t>(capacity);
  return TopKSelect(items.values, nullptr, n, components, row_length, capacity, parallel_for,
                    positions + 1, kept, nullptr);
}

Status SampledThreshold(const float* values, int64_t n, int components, int64_t row_length,
                        int64_t k, int64_t num_samples, const RandomKey& key,
                        const ParallelFor& parallel_for, float* threshold) {
  const ScopedIeeeMode ieee_mode;
  const KeyedItems items = {values, n, components, row_length};
  if (Status status = items.Validate(); !status.ok()) return status;
  if (n < 1 || n > kRandomKMaxItems) {
    return Status::InvalidArgument("the number of items must be in 1.." +
                                   std::to_string(kRandomKMaxItems) + ", got " + std::to_string(n));
  }
  if (k < 1 || k > n) {
    return Status::InvalidArgument("count must be in 1.." + std::to_string(n) +
                                   " (the number of items), got " + std::to_string(k));
  }
  if (num_samples < 1 || num_samples > n) {
    return Status::InvalidArgument("num_samples must be in 1.." + std::to_string(n) +
                                   " (the number of items), got " + std::to_string(num_samples));
  }
  const std::unique_ptr<uint32_t[]> keys = AllocateScratch<uint32_t>(num_samples);
  if (!keys) return OutOfScratch();
  RunShards(parallel_for, num_samples, kSampleCycles, [&](int64_t begin, int64_t end) {
    int64_t drawn[kTile];
    for (int64_t first = begin; first < end; first += kTile) {
      const int64_t count = std::min(kTile, end - first);
      RandomKItems(key, n, num_samples, first, count, drawn);
      for (int64_t i = 0; i < count; ++i) keys[first + i] = items.KeyAt(drawn[i]);
    }
  });
  const uint64_t product = static_cast<uint64_t>(k) * static_cast<uint64_t>(num_samples);
  const int64_t rank = static_cast<int64_t>((product - 1) / static_cast<uint64_t>(n) + 1);
  *threshold = ThresholdOfKey(SelectLargest(keys.get(), num_samples, rank), components);
  return Status();
}

}  // namespace gradcomp
