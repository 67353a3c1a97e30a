// SPDX-License-Identifier: Apache-2.0
// Shape rules that several ops share.

#ifndef GRADCOMP_OPS_SHAPE_UTIL_H_
#define GRADCOMP_OPS_SHAPE_UTIL_H_

#include <string>

#include "tensorflow/core/framework/shape_inference.h"

namespace gradcomp {

// Checks that `shape` is that of items: `leading` dimensions, then nothing or a dimension of at
// least 2, the number of their components. `*items` may know more than `shape`.
inline absl::Status ItemsShape(::tensorflow::shape_inference::InferenceContext* c,
                               ::tensorflow::shape_inference::ShapeHandle shape, int leading,
                               ::tensorflow::shape_inference::ShapeHandle* items) {
  *items = shape;
  if (!c->RankKnown(shape) || c->Rank(shape) == leading) return absl::OkStatus();
  TF_RETURN_IF_ERROR(c->WithRank(shape, leading + 1, items));
  const ::tensorflow::shape_inference::DimensionHandle components = c->Dim(*items, leading);
  if (c->ValueKnown(components) && c->Value(components) < 2) {
    return absl::InvalidArgumentError("items must have " + std::to_string(leading) +
                                      " dimension(s), or one more of at least 2; got " +
                                      c->DebugString(shape));
  }
  return absl::OkStatus();
}

}  // namespace gradcomp

#endif  // GRADCOMP_OPS_SHAPE_UTIL_H_
