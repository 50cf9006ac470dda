// Sixteen numbers in two vectors of eight (AVX2 and FMA).

#pragma once

#include <immintrin.h>

#include <cstdint>

namespace lines {

struct Floats {
  __m256 low, high;
};
struct Words {  // of 32 bits
  __m256i low, high;
};
using Halves = __m256i;  // bfloat16
constexpr int REGISTERS = 16, OF_FLOATS = 2;  // vectors there are, and those of 16 numbers

#define BY_HALVES(name, half) \
  inline Floats name(Floats a, Floats b) { return {half(a.low, b.low), half(a.high, b.high)}; }
BY_HALVES(operator+, _mm256_add_ps)
BY_HALVES(operator-, _mm256_sub_ps)
BY_HALVES(operator*, _mm256_mul_ps)
BY_HALVES(operator/, _mm256_div_ps)
BY_HALVES(larger, _mm256_max_ps)
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

// -- whole numbers of 8 bits, four to a word -------------------------------------------------------

inline Words either(Words a, Words b) {
  return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)};
}
inline Words all_words(int32_t value) { return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)}; }
// Bytes from -128 to 127 as 128 more, from 0 to 255.
inline Words raised(Words of) {
  const __m256i by = _mm256_set1_epi8(-128);
  return {_mm256_xor_si256(of.low, by), _mm256_xor_si256(of.high, by)};
}
inline Words sum_words(Words a, Words b) {
  return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}
// What a table of 16 has for each byte, at most 15.
inline Words looked_up(Words at, const int8_t* table) {
  const __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table));
  return {_mm256_shuffle_epi8(both, at.low), _mm256_shuffle_epi8(both, at.high)};
}
inline Floats from_float16(const void* from) {
  const auto* both = (const __m128i*)from;
  return {_mm256_cvtph_ps(_mm_loadu_si128(both)), _mm256_cvtph_ps(_mm_loadu_si128(both + 1))};
}
inline Floats from_bytes(const uint8_t* from) {
  const __m128i all = _mm_loadu_si128((const __m128i*)from);
  return numbers({_mm256_cvtepu8_epi32(all), _mm256_cvtepu8_epi32(_mm_srli_si128(all, 8))});
}
inline Floats from_bytes(const int8_t* from) {
  const __m128i all = _mm_loadu_si128((const __m128i*)from);
  return numbers({_mm256_cvtepi8_epi32(all), _mm256_cvtepi8_epi32(_mm_srli_si128(all, 8))});
}

// Products of four bytes of each word with the same four of x, in 16 bits until they are `widened`:
// of weights up to MOST so many may be added before.
constexpr bool IN_WORDS = false;
template <int MOST>
constexpr int UNWIDENED = MOST == 15 ? 8 : MOST == 31 ? 4 : 2;
constexpr bool SIGNED_WEIGHTS = true;  // of eight bits
inline __m256i pair_sums(__m256i w, __m256i x) { return _mm256_maddubs_epi16(w, x); }
inline Words first_dots(Words w, int32_t x) {
  const __m256i four = _mm256_set1_epi32(x);
  return {pair_sums(w.low, four), pair_sums(w.high, four)};
}
inline Words add_dots(Words to, Words w, int32_t x) {
  const Words made = first_dots(w, x);
  to = {_mm256_add_epi16(to.low, made.low), _mm256_add_epi16(to.high, made.high)};
  asm("" : "+x"(to.low), "+x"(to.high));  // or GCC makes all products first and runs out of registers
  return to;
}
inline Words add_widened(Words to, Words dots) {
  const __m256i one = _mm256_set1_epi16(1);
  return sum_words(to, {_mm256_madd_epi16(dots.low, one), _mm256_madd_epi16(dots.high, one)});
}
// Likewise of weights from -128 to 127, in 32 bits.
inline Words add_signed_dots(Words to, Words w, int32_t x) {
  const __m256i four = _mm256_set1_epi32(x);
  return add_widened(to, {pair_sums(_mm256_abs_epi8(w.low), _mm256_sign_epi8(four, w.low)),
                          pair_sums(_mm256_abs_epi8(w.high), _mm256_sign_epi8(four, w.high))});
}

// To the nearest whole number, of two the even one, as bytes.
inline void put_bytes(int8_t* to, Floats values) {
  const __m256i pairs = _mm256_packs_epi32(_mm256_cvtps_epi32(values.low),
                                           _mm256_cvtps_epi32(values.high));
  const __m256i ordered = _mm256_permute4x64_epi64(pairs, 0xD8);
  _mm_storeu_si128((__m128i*)to, _mm_packs_epi16(_mm256_castsi256_si128(ordered),
                                                 _mm256_extracti128_si256(ordered, 1)));
}
inline Floats magnitudes(Floats of) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, of.low), _mm256_andnot_ps(sign, of.high)};
}

}  // namespace lines
