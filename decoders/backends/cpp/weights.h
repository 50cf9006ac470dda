// Products of bfloat16 rows with int4, int8 and bfloat16 weights in blocks of 16 outputs and 32
// inputs.

#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "lines.h"

namespace products {

using namespace lines;

constexpr int64_t OUTS = 16;   // outputs of a block
constexpr int64_t GROUP = 32;  // its inputs
constexpr int64_t PAIRS = GROUP / 2;
constexpr int64_t VALUES = OUTS * GROUP;

// What all of them read and write.
struct Product {
  const uint16_t* x;  // [rows, inputs]
  uint16_t* out;      // [rows, outputs]
  int64_t rows, inputs, outputs;

  int64_t groups() const { return inputs / GROUP; }
};

// Of a row's inputs of each group.
inline float group_sum(const uint16_t* inputs) {
  return sum_of(floats(inputs) + floats(inputs + GROUP / 2));
}

// values [N / 16, K / 32, 4, 16] of 32 bits, grid bfloat16 [N / 16, K / 32, 16, 2]. A 32-bit value
// of vector i and output n holds inputs 8 i .. 8 i + 7: of each 16 bits four, the even ones in the
// lower half. A weight is (q - 8) * scale + zero.
struct Int4 {
  const uint32_t *values, *grid;

  const uint32_t* block(int64_t nth, int64_t groups) const {
    return values + nth * groups * VALUES / 8;
  }

  const uint32_t* steps(int64_t nth, int64_t groups) const { return grid + nth * groups * OUTS; }
};

struct Steps {
  Floats scale, zero;

  explicit Steps(const uint32_t* of_group) {
    const Words pairs = words(of_group);
    scale = as_floats(left(pairs, 16));
    zero = as_floats(masked(pairs, 0xFFFF0000));
  }
};

#ifdef __AVX512BF16__
// q - 8 by q as bfloat16; twice, as five bits of an index count.
inline __m512i steps_by_q() {
  alignas(64) uint16_t table[32];
  for (int q = 0; q < 32; ++q) {
    const float value = q % 16 - 8;
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    table[q] = bits >> 16;
  }
  return _mm512_load_si512(table);
}
#endif

// values [N / 16, K / 32, 16, 16, 2] of pairs, outputs and the two inputs of a pair; scale bfloat16
// [N].
struct Int8 {
  const int8_t* values;
  const uint16_t* scale;

  const int8_t* block(int64_t nth, int64_t groups) const { return values + nth * groups * VALUES; }

  Floats scaled(int64_t nth, Floats sum) const { return sum * floats(scale + nth * OUTS); }
};

// Likewise of bfloat16, which nothing scales.
struct Bf16 {
  const uint16_t* values;

  const uint16_t* block(int64_t nth, int64_t groups) const { return values + nth * groups * VALUES; }

  Floats scaled(int64_t, Floats sum) const { return sum; }
};

#ifdef __AVX512BF16__
// The 32 values of a pair of inputs, as bfloat16.
inline __m512i halves(const int8_t* from) {
  const __m128i *lower = (const __m128i*)from, *upper = lower + 1;
  const __m512 a = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(lower)));
  const __m512 b = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(upper)));
  return (__m512i)_mm512_cvtne2ps_pbh(b, a);
}
#endif

}  // namespace products
