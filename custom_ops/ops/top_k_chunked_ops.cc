// SPDX-License-Identifier: Apache-2.0
#include "custom_ops/core/positions.h"
#include "custom_ops/core/top_k_chunked.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace gradcomp {
namespace {

using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

absl::Status TopKChunkedSelectShape(InferenceContext* c) {
  ShapeHandle values, unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &values));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &unused));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 0, &unused));
  TopKChunks chunks = {};
  TF_RETURN_IF_ERROR(c->GetAttr("chunk", &chunks.size));
  DimensionHandle count, last_count;
  TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(1, &count));
  TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(2, &last_count));
  DimensionHandle num_words = c->UnknownDim(), num_kept = c->UnknownDim();
  if (c->ValueKnown(c->Dim(values, 0)) && c->ValueKnown(count) && c->ValueKnown(last_count)) {
    const int64_t n = c->Value(c->Dim(values, 0));
    chunks.count = c->Value(count);
    chunks.last_count = c->Value(last_count);
    if (const Status status = chunks.Validate(n); !status.ok()) {
      return absl::InvalidArgumentError(status.message());
    }
    num_kept = c->MakeDim(chunks.NumKept(n));
    num_words = c->MakeDim(PositionsNumWords(n, chunks.NumKept(n)));
  }
  c->set_output(0, c->Vector(num_words));
  c->set_output(1, c->Vector(num_kept));
  return absl::OkStatus();
}

REGISTER_OP("Gradcomp>TopKChunkedSelect")
    .Input("values: float32")
    .Input("count: int64")
    .Input("last_count: int64")
    .Output("positions: int32")
    .Output("kept: float32")
    .Attr("chunk: int")
    .SetShapeFn(TopKChunkedSelectShape)
    .Doc(R"doc(
Selects the items of largest magnitude of every chunk, exactly, ties broken by lowest index.

values: `[n]`, n >= 1. Inf and NaN rank first.
count: scalar, 1 <= count <= chunk: the number of items to keep of a chunk.
last_count: scalar: the same for the last n mod chunk items, of which at least one is kept if there are
  any.
positions: `[p]` the positions block of the wire format (custom_ops/core/FORMAT.md) of
  `k = n div chunk * count + last_count` items.
kept: `[k]` the items kept, in ascending order of position.
chunk: items of a chunk, a power of two from 64 to 65536.
)doc");

}  // namespace
}  // namespace gradcomp
