// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>

#include "decode_rows.h"
#include "entropy.h"
#include "entropy_code.h"
#include "multiversion.h"
#include "scratch.h"

namespace gradcomp {
namespace {

constexpr int64_t kDecodeCycles = 5;  // a value
constexpr int kUnitStreams = 4;       // read at the same time: reading a value waits for the last
static_assert(kDecodeUnit == kUnitStreams * kEntropyStream, "a unit is whole streams");

constexpr int64_t kChunk = 128;  // values of each stream between reading and converting
constexpr uint32_t kTableMask = (1u << kMaxCodeLength) - 1;

// What the next bits of a stream mean, by the first 12 of them: a value's bits in all in bits 0..5,
// those of its codeword in bits 8..13, the symbol in bits 16..23, dropped mantissa bits in bits
// 24..28, and whether half of the last kept bit is added in bit 29.
using DecodeTable = std::array<uint32_t, kTableMask + 1>;

void MakeDecodeTable(const EntropyCode& code, DecodeTable* table) {
  const Codewords codewords = CanonicalCodewords(code.lengths);
  for (int32_t symbol = 0; symbol < kCodeSymbols; ++symbol) {
    const uint32_t length = code.lengths[static_cast<size_t>(symbol)];
    if (length == 0 && !(code.is_lone() && symbol == code.first)) continue;
    const int32_t kept = symbol == 0 ? kMantissaBits : EntropyKeptBits(symbol, code.step);
    const bool add_half = symbol != 0 && EntropyHalf(kept, code.step) != 0;
    const uint32_t entry = static_cast<uint32_t>(code.Bits(symbol)) | length << 8 |
                           static_cast<uint32_t>(symbol) << 16 |
                           static_cast<uint32_t>(kMantissaBits - kept) << 24 |
                           (add_half ? 1u << 29 : 0u);
    for (uint32_t bits = codewords[static_cast<size_t>(symbol)]; bits <= kTableMask;
         bits += 1u << length) {
      (*table)[bits] = entry;
    }
  }
}

// The inverse of EntropyCut(): `tail` holds the value's sign and mantissa, and bits after them.
GRADCOMP_ALWAYS_INLINE float ValueOf(uint32_t entry, uint32_t tail) {
  const uint32_t symbol = entry >> 16 & 0xffu;
  const uint32_t dropped = entry >> 24 & 31u;
  const uint32_t mantissa = tail >> 1 << dropped & kMantissaMask;
  const uint32_t half = (entry >> 29) << dropped >> 1;
  return FloatOf(symbol == 0 ? 0u : tail << 31 | symbol << kMantissaBits | mantissa | half);
}

// The bytes of a stream, and zeros up to where reading can lead.
using StreamBytes = std::array<uint8_t, kEntropyMaxStreamBytes + sizeof(uint64_t)>;

// Decodes `count` values that lie in kStreams streams, all of which but the last are full.
template <int kStreams>
GRADCOMP_ALWAYS_INLINE void ReadStreams(const StreamBytes* bytes, const DecodeTable& table,
                                        int64_t count, bool add, float* out) {
  uint32_t entries[kStreams][kChunk];
  uint32_t tails[kStreams][kChunk];
  uint64_t positions[kStreams] = {};
  for (int64_t begin = 0; begin < std::min(count, kEntropyStream); begin += kChunk) {
    for (int64_t i = 0; i < kChunk; ++i) {
#pragma GCC unroll 4
      for (int stream = 0; stream < kStreams; ++stream) {
        uint64_t bits;
        std::memcpy(&bits, bytes[stream].data() + positions[stream] / 8, sizeof(bits));
        bits >>= positions[stream] % 8;  // leaves 57, more than any value has
        const uint32_t entry = table[bits & kTableMask];
        entries[stream][i] = entry;
        tails[stream][i] = static_cast<uint32_t>(bits >> (entry >> 8 & 63u));
        positions[stream] += entry & 63u;
      }
    }
    for (int stream = 0; stream < kStreams; ++stream) {
      const int64_t first = stream * kEntropyStream + begin;
      const int64_t size = std::min(kChunk, count - first);
      if (add) {
        for (int64_t i = 0; i < size; ++i) {
          out[first + i] += ValueOf(entries[stream][i], tails[stream][i]);
        }
      } else {
        for (int64_t i = 0; i < size; ++i) {
          out[first + i] = ValueOf(entries[stream][i], tails[stream][i]);
        }
      }
    }
  }
}

// Decodes a whole unit of streams with the same table.
GRADCOMP_MULTIVERSION
void DecodeFullUnit(const StreamBytes* bytes, const DecodeTable& table, bool add, float* out) {
  ReadStreams<kUnitStreams>(bytes, table, kDecodeUnit, add, out);
}

// Decodes `count` values of one stream.
GRADCOMP_MULTIVERSION
void DecodeStream(const StreamBytes& bytes, const DecodeTable& table, int64_t count, bool add,
                  float* out) {
  ReadStreams<1>(&bytes, table, count, add, out);
}

// The block of one worker.
struct Block {
  bool non_finite;
  int64_t num_fine;                   // streams, the first ones, with the finer of two codes
  std::array<EntropyCode, 2> codes;   // coarse, fine
  const uint32_t* sizes;              // of the streams, two to a word
  int64_t streams_at;                 // byte of the first stream
  std::array<DecodeTable, 2> tables;  // of the codes

