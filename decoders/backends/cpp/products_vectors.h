// By vectors of 16 outputs: a block's weights are expanded into registers, and each line of them
// multiplied by the same inputs of a few rows, whose sums stay in registers too. With AVX512_BF16 a
// line holds pairs of inputs, without it single ones as float32. What is summed for a row, and in
// which order, does not depend on how many rows there are.

#pragma once

#include <type_traits>

#include "weights.h"

namespace products {

constexpr int64_t MOST = HELD == 32 ? 12 : 5;  // rows at once
constexpr int64_t AHEAD = 8;   // groups whose weights are asked for before they are used
constexpr int64_t CHUNK = 8;   // blocks of outputs that all rows are multiplied by in turn
#ifdef __AVX512BF16__
using Line = Words;            // of 16 outputs
using Input = uint32_t;        // a pair, as it is
constexpr int64_t INPUTS = PAIRS;
#else
using Line = Floats;
using Input = float;
constexpr int64_t INPUTS = GROUP;
#endif

// One line of weights by one row's input.
inline Floats dot(Floats sum, Line line, const Input* x) {
#ifdef __AVX512BF16__
  return _mm512_dpbf16_ps(sum, (__m512bh)line, (__m512bh)_mm512_set1_epi32(*x));
#else
  return fma(line, all(*x), sum);
#endif
}

// Lines of int4, this many of each 32-bit value.
struct Lines {
#ifdef __AVX512BF16__
  static constexpr int COUNT = 4;
  static constexpr float TAKEN = 8;  // of q, the rest of 8 is to be
  const Words table = steps_by_q();

  Line operator()(Words of, int nth) const {
    return _mm512_permutexvar_epi16(_mm512_srli_epi16(of, 4 * nth), table);
  }
#else
  static constexpr int COUNT = 8;
  static constexpr float TAKEN = lines::TAKEN;

  Line operator()(Words of, int nth) const { return nibbles(of, nth / 2 * 4 + nth % 2 * 16); }
#endif
};

// Up to MOST rows, copied so that their inputs of a group lie beside each other.
struct Part {
  int64_t top, rows;
  const Input* x;     // [K / 32, rows, INPUTS]
  const float* sums;  // [K / 32, rows], where they are wanted
};

struct Parts {
  std::vector<Input> inputs;
  std::vector<float> sums;
  std::vector<Part> all;

  // summed: whether `sums` are wanted.
  Parts(const Product& p, bool summed) {
    const int64_t groups = p.groups(), count = (p.rows + MOST - 1) / MOST;
    inputs.resize(p.rows * groups * INPUTS);
    sums.resize(summed ? p.rows * groups : 0);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t top = p.rows * i / count, end = p.rows * (i + 1) / count;
      all.push_back({top, end - top, inputs.data() + top * groups * INPUTS,
                     sums.data() + (summed ? top * groups : 0)});
    }
    parallel_for(0, count, 1, [&](int64_t first, int64_t last) {
      for (; first < last; ++first) fill(p, all[first].top, all[first].rows, summed);
    });
  }

 private:
  void fill(const Product& p, int64_t top, int64_t rows, bool summed) {
    const int64_t groups = p.groups();
    Input* to = inputs.data() + top * groups * INPUTS;
    float* sum = sums.data() + (summed ? top * groups : 0);
    for (int64_t g = 0; g < groups; ++g)
      for (int64_t row = top; row < top + rows; ++row, to += INPUTS) {
        const uint16_t* from = p.x + row * p.inputs + g * GROUP;
#ifdef __AVX512BF16__
        put_words(to, words(from));
#else
        put(to, floats(from));
        put(to + 16, floats(from + 16));
#endif
        if (summed) *sum++ = group_sum(from);
      }
  }
};

// Adds a group's product by R rows.
template <int R>
[[gnu::always_inline]] inline void add_group(const uint32_t* w, const Lines& expanded,
                                             const Input* x, Floats (&sum)[R]) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const Words v = words(w + 16 * i);
#pragma GCC unroll 8
    for (int j = 0; j < Lines::COUNT; ++j) {
      const Line line = expanded(v, j);
#pragma GCC unroll 12
      for (int row = 0; row < R; ++row)
        sum[row] = dot(sum[row], line, x + row * INPUTS + Lines::COUNT * i + j);
    }
  }
}

// Likewise of a pair of inputs.
template <int R>
[[gnu::always_inline]] inline void add_pair(const int8_t* w, const Input* x, Floats (&sum)[R]) {
#ifdef __AVX512BF16__
  const Line line = halves(w);
#pragma GCC unroll 12
  for (int row = 0; row < R; ++row) sum[row] = dot(sum[row], line, x + row * INPUTS);
#else
  const Words both = shorts(w);
  const Line first = numbers(right_signed(left(both, 24), 24));
  const Line second = numbers(right_signed(both, 8));
#pragma GCC unroll 12
  for (int row = 0; row < R; ++row) {
    sum[row] = dot(sum[row], first, x + row * INPUTS);
    sum[row] = dot(sum[row], second, x + row * INPUTS + 1);
  }
#endif
}

