// SPDX-License-Identifier: Apache-2.0
#include "entropy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <mutex>
#include <numeric>
#include <string>

#include "entropy_code.h"
#include "multiversion.h"
#include "scratch.h"

namespace gradcomp {
namespace {

constexpr int64_t kCountCycles = 3;   // a value
constexpr int64_t kEncodeCycles = 7;  // a value
constexpr size_t kNonFiniteExponent = 255;
constexpr int kLanes = 4;  // counters of one symbol, so that none waits for itself

// Counts of the exponents of one stream.
using StreamCounts = std::array<uint16_t, kCodeSymbols>;

// How a symbol is written: its bits in all in bits 0..5, those of its codeword in bits 8..13, and
// the codeword from bit 16 on.
using EncodeTable = std::array<uint32_t, kCodeSymbols>;

EncodeTable MakeEncodeTable(const EntropyCode& code) {
  const Codewords codewords = CanonicalCodewords(code.lengths);
  EncodeTable table{};
  for (int32_t symbol = 0; symbol < kCodeSymbols; ++symbol) {
    const size_t at = static_cast<size_t>(symbol);
    table[at] = static_cast<uint32_t>(code.Bits(symbol)) | uint32_t{code.lengths[at]} << 8 |
                uint32_t{codewords[at]} << 16;
  }
  return table;
}

GRADCOMP_ALWAYS_INLINE void LoadStream(const float* values, const float* residual, int64_t count,
                                       float* x) {
  if (residual != nullptr) {
    for (int64_t i = 0; i < count; ++i) x[i] = values[i] + residual[i];
  } else {
    for (int64_t i = 0; i < count; ++i) x[i] = values[i];
  }
}

// Counts exponents, and returns the bits that are set in any value.
GRADCOMP_MULTIVERSION
uint32_t CountStream(const float* values, const float* residual, int64_t count,
                     StreamCounts* counts) {
  float x[kEntropyStream];
  uint32_t exponents[kEntropyStream];
  uint16_t lanes[kLanes][kCodeSymbols] = {};
  LoadStream(values, residual, count, x);
  uint32_t any = 0;
  for (int64_t i = 0; i < count; ++i) {
    any |= BitsOf(x[i]);
    exponents[i] = BitsOf(x[i]) >> kMantissaBits & 0xffu;
  }
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) ++lanes[lane][exponents[i + lane]];
  }
  for (int64_t i = whole; i < count; ++i) ++lanes[0][exponents[i]];
  for (size_t symbol = 0; symbol < kCodeSymbols; ++symbol) {
    (*counts)[symbol] = static_cast<uint16_t>(lanes[0][symbol] + lanes[1][symbol] +
                                              lanes[2][symbol] + lanes[3][symbol]);
  }
  return any;
}

template <typename Counts>
void AddCounts(const Counts& counts, SymbolCounts* total) {
  for (size_t symbol = 0; symbol < kCodeSymbols; ++symbol) (*total)[symbol] += counts[symbol];
}

// Bytes of a stream of values with these exponents.
GRADCOMP_MULTIVERSION
uint16_t StreamBytes(const StreamCounts& counts, const EntropyCosts& costs) {
  uint32_t bits = 0;
  for (size_t symbol = 0; symbol < kCodeSymbols; ++symbol) {
    bits += uint32_t{counts[symbol]} * costs[symbol];
  }
  return static_cast<uint16_t>((bits + 7) / 8);
}

// Writes bits, lowest first, to bytes, of which it also touches up to seven beyond the last one.
class BitWriter {
 public:
  explicit BitWriter(uint8_t* bytes) : bytes_(bytes), next_(bytes) {}

  // Writes the low `size` <= 56 bits; the others are 0.
  GRADCOMP_ALWAYS_INLINE void Put(uint64_t bits, uint32_t size) {
    waiting_ |= bits << num_waiting_;
    num_waiting_ += size;
    std::memcpy(next_, &waiting_, sizeof(waiting_));
    next_ += num_waiting_ / 8;
    waiting_ >>= num_waiting_ & 56u;
    num_waiting_ &= 7u;
  }

  int64_t num_bytes() const { return next_ - bytes_ + (num_waiting_ != 0 ? 1 : 0); }

 private:
  uint8_t* const bytes_;
  uint8_t* next_;
  uint64_t waiting_ = 0;      // bits of the byte at next_
  uint32_t num_waiting_ = 0;  // 0..7 between calls
};

