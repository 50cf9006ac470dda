// Products of bfloat16 rows with int4 and int8 weights on a processor's tiles (AMX).
//
// A tile product multiplies 16 rows by 32 inputs of 16 outputs at once. The weights of one such
// block are expanded to bfloat16, in which whole numbers up to 256 are exact, a few blocks ahead of
// the product that reads them: a tile cannot be loaded before what was stored for it has left the
// store buffer. The blocks of an output are summed in one order, whatever the number of rows.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <immintrin.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace {

constexpr int64_t OUTS = 16;      // outputs of a block
constexpr int64_t GROUP = 32;     // its inputs
constexpr int64_t ROWS = 16;      // of a tile
constexpr int64_t AHEAD = 2;      // blocks that are expanded before they are multiplied
constexpr int64_t RING = 4;       // blocks that are kept expanded, a power of 2 above AHEAD
constexpr int64_t PAIR = 2;       // a block's product and the one before, which is still read
constexpr int64_t VALUES = OUTS * GROUP;

// Tiles. Those of products: [2 * (block % 2) + half], a half being up to 16 rows.
#define WEIGHTS 4
#define UPPER 5  // inputs of the first 16 rows
#define LOWER 6  // of those below them

inline __m512 floats(__m256i halves) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

inline __m512 floats(const uint16_t* from) {
  return floats(_mm256_loadu_si256((const __m256i*)from));
}

inline void store(uint16_t* to, __m512 values) {
  _mm256_storeu_si256((__m256i*)to, (__m256i)_mm512_cvtneps_pbh(values));
}

// What both kinds of weights read and write.
struct Product {
  const uint16_t* x;  // [rows, inputs]
  uint16_t* out;      // [rows, outputs]
  int64_t rows, inputs, outputs;

  int64_t groups() const { return inputs / GROUP; }
};

// GCC is not told that the instructions for tiles read memory, and would leave out what was stored
// for them alone.
inline void written(const void* at) { asm volatile("" : : "r"(at) : "memory"); }

// Shapes of the tiles for `upper` rows and `lower` ones below them.
void configure(int64_t upper, int64_t lower) {
  struct alignas(64) {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
  } config;
  for (int tile = 0; tile < 7; ++tile) config.bytes[tile] = 64, config.rows[tile] = upper;
  config.rows[WEIGHTS] = GROUP / 2;
  if (lower) config.rows[1] = config.rows[3] = config.rows[LOWER] = lower;
  written(&config);
  _tile_loadconfig(&config);
}

// Runs work(first, last) over blocks of outputs on all threads, for up to 32 rows from `top` on.
template <typename Work>
void on_tiles(const Product& p, const Work& work) {
  at::parallel_for(0, p.outputs / OUTS, 1, [&](int64_t first, int64_t last) {
    for (int64_t top = 0; top < p.rows; top += 2 * ROWS) {
      const int64_t upper = std::min(ROWS, p.rows - top);
      const int64_t lower = std::clamp<int64_t>(p.rows - top - ROWS, 0, ROWS);
      configure(upper, lower);
      work(first, last, top, upper, lower);
    }
    _tile_release();
  });
}

// -- int4: values [N / 16, K / 32, 4, 16] of 32 bits, grid bfloat16 [N / 16, K / 32, 16, 2] ------

// A 32-bit value of vector i and output n holds inputs 8 i .. 8 i + 7: of each 16 bits four, the
// even ones in the lower half.
struct Int4 {
  const uint32_t *values, *grid;
  __m512i steps;  // bfloat16 of q - 8, by q; twice, as five bits of an index count

  Int4(const at::Tensor& of_values, const at::Tensor& of_grid)
      : values((const uint32_t*)of_values.const_data_ptr()),
        grid((const uint32_t*)of_grid.const_data_ptr()) {
    alignas(64) uint16_t table[32];
    for (int q = 0; q < 32; ++q) {
      const float value = q % 16 - 8;
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof bits);
      table[q] = bits >> 16;
    }
    steps = _mm512_load_si512(table);
  }

  void expand(const uint32_t* from, uint16_t* to) const {
    for (int i = 0; i < 4; ++i, from += 16, to += 128) {
      const __m512i v = _mm512_loadu_si512(from);
      _mm512_store_si512(to, _mm512_permutexvar_epi16(v, steps));
      _mm512_store_si512(to + 32, _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 4), steps));
      _mm512_store_si512(to + 64, _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 8), steps));
      _mm512_store_si512(to + 96, _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 12), steps));
    }
  }
};

