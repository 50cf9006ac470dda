// Products of bfloat16 rows with weights as a GGUF file has them (file_blocks.h).
//
// A row is rounded to whole numbers up to 127, every 32 inputs by their greatest, so that a group's
// product is a sum of whole numbers, which is exact in any order, times the scales of both. The
// groups are added up in one order however many rows there are, so that a prompt is read, a draft
// verified and a token decoded with the same bits.

#pragma once

#include <algorithm>
#include <vector>

#include "file_blocks.h"

namespace file_products {

using namespace lines;
using namespace file_blocks;

constexpr int MOST = HELD == 32 ? 12 : 5;  // rows whose sums are kept in registers at once
// Where a product is one instruction and there are registers for MOST rows, unpacking a group for
// every tile costs less than keeping it in memory.
constexpr bool DIRECT = IN_WORDS && OF_FLOATS == 1;
constexpr int FEW = DIRECT ? MOST : 5;
constexpr int TOGETHER = 8;                // so many times as many read a line that was unpacked once
constexpr int64_t CHUNK = 8;               // blocks of outputs that all rows are multiplied by in turn
constexpr int64_t AHEAD = 2048;            // bytes of weights that are asked for before their use

// A group of a row: x is about scale * steps.
struct Inputs {
  int8_t steps[GROUP];
  float scale, sum;  // sum: of the rounded inputs
  int32_t parts[2];  // sums of the first and the last sixteen steps

  int32_t four(int i) const {
    int32_t made;
    std::memcpy(&made, steps + 4 * i, 4);
    return made;
  }
  int32_t sum_of(int part, int of) const {
    return of == 1 ? parts[0] + parts[1] : parts[part];
  }

  void round(const uint16_t* x) {
    const Floats low = floats(x), high = floats(x + GROUP / 2);
    const float most = greatest_of(larger(magnitudes(low), magnitudes(high)));
    const Floats by = all(most > 0 ? 127 / most : 0);
    put_bytes(steps, low * by);
    put_bytes(steps + GROUP / 2, high * by);
    for (int part = 0; part < 2; ++part) {
      parts[part] = 0;
      for (int i = 0; i < GROUP / 2; ++i) parts[part] += steps[part * GROUP / 2 + i];
    }
    scale = most / 127, sum = scale * (parts[0] + parts[1]);
  }
};

// Up to MOST rows from `top` on: [K / 32, rows].
struct Tile {
  int64_t top, rows;
  const Inputs* x;
};

struct Rounded {
  std::vector<Inputs> inputs;
  std::vector<Tile> tiles;

  void round(const uint16_t* x, int64_t rows, int64_t width) {
    const int64_t groups = width / GROUP, count = (rows + MOST - 1) / MOST;
    inputs.resize(rows * groups);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t top = rows * i / count, end = rows * (i + 1) / count;
      tiles.push_back({top, end - top, inputs.data() + top * groups});
    }
    parallel_for(0, count, 1, [&](int64_t first, int64_t last) {
      for (; first < last; ++first) {
        const Tile& tile = tiles[first];
        Inputs* to = inputs.data() + tile.top * groups;
        for (int64_t g = 0; g < groups; ++g)
          for (int64_t row = tile.top; row < tile.top + tile.rows; ++row)
            (to++)->round(x + row * width + g * GROUP);
      }
    });
  }
};

// Whole numbers from -128 to 127 where there are only products of those without a sign: 128 more.
template <typename Kind>
constexpr bool RAISED = Kind::SIGNED && !SIGNED_WEIGHTS;
template <typename Kind>
constexpr int TAKEN = RAISED<Kind> ? 128 : Kind::ZERO;

// How a group is multiplied. ONCE: lines that are added before they are widened, 0 of those with a
// sign. PARTS: of a group that have scales of their own. OFF: how much too large the lines' numbers
// are. LEAST: whether there is a least value.
template <int ONCE, int PARTS, int OFF, bool LEAST>
struct How {
  static constexpr int OF_PART = LINES / PARTS;

