// Products of rows with a GGUF file's blocks of 256 inputs, on a processor with tiles (AMX).
//
// A row is rounded to whole numbers up to 127, every 256 inputs by their greatest, so that the product
// of a whole block is a sum of whole numbers: of steps times inner scales, and of inner least values
// times sums of inputs. Such a sum is exact in any order, so that a few rows may be multiplied by
// vectors and many on tiles, with the same bits.
//
// For tiles a step times its inner scale is written as 64 high + low, each of which is a byte; tiles
// multiply 64 inputs of 16 outputs by 16 rows at once, and add up a whole block. Two blocks are written
// so at a time, for several tiles of rows. What is multiplied is scaled and added after the next
// product was begun, as it cannot be loaded before it has left the store buffer.

#pragma once

#include <memory>

#include "file_products.h"
#include "tiles.h"

namespace file_products {

constexpr int GROUPS = 8;                 // of a block
constexpr int64_t WHOLE = GROUPS * GROUP;  // inputs
constexpr int LOW_BITS = 6;
constexpr int64_t ON_TILES = 24;              // rows from which tiles are faster
constexpr int64_t OF_TILE = 2 * tiles::ROWS;  // rows: an upper and a lower tile share the weights
constexpr int64_t AT_ONCE = 2;                // blocks that a tile of rows is read once for
constexpr size_t CACHE = 1 << 20;             // bytes of rounded rows that stay in the second one

template <typename Kind>
constexpr bool IN_BLOCKS = Kind::GROUPS == GROUPS;

// A block of a row: x is about scale * steps.
struct alignas(64) WholeInputs {
  int8_t steps[WHOLE];
  int16_t halves[2 * GROUPS];  // sums of every sixteen steps
  int16_t groups[GROUPS];      // of every group
  float scale;

  void round(const uint16_t* x) {
    Floats most = all(0);
    for (int i = 0; i < WHOLE; i += LANES) most = larger(most, magnitudes(floats(x + i)));
    const float greatest = greatest_of(most);
    const Floats by = all(greatest > 0 ? 127 / greatest : 0);
    for (int half = 0; half < 2 * GROUPS; ++half) {
      int8_t* to = steps + LANES * half;
      put_bytes(to, floats(x + LANES * half) * by);
      int sum = 0;
      for (int i = 0; i < LANES; ++i) sum += to[i];
      halves[half] = sum;
    }
    for (int g = 0; g < GROUPS; ++g) groups[g] = halves[2 * g] + halves[2 * g + 1];
    scale = greatest / 127;
  }
};

// Up to MOST rows from `top` on, or OF_TILE where there are ON_TILES: [blocks, rows].
struct WholeTile {
  int64_t top, rows;
  const WholeInputs* x;
};

struct WholeRounded {
  bool on_tiles;
  std::vector<WholeInputs> inputs;
  std::vector<WholeTile> tiles;

  void round(const uint16_t* x, int64_t rows, int64_t width) {
    on_tiles = rows >= ON_TILES;
    const int64_t most = on_tiles ? OF_TILE : MOST, count = (rows + most - 1) / most;
    const int64_t blocks = width / WHOLE;
    inputs.resize(rows * blocks + most);  // so that `most` may be read from any block on
    for (int64_t i = 0; i < count; ++i) {
      const int64_t top = rows * i / count, end = rows * (i + 1) / count;
      tiles.push_back({top, end - top, inputs.data() + top * blocks});
    }
    parallel_for(0, rows, 1, [&](int64_t first, int64_t last) {
      for (const WholeTile& tile : tiles)
        for (int64_t row = std::max(first, tile.top); row < std::min(last, tile.top + tile.rows);
             ++row)
          for (int64_t b = 0; b < blocks; ++b)
            inputs[tile.top * blocks + b * tile.rows + row - tile.top].round(x + row * width +
                                                                             b * WHOLE);
    });
  }
};

// -- what is in a block ----------------------------------------------------------------------------

template <typename Kind>
const uint8_t* group_of(const uint8_t* block, int nth) {
  return block + Kind::HEAD + nth * OF_GROUP<Kind>;
}

// A group's inner scale of a part, 32 bits.
template <typename Kind>
Words inner(const uint8_t* group, int part) {
  const __m128i bytes = _mm_loadu_si128((const __m128i*)(group + part * OUTS));
  return Kind::HAS_LEAST ? _mm512_cvtepu8_epi32(bytes) : _mm512_cvtepi8_epi32(bytes);
}

inline Words paired(Words low, Words high) {
  return either(masked(low, 0xFFFF), left(high, 16));
}

// What sums of inputs are multiplied by, two to a word: inner least values of two groups, or the two
// inner scales of a group, whose steps are ZERO too large.
template <typename Kind>
struct Seconds {
  static constexpr int COUNT = Kind::HAS_LEAST ? GROUPS / 2 : GROUPS;
  Words each[COUNT];

