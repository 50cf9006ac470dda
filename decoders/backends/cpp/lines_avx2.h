// Sixteen numbers in two vectors of eight (AVX2 and FMA).

#pragma once

#include <immintrin.h>

#include <cstdint>

namespace lines {

struct Floats {
  __m256 low, high;
};
struct Doubles {  // eight
  __m256d low, high;
};
struct Words {  // of 32 bits
  __m256i low, high;
};
using Halves = __m256i;  // bfloat16
constexpr int REGISTERS = 16, OF_FLOATS = 2;  // vectors there are, and those of 16 numbers

#define BY_HALVES(type, name, of_half) \
  inline type name(type a, type b) { return {of_half(a.low, b.low), of_half(a.high, b.high)}; }
BY_HALVES(Floats, operator+, _mm256_add_ps)
BY_HALVES(Floats, operator-, _mm256_sub_ps)
BY_HALVES(Floats, operator*, _mm256_mul_ps)
BY_HALVES(Floats, operator/, _mm256_div_ps)
BY_HALVES(Floats, larger, _mm256_max_ps)
BY_HALVES(Doubles, operator+, _mm256_add_pd)
#undef BY_HALVES

inline Floats all(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
inline Floats load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
inline void put(float* to, Floats values) {
  _mm256_storeu_ps(to, values.low);
  _mm256_storeu_ps(to + 8, values.high);
}
inline Floats fma(Floats a, Floats b, Floats c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}

// Neighbours first, so that it is one order whatever a compiler does.
inline float sum_of(__m128 four) {
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float sum_of(Floats of) {
  const __m256 eight = _mm256_add_ps(of.low, of.high);
  return sum_of(_mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1)));
}
inline float greatest_of(Floats of) {
  const __m256 eight = _mm256_max_ps(of.low, of.high);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

// Lanes of a where their bit is set, else of b.
inline __m256 where(uint16_t bits, int first, __m256 a, __m256 b) {
  const __m256i own = _mm256_sllv_epi32(_mm256_set1_epi32(1 << first),
                                        _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  const __m256i set = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(bits), own), own);
  return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(set));
}
inline Floats where(uint16_t bits, Floats a, Floats b) {
  return {where(bits, 0, a.low, b.low), where(bits, 8, a.high, b.high)};
}
inline uint16_t equal(Floats a, Floats b) {
  const int low = _mm256_movemask_ps(_mm256_cmp_ps(a.low, b.low, _CMP_EQ_OQ));
  return low | _mm256_movemask_ps(_mm256_cmp_ps(a.high, b.high, _CMP_EQ_OQ)) << 8;
}

// Of exponents of 2 those that `scaled` takes: below them it is 0, above infinite.
inline __m256 within(__m256 x) {
  return _mm256_min_ps(_mm256_set1_ps(128), _mm256_max_ps(_mm256_set1_ps(-127), x));
}
inline Floats within(Floats x) { return {within(x.low), within(x.high)}; }
inline __m256 nearest(__m256 x) {
  return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline Floats nearest(Floats x) { return {nearest(x.low), nearest(x.high)}; }
// values * 2 ** exponents, whole numbers that are `within`.
inline __m256 scaled(__m256 values, __m256 exponents) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(exponents), _mm256_set1_epi32(127));
  return _mm256_mul_ps(values, _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23)));
}
inline Floats scaled(Floats values, Floats exponents) {
  return {scaled(values.low, exponents.low), scaled(values.high, exponents.high)};
}

