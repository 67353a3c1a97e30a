// SPDX-License-Identifier: Apache-2.0
// Dithering against FORMAT.md, value by value and bit by bit.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "custom_ops/core/dithering.h"
#include "custom_ops/core/philox.h"
#include "tests/core/check.h"
#include "tests/core/hostile_threads.h"

namespace gradcomp {
namespace {

constexpr RandomKey kKey = {11, 2, 3, 4};
constexpr uint32_t kFlag = 1u << 31;

uint32_t Bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

float Float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

uint32_t Draw(int64_t i, uint32_t stream) {
  const uint64_t quad = static_cast<uint64_t>(i) / 4;
  return Philox(
      {static_cast<uint32_t>(quad), static_cast<uint32_t>(quad >> 32), kKey.bucket, kKey.step},
      {kKey.seed, stream})[i % 4];
}

// The definitions of FORMAT.md, section "Dithering block", in doubles.
class Oracle {
 public:
  Oracle(const std::vector<float>& x, const DitheringParams& p) : params_(p) {
    bits_ = 1 + static_cast<int>(std::ceil(std::log2(p.levels + 1.0)));
    const size_t block = p.block != 0 ? p.block : std::max<size_t>(x.size(), 1);
    const size_t norms = (x.size() + block - 1) / block;
    const size_t codes = 2 + (p.natural_norms ? (norms + 3) / 4 : norms);
    words.assign(codes + (x.size() * bits_ + 31) / 32, 0);
    words[0] = static_cast<uint32_t>(p.levels) | (p.standard ? 1u << 16 : 0) |
               (p.norm == NormKind::kTwo ? 1u << 17 : 0) | (p.natural_norms ? 1u << 18 : 0);
    words[1] = static_cast<uint32_t>(p.block);
    decoded.assign(x.size(), Float(0x7fc00000));
    if (!std::all_of(x.begin(), x.end(), [](float value) { return std::isfinite(value); })) {
      words[0] |= kFlag;
      return;
    }
    for (size_t b = 0; b < norms; ++b) {
      const size_t end = std::min(x.size(), block * (b + 1));
      const float norm = Norm(x, block * b, end);
      const float sent = Send(norm, b);
      for (size_t i = block * b; i < end; ++i) {
        const int index = norm == 0 ? 0 : Index(std::fabs(x[i]), Draw(i, kKey.stream), norm);
        Append(codes, i, index | (index != 0 && x[i] < 0 ? 1u << (bits_ - 1) : 0));
        const double level = params_.standard ? index * (double{sent} / params_.levels)
                             : index == 0     ? 0.0
                                              : std::ldexp(double{sent}, index - params_.levels);
        decoded[i] = static_cast<float>(x[i] < 0 && index != 0 ? -level : level);
      }
    }
  }

  std::vector<uint32_t> words;
  std::vector<float> decoded;

 private:
  float Norm(const std::vector<float>& x, size_t begin, size_t end) const {
    if (params_.norm == NormKind::kInf) {
      float largest = 0;
      for (size_t i = begin; i < end; ++i) largest = std::max(largest, std::fabs(x[i]));
      return largest;
    }
    double total = 0;
    for (size_t chunk = begin; chunk < end; chunk += 4096) {
      double lanes[16] = {}, chunk_total = 0;
      for (size_t i = chunk; i < std::min(end, chunk + 4096); ++i) {
        lanes[(i - chunk) % 16] += double{x[i]} * double{x[i]};
      }
      for (double lane : lanes) chunk_total += lane;
      total += chunk_total;
    }
    return static_cast<float>(
        std::min(std::sqrt(total), double{std::numeric_limits<float>::max()}));
  }

  // Writes the norm and returns what a decoder reads.
  float Send(float norm, size_t b) {
    if (!params_.natural_norms) {
      words[2 + b] = Bits(norm);
      return norm;
    }
    const uint32_t u = Draw(static_cast<int64_t>(b), kKey.stream ^ kFlag) >> 9;
    uint32_t code = Bits(norm) >> 23;
    if (u < (Bits(norm) & 0x7fffffu)) ++code;
    code = std::min(code, 254u);
    words[2 + b / 4] |= code << (8 * (b % 4));
    return code == 0 ? 0.0f : std::ldexp(1.0f, static_cast<int>(code) - 127);
  }