  int64_t Size(int64_t stream) const { return sizes[stream / 2] >> (16 * (stream % 2)) & 0xffffu; }
  const DecodeTable& TableOf(int64_t stream) const { return tables[stream < num_fine ? 1 : 0]; }
};

// Reads everything but the streams, and checks that they lie inside of the block.
Status ReadBlock(const uint32_t* words, int64_t num_words, int64_t num_streams, Block* block) {
  constexpr uint32_t kStepMask = (1u << kEntropyWidthShift) - 1;
  const int32_t exponent = static_cast<int32_t>(words[0] & kStepMask) + kEntropyMinStep;
  const int32_t width = static_cast<int32_t>(words[0] >> kEntropyWidthShift & 31u);
  block->non_finite = (words[0] & kEntropyNonFinite) != 0;
  block->num_fine = words[1];
  if (block->non_finite) {
    if (words[0] == kEntropyNonFinite && words[1] == 0) return Status();
    return Status::InvalidArgument("words 0 and 1 are not 0 beside the non-finite flag");
  }
  if (words[0] >> (kEntropyWidthShift + 5) != 0 || exponent > kEntropyMaxStep ||
      width > kMantissaBits) {
    return Status::InvalidArgument("word 0 is " + std::to_string(words[0]) +
                                   ", expected a step in -22..254 and a width in 0..23");
  }
  if (block->num_fine > num_streams || (block->num_fine > 0 && exponent == kEntropyMinStep)) {
    return Status::InvalidArgument(std::to_string(block->num_fine) + " of " +
                                   std::to_string(num_streams) + " streams have the finer step");
  }
  int64_t at = kEntropyHeaderWords;
  for (int32_t finer = 0; finer < (block->num_fine > 0 ? 2 : 1); ++finer) {
    EntropyCode* const code = &block->codes[static_cast<size_t>(finer)];
    const Status status =
        ReadEntropyCode(words + at, num_words - at, {exponent - finer, width}, code);
    if (!status.ok()) return status;
    MakeDecodeTable(*code, &block->tables[static_cast<size_t>(finer)]);
    at += code->num_words();
  }
  block->sizes = words + at;
  block->streams_at = 4 * (at + CeilDiv(num_streams, 2));
  if (block->streams_at > 4 * num_words) return Status::InvalidArgument("no room for sizes");
  int64_t end = block->streams_at;
  for (int64_t stream = 0; stream < num_streams; ++stream) {
    if (block->Size(stream) > kEntropyMaxStreamBytes) {
      return Status::InvalidArgument("stream " + std::to_string(stream) + " has " +
                                     std::to_string(block->Size(stream)) + " bytes, expected " +
                                     std::to_string(kEntropyMaxStreamBytes) + " at most");
    }
    end += block->Size(stream);
  }
  if (num_streams % 2 != 0 && block->Size(num_streams) != 0) {
    return Status::InvalidArgument("a size beyond the last stream");
  }
  if (end <= 4 * num_words) return Status();
  return Status::InvalidArgument("streams end at byte " + std::to_string(end) + " of " +
                                 std::to_string(4 * num_words));
}

// Decodes the `count` <= kDecodeUnit values of a unit, which begins with stream `first` at `from`.
void DecodeUnit(const Block& block, int64_t first, const uint8_t* from, int64_t count, bool add,
                float* out) {
  StreamBytes bytes[kUnitStreams];
  const int64_t num_streams = CeilDiv(count, kEntropyStream);
  for (int64_t i = 0; i < num_streams; ++i) {
    const size_t size = static_cast<size_t>(block.Size(first + i));
    std::memcpy(bytes[i].data(), from, size);
    std::memset(bytes[i].data() + size, 0, bytes[i].size() - size);
    from += size;
  }
  const DecodeTable& table = block.TableOf(first);
  if (count == kDecodeUnit && &table == &block.TableOf(first + kUnitStreams - 1)) {
    return DecodeFullUnit(bytes, table, add, out);
  }
  for (int64_t i = 0; i < num_streams; ++i) {
    const int64_t begin = i * kEntropyStream;
    DecodeStream(bytes[i], block.TableOf(first + i), std::min(kEntropyStream, count - begin), add,
                 out + begin);
  }
}

}  // namespace

Status EntropyDecode(const uint32_t* words, int64_t num_workers, int64_t words_per_worker,
                     int64_t count, const EntropyParams& params, bool sum,
                     const ParallelFor& parallel_for, float* decoded) {
  if (Status status = ValidateEntropy(params); !status.ok()) return status;
  if (count < 0 || num_workers < 0) {
    return Status::InvalidArgument("count and num_workers must be >= 0");
  }
  const int64_t num_words = EntropyNumWords(count, params);
  if (words_per_worker != num_words) {
    return Status::InvalidArgument("entropy block of " + std::to_string(count) +
                                   " values must have " + std::to_string(num_words) +
                                   " words, got " + std::to_string(words_per_worker));
  }
  const int64_t num_streams = CeilDiv(count, kEntropyStream);
  const int64_t num_units = CeilDiv(count, kDecodeUnit);
  const auto blocks = AllocateScratch<Block>(num_workers);
  const auto unit_starts = AllocateScratch<int64_t>(num_workers * num_units);
  if (!blocks || !unit_starts) return OutOfScratch();
  for (int64_t worker = 0; worker < num_workers; ++worker) {
    Block* const block = &blocks[worker];
    const Status status = ReadBlock(words + worker * num_words, num_words, num_streams, block);
    if (!status.ok()) {
      return Status::InvalidArgument("entropy block of worker " + std::to_string(worker) + ": " +
                                     status.message());
    }
    if (block->non_finite) continue;
    int64_t next = block->streams_at;
    for (int64_t stream = 0; stream < num_streams; ++stream) {
      const int64_t unit = worker * num_units + stream / kUnitStreams;
      if (stream % kUnitStreams == 0) unit_starts[unit] = next;
      next += block->Size(stream);
    }
  }
  DecodeRows(
      num_workers, count, sum, kDecodeCycles, parallel_for,
      [&](int64_t worker, int64_t first, int64_t size, float* out, bool add) {
        if (blocks[worker].non_finite) return DecodeNan(size, out);
        const int64_t start = unit_starts[worker * num_units + first / kDecodeUnit];
        DecodeUnit(blocks[worker], first / kEntropyStream,
                   reinterpret_cast<const uint8_t*>(words + worker * num_words) + start, size, add,
                   out);
      },
      decoded);
  return Status();
}

}  // namespace gradcomp