  explicit Seconds(const uint8_t* block) {
    for (int i = 0; i < COUNT; ++i) {
      const uint8_t* group = group_of<Kind>(block, Kind::HAS_LEAST ? 2 * i : i);
      each[i] = Kind::HAS_LEAST ? paired(inner<Kind>(group, 1), inner<Kind>(group + OF_GROUP<Kind>, 1))
                                : paired(inner<Kind>(group, 0), inner<Kind>(group, 1));
    }
  }
};

// Adds a block whose steps times inner scales times inputs are `sums` to a row's total.
template <typename Kind>
[[gnu::always_inline]] inline Floats with_block(Words sums, const Seconds<Kind>& seconds,
                                                const uint8_t* block, const WholeInputs& x,
                                                Floats total) {
  const Floats by = all(x.scale);
  const int16_t* of = Kind::HAS_LEAST ? x.groups : x.halves;
  Words second = all_words(0);
#pragma GCC unroll 8
  for (int i = 0; i < Seconds<Kind>::COUNT; ++i) {
    int32_t two;
    std::memcpy(&two, of + 2 * i, 4);
    second = _mm512_dpwssd_epi32(second, seconds.each[i], all_words(two));
  }
  if constexpr (Kind::HAS_LEAST) {
    total = fma(numbers(sums) * by, from_float16(block), total);
    return fma(all(0) - numbers(second) * by, from_float16(block + 2 * OUTS), total);
  }
  sums = _mm512_sub_epi32(sums, _mm512_mullo_epi32(second, all_words(Kind::ZERO)));
  return fma(numbers(sums) * by, from_float16(block), total);
}

template <typename Kind>
const uint8_t* blocks_of(const Part& p, int64_t nth) {
  return p.values + nth * (p.inputs / WHOLE) * OF_BLOCK<Kind>;
}

// -- by vectors ------------------------------------------------------------------------------------

// 16 outputs by R rows.
template <typename Kind, int R>
void multiply_few(const Part& p, int64_t nth, const WholeInputs* x, int64_t top) {
  constexpr int OF_PART = LINES / Kind::PARTS;
  const uint8_t* block = blocks_of<Kind>(p, nth);
  Floats total[R];
#pragma GCC unroll 12
  for (int row = 0; row < R; ++row) total[row] = all(0);
  for (int64_t b = 0; b < p.inputs / WHOLE; ++b, block += OF_BLOCK<Kind>, x += R) {
    Words sums[R];
#pragma GCC unroll 12
    for (int row = 0; row < R; ++row) sums[row] = all_words(0);
    for (int g = 0; g < GROUPS; ++g) {
      const uint8_t* group = group_of<Kind>(block, g);
      for (int64_t i = 0; i < OF_GROUP<Kind>; i += LINE) __builtin_prefetch(group + AHEAD + i);
#pragma GCC unroll 2
      for (int part = 0; part < Kind::PARTS; ++part) {
        Words dots[R];
#pragma GCC unroll 12
        for (int row = 0; row < R; ++row) dots[row] = all_words(0);
#pragma GCC unroll 8
        for (int i = part * OF_PART; i < (part + 1) * OF_PART; ++i) {
          const Words line = Kind::line(group + Kind::SCALES, i);
#pragma GCC unroll 12
          for (int row = 0; row < R; ++row) {
            int32_t four;
            std::memcpy(&four, x[row].steps + GROUP * g + 4 * i, 4);
            dots[row] = add_dots(dots[row], line, four);
          }
        }
        const Words by = inner<Kind>(group, part);
#pragma GCC unroll 12
        for (int row = 0; row < R; ++row)
          sums[row] = sum_words(sums[row], _mm512_mullo_epi32(dots[row], by));
      }
    }
    const Seconds<Kind> seconds(block);
#pragma GCC unroll 12
    for (int row = 0; row < R; ++row)
      total[row] = with_block<Kind>(sums[row], seconds, block, x[row], total[row]);
  }
#pragma GCC unroll 12
  for (int row = 0; row < R; ++row) store(p.out + (top + row) * p.stride + nth * OUTS, total[row]);
}

template <typename Kind, int R = 1>
void multiply_few(const Part& p, int64_t nth, const WholeTile& tile) {
  if (tile.rows == R)
    multiply_few<Kind, R>(p, nth, tile.x, tile.top);
  else if constexpr (R < MOST)
    multiply_few<Kind, R + 1>(p, nth, tile);
}

// -- on tiles --------------------------------------------------------------------------------------

// Numbers of tiles. Products: those of the upper rows with low and high bytes, of the lower rows.
#define UPPER_LOW 0
#define UPPER_HIGH 1
#define LOWER_LOW 2
#define LOWER_HIGH 3
#define UPPER 4
#define LOWER 5
#define LOW 6
#define HIGH 7

// Low and high bytes of steps times scales; a word has four steps of an output. scales: in both halves.
inline void in_bytes(Words steps, Words scales, Words& low, Words& high) {
  const Words mask = _mm512_set1_epi16((1 << LOW_BITS) - 1), byte = _mm512_set1_epi16(0xFF);
  const Words even = _mm512_mullo_epi16(_mm512_and_si512(steps, byte), scales);
  const Words odd = _mm512_mullo_epi16(_mm512_srli_epi16(steps, 8), scales);
  auto both = [](Words even, Words odd) { return either(even, _mm512_slli_epi16(odd, 8)); };
  low = both(_mm512_and_si512(even, mask), _mm512_and_si512(odd, mask));
  high = both(_mm512_and_si512(_mm512_srai_epi16(even, LOW_BITS), byte),
              _mm512_srai_epi16(odd, LOW_BITS));
}

// A block of 16 outputs in bytes.
template <typename Kind>
struct Opened {
  static constexpr int OF_PART = LINES / Kind::PARTS;
  alignas(64) uint8_t low[GROUPS * LINES][LINE], high[GROUPS * LINES][LINE];
  const uint8_t* block;

