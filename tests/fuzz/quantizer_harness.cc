// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/quantizer_harness.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "custom_ops/core/host_device.h"
#include "tests/core/check.h"
#include "tests/core/hostile_threads.h"

namespace gradcomp {
namespace {

// Two fillings that no encoder or decoder leaves where it does not write.
constexpr uint32_t kPoison[] = {0xdeadbeefu, 0x01234567u};

// Where the error of an encoder goes.
enum class ErrorTo { kNowhere, kItsOwn, kValues };

// The payload of x = values + residual, or x = values if that is empty, and the error.
struct Encoded {
  Encoded(const FuzzedQuantizer& quantizer, std::vector<float> values,
          const std::vector<float>& residual, ErrorTo error_to, uint32_t poison,
          const CallWays& ways)
      : words(static_cast<size_t>(quantizer.num_words(static_cast<int64_t>(values.size()))),
              poison),
        error(values.size(), FloatOf(poison)) {
    float* const to = error_to == ErrorTo::kValues   ? values.data()
                      : error_to == ErrorTo::kItsOwn ? error.data()
                                                     : nullptr;
    CHECK(quantizer
              .encode(values.data(), residual.data(), static_cast<int64_t>(values.size()),
                      ways.parallel_for(), words.data(), to)
              .ok());
    if (error_to == ErrorTo::kValues) error = std::move(values);
  }

  std::vector<uint32_t> words;
  std::vector<float> error;
};

// The decoded values, or what was there before if the payload was refused.
struct Decoded {
  Decoded(const FuzzedQuantizer& quantizer, const std::vector<uint32_t>& words, int64_t num_workers,
          int64_t count, bool sum, uint32_t poison, const CallWays& ways)
      : values(static_cast<size_t>(sum ? count : num_workers * count), FloatOf(poison)) {
    const int64_t words_per_worker = quantizer.num_words(count);
    ok = quantizer
             .decode(words.data(), num_workers, words_per_worker, count, sum, ways.parallel_for(),
                     values.data())
             .ok();
  }

  std::vector<float> values;
  bool ok;
};

void RoundTrip(const FuzzedQuantizer& quantizer, FuzzInput* input) {
  const bool hostile = input->OneIn(4);
  const int64_t count = input->Size();
  const std::vector<float> values = input->Floats(count);
  std::vector<float> residual;
  if (quantizer.takes_residual && input->OneIn(2)) residual = input->Floats(count);
  std::vector<float> x = values;
  for (size_t i = 0; i < residual.size(); ++i) x[i] += residual[i];

  const Encoded encoded(quantizer, values, residual, ErrorTo::kItsOwn, kPoison[0], CallWays(false));
  const Encoded again(quantizer, values, residual, ErrorTo::kValues, kPoison[1],
                      CallWays(hostile, 1));
  const Encoded words_only(quantizer, values, residual, ErrorTo::kNowhere, kPoison[1],
                           CallWays(false));
  CHECK(encoded.words == again.words);
  CHECK(encoded.words == words_only.words);
  CHECK(SameBits(encoded.error, again.error));

  const Decoded decoded(quantizer, encoded.words, 1, count, false, kPoison[0], CallWays(hostile));
  CHECK(decoded.ok);
  const bool finite = std::all_of(x.begin(), x.end(), [](float v) { return std::isfinite(v); });
  std::vector<float> error(x.size(), 0.0f);
  for (size_t i = 0; i < x.size(); ++i) {
    constexpr float kLargest = std::numeric_limits<float>::max();
    CHECK(finite ? std::isfinite(decoded.values[i]) : std::isnan(decoded.values[i]));
    if (finite) error[i] = std::clamp(x[i] - decoded.values[i], -kLargest, kLargest);
  }
  CHECK(SameBits(encoded.error, error));
}

void DecodeAnything(const FuzzedQuantizer& quantizer, FuzzInput* input) {
  const bool hostile = input->OneIn(4);
  const bool made_up = input->OneIn(8);
  const int64_t count = input->Size();
  const int64_t num_workers = input->NumWorkers();
  std::vector<uint32_t> words;
  for (int64_t worker = 0; worker < num_workers && !made_up; ++worker) {
    const std::vector<float> values = input->Floats(count);
    Encoded block(quantizer, values, {}, ErrorTo::kNowhere, kPoison[0], CallWays(false));
    input->Damage(&block.words);
    words.insert(words.end(), block.words.begin(), block.words.end());
  }
  if (made_up) words = input->Words(num_workers * quantizer.num_words(count));
  words.shrink_to_fit();

  const Decoded rows(quantizer, words, num_workers, count, false, kPoison[0], CallWays(false));
  const Decoded again(quantizer, words, num_workers, count, false, kPoison[1],
                      CallWays(hostile, 1));
  CHECK(rows.ok == again.ok);
  if (rows.ok) {
    CHECK(SameBits(rows.values, again.values));
  } else {
    const auto untouched = [](float value) { return BitsOf(value) == kPoison[0]; };
    CHECK(std::all_of(rows.values.begin(), rows.values.end(), untouched));
  }
  if (!quantizer.sums) return;
  const Decoded sum(quantizer, words, num_workers, count, true, kPoison[0], CallWays(hostile, 2));
  CHECK(sum.ok == rows.ok);
  std::vector<float> expected(static_cast<size_t>(count), rows.ok ? 0.0f : FloatOf(kPoison[0]));
  for (size_t i = 0; rows.ok && i < rows.values.size(); ++i) {
    expected[i % expected.size()] += rows.values[i];
  }
  CHECK(SameNumbers(sum.values, expected));
}

void RefuseSizes(const FuzzedQuantizer& quantizer, FuzzInput* input) {
  const int64_t num_workers = input->NumberOrAny(0, 3);
  const int64_t words_per_worker = input->Number(0, 8);
  int64_t count = input->AnyNumber();
  // Eight words hold no more than a few hundred values.
  if (num_workers >= 0 && count >= 0) count |= 1024;
  const std::vector<uint32_t> words = input->Words(
      num_workers < 0 || num_workers > 3 ? words_per_worker : num_workers * words_per_worker);
  float nothing = 0.0f;
  for (bool sum : {false, quantizer.sums}) {
    CHECK(quantizer
              .decode(words.data(), num_workers, words_per_worker, count, sum, SerialFor, &nothing)
              .code() == StatusCode::kInvalidArgument);
  }
  uint32_t no_word = 0;
  if (count >= 0) return;
  CHECK(quantizer.encode(&nothing, nullptr, count, SerialFor, &no_word, &nothing).code() ==
        StatusCode::kInvalidArgument);
}

void RefuseParameters(const FuzzedQuantizer& quantizer, FuzzInput* input) {
  CHECK(quantizer.validity.code() == StatusCode::kInvalidArgument);
  const int64_t count = input->Size();
  std::vector<float> values = input->Floats(count);
  uint32_t word = 0;
  CHECK(quantizer.encode(values.data(), nullptr, count, SerialFor, &word, values.data()).code() ==
        StatusCode::kInvalidArgument);
  CHECK(quantizer.decode(&word, 1, 1, count, false, SerialFor, values.data()).code() ==
        StatusCode::kInvalidArgument);
}

}  // namespace

void FuzzQuantizer(const FuzzedQuantizer& quantizer, FuzzInput* input) {
  if (!quantizer.validity.ok()) return RefuseParameters(quantizer, input);
  const uint8_t kind = input->Byte();
  if (kind % 16 == 15) return RefuseSizes(quantizer, input);
  if (kind % 4 == 1) return RoundTrip(quantizer, input);
  DecodeAnything(quantizer, input);
}

}  // namespace gradcomp