// Blocks of outputs for up to 32 rows. Each group's product is scaled by itself, and its zero
// multiplied by the sum of its inputs. The totals of the upper rows are kept in R registers, at
// least as many as there are rows.
template <int R>
void blocks(const Product& p, const Int4& int4, const float* sums, int64_t stride, int64_t first,
            int64_t last, int64_t top, int64_t upper, int64_t lower) {
  alignas(64) uint16_t ring[RING][VALUES];
  alignas(64) float made[PAIR][2 * ROWS][OUTS] = {};
  alignas(64) float rest[ROWS][OUTS];  // totals of the lower rows
  const int64_t groups = p.groups();
  for (int64_t block = first; block < last; ++block) {
    const uint32_t* w = int4.values + block * groups * VALUES / 8;
    const uint32_t* scales = int4.grid + block * groups * OUTS;
    __m512 total[R];
#pragma GCC unroll 16
    for (int row = 0; row < R; ++row) total[row] = _mm512_setzero_ps();
    std::memset(rest, 0, lower * sizeof rest[0]);
    auto add = [&](int64_t g) __attribute__((always_inline)) {
      const __m512i pairs = _mm512_loadu_si512(scales + g * OUTS);
      const __m512 scale = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
      const __m512 zero =
          _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(0xFFFF0000)));
      const float(*own)[OUTS] = made[g & 1];
      const float* sum = sums + g * stride + top;
#pragma GCC unroll 16
      for (int row = 0; row < R; ++row) {
        total[row] = _mm512_fmadd_ps(_mm512_load_ps(own[row]), scale, total[row]);
        total[row] = _mm512_fmadd_ps(zero, _mm512_set1_ps(sum[row]), total[row]);
      }
      for (int64_t row = 0; row < lower; ++row) {
        const __m512 before = _mm512_load_ps(rest[row]);
        const __m512 with = _mm512_fmadd_ps(_mm512_load_ps(own[ROWS + row]), scale, before);
        _mm512_store_ps(rest[row], _mm512_fmadd_ps(zero, _mm512_set1_ps(sum[ROWS + row]), with));
      }
    };
    for (int64_t g = 0; g < std::min(AHEAD, groups); ++g)
      int4.expand(w + g * VALUES / 8, ring[g]);
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t next = g + AHEAD;
      if (next < groups) int4.expand(w + next * VALUES / 8, ring[next & (RING - 1)]);
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

at::Tensor int4_tiles(const at::Tensor& x, const at::Tensor& values, const at::Tensor& grid) {
  TORCH_CHECK(x.dim() == 2 && x.scalar_type() == at::kBFloat16 && x.is_contiguous());
  TORCH_CHECK(values.dim() == 4 && values.scalar_type() == at::kInt && values.is_contiguous());
  TORCH_CHECK(grid.dim() == 4 && grid.scalar_type() == at::kBFloat16 && grid.is_contiguous());
  const int64_t n = values.size(0), k = values.size(1);
  TORCH_CHECK(k > 0 && x.size(1) == k * GROUP);
  TORCH_CHECK(values.sizes() == at::IntArrayRef({n, k, 4, OUTS}));
  TORCH_CHECK(grid.sizes() == at::IntArrayRef({n, k, OUTS, 2}));
  at::Tensor out = at::empty({x.size(0), n * OUTS}, x.options());
  const Product p{(const uint16_t*)x.const_data_ptr(), (uint16_t*)out.data_ptr(), x.size(0),
                  x.size(1), out.size(1)};
  const int64_t groups = p.groups(), stride = p.rows + ROWS;
  std::vector<float> sums(groups * stride);  // of a row's inputs of each group
  for (int64_t row = 0; row < p.rows; ++row)
    for (int64_t g = 0; g < groups; ++g) {
      const uint16_t* at = p.x + row * p.inputs + g * GROUP;
      sums[g * stride + row] =
          _mm512_reduce_add_ps(_mm512_add_ps(floats(at), floats(at + GROUP / 2)));
    }
  const Int4 int4(values, grid);
  on_tiles(p, [&](int64_t first, int64_t last, int64_t top, int64_t upper, int64_t lower) {
    const auto run = upper == 1   ? blocks<1>
                     : upper <= 4 ? blocks<4>
                     : upper <= 8 ? blocks<8>
                                  : blocks<16>;
    run(p, int4, sums.data(), stride, first, last, top, upper, lower);
  });
  return out;
}

