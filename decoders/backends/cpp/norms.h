// Root mean square norms of bfloat16 rows, rounded before the weight and after.

#pragma once

#include <ATen/ATen.h>

#include <cmath>

#include "lines.h"

namespace norms {

using lines::floats;
using lines::rounded;
using lines::store;

constexpr int64_t LANES = 16;

// d numbers of `from` over their root mean square, times the weight.
inline void norm_row(const uint16_t* from, const uint16_t* weight, int64_t d, float eps,
                     uint16_t* to) {
  __m512 squares = _mm512_setzero_ps();
  for (int64_t i = 0; i < d; i += LANES) {
    const __m512 v = floats(from + i);
    squares = _mm512_fmadd_ps(v, v, squares);
  }
  const float mean = _mm512_reduce_add_ps(squares) / d;
  const __m512 by = _mm512_set1_ps(1 / std::sqrt(mean + eps));
  for (int64_t i = 0; i < d; i += LANES) {
    const __m512 normed = floats(rounded(_mm512_mul_ps(floats(from + i), by)));
    store(to + i, _mm512_mul_ps(normed, floats(weight + i)));
  }
}

// x [..., d] and weight [d], bfloat16, d a multiple of 16 -> [..., d].
at::Tensor norm_rows(const at::Tensor& x, const at::Tensor& weight, double eps) {
  TORCH_CHECK(x.scalar_type() == at::kBFloat16 && weight.scalar_type() == at::kBFloat16);
  const int64_t d = x.size(-1);
  TORCH_CHECK(d % LANES == 0 && weight.dim() == 1 && weight.size(0) == d);
  const at::Tensor rows = x.contiguous(), scale = weight.contiguous();
  at::Tensor made = at::empty_like(rows);
  const auto* from = (const uint16_t*)rows.const_data_ptr();
  const auto* by = (const uint16_t*)scale.const_data_ptr();
  auto* to = (uint16_t*)made.data_ptr();
  lines::by_rows(rows.numel() / d, d, [&](int64_t row) {
    norm_row(from + row * d, by, d, eps, to + row * d);
  });
  return made;
}

}  // namespace norms
