// SPDX-License-Identifier: Apache-2.0
// Block masks: what finds non-zero blocks loses nothing but the sign of zeros, and any mask that is
// accepted has its blocks moved there and back.

#include <algorithm>
#include <vector>

#include "custom_ops/core/host_device.h"
#include "custom_ops/core/item_shape.h"
#include "custom_ops/core/nonzero_blocks.h"
#include "tests/core/check.h"
#include "tests/fuzz/fuzz_input.h"

namespace gradcomp {
namespace {

constexpr uint32_t kPoison[] = {0xdeadbeefu, 0x01234567u};

std::vector<uint32_t> Find(const std::vector<float>& values, int64_t block_size, uint32_t poison,
                           const CallWays& ways) {
  const int64_t n = static_cast<int64_t>(values.size());
  std::vector<uint32_t> mask(static_cast<size_t>(BlockMaskWords(n, block_size)), poison);
  CHECK(NonzeroBlocks(values.data(), n, block_size, ways.parallel_for(), mask.data()).ok());
  return mask;
}

// Packs and unpacks. False if the mask is refused.
bool MoveThereAndBack(const std::vector<uint32_t>& mask, const std::vector<float>& values,
                      int64_t block_size, const CallWays& ways, std::vector<float>* unpacked) {
  const int64_t n = static_cast<int64_t>(values.size());
  const int64_t num_words = static_cast<int64_t>(mask.size());
  int64_t count = 0;
  if (!BlocksCount(mask.data(), num_words, n, block_size, &count).ok()) return false;
  std::vector<float> packed(static_cast<size_t>(count * block_size), FloatOf(kPoison[0]));
  CHECK(BlocksTake(mask.data(), num_words, values.data(), n, block_size, count, ways.parallel_for(),
                   packed.data())
            .ok());
  unpacked->assign(values.size(), FloatOf(kPoison[1]));
  CHECK(BlocksPut(mask.data(), num_words, packed.data(), count, n, block_size, ways.parallel_for(),
                  unpacked->data())
            .ok());
  return true;
}

void CheckBlocks(int64_t n, int64_t block_size, bool hostile, FuzzInput* input) {
  std::vector<float> values = input->Floats(n);
  if (n > 0) {
    const int64_t begin = input->Number(0, n - 1);
    std::fill(values.begin() + begin, values.begin() + input->Number(begin, n), -0.0f);
  }
  std::vector<uint32_t> mask = Find(values, block_size, kPoison[0], CallWays(false));
  CHECK(mask == Find(values, block_size, kPoison[1], CallWays(hostile, 1)));
  std::vector<float> unpacked;
  CHECK(MoveThereAndBack(mask, values, block_size, CallWays(hostile, 2), &unpacked));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t bits = BitsOf(values[i]), found = BitsOf(unpacked[i]);
    CHECK(found == bits || (found == 0 && bits == kSignBit));
  }

  input->Damage(&mask);
  if (!MoveThereAndBack(mask, values, block_size, CallWays(hostile, 3), &unpacked)) return;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t block = i / block_size;
    const bool is_set = (mask[static_cast<size_t>(block / 32)] >> (block % 32) & 1) != 0;
    const uint32_t bits = BitsOf(values[static_cast<size_t>(i)]);
    CHECK(BitsOf(unpacked[static_cast<size_t>(i)]) == (is_set ? bits : 0));
  }
}

void Refuse(FuzzInput* input) {
  const int64_t n = input->AnyNumber(), block_size = input->NumberOrAny(1, kMaxComponents);
  const int64_t num_words = input->Number(0, 3), count = input->AnyNumber();
  const std::vector<uint32_t> mask = input->Words(num_words);
  const bool is_valid = n >= 0 && 1 <= block_size && block_size <= kMaxComponents;
  if (is_valid && BlockMaskWords(n, block_size) == num_words && 0 <= count && count <= 96) return;
  const StatusCode bad = StatusCode::kInvalidArgument;
  float nothing = 0.0f;
  CHECK(BlocksTake(mask.data(), num_words, &nothing, n, block_size, count, SerialFor, &nothing)
            .code() == bad);
  CHECK(BlocksPut(mask.data(), num_words, &nothing, count, n, block_size, SerialFor, &nothing)
            .code() == bad);
  uint32_t no_word = 0;
  if (is_valid) return;
  CHECK(NonzeroBlocks(&nothing, n, block_size, SerialFor, &no_word).code() == bad);
}

}  // namespace
}  // namespace gradcomp

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  gradcomp::FuzzInput input(data, size);
  if (input.OneIn(16)) {
    gradcomp::Refuse(&input);
    return gradcomp::FinishInput();
  }
  const bool hostile = input.OneIn(4);
  const int64_t n = input.Size();
  const int64_t block_size = input.Number(1, input.OneIn(8) ? gradcomp::kMaxComponents : 300);
  gradcomp::CheckBlocks(n, block_size, hostile, &input);
  return gradcomp::FinishInput();
}
