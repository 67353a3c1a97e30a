// SPDX-License-Identifier: Apache-2.0
// Streams of codes: any words become codes of so many bits, and those the same words again.

#include <algorithm>
#include <vector>

#include "custom_ops/core/code_stream.h"
#include "tests/core/check.h"
#include "tests/fuzz/fuzz_input.h"

using namespace gradcomp;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput input(data, size);
  const int num_bits = static_cast<int>(input.Number(1, 16));
  const int64_t count = input.Size();
  std::vector<uint32_t> words = input.Words(PackedWords(count, num_bits));
  std::vector<uint32_t> codes(
      static_cast<size_t>((count + kPackGroup - 1) / kPackGroup * kPackGroup), 0xdeadbeefu);
  UnpackTile(num_bits, words.data(), count, codes.data());
  CHECK(std::all_of(codes.begin(), codes.begin() + count,
                    [&](uint32_t code) { return code >> num_bits == 0; }));
  std::vector<uint32_t> packed(words.size(), 0xdeadbeefu);
  PackTile(num_bits, codes.data(), count, packed.data());
  // The bits after the last code are not carried over.
  if (const int64_t used = count * num_bits % 32; used != 0) {
    words.back() &= (uint32_t{1} << used) - 1;
  }
  CHECK(packed == words);
  return FinishInput();
}