inline Doubles no_doubles() { return {_mm256_setzero_pd(), _mm256_setzero_pd()}; }
inline Doubles doubles(__m256 of) {
  return {_mm256_cvtps_pd(_mm256_castps256_ps128(of)),
          _mm256_cvtps_pd(_mm256_extractf128_ps(of, 1))};
}
inline Doubles doubles(const float* from) { return doubles(_mm256_loadu_ps(from)); }
inline Doubles doubles(const double* from) {
  return {_mm256_loadu_pd(from), _mm256_loadu_pd(from + 4)};
}
inline Doubles lower(Floats of) { return doubles(of.low); }
inline Doubles upper(Floats of) { return doubles(of.high); }
inline double sum_of(Doubles of) {
  const __m256d four = _mm256_add_pd(of.low, of.high);
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

inline Words words(const void* from) {
  const auto* both = (const __m256i*)from;
  return {_mm256_loadu_si256(both), _mm256_loadu_si256(both + 1)};
}
inline void put_words(void* to, Words values) {
  auto* both = (__m256i*)to;
  _mm256_storeu_si256(both, values.low);
  _mm256_storeu_si256(both + 1, values.high);
}
inline Words left(Words of, int bits) {
  return {_mm256_slli_epi32(of.low, bits), _mm256_slli_epi32(of.high, bits)};
}
inline Words right(Words of, int bits) {
  return {_mm256_srli_epi32(of.low, bits), _mm256_srli_epi32(of.high, bits)};
}
inline Words right_signed(Words of, int bits) {
  return {_mm256_srai_epi32(of.low, bits), _mm256_srai_epi32(of.high, bits)};
}
inline Words masked(Words of, uint32_t mask) {
  const __m256i kept = _mm256_set1_epi32(mask);
  return {_mm256_and_si256(of.low, kept), _mm256_and_si256(of.high, kept)};
}
inline Floats as_floats(Words bits) {
  return {_mm256_castsi256_ps(bits.low), _mm256_castsi256_ps(bits.high)};
}
inline Floats numbers(Words of) {
  return {_mm256_cvtepi32_ps(of.low), _mm256_cvtepi32_ps(of.high)};
}
// 16 whole numbers of 16 bits.
inline Words shorts(const void* from) {
  const auto* both = (const __m128i*)from;
  return {_mm256_cvtepi16_epi32(_mm_loadu_si128(both)),
          _mm256_cvtepi16_epi32(_mm_loadu_si128(both + 1))};
}

// q - TAKEN of each word's four bits from `shift` on.
constexpr float TAKEN = 0;
inline Floats nibbles(Words of, int shift) { return numbers(masked(right(of, shift), 15)); }

inline Halves load_halves(const void* from) { return _mm256_loadu_si256((const __m256i*)from); }
inline void put_halves(void* to, Halves values) { _mm256_storeu_si256((__m256i*)to, values); }
inline Floats floats(Halves of) {
  return as_floats(left({_mm256_cvtepu16_epi32(_mm256_castsi256_si128(of)),
                         _mm256_cvtepu16_epi32(_mm256_extracti128_si256(of, 1))},
                        16));
}

// The bits of the nearest bfloat16, of two the even one, in the upper half of each word.
inline __m256i nearest_half(__m256 values) {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  const __m256 nan = _mm256_cmp_ps(values, values, _CMP_UNORD_Q);
  const __m256 not_a_number = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000));
  return _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(up), not_a_number, nan));
}
inline Halves rounded(Floats values) {
  const __m256i low = _mm256_srli_epi32(nearest_half(values.low), 16);
  const __m256i high = _mm256_srli_epi32(nearest_half(values.high), 16);
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xD8);  // of lanes of 128 bits
}

// bfloat16 of a in the lower halves of words, of b in the upper ones.
inline __m256i pairs_of(__m256 a, __m256 b) {
  return _mm256_blend_epi16(_mm256_srli_epi32(nearest_half(a), 16), nearest_half(b), 0xAA);
}
inline Words pairs_of(Floats a, Floats b) {
  return {pairs_of(a.low, b.low), pairs_of(a.high, b.high)};
}

// to[i][j] = from[j][i]
inline void transpose(const __m256i (&from)[8], uint32_t* to, int64_t stride) {
  __m256i a[8], b[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    a[2 * i] = _mm256_unpacklo_epi32(from[2 * i], from[2 * i + 1]);
    a[2 * i + 1] = _mm256_unpackhi_epi32(from[2 * i], from[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    b[4 * i] = _mm256_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 1] = _mm256_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 2] = _mm256_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
    b[4 * i + 3] = _mm256_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m256i first = _mm256_permute2x128_si256(b[i], b[4 + i], 0x20);
    const __m256i second = _mm256_permute2x128_si256(b[i], b[4 + i], 0x31);
    _mm256_storeu_si256((__m256i*)(to + i * stride), first);
    _mm256_storeu_si256((__m256i*)(to + (4 + i) * stride), second);
  }
}
inline void transpose(const Words (&from)[16], uint32_t (*to)[16]) {
#pragma GCC unroll 2
  for (int half = 0; half < 16; half += 8) {
    __m256i low[8], high[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) low[i] = from[half + i].low, high[i] = from[half + i].high;
    transpose(low, &to[0][half], 16);
    transpose(high, &to[8][half], 16);
  }
}

// 32 bfloat16 of a and b as pairs, [16] each: 0-3, 8-11, 16-19 and 24-27 in low, the others in high.
inline void interleave(const void* a, const void* b, uint32_t* low, uint32_t* high) {
  const Words first = words(a), second = words(b);
  put_words(low, {_mm256_unpacklo_epi16(first.low, second.low),
                  _mm256_unpacklo_epi16(first.high, second.high)});
  put_words(high, {_mm256_unpackhi_epi16(first.low, second.low),
                   _mm256_unpackhi_epi16(first.high, second.high)});
}

// Back in order: 0-15 and 16-31 of such.
inline void in_order(Floats& low, Floats& high) {
  const Floats a = low, b = high;
  low = {_mm256_permute2f128_ps(a.low, b.low, 0x20), _mm256_permute2f128_ps(a.low, b.low, 0x31)};
  high = {_mm256_permute2f128_ps(a.high, b.high, 0x20),
          _mm256_permute2f128_ps(a.high, b.high, 0x31)};
}

}  // namespace lines
