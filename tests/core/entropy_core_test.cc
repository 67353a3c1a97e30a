// SPDX-License-Identifier: Apache-2.0
// Entropy coding against FORMAT.md, value by value and bit by bit.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/core/entropy.h"
#include "custom_ops/core/prefix_code.h"
#include "tests/core/check.h"
#include "tests/core/quantizer_check.h"

namespace gradcomp {
namespace {

using Counts = std::map<int, int64_t>;

// Package-merge as a textbook has it, with the symbols in every item.
std::map<int, int> OracleLengths(const Counts& counts) {
  std::map<int, int> lengths;
  for (const auto& [symbol, count] : counts) lengths[symbol] = 0;
  if (counts.size() < 2) return lengths;
  using Item = std::pair<int64_t, std::vector<int>>;
  std::vector<Item> leaves, items;
  for (const auto& [symbol, count] : counts) leaves.push_back({count, {symbol}});
  const auto lighter = [](const Item& a, const Item& b) { return a.first < b.first; };
  std::stable_sort(leaves.begin(), leaves.end(), lighter);
  items = leaves;
  for (int list = 1; list < 12; ++list) {
    std::vector<Item> next = leaves;
    for (size_t i = 0; i + 1 < items.size(); i += 2) {
      next.push_back(items[i]);
      next.back().first += items[i + 1].first;
      next.back().second.insert(next.back().second.end(), items[i + 1].second.begin(),
                                items[i + 1].second.end());
    }
    std::stable_sort(next.begin(), next.end(), lighter);  // symbols before pairs
    items = std::move(next);
  }
  for (size_t i = 0; i < 2 * counts.size() - 2; ++i) {
    for (int symbol : items[i].second) ++lengths[symbol];
  }
  return lengths;
}

// A step with its code, as FORMAT.md describes it.
struct OracleCode {
  int q, w;
  std::map<int, int> lengths;                 // of the symbols that occur
  std::map<int, std::vector<int>> codewords;  // their bits in order

  OracleCode(const std::vector<float>& x, int step, int width) : q(step), w(width) {
    Counts counts;
    for (float value : x) ++counts[Symbol(value)];
    lengths = OracleLengths(counts);
    std::vector<std::pair<int, int>> order;
    for (const auto& [symbol, length] : lengths) order.push_back({length, symbol});
    std::sort(order.begin(), order.end());
    int code = 0, before = 0;
    for (const auto& [length, symbol] : order) {
      code <<= length - before;
      for (int bit = length - 1; bit >= 0; --bit) codewords[symbol].push_back(code >> bit & 1);
      ++code;
      before = length;
    }
  }

  int Symbol(float value) const {
    const int exponent = static_cast<int>(PatternOf(value) >> 23 & 255);
    return exponent >= std::max(q, 1) ? exponent : 0;
  }
  int Kept(int symbol) const { return std::clamp(symbol - q, 0, w); }

  void Append(float value, std::vector<int>* bits) const {
    const int symbol = Symbol(value);
    const auto codeword = codewords.find(symbol);
    if (codeword != codewords.end()) {
      bits->insert(bits->end(), codeword->second.begin(), codeword->second.end());
    }
    if (symbol == 0) return;
    bits->push_back(std::signbit(value) ? 1 : 0);
    const uint32_t mantissa = PatternOf(value) % (1u << 23) >> (23 - Kept(symbol));
    for (int bit = 0; bit < Kept(symbol); ++bit) bits->push_back(mantissa >> bit & 1);
  }

  float Decoded(float value) const {
    const int symbol = Symbol(value);
    if (symbol == 0) return 0.0f;
    const double unit = std::ldexp(1.0, symbol - 127 - Kept(symbol));
    const double half = Kept(symbol) < w ? unit / 2 : 0.0;
    const double magnitude = std::floor(std::fabs(value) / unit) * unit + half;
    return static_cast<float>(std::signbit(value) ? -magnitude : magnitude);
  }

