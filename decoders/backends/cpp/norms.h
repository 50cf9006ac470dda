// Root mean square norms of bfloat16 rows, rounded before the weight and after.

#pragma once

#include <cmath>

#include "lines.h"
#include "tensors.h"

namespace norms {

using namespace lines;

// d numbers of `from` over their root mean square, times the weight.
inline void norm_row(const uint16_t* from, const uint16_t* weight, int64_t d, float eps,
                     uint16_t* to) {
  Floats squares = all(0);
  for (int64_t i = 0; i < d; i += LANES) {
    const Floats v = floats(from + i);
    squares = fma(v, v, squares);
  }
  const float mean = sum_of(squares) / d;
  const Floats by = all(1 / std::sqrt(mean + eps));
  for (int64_t i = 0; i < d; i += LANES)
    store(to + i, floats(rounded(floats(from + i) * by)) * floats(weight + i));
}

// x [..., d] and weight [d], bfloat16, d a multiple of 16 -> [..., d].
Tensor norm_rows(const Tensor& x, const Tensor& weight, double eps) {
  CHECK(x.scalar_type() == kBFloat16 && weight.scalar_type() == kBFloat16);
  const int64_t d = x.size(-1);
  CHECK(d % LANES == 0 && weight.dim() == 1 && weight.size(0) == d);
  const Tensor rows = in_a_row(x), scale = in_a_row(weight);
  Tensor made = empty(rows.sizes(), kBFloat16);
  const auto* from = (const uint16_t*)rows.const_data_ptr();
  const auto* by = (const uint16_t*)scale.const_data_ptr();
  auto* to = (uint16_t*)made.data_ptr();
  by_rows(rows.numel() / d, d, [&](int64_t row) {
    norm_row(from + row * d, by, d, eps, to + row * d);
  });
  return made;
}

}  // namespace norms