  // Adds a group's product by R rows. line(i): its lines.
  template <int R, typename Lines>
  [[gnu::always_inline]] static inline void add(const Lines& line, const Floats* scale,
                                                const Floats& least, const Inputs* x,
                                                Floats (&total)[R]) {
#pragma GCC unroll 2
    for (int part = 0; part < PARTS; ++part) {
      Words own[R];
#pragma GCC unroll 12
      for (int row = 0; row < R; ++row)
        own[row] = all_words(OFF ? -OFF * x[row].sum_of(part, PARTS) : 0);
#pragma GCC unroll 8
      for (int first = part * OF_PART; first < (part + 1) * OF_PART; first += ONCE ? ONCE : 1) {
        Words w = line(first);
        if constexpr (!ONCE) {
#pragma GCC unroll 12
          for (int row = 0; row < R; ++row)
            own[row] = add_signed_dots(own[row], w, x[row].four(first));
        } else if constexpr (IN_WORDS) {
#pragma GCC unroll 8
          for (int i = first; i < first + ONCE; ++i) {
            w = line(i);
#pragma GCC unroll 12
            for (int row = 0; row < R; ++row) own[row] = add_dots(own[row], w, x[row].four(i));
          }
        } else {
          Words dots[R];
#pragma GCC unroll 12
          for (int row = 0; row < R; ++row) dots[row] = first_dots(w, x[row].four(first));
#pragma GCC unroll 8
          for (int i = first + 1; i < first + ONCE; ++i) {
            w = line(i);
#pragma GCC unroll 12
            for (int row = 0; row < R; ++row) dots[row] = add_dots(dots[row], w, x[row].four(i));
          }
#pragma GCC unroll 12
          for (int row = 0; row < R; ++row) own[row] = add_widened(own[row], dots[row]);
        }
      }
#pragma GCC unroll 12
      for (int row = 0; row < R; ++row)
        total[row] = fma(numbers(own[row]) * all(x[row].scale), scale[part], total[row]);
    }
    if constexpr (LEAST)
#pragma GCC unroll 12
      for (int row = 0; row < R; ++row) total[row] = fma(least, all(x[row].sum), total[row]);
  }
};

template <typename Kind>
using How_of = How<Kind::SIGNED && SIGNED_WEIGHTS ? 0 : UNWIDENED<Kind::MOST>, Kind::PARTS,
                   TAKEN<Kind>, Kind::HAS_LEAST>;

// A matrix of one kind, its blocks, and where its outputs lie in a row of results.
struct Part {
  const uint8_t* values;
  int64_t kind, inputs, outputs;  // outputs: rounded up to whole blocks
  uint16_t* out;
  int64_t stride;
};

template <typename Kind>
struct Group {
  const uint8_t *head, *own;

  Words operator()(int i) const {
    const Words made = Kind::line(own + Kind::SCALES, i);
    if constexpr (RAISED<Kind>) return raised(made);
    return made;
  }
  void scales(Floats* to) const {
    for (int part = 0; part < Kind::PARTS; ++part) to[part] = Kind::scale(head, own, part);
  }
  Floats least() const {
    if constexpr (Kind::HAS_LEAST) return Kind::least(head, own);
    return all(0);
  }
};

template <typename Kind, typename Work>
[[gnu::always_inline]] inline void each_group(const uint8_t* from, int64_t inputs,
                                              const Work& work) {
  for (int64_t b = 0; b < inputs / (GROUP * Kind::GROUPS); ++b, from += OF_BLOCK<Kind>)
    for (int g = 0; g < Kind::GROUPS; ++g)
      work(Group<Kind>{from, from + Kind::HEAD + g * OF_GROUP<Kind>});
}

