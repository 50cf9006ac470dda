// Sixteen numbers in four vectors of four (64-bit Arm).

#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace lines {

struct Floats {
  float32x4_t a, b, c, d;
};
struct Words {  // of 32 bits
  uint32x4_t a, b, c, d;
};
struct Halves {  // bfloat16
  uint16x8_t low, high;
};
constexpr int REGISTERS = 32, OF_FLOATS = 4;  // vectors there are, and those of 16 numbers

#define BY_QUARTERS(name, of_quarter)                                         \
  inline Floats name(Floats x, Floats y) {                                    \
    return {of_quarter(x.a, y.a), of_quarter(x.b, y.b), of_quarter(x.c, y.c), \
            of_quarter(x.d, y.d)};                                            \
  }
BY_QUARTERS(operator+, vaddq_f32)
BY_QUARTERS(operator-, vsubq_f32)
BY_QUARTERS(operator*, vmulq_f32)
BY_QUARTERS(operator/, vdivq_f32)
BY_QUARTERS(larger, vmaxq_f32)
#undef BY_QUARTERS

inline Floats all(float value) {
  const float32x4_t four = vdupq_n_f32(value);
  return {four, four, four, four};
}
inline Floats load(const float* from) {
  return {vld1q_f32(from), vld1q_f32(from + 4), vld1q_f32(from + 8), vld1q_f32(from + 12)};
}
inline void put(float* to, Floats values) {
  vst1q_f32(to, values.a);
  vst1q_f32(to + 4, values.b);
  vst1q_f32(to + 8, values.c);
  vst1q_f32(to + 12, values.d);
}
inline Floats fma(Floats x, Floats y, Floats to) {
  return {vfmaq_f32(to.a, x.a, y.a), vfmaq_f32(to.b, x.b, y.b), vfmaq_f32(to.c, x.c, y.c),
          vfmaq_f32(to.d, x.d, y.d)};
}
inline float sum_of(Floats of) {
  return vaddvq_f32(vaddq_f32(vaddq_f32(of.a, of.b), vaddq_f32(of.c, of.d)));
}
inline float greatest_of(Floats of) {
  return vmaxvq_f32(vmaxq_f32(vmaxq_f32(of.a, of.b), vmaxq_f32(of.c, of.d)));
}

inline uint32x4_t bits_of_lanes() {
  const uint32_t bits[4] = {1, 2, 4, 8};
  return vld1q_u32(bits);
}
// Lanes of x where their bit is set, else of y.
inline float32x4_t where(uint16_t bits, float32x4_t x, float32x4_t y) {
  return vbslq_f32(vtstq_u32(vdupq_n_u32(bits), bits_of_lanes()), x, y);
}
inline Floats where(uint16_t bits, Floats x, Floats y) {
  return {where(bits, x.a, y.a), where(bits >> 4, x.b, y.b), where(bits >> 8, x.c, y.c),
          where(bits >> 12, x.d, y.d)};
}
inline uint16_t equal(float32x4_t x, float32x4_t y) {
  return vaddvq_u32(vandq_u32(vceqq_f32(x, y), bits_of_lanes()));
}
inline uint16_t equal(Floats x, Floats y) {
  return equal(x.a, y.a) | equal(x.b, y.b) << 4 | equal(x.c, y.c) << 8 | equal(x.d, y.d) << 12;
}

// Of exponents of 2 those that `scaled` takes: below them it is 0, above infinite.
inline float32x4_t within(float32x4_t x) {
  return vminq_f32(vdupq_n_f32(128), vmaxq_f32(vdupq_n_f32(-127), x));
}
inline Floats within(Floats x) { return {within(x.a), within(x.b), within(x.c), within(x.d)}; }
inline Floats nearest(Floats x) {
  return {vrndnq_f32(x.a), vrndnq_f32(x.b), vrndnq_f32(x.c), vrndnq_f32(x.d)};
}
// values * 2 ** exponents, whole numbers that are `within`.
inline float32x4_t scaled(float32x4_t values, float32x4_t exponents) {
  const int32x4_t biased = vaddq_s32(vcvtq_s32_f32(exponents), vdupq_n_s32(127));
  return vmulq_f32(values, vreinterpretq_f32_s32(vshlq_n_s32(biased, 23)));
}
inline Floats scaled(Floats values, Floats by) {
  return {scaled(values.a, by.a), scaled(values.b, by.b), scaled(values.c, by.c),
          scaled(values.d, by.d)};
}

