// What all code for a processor's tiles (AMX) shares.

#pragma once

#include <immintrin.h>

#include <cstdint>

namespace tiles {

constexpr int64_t ROWS = 16;  // of a tile

// GCC does not know that the instructions for tiles read memory, and would leave out what was stored
// for them alone.
inline void written(const void* at) { asm volatile("" : : "r"(at) : "memory"); }

// What the tiles' shapes are; `rows` and `bytes` of each.
struct alignas(64) Shapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int64_t of_rows, int64_t of_bytes = 64) {
    rows[tile] = of_rows, bytes[tile] = of_bytes;
  }
  void use() const {
    written(this);
    _tile_loadconfig(this);
  }
};

}  // namespace tiles