// Writes one stream, of up to kEntropyStream values, to `bytes`.
GRADCOMP_MULTIVERSION
void EncodeStream(const float* values, const float* residual, int64_t count,
                  const EntropyStep& given_step, const EncodeTable& table, uint8_t* bytes,
                  float* error) {
  const EntropyStep step = given_step;  // else it might change with `error`
  float x[kEntropyStream];
  uint32_t symbols[kEntropyStream];
  uint32_t tails[kEntropyStream];
  LoadStream(values, residual, count, x);
  if (error == nullptr) {
    for (int64_t i = 0; i < count; ++i) {
      const EntropyValue value = EntropyCut(BitsOf(x[i]), step);
      symbols[i] = value.symbol;
      tails[i] = value.tail;
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      const EntropyValue value = EntropyCut(BitsOf(x[i]), step);
      symbols[i] = value.symbol;
      tails[i] = value.tail;
      error[i] = x[i] - value.decoded;
    }
  }
  uint8_t packed[kEntropyMaxStreamBytes + sizeof(uint64_t)];
  BitWriter writer(packed);
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t entry = table[symbols[i]];
    writer.Put(entry >> 16 | uint64_t{tails[i]} << (entry >> 8 & 63u), entry & 63u);
  }
  std::memcpy(bytes, packed, static_cast<size_t>(writer.num_bytes()));
}

// Mantissa bits of values of which `any` bits are set: the others are 0 in all.
int32_t MantissaWidth(uint32_t any) {
  int32_t width = kMantissaBits;
  while (width > 0 && (any >> (kMantissaBits - width) & 1u) == 0) --width;
  return width;
}

// What the first pass finds out.
struct Census {
  SymbolCounts counts{};  // of exponents
  uint32_t any = 0;       // bits set in any value
};

Census CountAll(const float* values, const float* residual, int64_t count,
                const ParallelFor& parallel_for, StreamCounts* stream_counts) {
  Census census;
  std::mutex mutex;  // of the census; integers add up to the same in any order
  RunShards(parallel_for, CeilDiv(count, kEntropyStream), kCountCycles * kEntropyStream,
            [&](int64_t begin, int64_t end) {
              Census shard;
              for (int64_t stream = begin; stream < end; ++stream) {
                const int64_t first = stream * kEntropyStream;
                shard.any |=
                    CountStream(values + first, residual == nullptr ? nullptr : residual + first,
                                std::min(kEntropyStream, count - first), &stream_counts[stream]);
                AddCounts(stream_counts[stream], &shard.counts);
              }
              const std::lock_guard<std::mutex> lock(mutex);
              AddCounts(shard.counts, &census.counts);
              census.any |= shard.any;
            });
  return census;
}

// How many streams, from the first on, can have the finer code if that takes no more than `spare`
// bytes beyond the coarse one.
int64_t NumFineStreams(const uint16_t* coarse_bytes, const uint16_t* fine_bytes,
                       int64_t num_streams, int64_t spare) {
  for (int64_t stream = 0; stream < num_streams; ++stream) {
    spare -= int64_t{fine_bytes[stream]} - coarse_bytes[stream];
    if (spare < 0) return stream;
  }
  return num_streams;
}

// Writes what comes before the streams but their sizes, and returns the number of its words.
int64_t WriteHead(const EntropyCode& coarse, const EntropyCode& fine, int64_t num_fine,
                  uint32_t* words) {
  words[0] = static_cast<uint32_t>(coarse.step.exponent - kEntropyMinStep) |
             static_cast<uint32_t>(coarse.step.width) << kEntropyWidthShift;
  words[1] = static_cast<uint32_t>(num_fine);
  WriteEntropyCode(coarse, words + kEntropyHeaderWords);
  const int64_t at = kEntropyHeaderWords + coarse.num_words();
  if (num_fine == 0) return at;
  WriteEntropyCode(fine, words + at);
  return at + fine.num_words();
}

// Writes the sizes of the streams and finds where each starts. Returns the bytes of all.
int64_t PlaceStreams(const uint16_t* coarse_bytes, const uint16_t* fine_bytes, int64_t num_fine,
                     int64_t num_streams, uint32_t* sizes, int64_t* starts) {
  std::fill_n(sizes, CeilDiv(num_streams, 2), 0u);
  int64_t next = 0;
  for (int64_t stream = 0; stream < num_streams; ++stream) {
    const uint16_t size = stream < num_fine ? fine_bytes[stream] : coarse_bytes[stream];
    sizes[stream / 2] |= uint32_t{size} << (16 * (stream % 2));
    starts[stream] = next;
    next += size;
  }
  return next;
}

}  // namespace

