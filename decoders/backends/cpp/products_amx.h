// On a processor's tiles (AMX). A tile product multiplies 16 rows by 32 inputs of 16 outputs at once.
// The weights of one such block are expanded to bfloat16, in which whole numbers up to 256 are exact,
// a few blocks ahead of the product that reads them: a tile cannot be loaded before what was stored
// for it has left the store buffer. The blocks of an output are summed in one order, whatever the
// number of rows.

#pragma once

#include "tiles.h"
#include "weights.h"

namespace products {

using tiles::ROWS;
using tiles::written;

constexpr int64_t AHEAD = 2;      // blocks that are expanded before they are multiplied
constexpr int64_t RING = 4;       // blocks that are kept expanded, a power of 2 above AHEAD
constexpr int64_t PAIR = 2;       // a block's product and the one before, which is still read

// Tiles. Those of products: [2 * (block % 2) + half], a half being up to 16 rows.
#define WEIGHTS 4
#define UPPER 5  // inputs of the first 16 rows
#define LOWER 6  // of those below them

// Shapes of the tiles for `upper` rows and `lower` ones below them.
void configure(int64_t upper, int64_t lower) {
  tiles::Shapes shapes;
  for (int tile = 0; tile < 7; ++tile) shapes.set(tile, upper);
  shapes.set(WEIGHTS, GROUP / 2);
  if (lower)
    for (int tile : {1, 3, LOWER}) shapes.set(tile, lower);
  shapes.use();
}

// Runs work(first, last) over blocks of outputs on all threads, for up to 32 rows from `top` on.
template <typename Work>
void on_tiles(const Product& p, const Work& work) {
  parallel_for(0, p.outputs / OUTS, 1, [&](int64_t first, int64_t last) {
    for (int64_t top = 0; top < p.rows; top += 2 * ROWS) {
      const int64_t upper = std::min(ROWS, p.rows - top);
      const int64_t lower = std::clamp<int64_t>(p.rows - top - ROWS, 0, ROWS);
      configure(upper, lower);
      work(first, last, top, upper, lower);
    }
    _tile_release();
  });
}

// 512 values of int4 as bfloat16.
inline void expand(const uint32_t* from, uint16_t* to, __m512i table) {
  for (int i = 0; i < 4; ++i, from += 16, to += 128) {
    const __m512i v = _mm512_loadu_si512(from);
    _mm512_store_si512(to, _mm512_permutexvar_epi16(v, table));
    _mm512_store_si512(to + 32, _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 4), table));
    _mm512_store_si512(to + 64, _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 8), table));
    _mm512_store_si512(to + 96, _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 12), table));
  }
}

// Likewise of int8.
inline void expand(const int8_t* from, uint16_t* to) {
  for (int64_t pair = 0; pair < PAIRS; ++pair, from += 2 * OUTS, to += 2 * OUTS)
    _mm512_store_si512(to, halves(from));
}

// Blocks of outputs for up to 32 rows. Each group's product is scaled by itself, and its zero
// multiplied by the sum of its inputs. The totals of the upper rows are kept in R registers, at
// least as many as there are rows.
template <int R>
void blocks(const Product& p, const Int4& int4, const float* sums, int64_t stride, int64_t first,
            int64_t last, int64_t top, int64_t upper, int64_t lower) {
  alignas(64) uint16_t ring[RING][VALUES];
  alignas(64) float made[PAIR][2 * ROWS][OUTS] = {};
  alignas(64) float rest[ROWS][OUTS];  // totals of the lower rows
  const __m512i table = steps_by_q();
  const int64_t groups = p.groups();
  for (int64_t block = first; block < last; ++block) {
    const uint32_t *w = int4.block(block, groups), *grid = int4.steps(block, groups);
    __m512 total[R];
#pragma GCC unroll 16
    for (int row = 0; row < R; ++row) total[row] = _mm512_setzero_ps();
    std::memset(rest, 0, lower * sizeof rest[0]);
    auto add = [&](int64_t g) __attribute__((always_inline)) {
      const Steps steps(grid + g * OUTS);
      const float(*own)[OUTS] = made[g & 1];
      const float* sum = sums + g * stride + top;
#pragma GCC unroll 16
      for (int row = 0; row < R; ++row) {
        total[row] = _mm512_fmadd_ps(_mm512_load_ps(own[row]), steps.scale, total[row]);
        total[row] = _mm512_fmadd_ps(steps.zero, _mm512_set1_ps(sum[row]), total[row]);
      }
      for (int64_t row = 0; row < lower; ++row) {
        const __m512 before = _mm512_load_ps(rest[row]);
        const __m512 with = _mm512_fmadd_ps(_mm512_load_ps(own[ROWS + row]), steps.scale, before);
        const __m512 zeros = _mm512_set1_ps(sum[ROWS + row]);
        _mm512_store_ps(rest[row], _mm512_fmadd_ps(steps.zero, zeros, with));
      }
    };
    for (int64_t g = 0; g < std::min(AHEAD, groups); ++g)
      expand(w + g * VALUES / 8, ring[g], table);
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t next = g + AHEAD;
      if (next < groups) expand(w + next * VALUES / 8, ring[next & (RING - 1)], table);
      const uint16_t* from = p.x + top * p.inputs + g * GROUP;
      written(ring);
      _tile_loadd(WEIGHTS, ring[g & (RING - 1)], 64);
      _tile_loadd(UPPER, from, p.inputs * 2);
      if (lower) _tile_loadd(LOWER, from + ROWS * p.inputs, p.inputs * 2);
      if (g & 1) {
        _tile_zero(2);
        _tile_dpbf16ps(2, UPPER, WEIGHTS);
        _tile_stored(2, made[1], 64);
        if (lower) {
          _tile_zero(3);
          _tile_dpbf16ps(3, LOWER, WEIGHTS);
          _tile_stored(3, made[1][ROWS], 64);
        }
      } else {
        _tile_zero(0);
        _tile_dpbf16ps(0, UPPER, WEIGHTS);
        _tile_stored(0, made[0], 64);
        if (lower) {
          _tile_zero(1);
          _tile_dpbf16ps(1, LOWER, WEIGHTS);
          _tile_stored(1, made[0][ROWS], 64);
        }
      }
      if (g) add(g - 1);
    }
    add(groups - 1);
    uint16_t* to = p.out + top * p.outputs + block * OUTS;
#pragma GCC unroll 16
    for (int row = 0; row < R; ++row)
      if (row < upper) store(to + row * p.outputs, total[row]);
    for (int64_t row = 0; row < lower; ++row)
      store(to + (ROWS + row) * p.outputs, _mm512_load_ps(rest[row]));
  }
}