inline Words words(const void* from) {
  const auto* at = (const uint32_t*)from;
  return {vld1q_u32(at), vld1q_u32(at + 4), vld1q_u32(at + 8), vld1q_u32(at + 12)};
}
inline void put_words(void* to, Words values) {
  auto* at = (uint32_t*)to;
  vst1q_u32(at, values.a);
  vst1q_u32(at + 4, values.b);
  vst1q_u32(at + 8, values.c);
  vst1q_u32(at + 12, values.d);
}
inline Words left(Words of, int bits) {
  return {of.a << bits, of.b << bits, of.c << bits, of.d << bits};
}
inline Words right(Words of, int bits) {
  return {of.a >> bits, of.b >> bits, of.c >> bits, of.d >> bits};
}
inline uint32x4_t right_signed(uint32x4_t of, int bits) {
  return vreinterpretq_u32_s32(vreinterpretq_s32_u32(of) >> bits);
}
inline Words right_signed(Words of, int bits) {
  return {right_signed(of.a, bits), right_signed(of.b, bits), right_signed(of.c, bits),
          right_signed(of.d, bits)};
}
inline Words masked(Words of, uint32_t mask) {
  const uint32x4_t kept = vdupq_n_u32(mask);
  return {vandq_u32(of.a, kept), vandq_u32(of.b, kept), vandq_u32(of.c, kept),
          vandq_u32(of.d, kept)};
}
inline Floats as_floats(Words bits) {
  return {vreinterpretq_f32_u32(bits.a), vreinterpretq_f32_u32(bits.b),
          vreinterpretq_f32_u32(bits.c), vreinterpretq_f32_u32(bits.d)};
}
inline float32x4_t numbers(uint32x4_t of) { return vcvtq_f32_s32(vreinterpretq_s32_u32(of)); }
inline Floats numbers(Words of) {
  return {numbers(of.a), numbers(of.b), numbers(of.c), numbers(of.d)};
}
// 16 whole numbers of 16 bits.
inline Words shorts(const void* from) {
  const int16x8_t low = vld1q_s16((const int16_t*)from), high = vld1q_s16((const int16_t*)from + 8);
  return {vreinterpretq_u32_s32(vmovl_s16(vget_low_s16(low))),
          vreinterpretq_u32_s32(vmovl_high_s16(low)),
          vreinterpretq_u32_s32(vmovl_s16(vget_low_s16(high))),
          vreinterpretq_u32_s32(vmovl_high_s16(high))};
}

// q - TAKEN of each word's four bits from `shift` on.
constexpr float TAKEN = 0;
inline Floats nibbles(Words of, int shift) { return numbers(masked(right(of, shift), 15)); }

inline Halves load_halves(const void* from) {
  return {vld1q_u16((const uint16_t*)from), vld1q_u16((const uint16_t*)from + 8)};
}
inline void put_halves(void* to, Halves values) {
  vst1q_u16((uint16_t*)to, values.low);
  vst1q_u16((uint16_t*)to + 8, values.high);
}
inline Floats floats(Halves of) {
  return as_floats({vshll_n_u16(vget_low_u16(of.low), 16), vshll_high_n_u16(of.low, 16),
                    vshll_n_u16(vget_low_u16(of.high), 16), vshll_high_n_u16(of.high, 16)});
}

