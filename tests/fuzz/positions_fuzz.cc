// SPDX-License-Identifier: Apache-2.0
// Positions blocks, plain and counted. Knows nothing of their layouts: a block that is accepted
// must be the one that the encoder writes for the items which it is found to keep.

#include <algorithm>
#include <vector>

#include "custom_ops/core/host_device.h"
#include "custom_ops/core/item_shape.h"
#include "custom_ops/core/positions.h"
#include "tests/core/check.h"
#include "tests/fuzz/fuzz_input.h"

namespace gradcomp {
namespace {

constexpr uint32_t kPoison[] = {0xdeadbeefu, 0x01234567u};

struct Sizes {
  int64_t n;
  int components;
  int64_t k;
  bool counted;
};

// A selection of `size` of n items.
std::vector<uint64_t> Select(int64_t size, int64_t n, const RandomKey& key) {
  std::vector<uint64_t> selected(static_cast<size_t>(SelectionWords(n)));
  for (int64_t item = 0; item < n; ++item) {
    // Each item with the share of the items left that are still to be selected.
    const uint64_t left = static_cast<uint64_t>(n - item);
    if (RandomWord(item, key) * left >> 32 >= static_cast<uint64_t>(size)) continue;
    selected[static_cast<size_t>(item / 64)] |= uint64_t{1} << (item % 64);
    --size;
  }
  return selected;
}

// A valid block; `kept` may be the items' floats for all n items.
std::vector<uint32_t> Gather(const std::vector<uint64_t>& selected, const Sizes& sizes,
                             const CallWays& ways) {
  std::vector<uint32_t> block(
      static_cast<size_t>(PositionsNumWords(sizes.n, sizes.k, sizes.counted)), kPoison[0]);
  const std::vector<float> values(static_cast<size_t>(sizes.n * sizes.components));
  std::vector<float> kept(static_cast<size_t>(sizes.k * sizes.components), FloatOf(kPoison[0]));
  CHECK(PositionsGather(selected.data(), values.data(), sizes.n, sizes.components, sizes.k,
                        ways.parallel_for(), block.data(), kept.data(), sizes.counted)
            .ok());
  CHECK(kept == std::vector<float>(kept.size(), 0.0f));
  return block;
}

// The items that a block keeps, found by moving their numbers there. False if it is refused.
bool FindItems(const std::vector<uint32_t>& block, const Sizes& sizes, const CallWays& ways,
               std::vector<int64_t>* items) {
  constexpr uint32_t kNone = 0xffffffffu;
  std::vector<float> numbers(static_cast<size_t>(sizes.k * sizes.components));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = FloatOf(static_cast<uint32_t>(i));
  std::vector<float> found(static_cast<size_t>(sizes.n * sizes.components), FloatOf(kNone));
  const Status status =
      PositionsReplace(block.data(), numbers.data(), static_cast<int64_t>(block.size()), sizes.n,
                       sizes.components, sizes.k, ways.parallel_for(), found.data(), sizes.counted);
  if (!status.ok()) return false;
  for (size_t i = 0; i < found.size(); i += static_cast<size_t>(sizes.components)) {
    if (BitsOf(found[i]) == kNone) continue;
    const size_t first = items->size() * static_cast<size_t>(sizes.components);
    for (size_t c = 0; c < static_cast<size_t>(sizes.components); ++c) {
      CHECK(BitsOf(found[i + c]) == first + c);
    }
    items->push_back(static_cast<int64_t>(i) / sizes.components);
  }
  return true;
}

void CheckIsWhatAnEncoderWrites(const std::vector<uint32_t>& block, const Sizes& sizes,
                                const std::vector<int64_t>& items) {
  CHECK(sizes.counted || static_cast<int64_t>(items.size()) == sizes.k);
  std::vector<uint64_t> selected(static_cast<size_t>(SelectionWords(sizes.n)));
  for (int64_t item : items) selected[static_cast<size_t>(item / 64)] |= uint64_t{1} << (item % 64);
  CHECK(Gather(selected, sizes, CallWays(false)) == block);
}

void CheckTake(const std::vector<uint32_t>& block, const Sizes& sizes,
               const std::vector<int64_t>& items, bool ok, const CallWays& ways, FuzzInput* input) {
  const std::vector<float> values = input->Floats(sizes.n * sizes.components);
  std::vector<float> kept(static_cast<size_t>(sizes.k * sizes.components), FloatOf(kPoison[0]));
  const Status status =
      PositionsTake(block.data(), values.data(), static_cast<int64_t>(block.size()), sizes.n,
                    sizes.components, sizes.k, ways.parallel_for(), kept.data());
  CHECK(status.ok() == ok);
  if (!ok) return;
  std::vector<float> expected;
  for (int64_t item : items) {
    const auto first = values.begin() + item * sizes.components;
    expected.insert(expected.end(), first, first + sizes.components);
  }
  CHECK(SameBits(kept, expected));
}

// Blocks of some workers, damaged or not, through all that reads them.
void ReadBlocks(const Sizes& sizes, FuzzInput* input) {
  const bool hostile = input->OneIn(4);
  const bool made_up = input->OneIn(8);
  const int64_t num_workers = input->NumWorkers();
  const int64_t words_per_worker = PositionsNumWords(sizes.n, sizes.k, sizes.counted);
  const std::vector<float> kept = input->Floats(num_workers * sizes.k * sizes.components);
  std::vector<float> expected(static_cast<size_t>(sizes.n * sizes.components), 0.0f);
  std::vector<uint32_t> blocks;
  bool all_ok = true;
  for (int64_t worker = 0; worker < num_workers; ++worker) {
    const int64_t count = sizes.counted ? input->Number(0, sizes.k) : sizes.k;
    std::vector<uint32_t> block =
        Gather(Select(count, sizes.n, input->Key()), sizes, CallWays(hostile, 1));
    const std::vector<uint32_t> valid = block;
    if (made_up) block = input->Words(words_per_worker);
    input->Damage(&block);
    std::vector<int64_t> items;
    const bool ok = FindItems(block, sizes, CallWays(hostile, 2), &items);
    CHECK(ok || block != valid);
    if (ok) CheckIsWhatAnEncoderWrites(block, sizes, items);
    if (!sizes.counted) CheckTake(block, sizes, items, ok, CallWays(hostile, 3), input);
    all_ok = all_ok && ok;
    blocks.insert(blocks.end(), block.begin(), block.end());
    auto from = kept.begin() + worker * sizes.k * sizes.components;
    for (int64_t item : items) {
      for (int64_t c = 0; c < sizes.components; ++c) {
        expected[static_cast<size_t>(item * sizes.components + c)] += *from++;
      }
    }
  }
  blocks.shrink_to_fit();
  for (uint32_t poison : kPoison) {
    std::vector<float> sum(expected.size(), FloatOf(poison));
    const CallWays ways(hostile && poison == kPoison[1], 4);
    const Status status =
        PositionsSum(blocks.data(), kept.data(), num_workers, words_per_worker, sizes.n,
                     sizes.components, sizes.k, ways.parallel_for(), sum.data(), sizes.counted);
    CHECK(status.ok() == all_ok);
    if (all_ok) CHECK(SameNumbers(sum, expected));
  }
}

// Sizes that are impossible, or too large for blocks of so few words.
void RefuseSizes(FuzzInput* input) {
  constexpr int64_t kMaxCount = 0xffffffff;
  const int64_t n = input->AnyNumber(), k = input->AnyNumber();
  const int components = static_cast<int>(input->NumberOrAny(1, 2));
  const int64_t num_workers = input->NumberOrAny(-1, 3);
  const bool counted = input->OneIn(2);
  const int64_t num_words = input->Number(0, 8);
  const bool valid = 0 <= k && k <= n && components >= 1 && components <= kMaxComponents;
  const bool may_fit = valid && n < (int64_t{1} << 20);
  const std::vector<uint32_t> words = input->Words(3 * num_words);
  const StatusCode bad = StatusCode::kInvalidArgument;
  float nothing = 0.0f;
  if (num_workers < 0 || (num_workers <= 3 && !may_fit)) {
    CHECK(PositionsSum(words.data(), &nothing, num_workers, num_words, n, components, k, SerialFor,
                       &nothing, counted)
              .code() == bad);
  }
  if (may_fit) return;
  CHECK(PositionsReplace(words.data(), &nothing, num_words, n, components, k, SerialFor, &nothing,
                         counted)
            .code() == bad);
  CHECK(PositionsTake(words.data(), &nothing, num_words, n, components, k, SerialFor, &nothing)
            .code() == bad);
  if (valid && !(counted && k > kMaxCount)) return;
  uint64_t no_mask = 0;
  uint32_t no_word = 0;
  CHECK(
      PositionsGather(&no_mask, &nothing, n, components, k, SerialFor, &no_word, &nothing, counted)
          .code() == bad);
}

}  // namespace
}  // namespace gradcomp

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  gradcomp::FuzzInput input(data, size);
  if (input.OneIn(16)) {
    gradcomp::RefuseSizes(&input);
    return gradcomp::FinishInput();
  }
  gradcomp::Sizes sizes;
  sizes.n = input.OneIn(32) ? input.Number(0, 140000) : input.Size();
  sizes.components = static_cast<int>(input.Number(1, 3));
  // Few items have the Elias-Fano layout, many the bitmap.
  sizes.k = input.Number(0, input.OneIn(2) ? sizes.n : sizes.n / 16);
  sizes.counted = input.OneIn(2);
  gradcomp::ReadBlocks(sizes, &input);
  return gradcomp::FinishInput();
}
