// Attention's products on a processor's tiles (AMX).

#pragma once

#include "attention_lines.h"
#include "tiles.h"

namespace attention {

using tiles::written;

// Tiles.
#define FIRST 0    // scores of 16 keys, and of the next 16
#define SECOND 1
#define KEYS 2
#define QUERIES 3
#define CHANCES 4
#define VALUES 5
#define LOWER 6    // sums of values: of 32 dimensions those that unpacking puts low, and high
#define UPPER 7

void configure(int64_t lanes) {
  tiles::Shapes shapes;
  for (int tile = 0; tile < 8; ++tile) shapes.set(tile, tiles::ROWS);
  for (int tile : {CHANCES, LOWER, UPPER}) shapes.set(tile, lanes);
  shapes.use();
}

void release() { _tile_release(); }

void make_scores(const uint16_t* keys, int64_t of_position, int64_t d, const Line* queries,
                 int64_t steps, float (*scores)[LANES]) {
  const int64_t bytes = of_position * 2;
  for (int64_t step = 0; step < steps; ++step, keys += STEP * of_position) {
    _tile_zero(FIRST);
    _tile_zero(SECOND);
    for (int64_t part = 0; part < d / 32; ++part) {
      _tile_loadd(QUERIES, queries + 16 * part, 64);
      _tile_loadd(KEYS, keys + 32 * part, bytes);
      _tile_dpbf16ps(FIRST, KEYS, QUERIES);
      _tile_loadd(KEYS, keys + 16 * of_position + 32 * part, bytes);
      _tile_dpbf16ps(SECOND, KEYS, QUERIES);
    }
    _tile_stored(FIRST, scores[step * STEP], 64);
    _tile_stored(SECOND, scores[step * STEP + 16], 64);
  }
  written(scores);
}

void add_values(Line* sums, int64_t d, int64_t steps, int64_t, const Line* chances,
                const Line* of_values) {
  written(sums);
  for (int64_t part = 0; part < d / 32; ++part) {
    Line *low = sums + 2 * part * LANES, *high = low + LANES;
    _tile_loadd(LOWER, low, 64);
    _tile_loadd(UPPER, high, 64);
    const Line* values = of_values + 32 * part;
    for (int64_t step = 0; step < steps; ++step, values += d) {
      _tile_loadd(CHANCES, chances + step * LANES, 64);
      _tile_loadd(VALUES, values, 64);
      _tile_dpbf16ps(LOWER, CHANCES, VALUES);
      _tile_loadd(VALUES, values + 16, 64);
      _tile_dpbf16ps(UPPER, CHANCES, VALUES);
    }
    _tile_stored(LOWER, low, 64);
    _tile_stored(UPPER, high, 64);
  }
  written(sums);
}

}  // namespace attention

#undef FIRST
#undef SECOND
#undef KEYS
#undef QUERIES
#undef CHANCES
#undef VALUES
#undef LOWER
#undef UPPER
