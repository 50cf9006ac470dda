// Sixteen numbers at once: bfloat16 as float32, and back.

#pragma once

#include <ATen/Parallel.h>
#include <immintrin.h>

#include <algorithm>
#include <cstdint>

namespace lines {

inline __m512 floats(__m256i halves) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

inline __m512 floats(const void* from) { return floats(_mm256_loadu_si256((const __m256i*)from)); }

// To the nearest bfloat16, of two the even one.
inline __m256i rounded(__m512 values) {
#ifdef __AVX512BF16__
  return (__m256i)_mm512_cvtneps_pbh(values);
#else
  const __m512i bits = _mm512_castps_si512(values);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF));
  const __mmask16 nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
  const __m512i made = _mm512_srli_epi32(_mm512_add_epi32(bits, up), 16);
  return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(made, nan, _mm512_set1_epi32(0x7FC0)));
#endif
}

inline void store(void* to, __m512 values) { _mm256_storeu_si256((__m256i*)to, rounded(values)); }

// 2 ** x, to 2e-6 of it.
inline __m512 exp2_of(__m512 x) {
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(x, whole);
  __m512 p = _mm512_set1_ps(1.3333558e-3f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.6181291e-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.5504109e-2f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4022651e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9314718e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, whole);
}

constexpr int64_t GRAIN = 8192;  // numbers that are worth a thread

// work(row) for rows of so many numbers.
template <typename Work>
void by_rows(int64_t rows, int64_t size, const Work& work) {
  at::parallel_for(0, rows, std::max<int64_t>(1, GRAIN / size), [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) work(row);
  });
}

}  // namespace lines
