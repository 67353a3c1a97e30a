// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/core/nonzero_blocks.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace gradcomp {
namespace {

using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

DimensionHandle MaskWordsDim(InferenceContext* c, DimensionHandle n, int64_t block_size) {
  return c->ValueKnown(n) ? c->MakeDim(BlockMaskWords(c->Value(n), block_size)) : c->UnknownDim();
}

// Checks the shape of a mask as far as it and the number of its words are known.
absl::Status CheckMask(InferenceContext* c, ShapeHandle mask, DimensionHandle num_words) {
  DimensionHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(mask, 1, &mask));
  return c->Merge(c->Dim(mask, 0), num_words, &unused);
}

absl::Status NonzeroBlocksShape(InferenceContext* c) {
  int64_t block_size = 0;
  TF_RETURN_IF_ERROR(c->GetAttr("block_size", &block_size));
  c->set_output(0, c->Vector(MaskWordsDim(c, c->NumElements(c->input(0)), block_size)));
  return absl::OkStatus();
}

absl::Status BlocksTakeShape(InferenceContext* c) {
  int64_t block_size = 0;
  TF_RETURN_IF_ERROR(c->GetAttr("block_size", &block_size));
  const DimensionHandle n = c->NumElements(c->input(1));
  TF_RETURN_IF_ERROR(CheckMask(c, c->input(0), MaskWordsDim(c, n, block_size)));
  c->set_output(0, c->Matrix(c->UnknownDim(), block_size));
  return absl::OkStatus();
}

absl::Status BlocksPutShape(InferenceContext* c) {
  ShapeHandle packed, unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &packed));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 0, &unused));
  DimensionHandle n;
  TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(2, &n));
  const DimensionHandle block_size = c->Dim(packed, 1);
  const bool is_known = c->ValueKnown(block_size) && c->Value(block_size) > 0;
  TF_RETURN_IF_ERROR(CheckMask(
      c, c->input(0), is_known ? MaskWordsDim(c, n, c->Value(block_size)) : c->UnknownDim()));
  c->set_output(0, c->Vector(n));
  return absl::OkStatus();
}

REGISTER_OP("Gradcomp>NonzeroBlocks")
    .Input("values: float32")
    .Output("mask: int32")
    .Attr("block_size: int >= 1")
    .SetShapeFn(NonzeroBlocksShape)
    .Doc(R"doc(
Finds the blocks that hold anything but zeros.

values: n values of any shape, cut in row-major order into `b = ceil(n / block_size)` blocks, of
  which the last may be shorter.
mask: `[ceil(b / 32)]` a block mask of the wire format: bit i mod 32 of word i div 32 is set if
  block i holds a value other than +0 and -0.
block_size: values of a block, at most 65,536.
)doc");

REGISTER_OP("Gradcomp>BlocksTake")
    .Input("mask: int32")
    .Input("values: float32")
    .Output("packed: float32")
    .Attr("block_size: int >= 1")
    .SetShapeFn(BlocksTakeShape)
    .Doc(R"doc(
Packs the blocks whose bits are set.

mask: `[ceil(b / 32)]` a block mask of the wire format.
values: n values of any shape, cut as for NonzeroBlocks.
packed: `[u, block_size]` the blocks of the u set bits, in ascending order, bits unchanged; a
  shorter last block is filled up with +0.
block_size: values of a block, at most 65,536.
)doc");

REGISTER_OP("Gradcomp>BlocksPut")
    .Input("mask: int32")
    .Input("packed: float32")
    .Input("size: int64")
    .Output("values: float32")
    .SetShapeFn(BlocksPutShape)
    .Doc(R"doc(
Unpacks blocks, the inverse of BlocksTake.

mask: `[ceil(b / 32)]` a block mask of the wire format, with u set bits.
packed: `[u, block_size]` the blocks of the set bits, in ascending order; what is beyond a shorter
  last block is ignored.
size: scalar n: the number of values.
values: `[n]`, +0 in the blocks whose bits are not set.
)doc");

}  // namespace
}  // namespace gradcomp