void multiply(const Product& p, const Int4& int4) {
  const int64_t groups = p.groups(), stride = p.rows + ROWS;
  std::vector<float> sums(groups * stride);  // of a row's inputs of each group
  for (int64_t row = 0; row < p.rows; ++row)
    for (int64_t g = 0; g < groups; ++g)
      sums[g * stride + row] = group_sum(p.x + row * p.inputs + g * GROUP);
  on_tiles(p, [&](int64_t first, int64_t last, int64_t top, int64_t upper, int64_t lower) {
    const auto run = upper == 1   ? blocks<1>
                     : upper <= 4 ? blocks<4>
                     : upper <= 8 ? blocks<8>
                                  : blocks<16>;
    run(p, int4, sums.data(), stride, first, last, top, upper, lower);
  });
}

// A block's values as tiles want them: those of int8 are expanded in time, those of bfloat16 lie so.
struct Expanded {
  const int8_t* from;
  int64_t groups;
  alignas(64) uint16_t ring[RING][VALUES];

  Expanded(const Int8& int8, int64_t block, int64_t groups)
      : from(int8.block(block, groups)), groups(groups) {
    for (int64_t g = 0; g < std::min(AHEAD, groups); ++g) expand(from + g * VALUES, ring[g]);
  }

  const uint16_t* operator()(int64_t g) {
    const int64_t next = g + AHEAD;
    if (next < groups) expand(from + next * VALUES, ring[next & (RING - 1)]);
    return ring[g & (RING - 1)];
  }
};

struct AsTheyLie {
  const uint16_t* from;

  AsTheyLie(const Bf16& bf16, int64_t block, int64_t groups) : from(bf16.block(block, groups)) {}

  const uint16_t* operator()(int64_t g) const { return from + g * VALUES; }
};

template <typename Ready, typename Weights>
void sum_on_tiles(const Product& p, const Weights& weights) {
  const int64_t groups = p.groups();
  on_tiles(p, [&](int64_t first, int64_t last, int64_t top, int64_t upper, int64_t lower) {
    alignas(64) float made[2 * ROWS][OUTS];
    for (int64_t block = first; block < last; ++block) {
      Ready ready(weights, block, groups);
      _tile_zero(0);
      _tile_zero(1);
      for (int64_t g = 0; g < groups; ++g) {
        const uint16_t *values = ready(g), *from = p.x + top * p.inputs + g * GROUP;
        written(values);
        _tile_loadd(WEIGHTS, values, 64);
        _tile_loadd(UPPER, from, p.inputs * 2);
        _tile_dpbf16ps(0, UPPER, WEIGHTS);
        if (lower) {
          _tile_loadd(LOWER, from + ROWS * p.inputs, p.inputs * 2);
          _tile_dpbf16ps(1, LOWER, WEIGHTS);
        }
      }
      _tile_stored(0, made, 64);
      if (lower) _tile_stored(1, made[ROWS], 64);
      for (int64_t row = 0; row < upper + lower; ++row)
        store(p.out + (top + row) * p.outputs + block * OUTS,
              weights.scaled(block, _mm512_load_ps(made[row])));
    }
  });
}

void multiply(const Product& p, const Int8& int8) { sum_on_tiles<Expanded>(p, int8); }

void multiply(const Product& p, const Bf16& bf16) { sum_on_tiles<AsTheyLie>(p, bf16); }

}  // namespace products

#undef WEIGHTS
#undef UPPER
#undef LOWER