  void open(const uint8_t* from) {
    block = from;
    for (int g = 0; g < GROUPS; ++g) {
      const uint8_t* group = group_of<Kind>(block, g);
      for (int64_t i = 0; i < OF_GROUP<Kind>; i += LINE) __builtin_prefetch(group + AHEAD + i);
#pragma GCC unroll 2
      for (int part = 0; part < Kind::PARTS; ++part) {
        const Words scale = inner<Kind>(group, part), scales = paired(scale, scale);
#pragma GCC unroll 8
        for (int i = part * OF_PART; i < (part + 1) * OF_PART; ++i) {
          Words of_low, of_high;
          in_bytes(Kind::line(group + Kind::SCALES, i), scales, of_low, of_high);
          put_words(low[g * LINES + i], of_low);
          put_words(high[g * LINES + i], of_high);
        }
      }
    }
    tiles::written(this);
  }
};

// What a thread keeps.
template <typename Kind>
struct Workshop {
  Opened<Kind> opened[AT_ONCE];
  int32_t made[2][4][tiles::ROWS][OUTS];
  Floats totals[CHUNK][TOGETHER][OF_TILE];

  static void configure(int64_t upper, int64_t lower) {
    tiles::Shapes shapes;
    for (int tile : {UPPER_LOW, UPPER_HIGH, UPPER}) shapes.set(tile, upper);
    if (lower)
      for (int tile : {LOWER_LOW, LOWER_HIGH, LOWER}) shapes.set(tile, lower);
    for (int tile : {LOW, HIGH}) shapes.set(tile, tiles::ROWS);
    shapes.use();
  }

  template <bool LOWER_TOO>
  static void multiply(const Opened<Kind>& block, const WholeInputs* x,
                       int32_t (*to)[tiles::ROWS][OUTS]) {
    _tile_zero(UPPER_LOW);
    _tile_zero(UPPER_HIGH);
    if constexpr (LOWER_TOO) {
      _tile_zero(LOWER_LOW);
      _tile_zero(LOWER_HIGH);
    }
#pragma GCC unroll 4
    for (int i = 0; i < WHOLE / LINE; ++i) {
      _tile_loadd(UPPER, x->steps + LINE * i, sizeof *x);
      _tile_loadd(LOW, block.low[i * tiles::ROWS], LINE);
      _tile_dpbssd(UPPER_LOW, UPPER, LOW);
      _tile_loadd(HIGH, block.high[i * tiles::ROWS], LINE);
      _tile_dpbssd(UPPER_HIGH, UPPER, HIGH);
      if constexpr (LOWER_TOO) {
        _tile_loadd(LOWER, x[tiles::ROWS].steps + LINE * i, sizeof *x);
        _tile_dpbssd(LOWER_LOW, LOWER, LOW);
        _tile_dpbssd(LOWER_HIGH, LOWER, HIGH);
      }
    }
    _tile_stored(UPPER_LOW, to[0], LINE);
    _tile_stored(UPPER_HIGH, to[1], LINE);
    if constexpr (LOWER_TOO) {
      _tile_stored(LOWER_LOW, to[2], LINE);
      _tile_stored(LOWER_HIGH, to[3], LINE);
    }
  }

