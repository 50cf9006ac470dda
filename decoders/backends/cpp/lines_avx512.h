// Sixteen numbers in one vector (AVX-512).

#pragma once

#include <immintrin.h>

#include <cstdint>

namespace lines {

using Floats = __m512;   // has + - * / by itself
using Words = __m512i;   // of 32 bits
using Halves = __m256i;  // bfloat16
constexpr int REGISTERS = 32, OF_FLOATS = 1;  // vectors there are, and those of 16 numbers

inline Floats all(float value) { return _mm512_set1_ps(value); }
inline Floats load(const float* from) { return _mm512_loadu_ps(from); }
inline void put(float* to, Floats values) { _mm512_storeu_ps(to, values); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats larger(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline float sum_of(Floats values) { return _mm512_reduce_add_ps(values); }
inline float greatest_of(Floats values) { return _mm512_reduce_max_ps(values); }

// Lanes of a where their bit is set, else of b.
inline Floats where(uint16_t bits, Floats a, Floats b) { return _mm512_mask_mov_ps(b, bits, a); }
inline uint16_t equal(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }

inline Floats within(Floats x) { return x; }  // `scaled` takes any exponent
inline Floats nearest(Floats x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// values * 2 ** exponents, whole numbers.
inline Floats scaled(Floats values, Floats exponents) { return _mm512_scalef_ps(values, exponents); }

inline Words words(const void* from) { return _mm512_loadu_si512(from); }
inline void put_words(void* to, Words values) { _mm512_storeu_si512(to, values); }
inline Words left(Words of, int bits) { return _mm512_slli_epi32(of, bits); }
inline Words right(Words of, int bits) { return _mm512_srli_epi32(of, bits); }
inline Words right_signed(Words of, int bits) { return _mm512_srai_epi32(of, bits); }
inline Words masked(Words of, uint32_t mask) {
  return _mm512_and_si512(of, _mm512_set1_epi32(mask));
}
inline Floats as_floats(Words bits) { return _mm512_castsi512_ps(bits); }
inline Floats numbers(Words of) { return _mm512_cvtepi32_ps(of); }
// 16 whole numbers of 16 bits.
inline Words shorts(const void* from) {
  return _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i*)from));
}

// q - TAKEN of each word's four bits from `shift` on.
constexpr float TAKEN = 8;
inline Floats nibbles(Words of, int shift) {
  const Floats steps = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
  return _mm512_permutexvar_ps(right(of, shift), steps);  // of an index four bits count
}

inline Halves load_halves(const void* from) { return _mm256_loadu_si256((const __m256i*)from); }
inline void put_halves(void* to, Halves values) { _mm256_storeu_si256((__m256i*)to, values); }
inline Floats floats(Halves of) { return as_floats(left(_mm512_cvtepu16_epi32(of), 16)); }

// To the nearest bfloat16, of two the even one.
inline Halves rounded(Floats values) {
#ifdef __AVX512BF16__
  return (Halves)_mm512_cvtneps_pbh(values);
#else
  const Words bits = _mm512_castps_si512(values);
  const Words odd = masked(right(bits, 16), 1);
  const Words up = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF));
  const __mmask16 nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
  const Words made = right(_mm512_add_epi32(bits, up), 16);
  return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(made, nan, _mm512_set1_epi32(0x7FC0)));
#endif
}

// bfloat16 of a in the lower halves of words, of b in the upper ones.
inline Words pairs_of(Floats a, Floats b) {
  const Words low = _mm512_cvtepu16_epi32(rounded(a)), high = _mm512_cvtepu16_epi32(rounded(b));
  return _mm512_or_si512(low, left(high, 16));
}

// to[i][j] = from[j][i]
inline void transpose(const Words (&from)[16], uint32_t (*to)[16]) {
  Words a[16], b[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    a[2 * i] = _mm512_unpacklo_epi32(from[2 * i], from[2 * i + 1]);
    a[2 * i + 1] = _mm512_unpackhi_epi32(from[2 * i], from[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    b[4 * i] = _mm512_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 1] = _mm512_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 2] = _mm512_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
    b[4 * i + 3] = _mm512_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const Words low = _mm512_shuffle_i32x4(b[i], b[4 + i], 0x88);
    const Words high = _mm512_shuffle_i32x4(b[i], b[4 + i], 0xdd);
    const Words other_low = _mm512_shuffle_i32x4(b[8 + i], b[12 + i], 0x88);
    const Words other_high = _mm512_shuffle_i32x4(b[8 + i], b[12 + i], 0xdd);
    put_words(to[i], _mm512_shuffle_i32x4(low, other_low, 0x88));
    put_words(to[4 + i], _mm512_shuffle_i32x4(high, other_high, 0x88));
    put_words(to[8 + i], _mm512_shuffle_i32x4(low, other_low, 0xdd));
    put_words(to[12 + i], _mm512_shuffle_i32x4(high, other_high, 0xdd));
  }
}