// The bits of the nearest bfloat16, of two the even one, in the upper half of each word.
inline uint32x4_t nearest_half(float32x4_t values) {
  const uint32x4_t bits = vreinterpretq_u32_f32(values);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t up = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7FFF)));
  return vbslq_u32(vceqq_f32(values, values), up, vdupq_n_u32(0x7FC00000));
}
inline Halves rounded(Floats of) {
  return {vshrn_high_n_u32(vshrn_n_u32(nearest_half(of.a), 16), nearest_half(of.b), 16),
          vshrn_high_n_u32(vshrn_n_u32(nearest_half(of.c), 16), nearest_half(of.d), 16)};
}

// bfloat16 of x in the lower halves of words, of y in the upper ones.
inline uint32x4_t pairs_of(float32x4_t x, float32x4_t y) {
  return vsriq_n_u32(nearest_half(y), nearest_half(x), 16);
}
inline Words pairs_of(Floats x, Floats y) {
  return {pairs_of(x.a, y.a), pairs_of(x.b, y.b), pairs_of(x.c, y.c), pairs_of(x.d, y.d)};
}

// to[i][j] = from[j][i]
inline void transpose(uint32x4_t a, uint32x4_t b, uint32x4_t c, uint32x4_t d, uint32_t (*to)[16]) {
  const uint64x2_t ab_even = vreinterpretq_u64_u32(vtrn1q_u32(a, b));
  const uint64x2_t ab_odd = vreinterpretq_u64_u32(vtrn2q_u32(a, b));
  const uint64x2_t cd_even = vreinterpretq_u64_u32(vtrn1q_u32(c, d));
  const uint64x2_t cd_odd = vreinterpretq_u64_u32(vtrn2q_u32(c, d));
  vst1q_u32(to[0], vreinterpretq_u32_u64(vtrn1q_u64(ab_even, cd_even)));
  vst1q_u32(to[1], vreinterpretq_u32_u64(vtrn1q_u64(ab_odd, cd_odd)));
  vst1q_u32(to[2], vreinterpretq_u32_u64(vtrn2q_u64(ab_even, cd_even)));
  vst1q_u32(to[3], vreinterpretq_u32_u64(vtrn2q_u64(ab_odd, cd_odd)));
}
inline void transpose(const Words (&from)[16], uint32_t (*to)[16]) {
  for (int i = 0; i < 16; i += 4) {
    const Words *f = from + i;
    auto* column = (uint32_t(*)[16])(to[0] + i);
    transpose(f[0].a, f[1].a, f[2].a, f[3].a, column);
    transpose(f[0].b, f[1].b, f[2].b, f[3].b, column + 4);
    transpose(f[0].c, f[1].c, f[2].c, f[3].c, column + 8);
    transpose(f[0].d, f[1].d, f[2].d, f[3].d, column + 12);
  }
}

// 32 bfloat16 of x and y as pairs, [16] each: 0-3, 8-11, 16-19 and 24-27 in low, the others in high.
inline void interleave(const void* x, const void* y, uint32_t* low, uint32_t* high) {
  for (int i = 0; i < 4; ++i) {
    const uint16x8_t first = vld1q_u16((const uint16_t*)x + 8 * i);
    const uint16x8_t second = vld1q_u16((const uint16_t*)y + 8 * i);
    vst1q_u32(low + 4 * i, vreinterpretq_u32_u16(vzip1q_u16(first, second)));
    vst1q_u32(high + 4 * i, vreinterpretq_u32_u16(vzip2q_u16(first, second)));
  }
}

// Back in order: 0-15 and 16-31 of such.
inline void in_order(Floats& low, Floats& high) {
  const Floats x = low, y = high;
  low = {x.a, y.a, x.b, y.b};
  high = {x.c, y.c, x.d, y.d};
}

// -- whole numbers of 8 bits, four to a word -------------------------------------------------------

