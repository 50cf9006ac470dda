// A processor's tiles (AMX) in plain C++, so that the code for them runs on one without. Stricter than
// the processor where it is used wrongly: what it would refuse or leave undefined ends the process.
//
// Put in front of a source by `-include`; instructions as in Intel's manual ("TDPBF16PS" and others).

#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define __AMX_TILE__ 1
#define __AMX_BF16__ 1
#define __AMX_INT8__ 1
#define _tile_loadconfig emulated::load_config
#undef _tile_release
#define _tile_release emulated::release
#undef _tile_zero
#define _tile_zero emulated::zero
#undef _tile_loadd
#define _tile_loadd emulated::load
#undef _tile_stored
#define _tile_stored emulated::store
#undef _tile_dpbf16ps
#define _tile_dpbf16ps emulated::multiply
#undef _tile_dpbssd
#define _tile_dpbssd emulated::multiply_bytes

namespace emulated {

constexpr int TILES = 8, ROWS = 16, BYTES = 64;

inline void need(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "tiles: %s\n", what);
  std::abort();
}

struct Tile {
  int rows = 0, bytes = 0;
  bool made = false;  // since it was configured
  uint8_t data[ROWS][BYTES] = {};
};

struct State {
  bool configured = false;
  Tile tiles[TILES];
};

inline thread_local State state;

inline Tile& tile(int number) {
  need(state.configured, "used before they were configured");
  need(number >= 0 && number < TILES, "there is no such tile");
  Tile& found = state.tiles[number];
  need(found.rows && found.bytes, "a tile that was not configured");
  return found;
}

inline const Tile& made(int number) {
  const Tile& found = tile(number);
  need(found.made, "a tile is read before it was written");
  return found;
}

inline void load_config(const void* from) {
  const auto* bytes = (const uint8_t*)from;
  need(bytes[0] == 1 && bytes[1] == 0, "palette 1 from row 0 alone");
  for (int i = 2; i < 16; ++i) need(!bytes[i], "reserved bytes are 0");
  state = {};
  state.configured = true;
  for (int i = 0; i < TILES; ++i) {
    uint16_t of_row;
    std::memcpy(&of_row, bytes + 16 + 2 * i, sizeof of_row);
    Tile& each = state.tiles[i];
    each.bytes = of_row, each.rows = bytes[48 + i];
    need(each.bytes <= BYTES && each.rows <= ROWS, "a tile has 16 rows of 64 bytes at most");
    need(!each.bytes == !each.rows, "a tile has rows and bytes, or neither");
  }
}

inline void release() { state = {}; }

inline void zero(int to) {
  Tile& into = tile(to);
  std::memset(into.data, 0, sizeof into.data);
  into.made = true;
}

inline void load(int to, const void* from, int64_t stride) {
  zero(to);
  Tile& into = tile(to);
  for (int row = 0; row < into.rows; ++row)
    std::memcpy(into.data[row], (const uint8_t*)from + row * stride, into.bytes);
}

inline void store(int from, void* to, int64_t stride) {
  const Tile& of = made(from);
  for (int row = 0; row < of.rows; ++row)
    std::memcpy((uint8_t*)to + row * stride, of.data[row], of.bytes);
}

inline float half(const Tile& of, int row, int nth) {
  uint16_t bits;
  std::memcpy(&bits, of.data[row] + 2 * nth, sizeof bits);
  const uint32_t wide = (uint32_t)bits << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

inline Tile& product(int to, const Tile& left, const Tile& right) {
  need(made(to).rows == left.rows, "rows of a product");
  need(right.rows == left.bytes / 4, "inputs of a product");
  need(tile(to).bytes == right.bytes, "columns of a product");
  return tile(to);
}

// to [m, n] += a [m, 4 k] by b [k, n, 4], whole numbers with signs.
inline void multiply_bytes(int to, int a, int b) {
  const Tile &left = made(a), &right = made(b);
  Tile& into = product(to, left, right);
  for (int row = 0; row < into.rows; ++row)
    for (int column = 0; column < into.bytes / 4; ++column) {
      int32_t sum;
      std::memcpy(&sum, into.data[row] + 4 * column, sizeof sum);
      for (int i = 0; i < left.bytes; ++i)
        sum += (int8_t)left.data[row][i] * (int8_t)right.data[i / 4][4 * column + i % 4];
      std::memcpy(into.data[row] + 4 * column, &sum, sizeof sum);
    }
}

// to [m, n] += a [m, 2 k] by b [k, n, 2], even and odd inputs summed apart.
inline void multiply(int to, int a, int b) {
  const Tile &left = made(a), &right = made(b);
  Tile& into = product(to, left, right);
  for (int row = 0; row < into.rows; ++row)
    for (int column = 0; column < into.bytes / 4; ++column) {
      float even = 0, odd = 0, sum;
      for (int pair = 0; pair < right.rows; ++pair) {
        even = __builtin_fmaf(half(left, row, 2 * pair), half(right, pair, 2 * column), even);
        odd = __builtin_fmaf(half(left, row, 2 * pair + 1), half(right, pair, 2 * column + 1), odd);
      }
      std::memcpy(&sum, into.data[row] + 4 * column, sizeof sum);
      sum += even + odd;
      std::memcpy(into.data[row] + 4 * column, &sum, sizeof sum);
    }
}

}  // namespace emulated