// 32 bfloat16 of a and b as pairs, [16] each: 0-3, 8-11, 16-19 and 24-27 in low, the others in high.
inline void interleave(const void* a, const void* b, uint32_t* low, uint32_t* high) {
  put_words(low, _mm512_unpacklo_epi16(words(a), words(b)));
  put_words(high, _mm512_unpackhi_epi16(words(a), words(b)));
}

// Back in order: 0-15 and 16-31 of such.
inline void in_order(Floats& low, Floats& high) {
  const Words first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const Words second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
  const Floats a = _mm512_permutex2var_ps(low, first, high);
  high = _mm512_permutex2var_ps(low, second, high);
  low = a;
}

// -- whole numbers of 8 bits, four to a word -------------------------------------------------------

inline Words either(Words a, Words b) { return _mm512_or_si512(a, b); }
inline Words all_words(int32_t value) { return _mm512_set1_epi32(value); }
// Bytes from -128 to 127 as 128 more, from 0 to 255.
inline Words raised(Words of) { return _mm512_xor_si512(of, _mm512_set1_epi8(-128)); }
inline Words sum_words(Words a, Words b) { return _mm512_add_epi32(a, b); }
// What a table of 16 has for each byte, at most 15.
inline Words looked_up(Words at, const int8_t* table) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table)), at);
}
inline Floats from_float16(const void* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
}
inline Floats from_bytes(const uint8_t* from) {
  return numbers(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)from)));
}
inline Floats from_bytes(const int8_t* from) {
  return numbers(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)));
}

// Products of four bytes of each word with the same four of x, in 16 bits until they are `widened`
// where there is no VNNI: of weights up to MOST so many may be added before.
#ifdef __AVX512VNNI__
constexpr bool IN_WORDS = true;
template <int MOST>
constexpr int UNWIDENED = 4;
constexpr bool SIGNED_WEIGHTS = false;  // of eight bits: 128 is added to them
inline Words first_dots(Words w, int32_t x) {
  return _mm512_dpbusd_epi32(_mm512_setzero_si512(), w, _mm512_set1_epi32(x));
}
inline Words add_dots(Words to, Words w, int32_t x) {
  return _mm512_dpbusd_epi32(to, w, _mm512_set1_epi32(x));
}
inline Words add_widened(Words to, Words dots) { return sum_words(to, dots); }
#else
constexpr bool IN_WORDS = false;
template <int MOST>
constexpr int UNWIDENED = MOST == 15 ? 8 : MOST == 31 ? 4 : 2;
constexpr bool SIGNED_WEIGHTS = true;
inline Words first_dots(Words w, int32_t x) {
  return _mm512_maddubs_epi16(w, _mm512_set1_epi32(x));
}
inline Words add_dots(Words to, Words w, int32_t x) {
  return _mm512_add_epi16(to, first_dots(w, x));
}
inline Words add_widened(Words to, Words dots) {
  return sum_words(to, _mm512_madd_epi16(dots, _mm512_set1_epi16(1)));
}
#endif
// Likewise of weights from -128 to 127, in 32 bits.
inline Words add_signed_dots(Words to, Words w, int32_t x) {
  const Words four = _mm512_set1_epi32(x);
  const Words turned = _mm512_mask_sub_epi8(four, _mm512_movepi8_mask(w), _mm512_setzero_si512(),
                                            four);
  const Words pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(w), turned);
  return sum_words(to, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}

// To the nearest whole number, of two the even one, as bytes.
inline void put_bytes(int8_t* to, Floats values) {
  _mm_storeu_si128((__m128i*)to, _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(values)));
}
inline Floats magnitudes(Floats of) { return _mm512_abs_ps(of); }

}  // namespace lines