  std::vector<uint32_t> Table() const {
    int first = 0, last = -1;
    for (const auto& [symbol, length] : lengths) {
      if (symbol == 0) continue;
      if (last < 0) first = symbol;
      last = symbol;
    }
    const int range = last < 0 ? 0 : last - first + 1;
    std::vector<uint32_t> words(static_cast<size_t>(1 + (range + 7) / 8), 0);
    const auto length_of = [this](int symbol) {
      const auto found = lengths.find(symbol);
      return static_cast<uint32_t>(found == lengths.end() ? 0 : found->second);
    };
    words[0] = static_cast<uint32_t>(first + 256 * range) + (length_of(0) << 16);
    for (int i = 0; i < range; ++i) {
      words[static_cast<size_t>(1 + i / 8)] |= length_of(first + i) << (4 * (i % 8));
    }
    return words;
  }
};

// The bits of every stream of 1024 values.
std::vector<std::vector<int>> StreamsOf(const std::vector<float>& x, const OracleCode& code) {
  std::vector<std::vector<int>> streams((x.size() + 1023) / 1024);
  for (size_t i = 0; i < x.size(); ++i) code.Append(x[i], &streams[i / 1024]);
  return streams;
}

size_t Bytes(const std::vector<int>& stream) { return (stream.size() + 7) / 8; }

// Section "Entropy block".
Expected Oracle(const std::vector<float>& x, double bits) {
  const size_t num_words =
      static_cast<size_t>(8 + std::ceil(static_cast<double>(x.size()) * bits / 32));
  if (!AllFinite(x)) return NonFiniteBlock(num_words, 0, x.size());
  uint32_t any = 0;
  int high = 0;
  for (float value : x) {
    any |= PatternOf(value) % (1u << 23);
    high = std::max(high, static_cast<int>(PatternOf(value) >> 23 & 255));
  }
  int w = 23;
  while (w > 0 && any % (1u << (24 - w)) == 0) --w;
  const size_t num_streams = (x.size() + 1023) / 1024;
  const size_t fixed = 2 + (num_streams + 1) / 2;  // words
  int low = -22;
  if (high == 0) high = low;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    const OracleCode code(x, middle, w);
    size_t needed = 32 * (fixed + code.Table().size()) + 7 * num_streams;
    for (const std::vector<int>& stream : StreamsOf(x, code)) needed += stream.size();
    if (needed <= 32 * num_words) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  const OracleCode coarse(x, low, w), fine(x, low - 1, w);
  std::vector<std::vector<int>> streams = StreamsOf(x, coarse);
  const std::vector<std::vector<int>> fine_streams = StreamsOf(x, fine);
  std::vector<uint32_t> words = {static_cast<uint32_t>(low + 22 + 512 * w), 0};
  const std::vector<uint32_t> table = coarse.Table(), fine_table = fine.Table();
  size_t num_fine = 0, needed = 4 * (fixed + table.size() + fine_table.size());
  for (const std::vector<int>& stream : streams) needed += Bytes(stream);
  while (low > -22 && num_fine < num_streams) {
    needed += Bytes(fine_streams[num_fine]) - Bytes(streams[num_fine]);
    if (needed > 4 * num_words) break;
    streams[num_fine] = fine_streams[num_fine];
    ++num_fine;
  }
  words[1] = static_cast<uint32_t>(num_fine);
  words.insert(words.end(), table.begin(), table.end());
  if (num_fine > 0) words.insert(words.end(), fine_table.begin(), fine_table.end());
  const size_t sizes = words.size();
  words.resize(num_words, 0);
  size_t at = 4 * (sizes + (num_streams + 1) / 2);
  for (size_t i = 0; i < num_streams; ++i) {
    words[sizes + i / 2] |= static_cast<uint32_t>(Bytes(streams[i])) << (16 * (i % 2));
    for (size_t bit = 0; bit < streams[i].size(); ++bit) {
      const size_t place = 8 * at + bit;
      words[place / 32] |= static_cast<uint32_t>(streams[i][bit]) << (place % 32);
    }
    at += Bytes(streams[i]);
  }
  Expected expected{words, std::vector<float>(x.size())};
  for (size_t i = 0; i < x.size(); ++i) {
    expected.decoded[i] = (i / 1024 < num_fine ? fine : coarse).Decoded(x[i]);
  }
  return expected;
}

Quantizer Entropy(double bits) {
  const EntropyParams params = {bits};
  return {[=](const float* values, const float* residual, int64_t count,
              const ParallelFor& parallel_for, uint32_t* words, float* error) {
            return EntropyEncode(values, residual, count, params, parallel_for, words, error);
          },
          [=](const uint32_t* words, int64_t num_workers, int64_t words_per_worker, int64_t count,
              bool sum, const ParallelFor& parallel_for, float* decoded) {
            return EntropyDecode(words, num_workers, words_per_worker, count, params, sum,
                                 parallel_for, decoded);
          }};
}

void TestAgainstOracle(double bits, const std::vector<int64_t>& sizes) {
  const Quantizer quantizer = Entropy(bits);
  ForSamples(sizes, [&](const std::vector<float>& values, const std::vector<float>& residual,
                        const ParallelFor& parallel_for) {
    CurrentCase() += " bits " + std::to_string(bits);
    CheckQuantizer(quantizer, values, residual, Oracle(Meant(values, residual), bits),
                   parallel_for);
  });
}

// Values whose longest code allows four, two or one of them in 64 bits.
void TestLongAndShortValues() {
  std::mt19937 random(8);
  for (double bits : {3.0, 8.0, 24.0}) {
    for (int octaves : {1, 4, 200}) {
      CurrentCase() = "octaves " + std::to_string(octaves) + " bits " + std::to_string(bits);
      std::vector<float> values(5000);
      for (float& value : values) {
        const int octave = static_cast<int>(random() % static_cast<uint32_t>(octaves));
        value =
            std::ldexp(1.0f + std::ldexp(static_cast<float>(random() % 4096), -12), octave - 99);
      }
      CheckQuantizer(Entropy(bits), values, {}, Oracle(values, bits), HostileFor(3));
    }
  }
}

// One value of many mantissa bits, in any stream, makes them wide for all.
void TestWidth() {
  for (size_t place : {0, 1500, 2999}) {
    CurrentCase() = "wide value at " + std::to_string(place);
    std::vector<float> values(3000, -1.5f);
    values[place] = 1.1f;
    CheckQuantizer(Entropy(8), values, {}, Oracle(values, 8), SerialFor);
    CheckQuantizer(Entropy(8), values, {}, Oracle(values, 8), HostileFor(4));
  }
}

int64_t CostOf(const CodeLengths& lengths, const SymbolCounts& counts) {
  int64_t bits = 0;
  for (size_t i = 0; i < counts.size(); ++i) bits += lengths[i] * counts[i];
  return bits;
}

// Bits that a Huffman code without a limit takes.
int64_t HuffmanCost(const SymbolCounts& counts) {
  std::priority_queue<int64_t, std::vector<int64_t>, std::greater<int64_t>> weights;
  for (int64_t count : counts) {
    if (count > 0) weights.push(count);
  }
  int64_t bits = 0;
  while (weights.size() > 1) {
    const int64_t first = weights.top();
    weights.pop();
    const int64_t both = first + weights.top();
    weights.pop();
    bits += both;
    weights.push(both);
  }
  return bits;
}

void TestLengths() {
  std::mt19937 random(9);
  for (int round = 0; round < 60; ++round) {
    CurrentCase() = "counts of round " + std::to_string(round);
    SymbolCounts counts{};
    const uint32_t num_symbols = 2 + random() % (round % 3 == 0 ? 254 : 20);
    for (uint32_t i = 0; i < num_symbols; ++i) {
      counts[random() % 256] = 1 + random() % (round % 2 == 0 ? 3 : 1000);
    }
    if (round == 0) {  // Fibonacci numbers, which take a code of 24 bits without a limit
      counts = {1, 1};
      for (size_t i = 2; i < 25; ++i) counts[i] = counts[i - 1] + counts[i - 2];
    }
    Counts occurring;
    for (int i = 0; i < 256; ++i) {
      if (counts[static_cast<size_t>(i)] > 0) occurring[i] = counts[static_cast<size_t>(i)];
    }
    const CodeLengths lengths = LimitedCodeLengths(counts);
    for (const auto& [symbol, length] : OracleLengths(occurring)) {
      CHECK(lengths[static_cast<size_t>(symbol)] == length);
    }
    CHECK(occurring.size() < 2 || IsCompleteCode(lengths));
    const int64_t cost = CostOf(lengths, counts), huffman = HuffmanCost(counts);
    CHECK(round == 0 ? cost > huffman : cost >= huffman);
    if (*std::max_element(lengths.begin(), lengths.end()) < kMaxCodeLength) {
      CHECK(cost == huffman);  // the limit did not matter
    }
  }
}

void TestRefused() {
  CurrentCase() = "refused";
  constexpr StatusCode bad = StatusCode::kInvalidArgument;
  const Quantizer quantizer = Entropy(8);
  float out[4];
  // Symbols 0 and 127, each of one bit, with a sign; the step is 2^0.
  const auto decode = [&](std::vector<uint32_t> words) {
    const int64_t num_words = static_cast<int64_t>(words.size());
    return quantizer.decode(words.data(), 1, num_words, 4, true, SerialFor, out).code();
  };
  const uint32_t header = 127 + 22 + (23u << 9), flag = 1u << 31, code = 127 | 1 << 8 | 1 << 16;
  const std::vector<uint32_t> good = {header, 0, code, 1, 1, 0b1101010, 0, 0, 0};
  CHECK(decode(good) == StatusCode::kOk);
  CHECK(out[0] == 0.0f && out[1] == 1.5f && out[2] == 1.5f && out[3] == -1.5f);
  const auto with = [&](size_t at, uint32_t word) {
    std::vector<uint32_t> words = good;
    words[at] = word;
    return decode(words);
  };
  CHECK(with(4, 16) == StatusCode::kOk);  // to the last byte
  CHECK(with(4, 17) == bad);
  CHECK(with(4, 1 | 1 << 16) == bad);
  CHECK(with(0, header | flag) == bad);
  CHECK(with(0, flag) == StatusCode::kOk);
  CHECK(with(0, header + 1) == bad);  // 127 is below the step
  CHECK(with(0, header | 31u << 9) == bad);
  CHECK(with(0, header | 1 << 14) == bad);
  CHECK(with(0, 277) == bad);
  CHECK(with(1, 1) == bad);  // no fine code
  CHECK(with(1, 2) == bad);
  CHECK(with(2, code | 1 << 20) == bad);
  CHECK(with(2, 127 | 129 << 8 | 1 << 16) == bad);  // up to exponent 255
  CHECK(with(2, 127 | 128 << 8 | 1 << 16) == bad);  // no room
  CHECK(with(2, 127 | 1 << 8) == bad);              // half a code
  CHECK(with(2, 127 | 1 << 8 | 2 << 16) == bad);
  CHECK(with(3, 1 | 1 << 4) == bad);
  CHECK(with(3, 13) == bad);
  CHECK(decode({header, 0, 127, 0, 0, 0, 0, 0, 0}) == bad);  // the first of no exponents
  CHECK(decode({header, 0, 127 | 1 << 8, 0, 0, 0, 0, 0, 0}) == StatusCode::kOk);
  CHECK(out[0] == 1.5f && out[3] == 1.5f);  // a lone symbol
  CHECK(decode({0, 0, 0, 0, 0, 0, 0, 0, 0}) == StatusCode::kOk);
  CHECK(out[0] == 0.0f && out[3] == 0.0f);
  CHECK(decode({header, 0, code, 1, 1, 0, 0, 0}) == bad);
  CHECK(decode({header, 0, 127 | 48 << 8 | 1 << 16, 1, 0, 0, 0, 0, 0}) ==
        bad);  // no room for sizes
  CHECK(decode({header, 0, 127 | 40 << 8 | 1 << 16, 1, 0, 0, 0, 0, 0}) == StatusCode::kOk);
  // The same in 1544 words, where there is room for more than is allowed.
  const auto decode_large = [&](uint32_t first_exponent, uint32_t size) {
    std::vector<uint32_t> words(1544, 0);
    std::vector<float> values(2048);
    words[0] = header;
    words[2] = first_exponent | 56 << 8 | 1 << 16;  // the last one occurs
    words[9] = 1u << 28;
    words[10] = size;
    return Entropy(24).decode(words.data(), 1, 1544, 2048, false, SerialFor, values.data()).code();
  };
  CHECK(decode_large(199, 4608) == StatusCode::kOk);
  CHECK(decode_large(199, 4609) == bad);
  CHECK(decode_large(200, 4608) == bad);  // exponent 255
  for (double bits : {0.0, 2.875, 24.125, 8.01, std::nan("")}) {
    CHECK(ValidateEntropy({bits}).code() == bad);
  }
}

}  // namespace
}  // namespace gradcomp

int main() {
  gradcomp::TestLengths();
  gradcomp::TestAgainstOracle(10.5, {0, 1, 2, 33, 1023, 1025, 4097});
  gradcomp::TestAgainstOracle(3, {3, 1024, 9001});
  gradcomp::TestLongAndShortValues();
  gradcomp::TestWidth();
  gradcomp::TestRefused();
  return gradcomp::FinishTest();
}