template <int R>
[[gnu::always_inline]] inline void add_pair(const uint16_t* w, const Input* x, Floats (&sum)[R]) {
  const Words both = words(w);
#ifdef __AVX512BF16__
#pragma GCC unroll 12
  for (int row = 0; row < R; ++row) sum[row] = dot(sum[row], both, x + row * INPUTS);
#else
  const Line first = as_floats(left(both, 16)), second = as_floats(masked(both, 0xFFFF0000));
#pragma GCC unroll 12
  for (int row = 0; row < R; ++row) {
    sum[row] = dot(sum[row], first, x + row * INPUTS);
    sum[row] = dot(sum[row], second, x + row * INPUTS + 1);
  }
#endif
}

// Blocks of outputs for R rows. Each group's product is scaled by itself, and its zero multiplied by
// the sum of its inputs.
template <int R>
void multiply(const Product& p, const Int4& int4, const Part& part, int64_t first, int64_t last) {
  const Lines expanded;
  const Floats left_out = all(Lines::TAKEN - 8);
  const int64_t groups = p.groups();
  for (int64_t block = first; block < last; ++block) {
    const uint32_t *w = int4.block(block, groups), *grid = int4.steps(block, groups);
    const Input* x = part.x;
    const float* sums = part.sums;
    Floats total[R];
#pragma GCC unroll 12
    for (int row = 0; row < R; ++row) total[row] = all(0);
    for (int64_t g = 0; g < groups; ++g) {
      Floats own[R];
#pragma GCC unroll 12
      for (int row = 0; row < R; ++row) own[row] = all(0);
      if (R <= 4) {  // then the weights are what is waited for
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) __builtin_prefetch(w + AHEAD * VALUES / 8 + 16 * i);
        __builtin_prefetch(grid + AHEAD * OUTS);
      }
      add_group<R>(w, expanded, x, own);
      const Steps steps(grid);
      const Floats zero = Lines::TAKEN == 8 ? steps.zero : fma(steps.scale, left_out, steps.zero);
#pragma GCC unroll 12
      for (int row = 0; row < R; ++row) {
        total[row] = fma(own[row], steps.scale, total[row]);
        total[row] = fma(zero, all(sums[row]), total[row]);
      }
      w += VALUES / 8, grid += OUTS, x += R * INPUTS, sums += R;
    }
    uint16_t* to = p.out + part.top * p.outputs + block * OUTS;
#pragma GCC unroll 12
    for (int row = 0; row < R; ++row) store(to + row * p.outputs, total[row]);
  }
}

// Of int8 or bfloat16; of a few rows several blocks at once, as a sum waits for the one before it.
template <int R, int BLOCKS, typename Weights>
int64_t multiply(const Product& p, const Weights& weights, const Part& part, int64_t block,
                 int64_t last) {
  const int64_t groups = p.groups();
  for (; block + BLOCKS <= last; block += BLOCKS) {
    Floats sum[BLOCKS][R];
    const Input* x = part.x;
#pragma GCC unroll 8
    for (int nth = 0; nth < BLOCKS; ++nth)
#pragma GCC unroll 12
      for (int row = 0; row < R; ++row) sum[nth][row] = all(0);
    const auto* w = weights.block(block, groups);
    for (int64_t g = 0; g < groups; ++g, w += VALUES, x += R * INPUTS)
#pragma GCC unroll 16
      for (int pair = 0; pair < PAIRS; ++pair)
#pragma GCC unroll 8
        for (int nth = 0; nth < BLOCKS; ++nth)
          add_pair<R>(w + nth * groups * VALUES + 2 * OUTS * pair, x + INPUTS / PAIRS * pair,
                      sum[nth]);
#pragma GCC unroll 8
    for (int nth = 0; nth < BLOCKS; ++nth)
#pragma GCC unroll 12
      for (int row = 0; row < R; ++row)
        store(p.out + (part.top + row) * p.outputs + (block + nth) * OUTS,
              weights.scaled(block + nth, sum[nth][row]));
  }
  return block;
}

template <int R, typename Weights>
void multiply(const Product& p, const Weights& weights, const Part& part, int64_t first,
              int64_t last) {
  constexpr int BLOCKS = 8 * R <= HELD ? 4 : 8 * R <= 3 * HELD ? 2 : 1;
  first = multiply<R, BLOCKS>(p, weights, part, first, last);
  multiply<R, 1>(p, weights, part, first, last);
}

template <int R, typename Weights>
void by_rows(const Product& p, const Weights& weights, const Part& part, int64_t first,
             int64_t last) {
  if (part.rows == R) return multiply<R>(p, weights, part, first, last);
  if constexpr (R < MOST) by_rows<R + 1>(p, weights, part, first, last);
}

template <typename Weights>
void multiply(const Product& p, const Weights& weights) {
  const Parts parts(p, std::is_same_v<Weights, Int4>);
  parallel_for(0, p.outputs / OUTS, 1, [&](int64_t first, int64_t last) {
    for (; first < last; first += CHUNK)
      for (const Part& part : parts.all)
        by_rows<1>(p, weights, part, first, std::min(first + CHUNK, last));
  });
}

}  // namespace products