inline Words either(Words x, Words y) { return {x.a | y.a, x.b | y.b, x.c | y.c, x.d | y.d}; }
inline Words all_words(int32_t value) {
  const uint32x4_t four = vdupq_n_u32((uint32_t)value);
  return {four, four, four, four};
}
// Bytes from -128 to 127 as 128 more, from 0 to 255.
inline Words raised(Words of) {
  const uint32x4_t by = vdupq_n_u32(0x80808080);
  return {of.a ^ by, of.b ^ by, of.c ^ by, of.d ^ by};
}
inline Words sum_words(Words x, Words y) { return {x.a + y.a, x.b + y.b, x.c + y.c, x.d + y.d}; }
// What a table of 16 has for each byte, at most 15.
inline uint32x4_t looked_up(uint32x4_t at, int8x16_t table) {
  return vreinterpretq_u32_s8(vqtbl1q_s8(table, vreinterpretq_u8_u32(at)));
}
inline Words looked_up(Words at, const int8_t* table) {
  const int8x16_t all = vld1q_s8(table);
  return {looked_up(at.a, all), looked_up(at.b, all), looked_up(at.c, all), looked_up(at.d, all)};
}
inline Floats from_float16(const void* from) {
  const auto* at = (const float16_t*)from;
  return {vcvt_f32_f16(vld1_f16(at)), vcvt_f32_f16(vld1_f16(at + 4)),
          vcvt_f32_f16(vld1_f16(at + 8)), vcvt_f32_f16(vld1_f16(at + 12))};
}
inline Floats from_bytes(const uint8_t* from) {
  const uint8x16_t all = vld1q_u8(from);
  const uint16x8_t low = vmovl_u8(vget_low_u8(all)), high = vmovl_high_u8(all);
  return {vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))), vcvtq_f32_u32(vmovl_high_u16(low)),
          vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))), vcvtq_f32_u32(vmovl_high_u16(high))};
}
inline Floats from_bytes(const int8_t* from) {
  const int8x16_t all = vld1q_s8(from);
  const int16x8_t low = vmovl_s8(vget_low_s8(all)), high = vmovl_high_s8(all);
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
          vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_high_s16(high))};
}

// Products of four bytes of each word with the same four of x, from -128 to 127 both.
constexpr bool IN_WORDS = true;
template <int MOST>
constexpr int UNWIDENED = 4;
constexpr bool SIGNED_WEIGHTS = true;  // of eight bits
inline uint32x4_t add_dots(uint32x4_t to, uint32x4_t w, int8x16_t x) {
  const int8x16_t bytes = vreinterpretq_s8_u32(w);
#ifdef __ARM_FEATURE_DOTPROD
  return vreinterpretq_u32_s32(vdotq_s32(vreinterpretq_s32_u32(to), bytes, x));
#else
  const int16x8_t low = vmull_s8(vget_low_s8(bytes), vget_low_s8(x));
  const int16x8_t high = vmull_high_s8(bytes, x);
  const int32x4_t pairs = vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high));
  return vreinterpretq_u32_s32(vaddq_s32(vreinterpretq_s32_u32(to), pairs));
#endif
}
inline Words add_dots(Words to, Words w, int32_t x) {
  const int8x16_t four = vreinterpretq_s8_s32(vdupq_n_s32(x));
  return {add_dots(to.a, w.a, four), add_dots(to.b, w.b, four), add_dots(to.c, w.c, four),
          add_dots(to.d, w.d, four)};
}
inline Words first_dots(Words w, int32_t x) { return add_dots(all_words(0), w, x); }
inline Words add_widened(Words to, Words dots) { return sum_words(to, dots); }
inline Words add_signed_dots(Words to, Words w, int32_t x) { return add_dots(to, w, x); }

// To the nearest whole number, of two the even one, as bytes.
inline int16x4_t nearest_short(float32x4_t of) { return vqmovn_s32(vcvtnq_s32_f32(of)); }
inline void put_bytes(int8_t* to, Floats values) {
  const int16x8_t low = vcombine_s16(nearest_short(values.a), nearest_short(values.b));
  const int16x8_t high = vcombine_s16(nearest_short(values.c), nearest_short(values.d));
  vst1q_s8(to, vcombine_s8(vqmovn_s16(low), vqmovn_s16(high)));
}
inline Floats magnitudes(Floats of) {
  return {vabsq_f32(of.a), vabsq_f32(of.b), vabsq_f32(of.c), vabsq_f32(of.d)};
}

}  // namespace lines