  int Index(double magnitude, uint32_t u, double norm) const {
    if (params_.standard) {
      const double position = std::nearbyint(magnitude * (std::ldexp(params_.levels, 32) / norm));
      const double lower = std::floor(std::ldexp(position, -32));
      const bool promote = u < position - std::ldexp(lower, 32);
      return std::min(static_cast<int>(lower) + promote, params_.levels);
    }
    const int e = std::ilogb(norm);
    const double draw = 1 + std::ldexp(u >> 9, -23);
    const double t = std::ldexp(double{static_cast<float>(std::ldexp(norm, -e) * draw)}, e);
    const int k = magnitude == 0 ? -params_.levels : std::ilogb(magnitude / norm);
    const int j = k + params_.levels;
    if (j > 0) return j + (std::ldexp(t, k) < magnitude);
    const double smallest = std::ldexp(norm, 1 - params_.levels);
    const int shift = std::ilogb(smallest);
    const double z = static_cast<float>(std::ldexp(magnitude + smallest, -shift));
    return std::ldexp(t, 1 - params_.levels) < std::ldexp(z, shift);
  }

  void Append(size_t first_word, size_t i, uint32_t code) {
    for (int bit = 0; bit < bits_; ++bit) {
      const size_t b = i * bits_ + bit;
      words[first_word + b / 32] |= (code >> bit & 1) << (b % 32);
    }
  }

