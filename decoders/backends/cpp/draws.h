// Tokens drawn from rows of probabilities by inversion, part by part: first which part of a row a
// height falls into, then which token of the part. Sums are in double precision.

#pragma once

#include <ATen/ATen.h>
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "lines.h"

namespace draws {

constexpr int64_t PART = 512;  // tokens

inline __m512d doubles(const float* from) { return _mm512_cvtps_pd(_mm256_loadu_ps(from)); }
inline __m512d doubles(const double* from) { return _mm512_loadu_pd(from); }

template <typename T>
double sum(const T* of, int64_t n) {
  __m512d sums[4] = {_mm512_setzero_pd(), _mm512_setzero_pd(), _mm512_setzero_pd(),
                     _mm512_setzero_pd()};
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    for (int64_t j = 0; j < 4; ++j) sums[j] = _mm512_add_pd(sums[j], doubles(of + i + 8 * j));
  }
  double rest = 0;
  for (; i < n; ++i) rest += of[i];
  const __m512d low = _mm512_add_pd(sums[0], sums[1]), high = _mm512_add_pd(sums[2], sums[3]);
  return rest + _mm512_reduce_add_pd(_mm512_add_pd(low, high));
}

// The token at whose end the sums first exceed share * total; one that cannot be drawn is never
// taken, but where none can.
template <typename T>
int64_t drawn(const T* probs, int64_t n, double share, std::vector<double>& below) {
  const int64_t parts = (n + PART - 1) / PART;
  double total = 0;
  for (int64_t part = 0; part < parts; ++part) {
    total += sum(probs + part * PART, std::min(PART, n - part * PART));
    below[part] = total;
  }
  if (!(total > 0)) return n - 1;
  const double height = std::min(share * total, std::nextafter(total, 0.0));
  const int64_t part = std::upper_bound(below.begin(), below.begin() + parts, height) - below.begin();
  double at = part ? below[part - 1] : 0.0;
  int64_t last = n - 1;  // that can be drawn, for sums of a part that end below it by rounding
  for (int64_t i = part * PART; i < std::min(n, (part + 1) * PART); ++i) {
    if (!(probs[i] > 0)) continue;
    at += probs[i];
    last = i;
    if (at > height) break;
  }
  return last;
}

// probs [n, N] float or double, need not sum to 1; heights [n] double, from 0 to below 1.
at::Tensor draw_rows(const at::Tensor& probs, const at::Tensor& heights) {
  TORCH_CHECK(probs.dim() == 2 && heights.dim() == 1 && probs.size(0) == heights.size(0));
  TORCH_CHECK(probs.size(1) > 0 && heights.scalar_type() == at::kDouble);
  const at::Tensor rows = probs.contiguous(), shares = heights.contiguous();
  const int64_t n = rows.size(1);
  at::Tensor made = at::empty({rows.size(0)}, rows.options().dtype(at::kLong));
  std::vector<double> below((n + PART - 1) / PART);
  AT_DISPATCH_FLOATING_TYPES(rows.scalar_type(), "draw_rows", [&] {
    for (int64_t row = 0; row < rows.size(0); ++row) {
      made.data_ptr<int64_t>()[row] = drawn(rows.data_ptr<scalar_t>() + row * n, n,
                                            shares.data_ptr<double>()[row], below);
    }
  });
  return made;
}

// exp((numbers - their greatest) / temperature) as shares of their sum, n a multiple of 16.
inline void soften(const uint16_t* numbers, int64_t n, float temperature, float* to) {
  __m512 top = lines::floats(numbers);
  for (int64_t i = 16; i < n; i += 16) top = _mm512_max_ps(top, lines::floats(numbers + i));
  const __m512 by = _mm512_set1_ps(1.44269504f / temperature);
  const __m512 least = _mm512_mul_ps(_mm512_set1_ps(_mm512_reduce_max_ps(top)), by);
  const __m512 none = _mm512_set1_ps(-200);  // 2 to it is 0
  __m512d low = _mm512_setzero_pd(), high = low;
  for (int64_t i = 0; i < n; i += 16) {
    const __m512 height = _mm512_fmsub_ps(lines::floats(numbers + i), by, least);
    const __m512 chance = lines::exp2_of(_mm512_max_ps(height, none));
    _mm512_storeu_ps(to + i, chance);
    low = _mm512_add_pd(low, _mm512_cvtps_pd(_mm512_castps512_ps256(chance)));
    const __m256d upper = _mm512_extractf64x4_pd(_mm512_castps_pd(chance), 1);
    high = _mm512_add_pd(high, _mm512_cvtps_pd(_mm256_castpd_ps(upper)));
  }
  const __m512 share = _mm512_set1_ps(1 / _mm512_reduce_add_pd(_mm512_add_pd(low, high)));
  for (int64_t i = 0; i < n; i += 16)
    _mm512_storeu_ps(to + i, _mm512_mul_ps(_mm512_loadu_ps(to + i), share));
}

// logits bfloat16 [n, N], N a multiple of 16 -> float [n, N] probabilities at a temperature.
at::Tensor soften_rows(const at::Tensor& logits, double temperature) {
  TORCH_CHECK(logits.dim() == 2 && logits.scalar_type() == at::kBFloat16);
  TORCH_CHECK(logits.size(1) > 0 && logits.size(1) % 16 == 0 && temperature > 0);
  const at::Tensor rows = logits.contiguous();
  const int64_t n = rows.size(1);
  at::Tensor made = at::empty(rows.sizes(), rows.options().dtype(at::kFloat));
  lines::by_rows(rows.size(0), n, [&](int64_t row) {
    soften((const uint16_t*)rows.const_data_ptr() + row * n, n, temperature,
           made.data_ptr<float>() + row * n);
  });
  return made;
}

}  // namespace draws
