// Root mean square norms of bfloat16 rows, rounded before the weight and after.

#include <ATen/ATen.h>
#include <immintrin.h>
#include <torch/library.h>

#include <cmath>

namespace {

constexpr int64_t LANES = 16;

inline __m512 floats(__m256i halves) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

inline __m512 floats(const at::BFloat16* from) {
  return floats(_mm256_loadu_si256((const __m256i*)from));
}

inline __m256i rounded(__m512 values) { return (__m256i)_mm512_cvtneps_pbh(values); }

// x [..., d] and weight [d], bfloat16, d a multiple of 16 -> [..., d].
at::Tensor norm_rows(const at::Tensor& x, const at::Tensor& weight, double eps) {
  TORCH_CHECK(x.scalar_type() == at::kBFloat16 && weight.scalar_type() == at::kBFloat16);
  const int64_t d = x.size(-1);
  TORCH_CHECK(d % LANES == 0 && weight.dim() == 1 && weight.size(0) == d);
  const at::Tensor rows = x.contiguous(), scale = weight.contiguous();
  at::Tensor made = at::empty_like(rows);
  const auto* w = scale.data_ptr<at::BFloat16>();
  for (int64_t row = 0; row < rows.numel() / d; ++row) {
    const auto* from = rows.data_ptr<at::BFloat16>() + row * d;
    auto* to = made.data_ptr<at::BFloat16>() + row * d;
    __m512 squares = _mm512_setzero_ps();
    for (int64_t i = 0; i < d; i += LANES) {
      const __m512 v = floats(from + i);
      squares = _mm512_fmadd_ps(v, v, squares);
    }
    const float mean = _mm512_reduce_add_ps(squares) / d;
    const __m512 by = _mm512_set1_ps(1 / std::sqrt(mean + (float)eps));
    for (int64_t i = 0; i < d; i += LANES) {
      const __m512 normed = floats(rounded(_mm512_mul_ps(floats(from + i), by)));
      _mm256_storeu_si256((__m256i*)(to + i), rounded(_mm512_mul_ps(normed, floats(w + i))));
    }
  }
  return made;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(draftpick, library) {
  library.def("norm_rows(Tensor x, Tensor weight, float eps) -> Tensor");
}

TORCH_LIBRARY_IMPL(draftpick, CPU, library) { library.impl("norm_rows", &norm_rows); }