// -- int8: values [N / 16, K / 32, 16, 16, 2] of pairs, outputs and the two inputs of a pair; ----
// -- scale bfloat16 [N] ---------------------------------------------------------------------------

void expand(const int8_t* from, uint16_t* to) {
  for (int64_t pair = 0; pair < GROUP / 2; ++pair, from += 32, to += 32) {
    const __m128i *lower = (const __m128i*)from, *upper = lower + 1;
    const __m512 a = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(lower)));
    const __m512 b = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(upper)));
    _mm512_store_si512(to, (__m512i)_mm512_cvtne2ps_pbh(b, a));
  }
}

at::Tensor int8_tiles(const at::Tensor& x, const at::Tensor& values, const at::Tensor& scale) {
  TORCH_CHECK(x.dim() == 2 && x.scalar_type() == at::kBFloat16 && x.is_contiguous());
  TORCH_CHECK(values.dim() == 5 && values.scalar_type() == at::kChar && values.is_contiguous());
  TORCH_CHECK(scale.dim() == 1 && scale.scalar_type() == at::kBFloat16 && scale.is_contiguous());
  const int64_t n = values.size(0), k = values.size(1);
  TORCH_CHECK(k > 0 && x.size(1) == k * GROUP && scale.size(0) == n * OUTS);
  TORCH_CHECK(values.sizes() == at::IntArrayRef({n, k, GROUP / 2, OUTS, 2}));
  at::Tensor out = at::empty({x.size(0), n * OUTS}, x.options());
  const Product p{(const uint16_t*)x.const_data_ptr(), (uint16_t*)out.data_ptr(), x.size(0),
                  x.size(1), out.size(1)};
  const int8_t* weights = (const int8_t*)values.const_data_ptr();
  const uint16_t* scales = (const uint16_t*)scale.const_data_ptr();
  const int64_t groups = p.groups();
  on_tiles(p, [&](int64_t first, int64_t last, int64_t top, int64_t upper, int64_t lower) {
    alignas(64) uint16_t ring[RING][VALUES];
    alignas(64) float made[2 * ROWS][OUTS];
    for (int64_t block = first; block < last; ++block) {
      const int8_t* w = weights + block * groups * VALUES;
      _tile_zero(0);
      _tile_zero(1);
      for (int64_t g = 0; g < std::min(AHEAD, groups); ++g) expand(w + g * VALUES, ring[g]);
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t next = g + AHEAD;
        if (next < groups) expand(w + next * VALUES, ring[next & (RING - 1)]);
        const uint16_t* from = p.x + top * p.inputs + g * GROUP;
        written(ring);
        _tile_loadd(WEIGHTS, ring[g & (RING - 1)], 64);
        _tile_loadd(UPPER, from, p.inputs * 2);
        _tile_dpbf16ps(0, UPPER, WEIGHTS);
        if (lower) {
          _tile_loadd(LOWER, from + ROWS * p.inputs, p.inputs * 2);
          _tile_dpbf16ps(1, LOWER, WEIGHTS);
        }
      }
      _tile_stored(0, made, 64);
      if (lower) _tile_stored(1, made[ROWS], 64);
      const __m512 by = floats(scales + block * OUTS);
      for (int64_t row = 0; row < upper + lower; ++row)
        store(p.out + (top + row) * p.outputs + block * OUTS,
              _mm512_mul_ps(_mm512_load_ps(made[row]), by));
    }
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(draftpick, library) {
  library.def("int4_tiles(Tensor x, Tensor values, Tensor grid) -> Tensor");
  library.def("int8_tiles(Tensor x, Tensor values, Tensor scale) -> Tensor");
}

TORCH_LIBRARY_IMPL(draftpick, CPU, library) {
  library.impl("int4_tiles", &int4_tiles);
  library.impl("int8_tiles", &int8_tiles);
}
