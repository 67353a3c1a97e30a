// SPDX-License-Identifier: Apache-2.0
// Random-k: its positions are a block that can be read, with one item of each stratum, whose size
// scaling multiplies by.

#include <algorithm>
#include <vector>

#include "custom_ops/core/host_device.h"
#include "custom_ops/core/positions.h"
#include "custom_ops/core/random_k.h"
#include "tests/core/check.h"
#include "tests/fuzz/fuzz_input.h"

namespace gradcomp {
namespace {

constexpr uint32_t kPoison[] = {0xdeadbeefu, 0x01234567u};

std::vector<uint32_t> Draw(const RandomKey& key, int64_t n, int64_t k, uint32_t poison,
                           const CallWays& ways) {
  std::vector<uint32_t> positions(static_cast<size_t>(PositionsNumWords(n, k)), poison);
  CHECK(RandomKPositions(key, n, k, ways.parallel_for(), positions.data()).ok());
  return positions;
}

void CheckDraw(const RandomKey& key, int64_t n, int64_t k, bool hostile) {
  const std::vector<uint32_t> positions = Draw(key, n, k, kPoison[0], CallWays(false));
  CHECK(positions == Draw(key, n, k, kPoison[1], CallWays(hostile, 1)));
  std::vector<float> items(static_cast<size_t>(n)), drawn(static_cast<size_t>(k));
  for (size_t i = 0; i < items.size(); ++i) items[i] = static_cast<float>(i);  // n < 2^24: exact
  CHECK(PositionsTake(positions.data(), items.data(), static_cast<int64_t>(positions.size()), n, 1,
                      k, SerialFor, drawn.data())
            .ok());
  std::vector<float> scaled(static_cast<size_t>(k), 1.0f);
  CHECK(RandomKScale(scaled.data(), n, 1, k, SerialFor, scaled.data()).ok());
  for (int64_t j = 0; j < k; ++j) {
    const int64_t item = static_cast<int64_t>(drawn[static_cast<size_t>(j)]);
    CHECK(j * n / k <= item && item < (j + 1) * n / k);
    CHECK(static_cast<int64_t>(scaled[static_cast<size_t>(j)]) == (j + 1) * n / k - j * n / k);
  }
}

void CheckScale(int64_t n, int64_t k, int components, bool hostile, FuzzInput* input) {
  const std::vector<float> kept = input->Floats(k * components);
  std::vector<float> in_place = kept, scaled(kept.size(), FloatOf(kPoison[0]));
  CHECK(RandomKScale(kept.data(), n, components, k, SerialFor, scaled.data()).ok());
  {
    const CallWays ways(hostile, 2);
    CHECK(
        RandomKScale(in_place.data(), n, components, k, ways.parallel_for(), in_place.data()).ok());
  }
  CHECK(SameBits(scaled, in_place));
}

void Refuse(const RandomKey& key, FuzzInput* input) {
  const int64_t n = input->AnyNumber(), k = input->AnyNumber();
  if (1 <= k && k <= n && n <= kRandomKMaxItems) return;
  uint32_t no_word = 0;
  float nothing = 0.0f;
  const StatusCode bad = StatusCode::kInvalidArgument;
  CHECK(RandomKPositions(key, n, k, SerialFor, &no_word).code() == bad);
  CHECK(RandomKScale(&nothing, n, 1, k, SerialFor, &nothing).code() == bad);
}

}  // namespace
}  // namespace gradcomp

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  gradcomp::FuzzInput input(data, size);
  const gradcomp::RandomKey key = input.Key();
  if (input.OneIn(16)) {
    gradcomp::Refuse(key, &input);
    return gradcomp::FinishInput();
  }
  const bool hostile = input.OneIn(4);
  const int64_t n = 1 + (input.OneIn(32) ? input.Number(0, 140000) : input.Size());
  const int64_t k = input.Number(1, input.OneIn(2) ? n : n / 16 + 1);
  gradcomp::CheckDraw(key, n, std::min(k, n), hostile);
  gradcomp::CheckScale(n, std::min(k, n), input.OneIn(2) ? 2 : 1, hostile, &input);
  return gradcomp::FinishInput();
}