Status ValidateEntropy(const EntropyParams& params) {
  const double eighths = params.bits * 8.0;
  if (eighths >= 24.0 && eighths <= 192.0 && std::floor(eighths) == eighths) return Status();
  return Status::InvalidArgument("bits must be a multiple of 1/8 in 3..24, got " +
                                 std::to_string(params.bits));
}

Status EntropyEncode(const float* values, const float* residual, int64_t count,
                     const EntropyParams& params, const ParallelFor& parallel_for, uint32_t* words,
                     float* error) {
  if (Status status = ValidateEntropy(params); !status.ok()) return status;
  if (count < 0) return Status::InvalidArgument("count must be >= 0");
  const int64_t num_words = EntropyNumWords(count, params);
  const int64_t num_streams = CeilDiv(count, kEntropyStream);
  const auto stream_counts = AllocateScratch<StreamCounts>(num_streams);
  const auto coarse_bytes = AllocateScratch<uint16_t>(num_streams);
  const auto fine_bytes = AllocateScratch<uint16_t>(num_streams);
  const auto starts = AllocateScratch<int64_t>(num_streams);
  if (!stream_counts || !coarse_bytes || !fine_bytes || !starts) return OutOfScratch();

  const Census census = CountAll(values, residual, count, parallel_for, stream_counts.get());
  if (census.counts[kNonFiniteExponent] != 0) {
    std::fill_n(words, num_words, 0u);
    words[0] = kEntropyNonFinite;
    if (error != nullptr) std::fill_n(error, count, 0.0f);
    return Status();
  }

  const EntropyStep step =
      ChooseEntropyStep(census.counts, MantissaWidth(census.any), num_streams, num_words);
  const EntropyCode coarse = MakeEntropyCode(census.counts, step);
  const EntropyCode fine = MakeEntropyCode(census.counts, {step.exponent - 1, step.width});
  const EntropyCosts coarse_costs = CostsOf(coarse), fine_costs = CostsOf(fine);
  RunShards(parallel_for, num_streams, kCodeSymbols, [&](int64_t begin, int64_t end) {
    for (int64_t stream = begin; stream < end; ++stream) {
      coarse_bytes[stream] = StreamBytes(stream_counts[stream], coarse_costs);
      fine_bytes[stream] = StreamBytes(stream_counts[stream], fine_costs);
    }
  });
  const int64_t room =
      4 * (num_words - EntropyStreamsAt(coarse.num_words() + fine.num_words(), num_streams));
  const int64_t spare =
      room - std::accumulate(coarse_bytes.get(), coarse_bytes.get() + num_streams, int64_t{0});
  const int64_t num_fine =
      step.exponent == kEntropyMinStep
          ? 0  // it is exact: there is nothing to refine
          : NumFineStreams(coarse_bytes.get(), fine_bytes.get(), num_streams, spare);

  uint32_t* const sizes = words + WriteHead(coarse, fine, num_fine, words);
  uint8_t* const streams = reinterpret_cast<uint8_t*>(sizes + CeilDiv(num_streams, 2));
  const int64_t num_bytes = PlaceStreams(coarse_bytes.get(), fine_bytes.get(), num_fine,
                                         num_streams, sizes, starts.get());
  std::fill(streams + num_bytes, reinterpret_cast<uint8_t*>(words + num_words), uint8_t{0});

  const EncodeTable coarse_table = MakeEncodeTable(coarse), fine_table = MakeEncodeTable(fine);
  RunShards(parallel_for, num_streams, kEncodeCycles * kEntropyStream,
            [&](int64_t begin, int64_t end) {
              for (int64_t stream = begin; stream < end; ++stream) {
                const bool is_fine = stream < num_fine;
                const int64_t first = stream * kEntropyStream;
                EncodeStream(values + first, residual == nullptr ? nullptr : residual + first,
                             std::min(kEntropyStream, count - first), is_fine ? fine.step : step,
                             is_fine ? fine_table : coarse_table, streams + starts[stream],
                             error == nullptr ? nullptr : error + first);
              }
            });
  return Status();
}

}  // namespace gradcomp
