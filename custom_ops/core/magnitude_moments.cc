// SPDX-License-Identifier: Apache-2.0
#include "magnitude_moments.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "fp_environment.h"
#include "host_device.h"
#include "multiversion.h"
#include "prefetch.h"
#include "top_k_keys.h"

namespace gradcomp {
namespace {

// Lanes that are summed on their own: enough for several vectors of any instruction set.
constexpr int kLanes = 64;
// Items that are summed on their own: 256 factors below 2 a lane cannot overflow a product.
constexpr int64_t kBlockItems = 16384;
constexpr int64_t kBlockCycles = kBlockItems * 4;
// Items whose magnitudes are computed at a time, into an array that stays in the first-level cache.
constexpr int64_t kTile = 512;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLog2 = 0x1.62e42fefa39efp-1;
constexpr int64_t kExponentOne = int64_t{1023} << 52;  // the pattern of 1.0
constexpr int64_t kMantissaMask = (int64_t{1} << 52) - 1;

// Patterns as signed integers, which vectorise better; of magnitudes, so the sign is not set.
GRADCOMP_ALWAYS_INLINE int64_t PatternOf(double x) { return static_cast<int64_t>(BitsOf(x)); }

GRADCOMP_ALWAYS_INLINE double DoubleOf(int64_t bits) {
  double x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

// What is summed. The logarithms are summed as their product, which is mantissa * 2^exponent with
// 1 <= mantissa.
struct Sums {
  int64_t count = 0;
  int64_t exponent = 0;
  double min = kInfinity;
  double excess = 0.0;          // sum of y - bound
  double excess_squared = 0.0;  // sum of (y - bound)^2
  double mantissa = 1.0;
};

// The same for all lanes, as arrays that loops can run along.
struct LaneSums {
  int64_t count[kLanes];
  int64_t exponent[kLanes];
  int64_t min_bits[kLanes];
  double excess[kLanes];
  double excess_squared[kLanes];
  double mantissa[kLanes];

  LaneSums() {
    const Sums none;
    for (int lane = 0; lane < kLanes; ++lane) {
      count[lane] = none.count;
      exponent[lane] = none.exponent;
      min_bits[lane] = PatternOf(none.min);
      excess[lane] = none.excess;
      excess_squared[lane] = none.excess_squared;
      mantissa[lane] = none.mantissa;
    }
  }
  Sums Lane(int lane) const {
    return {count[lane],  exponent[lane],       DoubleOf(min_bits[lane]),
            excess[lane], excess_squared[lane], mantissa[lane]};
  }
};

GRADCOMP_MULTIVERSION
void RealMagnitudes(const float* values, int64_t count, double* magnitudes) {
  for (int64_t i = 0; i < count; ++i) magnitudes[i] = std::fabs(static_cast<double>(values[i]));
}

GRADCOMP_MULTIVERSION
void ComplexMagnitudes(const float* values, int64_t count, double weight, double* magnitudes) {
  for (int64_t i = 0; i < count; ++i) {
    const double re = values[2 * i], im = values[2 * i + 1];
    magnitudes[i] = std::sqrt(weight * (re * re + im * im));
  }
}

// magnitudes[i] = magnitude of item first + i.
void Magnitudes(const KeyedItems& items, int64_t first, int64_t count, double* magnitudes) {
  const float* const values = items.values + first * items.components;
  if (items.components == 1) return RealMagnitudes(values, count, magnitudes);
  if (IsWide(items.components)) {
    SumsOfSquares(values, count, items.components, magnitudes);
    for (int64_t i = 0; i < count; ++i) magnitudes[i] = std::sqrt(magnitudes[i]);
    return;
  }
  ComplexMagnitudes(values, count, items.row_length == 0 ? 1.0 : 2.0, magnitudes);
  if (items.row_length == 0) return;
  // The bins that are their own conjugate are few: mend them afterwards.
  const int64_t bins = items.RowBins();
  for (int64_t bin : {int64_t{0}, items.row_length / 2}) {
    if (BinWeight(bin, items.row_length) != 1.0) continue;
    for (int64_t i = (bin - first % bins + bins) % bins; i < count; i += bins) {
      ComplexMagnitudes(values + 2 * i, 1, 1.0, magnitudes + i);
    }
  }
}

// Adds `rows` rows of kLanes magnitudes to the lanes. Works on patterns, which are ordered as the
// magnitudes are, and masks instead of branches: so it vectorises.
GRADCOMP_MULTIVERSION
void AddRows(const double* magnitudes, int64_t rows, double bound, LaneSums* lanes) {
  LaneSums sums = *lanes;  // cannot alias `magnitudes`
  const int64_t bound_bits = PatternOf(std::fabs(bound));
  const int64_t infinity_bits = PatternOf(kInfinity);
  for (int64_t row = 0; row < rows; ++row, magnitudes += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const double y = magnitudes[lane];
      const int64_t bits = PatternOf(y);
      // All ones if y counts, else 0.
      const int64_t mask = -static_cast<int64_t>((bits > bound_bits) & (bits < infinity_bits));
      const double excess = DoubleOf(PatternOf(y - bound) & mask);
      const int64_t y_or_one = (bits & mask) | (kExponentOne & ~mask);
      const int64_t y_or_infinity = (bits & mask) | (infinity_bits & ~mask);
      sums.count[lane] -= mask;
      sums.exponent[lane] += (y_or_one >> 52) - 1023;
      sums.min_bits[lane] =
          y_or_infinity < sums.min_bits[lane] ? y_or_infinity : sums.min_bits[lane];
      sums.excess[lane] += excess;
      sums.excess_squared[lane] += excess * excess;
      sums.mantissa[lane] *= DoubleOf((y_or_one & kMantissaMask) | kExponentOne);
    }
  }
  *lanes = sums;
}

// Moves all but a mantissa in [1, 2) to the exponent. 1 <= sums->mantissa, finite.
void Normalize(Sums* sums) {
  const int64_t bits = PatternOf(sums->mantissa);
  sums->exponent += (bits >> 52) - 1023;
  sums->mantissa = DoubleOf((bits & kMantissaMask) | kExponentOne);
}

// Adds sums whose mantissas are below 2^512; that of the result is below 2.
void Add(const Sums& more, Sums* sums) {
  sums->count += more.count;
  sums->exponent += more.exponent;
  sums->min = std::min(sums->min, more.min);
  sums->excess += more.excess;
  sums->excess_squared += more.excess_squared;
  sums->mantissa *= more.mantissa;
  Normalize(sums);
}

Sums SumBlock(const KeyedItems& items, int64_t block, double bound) {
  LaneSums lanes;
  const int64_t end = std::min((block + 1) * kBlockItems, items.n);
  double magnitudes[kTile];
  for (int64_t first = block * kBlockItems; first < end; first += kTile) {
    const int64_t size = std::min(kTile, end - first);
    const int64_t rows = (size + kLanes - 1) / kLanes;
    if (!IsWide(items.components)) {
      PrefetchAhead(items.values + first * items.components, size * items.components);
    }
    Magnitudes(items, first, size, magnitudes);
    std::fill(magnitudes + size, magnitudes + rows * kLanes, 0.0);  // never above the bound
    AddRows(magnitudes, rows, bound, &lanes);
  }
  Sums sums;
  for (int lane = 0; lane < kLanes; ++lane) Add(lanes.Lane(lane), &sums);
  return sums;
}

// The natural logarithm of 1 <= x < 2, the same bits everywhere, unlike a library's.
double LogOfMantissa(double x) {
  // log(x) = 2 atanh(s) with s = (x - 1) / (x + 1), after bringing x close to 1.
  const bool halve = x > 1.4142135623730951;
  if (halve) x *= 0.5;
  const double s = (x - 1.0) / (x + 1.0);
  const double s2 = s * s;
  double series = 0.0;
  for (int power = 23; power >= 1; power -= 2) series = series * s2 + 1.0 / power;
  return 2.0 * s * series + (halve ? kLog2 : 0.0);
}

}  // namespace

Status ComputeMagnitudeMoments(const float* values, int64_t n, int components, int64_t row_length,
                               double bound, const ParallelFor& parallel_for,
                               MagnitudeMoments* moments) {
  const ScopedIeeeMode ieee_mode;
  const KeyedItems items = {values, n, components, row_length};
  if (Status status = items.Validate(); !status.ok()) return status;
  if (!(bound >= 0.0)) {
    return Status::InvalidArgument("bound must be at least 0, got " + std::to_string(bound));
  }
  const int64_t num_blocks = (n + kBlockItems - 1) / kBlockItems;
  std::vector<Sums> blocks(static_cast<size_t>(num_blocks));
  RunShards(parallel_for, num_blocks, kBlockCycles * components, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      blocks[block] = SumBlock(items, block, bound);
    }
  });
  Sums sums;
  for (const Sums& block : blocks) Add(block, &sums);
  *moments = MagnitudeMoments();
  if (sums.count == 0) return Status();
  const double count = static_cast<double>(sums.count);
  const double mean_excess = sums.excess / count;
  moments->count = sums.count;
  moments->min = sums.min;
  moments->mean = bound + mean_excess;
  // Rounding may make the difference of two nearly equal terms negative.
  moments->variance = std::max(0.0, sums.excess_squared / count - mean_excess * mean_excess);
  moments->mean_log =
      (static_cast<double>(sums.exponent) * kLog2 + LogOfMantissa(sums.mantissa)) / count;
  return Status();
}

}  // namespace gradcomp