  DitheringParams params_;
  int bits_;
};

enum Kind { kNormal, kZero, kBits, kDenormal, kEdges, kNumKinds };

std::vector<float> MakeValues(Kind kind, int64_t size, std::mt19937* random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(size));
  for (float& value : values) {
    value = normal(*random);
    const uint32_t bits = (*random)();
    if (kind == kZero) value = bits % 2 == 0 ? 0.0f : -0.0f;
    if (kind == kBits) value = Float(bits);
    if (kind == kDenormal) value = Float(bits & 0x807fffffu);
    if (kind == kEdges) {
      const uint32_t edges[] = {0x7f7fffffu, 0xff000001u, 0x7f000000u, 1u, 0x80000003u, 0u};
      value = Float(edges[bits % 6]);
    }
    if (!std::isfinite(value)) value = 1.0f;
  }
  return values;
}

void TestValues(const std::vector<float>& values, const std::vector<float>& residual,
                const DitheringParams& params, const ParallelFor& parallel_for) {
  const int64_t count = static_cast<int64_t>(values.size());
  std::vector<float> x = values;
  for (size_t i = 0; i < residual.size(); ++i) x[i] += residual[i];
  const Oracle oracle(x, params);
  const int64_t num_words = DitheringLayout(count, params).num_words;
  if (!CHECK(num_words == static_cast<int64_t>(oracle.words.size()))) return;
  std::vector<float> expected_error(x.size(), 0.0f), expected_total(x.size(), 0.0f);
  for (size_t i = 0; i < x.size(); ++i) {
    if (!std::isnan(oracle.decoded[i])) expected_error[i] = x[i] - oracle.decoded[i];
    for (int worker = 0; worker < 2; ++worker) expected_total[i] += oracle.decoded[i];
  }
  const float* const r = residual.empty() ? nullptr : residual.data();
  Guarded<uint32_t> words(num_words), words_in_place(num_words);
  Guarded<float> in_place(count), decoded(2 * count), total(count);
  // The error takes the place of the residual, or else of the values.
  std::copy_n(r != nullptr ? r : values.data(), count, in_place.data());
  std::vector<uint32_t> blocks = oracle.words;
  blocks.insert(blocks.end(), oracle.words.begin(), oracle.words.end());
  {
    const ScopedFlush flush;
    CHECK(
        DitheringEncode(values.data(), r, count, kKey, params, parallel_for, words.data(), nullptr)
            .ok());
    CHECK(DitheringEncode(r != nullptr ? values.data() : in_place.data(),
                          r != nullptr ? in_place.data() : nullptr, count, kKey, params,
                          parallel_for, words_in_place.data(), in_place.data())
              .ok());
    CHECK(DitheringDecode(blocks.data(), 2, num_words, count, params, false, parallel_for,
                          decoded.data())
              .ok());
    CHECK(DitheringDecode(blocks.data(), 2, num_words, count, params, true, parallel_for,
                          total.data())
              .ok());
  }
  CHECK(words.ToVector() == oracle.words);
  CHECK(words_in_place.ToVector() == oracle.words);
  CHECK(SameBits(in_place.ToVector(), expected_error));
  std::vector<float> expected_decoded = oracle.decoded;
  expected_decoded.insert(expected_decoded.end(), oracle.decoded.begin(), oracle.decoded.end());
  CHECK(SameBits(decoded.ToVector(), expected_decoded));
  CHECK(SameBits(total.ToVector(), expected_total));
  CHECK(words.Intact() && words_in_place.Intact());
  CHECK(in_place.Intact() && decoded.Intact() && total.Intact());
}

void TestParameters() {
  std::mt19937 random(6);
  const int64_t sizes[] = {0, 1, 31, 32, 33, 511, 513, 4097, 9000};
  const int64_t blocks[] = {0, 32, 96, 4096, 8192};
  for (int round = 0; round < 500; ++round) {
    DitheringParams params;
    params.standard = random() % 2 == 0;
    params.levels = static_cast<int32_t>(1 + random() % (params.standard ? 32767 : 127));
    if (round % 2 == 0) params.levels = 1 + params.levels % 20;
    params.norm = random() % 2 == 0 ? NormKind::kInf : NormKind::kTwo;
    params.natural_norms = random() % 2 == 0;
    params.block = blocks[random() % 5];
    const int64_t size = sizes[random() % 9];
    const Kind kind = static_cast<Kind>(round % kNumKinds);
    CurrentCase() = "round " + std::to_string(round) + " levels " + std::to_string(params.levels) +
                    (params.standard ? " standard" : " natural") + " block " +
                    std::to_string(params.block) + " kind " + std::to_string(kind) + " size " +
                    std::to_string(size);
    const std::vector<float> values = MakeValues(kind, size, &random);
    TestValues(values, {}, params, HostileFor(round));
    const Kind residual_kind = kind == kEdges ? kNormal : kind;
    TestValues(values, MakeValues(residual_kind, size, &random), params, HostileFor(round));
  }
}

void TestNonFinite() {
  for (uint32_t bits : {0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffc00000u, 0x7f800001u}) {
    for (int64_t block : {0, 32, 4096}) {
      for (NormKind norm : {NormKind::kInf, NormKind::kTwo}) {
        CurrentCase() = "pattern " + std::to_string(bits) + " block " + std::to_string(block);
        std::vector<float> values(9000, -0.5f);
        values[bits % 9000] = Float(bits);
        TestValues(values, {}, {5, true, norm, false, block}, HostileFor(1));
        TestValues(std::vector<float>(9000, 1.0f), values, {5, false, norm, true, block},
                   HostileFor(2));
      }
    }
  }
}

void TestRefused() {
  CurrentCase() = "refused";
  const float values[4] = {1, 2, -3, 4};
  uint32_t words[8];
  float out[4];
  const StatusCode ok = StatusCode::kOk, bad = StatusCode::kInvalidArgument;
  const auto encode = [&](int32_t levels, bool standard, int64_t block) {
    return DitheringEncode(values, nullptr, 4, kKey,
                           {levels, standard, NormKind::kInf, false, block}, SerialFor, words,
                           nullptr)
        .code();
  };
  CHECK(encode(127, false, 32) == ok);
  CHECK(encode(0, false, 32) == bad);
  CHECK(encode(128, false, 32) == bad);
  CHECK(encode(32768, true, 32) == bad);
  CHECK(encode(5, true, 31) == bad);
  CHECK(encode(5, true, -32) == bad);
  CHECK(encode(5, true, 65536 + 32) == bad);

  const auto decode = [&](uint32_t word0, uint32_t word1, uint32_t norm, bool natural = false,
                          int64_t num_words = 4) {
    const uint32_t block[5] = {word0, word1, norm, 0, 0};
    return DitheringDecode(block, 1, num_words, 4, {5, true, NormKind::kInf, natural, 32}, false,
                           SerialFor, out)
        .code();
  };
  const uint32_t header = 5 | 1 << 16;
  CHECK(decode(header, 32, Bits(1.0f)) == ok);
  CHECK(decode(header, 32, 0) == ok);
  CHECK(decode(header | kFlag, 32, 0) == ok);
  CHECK(decode(header | kFlag, 32, Bits(1.0f)) == bad);
  CHECK(decode(header, 64, 0) == bad);
  CHECK(decode(header ^ 1 << 16, 32, 0) == bad);
  CHECK(decode(header | 1 << 19, 32, 0) == bad);
  CHECK(decode(header, 32, kFlag) == bad);
  CHECK(decode(header, 32, Bits(-1.0f)) == bad);
  CHECK(decode(header, 32, 0x7f800000u) == bad);
  CHECK(decode(header, 32, 0x7fc00000u) == bad);
  CHECK(decode(header, 32, 0, false, 3) == bad);
  CHECK(decode(header | 1 << 18, 32, 254, true) == ok);
  CHECK(decode(header | 1 << 18, 32, 255, true) == bad);
  CHECK(decode(header | 1 << 18, 32, 1 << 8, true) == bad);
}

}  // namespace
}  // namespace gradcomp

int main() {
  gradcomp::TestParameters();
  gradcomp::TestNonFinite();
  gradcomp::TestRefused();
  return gradcomp::FinishTest();
}
