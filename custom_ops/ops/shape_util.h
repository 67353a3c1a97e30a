// SPDX-License-Identifier: Apache-2.0
// Shape rules that several ops share.

#ifndef GRADCOMP_OPS_SHAPE_UTIL_H_
#define GRADCOMP_OPS_SHAPE_UTIL_H_

#include "tensorflow/core/framework/shape_inference.h"

namespace gradcomp {

// Checks that `shape` is that of real or complex items: `leading` dimensions, then nothing or a
// dimension of 2. `*items` may know more than `shape`.
inline absl::Status ItemsShape(::tensorflow::shape_inference::InferenceContext* c,
                               ::tensorflow::shape_inference::ShapeHandle shape, int leading,
                               ::tensorflow::shape_inference::ShapeHandle* items) {
  *items = shape;
  if (!c->RankKnown(shape) || c->Rank(shape) == leading) return absl::OkStatus();
  TF_RETURN_IF_ERROR(c->WithRank(shape, leading + 1, items));
  ::tensorflow::shape_inference::DimensionHandle two;
  TF_RETURN_IF_ERROR(c->WithValue(c->Dim(*items, leading), 2, &two));
  return c->ReplaceDim(*items, leading, two, items);
}

}  // namespace gradcomp

#endif  // GRADCOMP_OPS_SHAPE_UTIL_H_