  static void add(const Opened<Kind>& opened, const WholeInputs* x, int64_t rows,
                  const int32_t (*own)[tiles::ROWS][OUTS], Floats* to) {
    const Seconds<Kind> seconds(opened.block);
    tiles::written(own);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t half = row / tiles::ROWS * 2, at = row % tiles::ROWS;
      const Words sums = sum_words(words(own[half][at]), left(words(own[half + 1][at]), LOW_BITS));
      to[row] = with_block<Kind>(sums, seconds, opened.block, x[row], to[row]);
    }
  }

  // 16 outputs `many` times from `first` on, at most CHUNK, by some tiles, at most TOGETHER.
  template <bool LOWER_TOO>
  void multiply(const Part& p, int64_t first, int64_t many, const WholeTile* tiles, int64_t count) {
    for (int64_t nth = 0; nth < many; ++nth)
      for (int64_t tile = 0; tile < count; ++tile)
        for (Floats& each : totals[nth][tile]) each = all(0);
    for (int64_t b = 0; b < p.inputs / WHOLE; ++b)
      for (int64_t nth = 0, now; nth < many; nth += now) {
        now = count == 1 ? 1 : std::min(AT_ONCE, many - nth);
        for (int64_t i = 0; i < now; ++i)
          opened[i].open(blocks_of<Kind>(p, first + nth + i) + b * OF_BLOCK<Kind>);
        const int64_t steps = now * count;
        for (int64_t step = 0; step <= steps; ++step) {
          auto x = [&](int64_t step) { return tiles[step / now].x + b * tiles[step / now].rows; };
          if (step < steps) multiply<LOWER_TOO>(opened[step % now], x(step), made[step % 2]);
          if (const int64_t last = step - 1; step)
            add(opened[last % now], x(last), tiles[last / now].rows, made[last % 2],
                totals[nth + last % now][last / now]);
        }
      }
    for (int64_t nth = 0; nth < many; ++nth)
      for (int64_t tile = 0; tile < count; ++tile)
        for (int64_t row = 0; row < tiles[tile].rows; ++row)
          store(p.out + (tiles[tile].top + row) * p.stride + (first + nth) * OUTS,
                totals[nth][tile][row]);
  }

  void multiply(const Part& p, const WholeRounded& rows, int64_t first, int64_t last) {
    const int64_t count = rows.tiles.size();
    int64_t most = 0;
    for (const WholeTile& tile : rows.tiles) most = std::max(most, tile.rows);
    const int64_t lower = std::max<int64_t>(0, most - tiles::ROWS);
    const bool fit = rows.inputs.size() * sizeof rows.inputs[0] <= CACHE;
    const int64_t chunk = fit ? AT_ONCE : CHUNK;
    configure(most - lower, lower);
    for (; first < last; first += chunk)
      for (int64_t tile = 0; tile < count; tile += TOGETHER) {
        const int64_t many = std::min(chunk, last - first);
        const int64_t now = std::min<int64_t>(TOGETHER, count - tile);
        const WholeTile* from = rows.tiles.data() + tile;
        if (lower)
          multiply<true>(p, first, many, from, now);
        else
          multiply<false>(p, first, many, from, now);
      }
    _tile_release();
  }
};

#undef UPPER_LOW
#undef UPPER_HIGH
#undef LOWER_LOW
#undef LOWER_HIGH
#undef UPPER
#undef LOWER
#undef LOW
#undef HIGH

// Outputs 16 `first` to 16 `last` by all rows.
template <typename Kind>
void multiply(const Part& p, const WholeRounded& rows, int64_t first, int64_t last) {
  if (!rows.on_tiles) {
    for (; first < last; ++first)
      for (const WholeTile& tile : rows.tiles) multiply_few<Kind>(p, first, tile);
    return;
  }
  static thread_local const auto workshop = std::make_unique<Workshop<Kind>>();
  workshop->multiply(p, rows, first, last);
}

}  // namespace file_products