// A block of outputs by the rows of a tile, the first of which is `top`.
template <typename Kind, int R>
void multiply(const Part& p, int64_t block, const Inputs* x, int64_t top) {
  const int64_t bytes = p.inputs / (GROUP * Kind::GROUPS) * OF_BLOCK<Kind>;
  Floats total[R];
#pragma GCC unroll 12
  for (int row = 0; row < R; ++row) total[row] = all(0);
  each_group<Kind>(p.values + block * bytes, p.inputs, [&](Group<Kind> group) {
    for (int64_t i = 0; i < OF_GROUP<Kind>; i += LINE) __builtin_prefetch(group.own + AHEAD + i);
    Floats scales[Kind::PARTS];
    group.scales(scales);
    const Floats least = group.least();
    How_of<Kind>::template add<R>(group, scales, least, x, total);
    x += R;
  });
#pragma GCC unroll 12
  for (int row = 0; row < R; ++row) store(p.out + (top + row) * p.stride + block * OUTS, total[row]);
}

template <typename Kind, int R>
void multiply(const Part& p, int64_t block, const Tile& tile) {
  if (tile.rows == R)
    multiply<Kind, R>(p, block, tile.x, tile.top);
  else if constexpr (R < FEW)
    multiply<Kind, R + 1>(p, block, tile);
}

// A group that was unpacked once for several tiles.
struct Unpacked {
  Words lines[LINES];
  Floats scales[2], least;

  Words operator()(int i) const { return lines[i]; }
};

template <typename Way, int R>
void add_rows(const Unpacked& group, const Inputs* x, Floats* totals) {
  Floats total[R];
#pragma GCC unroll 12
  for (int row = 0; row < R; ++row) total[row] = totals[row];
  Way::template add<R>(group, group.scales, group.least, x, total);
#pragma GCC unroll 12
  for (int row = 0; row < R; ++row) totals[row] = total[row];
}

template <typename Way, int R>
[[gnu::always_inline]] inline void add_tile(int64_t rows, const Unpacked& group, const Inputs* x,
                                            Floats* totals) {
  if (rows == R) return add_rows<Way, R>(group, x, totals);
  if constexpr (R > 1) add_tile<Way, R - 1>(rows, group, x, totals);
}

// A block of outputs by some tiles, at most TOGETHER.
template <typename Kind>
void multiply(const Part& p, int64_t block, const Tile* tiles, int64_t count) {
  const int64_t bytes = p.inputs / (GROUP * Kind::GROUPS) * OF_BLOCK<Kind>;
  Floats totals[TOGETHER][MOST];
  for (auto& of_tile : totals)
    for (Floats& each : of_tile) each = all(0);
  Unpacked unpacked;
  int64_t g = 0;
  each_group<Kind>(p.values + block * bytes, p.inputs, [&](Group<Kind> group) {
    for (int64_t i = 0; i < OF_GROUP<Kind>; i += LINE) __builtin_prefetch(group.own + AHEAD + i);
#pragma GCC unroll 8
    for (int i = 0; i < LINES; ++i) unpacked.lines[i] = group(i);
    group.scales(unpacked.scales);
    unpacked.least = group.least();
    for (int64_t tile = 0; tile < count; ++tile) {
      const int64_t rows = tiles[tile].rows;
      add_tile<How_of<Kind>, MOST>(rows, unpacked, tiles[tile].x + g * rows, totals[tile]);
    }
    ++g;
  });
  for (int64_t tile = 0; tile < count; ++tile)
    for (int64_t row = 0; row < tiles[tile].rows; ++row)
      store(p.out + (tiles[tile].top + row) * p.stride + block * OUTS, totals[tile][row]);
}

template <typename Kind>
void multiply(const Part& p, const Rounded& rows, int64_t first, int64_t last) {
  const int64_t count = rows.tiles.size();
  if (DIRECT || (count == 1 && rows.tiles[0].rows <= FEW)) {
    for (; first < last; ++first)
      for (const Tile& tile : rows.tiles) multiply<Kind, 1>(p, first, tile);
    return;
  }
  for (; first < last; first += CHUNK)
    for (int64_t tile = 0; tile < count; tile += TOGETHER)
      for (int64_t block = first; block < std::min(first + CHUNK, last); ++block)
        multiply<Kind>(p, block, rows.tiles.data() + tile, std::min<int64_t>(TOGETHER, count - tile));
}

}  // namespace file_products
