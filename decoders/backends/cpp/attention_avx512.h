// Attention's products by vectors of 16 queries, or of 16 dimensions of values.

#pragma once

#include "attention_lines.h"

namespace attention {

inline void written(const void*) {}
inline void configure(int64_t) {}
inline void release() {}

// sum[nth][row] += the pairs of row's line by those of 16 columns, for NTH lines of columns.
// rows: the first one's pairs; the next one's lie so many words further.
template <int R, int NTH>
inline void dot(__m512 (&sum)[NTH][R], const uint32_t* rows, int64_t words, const Line* columns) {
#ifndef __AVX512BF16__
  const __m512i upper = _mm512_set1_epi32(0xFFFF0000);
#endif
  for (int64_t pair = 0; pair < 16; ++pair)
#pragma GCC unroll 2
    for (int nth = 0; nth < NTH; ++nth) {
      const __m512i column = _mm512_load_si512(columns + nth * LANES + pair);
#pragma GCC unroll 16
      for (int row = 0; row < R; ++row) {
        const uint32_t both = rows[row * words + pair];
        __m512& into = sum[nth][row];
#ifdef __AVX512BF16__
        into = _mm512_dpbf16_ps(into, (__m512bh)_mm512_set1_epi32(both), (__m512bh)column);
#else
        const __m512 first = _mm512_castsi512_ps(_mm512_set1_epi32(both << 16));
        const __m512 second = _mm512_castsi512_ps(_mm512_set1_epi32(both & 0xFFFF0000));
        into = _mm512_fmadd_ps(first, _mm512_castsi512_ps(_mm512_slli_epi32(column, 16)), into);
        into = _mm512_fmadd_ps(second, _mm512_castsi512_ps(_mm512_and_si512(column, upper)), into);
#endif
      }
    }
}

void make_scores(const uint16_t* keys, int64_t of_position, int64_t d, const Line* queries,
                 int64_t steps, float (*scores)[LANES]) {
  for (int64_t half = 0; half < 2 * steps; ++half, keys += LANES * of_position) {
    __m512 sum[1][LANES];
#pragma GCC unroll 16
    for (int key = 0; key < LANES; ++key) sum[0][key] = _mm512_setzero_ps();
    for (int64_t part = 0; part < d / 32; ++part)
      dot<LANES, 1>(sum, (const uint32_t*)(keys + 32 * part), of_position / 2, queries + 16 * part);
#pragma GCC unroll 16
    for (int key = 0; key < LANES; ++key) _mm512_store_ps(scores[half * LANES + key], sum[0][key]);
  }
}

// NTH lines of 16 dimensions at once: of a few lanes, a sum waits for the one before it.
template <int R, int NTH>
void add_values(Line* sums, int64_t d, int64_t steps, const Line* chances, const Line* of_values) {
  for (int64_t line = 0; line < d / 16; line += NTH, sums += NTH * LANES) {
    __m512 sum[NTH][R];
#pragma GCC unroll 2
    for (int nth = 0; nth < NTH; ++nth)
#pragma GCC unroll 16
      for (int lane = 0; lane < R; ++lane)
        sum[nth][lane] = _mm512_load_ps(floats_of(sums + nth * LANES + lane));
    const Line* values = of_values + LANES * line;
    for (int64_t step = 0; step < steps; ++step, values += d)
      dot<R, NTH>(sum, chances[step * LANES].words, LANES, values);
#pragma GCC unroll 2
    for (int nth = 0; nth < NTH; ++nth)
#pragma GCC unroll 16
      for (int lane = 0; lane < R; ++lane)
        _mm512_store_ps(floats_of(sums + nth * LANES + lane), sum[nth][lane]);
  }
}

template <int R = 1>
void add_values(Line* sums, int64_t d, int64_t steps, int64_t lanes, const Line* chances,
                const Line* of_values) {
  if (lanes <= R) return add_values<R, R <= 8 ? 2 : 1>(sums, d, steps, chances, of_values);
  if constexpr (R < LANES) add_values<R + 1>(sums, d, steps, lanes, chances, of_values);
}

}  // namespace attention
