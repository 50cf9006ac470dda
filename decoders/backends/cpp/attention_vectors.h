// Attention's products by vectors of 16 queries, or of 16 dimensions of values.

#pragma once

#include "attention_lines.h"

namespace attention {

inline void written(const void*) {}
inline void configure(int64_t) {}
inline void release() {}

constexpr int ROWS = HELD / 2;  // at once

// sum[nth][row] += the pairs of row's line by those of 16 columns, for NTH lines of columns.
// rows: the first one's pairs; the next one's lie this many words further.
template <int R, int NTH>
inline void dot(Floats (&sum)[NTH][R], const uint32_t* rows, int64_t words, const Line* columns) {
  for (int64_t pair = 0; pair < LANES; ++pair)
#pragma GCC unroll 2
    for (int nth = 0; nth < NTH; ++nth) {
      const Words column = lines::words(columns + nth * LANES + pair);
#pragma GCC unroll 16
      for (int row = 0; row < R; ++row) {
        const uint32_t both = rows[row * words + pair];
        Floats& into = sum[nth][row];
#ifdef __AVX512BF16__
        into = _mm512_dpbf16_ps(into, (__m512bh)_mm512_set1_epi32(both), (__m512bh)column);
#else
        into = fma(all(as_float(both << 16)), as_floats(left(column, 16)), into);
        into = fma(all(as_float(both & 0xFFFF0000)), as_floats(masked(column, 0xFFFF0000)), into);
#endif
      }
    }
}

void make_scores(const uint16_t* keys, int64_t of_position, int64_t d, const Line* queries,
                 int64_t steps, float (*scores)[LANES]) {
  for (int64_t at = 0; at < steps * STEP; at += ROWS, keys += ROWS * of_position) {
    Floats sum[1][ROWS];
#pragma GCC unroll 16
    for (int key = 0; key < ROWS; ++key) sum[0][key] = all(0);
    for (int64_t part = 0; part < d / 32; ++part)
      dot<ROWS, 1>(sum, (const uint32_t*)(keys + 32 * part), of_position / 2, queries + 16 * part);
#pragma GCC unroll 16
    for (int key = 0; key < ROWS; ++key) put(scores[at + key], sum[0][key]);
  }
}

// NTH lines of 16 dimensions at once: of a few lanes, a sum waits for the one before it.
template <int R, int NTH>
void add_values(Line* sums, int64_t d, int64_t steps, const Line* chances, const Line* of_values) {
  for (int64_t line = 0; line < d / 16; line += NTH, sums += NTH * LANES) {
    Floats sum[NTH][R];
#pragma GCC unroll 2
    for (int nth = 0; nth < NTH; ++nth)
#pragma GCC unroll 16
      for (int lane = 0; lane < R; ++lane) sum[nth][lane] = load(floats_of(sums + nth * LANES + lane));
    const Line* values = of_values + LANES * line;
    for (int64_t step = 0; step < steps; ++step, values += d)
      dot<R, NTH>(sum, chances[step * LANES].words, LANES, values);
#pragma GCC unroll 2
    for (int nth = 0; nth < NTH; ++nth)
#pragma GCC unroll 16
      for (int lane = 0; lane < R; ++lane) put(floats_of(sums + nth * LANES + lane), sum[nth][lane]);
  }
}

template <int R = 1>
void add_values(Line* sums, int64_t d, int64_t steps, int64_t lanes, const Line* chances,
                const Line* of_values) {
  for (; lanes > ROWS; lanes -= ROWS, sums += ROWS, chances += ROWS)
    add_values<ROWS, 1>(sums, d, steps, chances, of_values);
  if (lanes <= R) return add_values<R, 2 * R <= ROWS ? 2 : 1>(sums, d, steps, chances, of_values);
  if constexpr (R < ROWS) add_values<R + 1>(sums, d, steps, lanes, chances, of_values);
}

}  // namespace attention
