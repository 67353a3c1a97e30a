// SPDX-License-Identifier: Apache-2.0
// Top-k and the threshold that stands in for it: any floats give a block that can be read, and the
// kept items rank before all others.

#include <algorithm>
#include <vector>

#include "custom_ops/core/host_device.h"
#include "custom_ops/core/item_shape.h"
#include "custom_ops/core/positions.h"
#include "custom_ops/core/threshold.h"
#include "custom_ops/core/top_k.h"
#include "tests/core/check.h"
#include "tests/fuzz/fuzz_input.h"

namespace gradcomp {
namespace {

constexpr uint32_t kPoison[] = {0xdeadbeefu, 0x01234567u};

struct Items {
  std::vector<float> values;
  int64_t n;
  int components;
  int64_t row_length;
};

struct Selected {
  std::vector<uint32_t> positions;
  std::vector<float> kept;
};

uint32_t RealKey(float x) { return std::min(BitsOf(x) & 0x7fffffffu, 0x7f800000u); }

Selected TopK(const Items& items, int64_t k, uint32_t poison, const CallWays& ways) {
  Selected result{std::vector<uint32_t>(static_cast<size_t>(PositionsNumWords(items.n, k)), poison),
                  std::vector<float>(static_cast<size_t>(k * items.components), FloatOf(poison))};
  CHECK(TopKSelect(items.values.data(), nullptr, items.n, items.components, items.row_length, k,
                   ways.parallel_for(), result.positions.data(), result.kept.data(), nullptr)
            .ok());
  return result;
}

Selected ByThreshold(const Items& items, float threshold, int64_t capacity, uint32_t poison,
                     const CallWays& ways) {
  Selected result{
      std::vector<uint32_t>(static_cast<size_t>(PositionsNumWords(items.n, capacity, true)),
                            poison),
      std::vector<float>(static_cast<size_t>(capacity * items.components), FloatOf(poison))};
  CHECK(ThresholdSelect(items.values.data(), nullptr, items.n, items.components, items.row_length,
                        threshold, capacity, ways.parallel_for(), result.positions.data(),
                        result.kept.data(), nullptr)
            .ok());
  return result;
}

// Checks that the items without the kept ones are these, and returns them.
std::vector<float> TakeOut(const Items& items, const Selected& selected, int64_t k, bool counted) {
  std::vector<float> same = items.values, others = items.values;
  const std::vector<float> zeros(selected.kept.size(), 0.0f);
  const int64_t num_words = static_cast<int64_t>(selected.positions.size());
  CHECK(PositionsReplace(selected.positions.data(), selected.kept.data(), num_words, items.n,
                         items.components, k, SerialFor, same.data(), counted)
            .ok());
  CHECK(SameBits(same, items.values));
  CHECK(PositionsReplace(selected.positions.data(), zeros.data(), num_words, items.n,
                         items.components, k, SerialFor, others.data(), counted)
            .ok());
  return others;
}

void CheckTopK(const Items& items, int64_t k, bool hostile) {
  const Selected selected = TopK(items, k, kPoison[0], CallWays(false));
  const Selected again = TopK(items, k, kPoison[1], CallWays(hostile, 1));
  CHECK(selected.positions == again.positions);
  CHECK(SameBits(selected.kept, again.kept));
  const std::vector<float> others = TakeOut(items, selected, k, false);
  if (items.components != 1) return;
  uint32_t smallest_kept = ~0u, largest_other = 0;
  for (float x : selected.kept) smallest_kept = std::min(smallest_kept, RealKey(x));
  for (float x : others) largest_other = std::max(largest_other, RealKey(x));
  CHECK(largest_other <= smallest_kept);
}

void CheckThreshold(const Items& items, int64_t capacity, bool hostile, FuzzInput* input) {
  float threshold = 0.0f;
  if (input->OneIn(2)) threshold = FloatOf(input->Word() & 0x7fffffffu);
  if (input->OneIn(2)) {
    const int64_t num_samples = input->Number(1, items.n);
    CHECK(SampledThreshold(items.values.data(), items.n, items.components, items.row_length,
                           capacity, num_samples, input->Key(), SerialFor, &threshold)
              .ok());
  }
  if (RealKey(threshold) == 0x7f800000u) threshold = FloatOf(0x7f800000u);  // no NaN
  const Selected selected = ByThreshold(items, threshold, capacity, kPoison[0], CallWays(false));
  const Selected again = ByThreshold(items, threshold, capacity, kPoison[1], CallWays(hostile, 2));
  CHECK(selected.positions == again.positions);
  CHECK(SameBits(selected.kept, again.kept));
  const int64_t count = selected.positions[0];
  const std::vector<float> others = TakeOut(items, selected, capacity, true);
  if (items.components != 1) return;
  for (int64_t i = 0; i < count; ++i) CHECK(RealKey(selected.kept[i]) >= RealKey(threshold));
  if (count == capacity || threshold == 0.0f) return;
  for (float x : others) CHECK(RealKey(x) < RealKey(threshold));
}

// Arguments outside their limits.
void Refuse(const Items& items, FuzzInput* input) {
  const int64_t k = input->AnyNumber(), row_length = input->AnyNumber();
  const int components = static_cast<int>(input->NumberOrAny(1, 2));
  const bool valid_items = (components >= 1 && components <= kMaxComponents && row_length == 0) ||
                           (components == 2 && row_length >= 0 && row_length < 2 * items.n &&
                            items.n % (row_length / 2 + 1) == 0);
  if (valid_items && 1 <= k && k <= items.n) return;
  const StatusCode bad = StatusCode::kInvalidArgument;
  uint32_t no_word = 0;
  float nothing = 0.0f;
  CHECK(TopKSelect(items.values.data(), nullptr, items.n, components, row_length, k, SerialFor,
                   &no_word, &nothing, nullptr)
            .code() == bad);
  CHECK(ThresholdSelect(items.values.data(), nullptr, items.n, components, row_length, 1.0f, k,
                        SerialFor, &no_word, &nothing, nullptr)
            .code() == bad);
  CHECK(SampledThreshold(items.values.data(), items.n, components, row_length, k, 1, {}, SerialFor,
                         &nothing)
            .code() == bad);
}

}  // namespace
}  // namespace gradcomp

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  gradcomp::FuzzInput input(data, size);
  gradcomp::Items items;
  items.components = static_cast<int>(input.Number(1, 3));
  items.row_length = 0;
  items.n = 1 + input.Size();
  if (items.components == 2 && input.OneIn(2)) {
    items.row_length = input.Number(1, 300);
    items.n = (items.row_length / 2 + 1) * input.Number(1, 30);
  }
  items.values = input.Floats(items.n * items.components);
  if (input.OneIn(16)) {
    gradcomp::Refuse(items, &input);
    return gradcomp::FinishInput();
  }
  const bool hostile = input.OneIn(4);
  const int64_t k = input.Number(1, input.OneIn(2) ? items.n : items.n / 16 + 1);
  gradcomp::CheckTopK(items, std::min(k, items.n), hostile);
  gradcomp::CheckThreshold(items, std::min(k, items.n), hostile, &input);
  return gradcomp::FinishInput();
}
