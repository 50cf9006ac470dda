// Weights as a GGUF file has them, its own steps and scales, in blocks of 16 outputs.
//
// A file has an output's inputs in one row, in groups that share a scale. Here 16 outputs lie side by
// side: of each group of 32 inputs their scales, then their steps, four inputs of an output to a word
// and 16 outputs to a line, as the products of file_products.h read them. Of steps of four bits line i
// holds inputs 4 i.. in the lower halves of bytes and 16 + 4 i.. in the upper ones; what a step has
// beyond four bits lies behind them. Q4_K and Q5_K take a fortieth more than in the file, as their
// scales of six bits lie in bytes, the other kinds as much.

#pragma once

#include <cstdint>
#include <cstring>

#include "weights.h"

namespace file_blocks {

using namespace lines;
using products::GROUP;
using products::OUTS;

constexpr int LINES = GROUP / 4;            // of a group
constexpr int LINE = 4 * OUTS;              // bytes
constexpr uint32_t FOUR_BITS = 0x0F0F0F0F;  // of each byte

// How many bits a step has, and how they lie.
template <int BITS>
struct Steps {
  static constexpr int BYTES = BITS * GROUP * OUTS / 8;
  static constexpr int MOST = (1 << BITS) - 1;

  // Line i of a group, steps from 0 to MOST.
  static Words line(const uint8_t* from, int i) {
    if constexpr (BITS == 8) return words(from + LINE * i);
    const Words both = words(from + LINE * (i % 4));
    const Words low = masked(i < 4 ? both : right(both, 4), FOUR_BITS);
    if constexpr (BITS == 5) {
      const Words high = words(from + 4 * LINE);
      return either(low, masked(i < 4 ? left(high, 4 - i) : right(high, i - 4), 0x10101010));
    }
    if constexpr (BITS == 6) {
      const Words high = words(from + (4 + i / 4) * LINE);
      const int at = 2 * (i % 4);
      return either(low, masked(at < 4 ? left(high, 4 - at) : right(high, at - 4), 0x30303030));
    }
    return low;
  }

  // The step in this byte of a line.
  static uint8_t step(const uint8_t* from, int i, int byte) {
    if constexpr (BITS == 8) return from[LINE * i + byte];
    uint8_t made = from[LINE * (i % 4) + byte] >> (i < 4 ? 0 : 4) & 15;
    if constexpr (BITS == 5) made |= (from[4 * LINE + byte] >> i & 1) << 4;
    if constexpr (BITS == 6) made |= (from[(4 + i / 4) * LINE + byte] >> 2 * (i % 4) & 3) << 4;
    return made;
  }

  // The steps of one output's group.
  static void put(const uint8_t* steps, uint8_t* to, int output) {
    uint32_t four[LINES];
    std::memcpy(four, steps, sizeof four);
    auto add = [&](int line, uint32_t bits) {
      std::memcpy(to + LINE * line + 4 * output, &bits, 4);
    };
    if constexpr (BITS == 8) {
      for (int i = 0; i < LINES; ++i) add(i, four[i]);
      return;
    }
    for (int i = 0; i < 4; ++i)
      add(i, (four[i] & FOUR_BITS) | (four[i + 4] & FOUR_BITS) << 4);
    if constexpr (BITS == 5) {
      uint32_t high = 0;
      for (int i = 0; i < LINES; ++i) high |= (four[i] >> 4 & 0x01010101) << i;
      add(4, high);
    }
    if constexpr (BITS == 6)
      for (int half = 0; half < 2; ++half) {
        uint32_t high = 0;
        for (int i = 0; i < 4; ++i) high |= (four[4 * half + i] >> 4 & 0x03030303) << 2 * i;
        add(4 + half, high);
      }
  }
};

// The kinds of GGUF. A block is `GROUPS` groups of 16 outputs: HEAD bytes, then of each group SCALES
// bytes and its steps; in the file it is FILE_BYTES of each output. A weight is
// (step - ZERO) * scale + least, with a scale for each of the PARTS of a group.

// Two bytes of each output to their place.
inline void put_two(const uint8_t* from, uint8_t* to, int output) {
  std::memcpy(to + 2 * output, from, 2);
}

// `count` bytes: `bits` of each of them from `shift` on, moved to the left; more than before, if `add`.
inline void take_bits(const uint8_t* from, int count, int shift, uint8_t bits, int left,
                      uint8_t* to, bool add = false) {
  const uint64_t mask = 0x0101010101010101 * bits;
  for (int i = 0; i < count; i += 8) {
    uint64_t eight, before = 0;
    std::memcpy(&eight, from + i, 8);
    if (add) std::memcpy(&before, to + i, 8);
    before |= (eight >> shift & mask) << left;
    std::memcpy(to + i, &before, 8);
  }
}

// 16 bytes, of which the lower halves are the first steps.
inline void unpack_halves(const uint8_t* from, uint8_t* steps) {
  take_bits(from, 16, 0, 15, 0, steps);
  take_bits(from, 16, 4, 15, 0, steps + 16);
}

// The fifth bits of 32 steps.
inline void add_fifths(const uint8_t* from, uint8_t* steps) {
  for (int i = 0; i < 4; ++i) {
    uint64_t eight;
    std::memcpy(&eight, steps + 8 * i, 8);
    const uint64_t spread = (0x8040201008040201 & 0x0101010101010101 * from[i]);
    const uint64_t any = (spread + 0x7F7F7F7F7F7F7F7F) | spread;
    eight |= any >> 3 & 0x1010101010101010;
    std::memcpy(steps + 8 * i, &eight, 8);
  }
}

// Q4_0, Q4_1, Q5_0 and Q5_1: a scale, and if LEAST a least value, of every group.
template <int BITS, bool LEAST>
struct Plain : Steps<BITS> {
  static constexpr int GROUPS = 1, PARTS = 1, HEAD = LEAST ? 4 * OUTS : 2 * OUTS, SCALES = 0;
  static constexpr int ZERO = LEAST ? 0 : 1 << (BITS - 1);
  static constexpr int FILE_BYTES = (LEAST ? 4 : 2) + BITS * GROUP / 8;
  static constexpr bool HAS_LEAST = LEAST, SIGNED = false;

  static Floats scale(const uint8_t* head, const uint8_t*, int) { return from_float16(head); }
  static Floats least(const uint8_t* head, const uint8_t*) {
    return from_float16(head + 2 * OUTS);
  }
  static void put_head(const uint8_t* from, uint8_t* to, int output) {
    put_two(from, to, output);
    if (LEAST) put_two(from + 2, to + 2 * OUTS, output);
  }
  static void put_scales(const uint8_t*, int, uint8_t*, int) {}
  static void steps_of(const uint8_t* from, int, uint8_t* steps) {
    from += LEAST ? 4 : 2;
    unpack_halves(from + (BITS == 5 ? 4 : 0), steps);
    if constexpr (BITS == 5) add_fifths(from, steps);
  }
};

using Q4_0 = Plain<4, false>;
using Q4_1 = Plain<4, true>;
using Q5_0 = Plain<5, false>;
using Q5_1 = Plain<5, true>;

struct Q8_0 : Steps<8> {
  static constexpr int GROUPS = 1, PARTS = 1, HEAD = 2 * OUTS, SCALES = 0, ZERO = 0;
  static constexpr int FILE_BYTES = 2 + GROUP;
  static constexpr bool HAS_LEAST = false, SIGNED = true;

  static Floats scale(const uint8_t* head, const uint8_t*, int) { return from_float16(head); }
  static void put_head(const uint8_t* from, uint8_t* to, int output) { put_two(from, to, output); }
  static void put_scales(const uint8_t*, int, uint8_t*, int) {}
  static void steps_of(const uint8_t* from, int, uint8_t* steps) {
    std::memcpy(steps, from + 2, GROUP);
  }
  static int8_t number(uint8_t step) { return (int8_t)step; }
};

// Sixteen values that are not evenly spaced.
struct IQ4_NL : Plain<4, false> {
  static constexpr int ZERO = 0;
  static constexpr bool SIGNED = true;
  static constexpr int8_t TABLE[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                       1,    13,   25,  38,  53,  69,  89,  113};

  static Words line(const uint8_t* from, int i) {
    return looked_up(Steps<4>::line(from, i), TABLE);
  }
  static int8_t number(uint8_t step) { return TABLE[step]; }
};

// The numbers of four bits of the OCP Microscaling Formats, twice as large, with a power of two.
struct MXFP4 : Plain<4, false> {
  static constexpr int ZERO = 0, FILE_BYTES = 1 + GROUP / 2;
  static constexpr bool SIGNED = true;
  static constexpr int8_t TABLE[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                       0, -1, -2, -3, -4, -6, -8, -12};

  static Floats scale(const uint8_t* head, const uint8_t*, int) {
    return floats((const uint16_t*)head);
  }
  // 2^(exponent - 128) as bfloat16
  static void put_head(const uint8_t* from, uint8_t* to, int output) {
    const uint16_t scale = *from > 1 ? (*from - 1) << 7 : 32 << *from;
    std::memcpy(to + 2 * output, &scale, sizeof scale);
  }
  static void steps_of(const uint8_t* from, int, uint8_t* steps) { unpack_halves(from + 1, steps); }
  static Words line(const uint8_t* from, int i) {
    return looked_up(Steps<4>::line(from, i), TABLE);
  }
  static int8_t number(uint8_t step) { return TABLE[step]; }
};

// Q4_K and Q5_K: of 256 inputs a scale and a least one, each times six bits of every group.
template <int BITS>
struct Nested : Steps<BITS> {
  static constexpr int GROUPS = 8, PARTS = 1, HEAD = 4 * OUTS, SCALES = 2 * OUTS, ZERO = 0;
  static constexpr int FILE_BYTES = 16 + BITS * GROUP;
  static constexpr bool HAS_LEAST = true, SIGNED = false;

  static Floats scale(const uint8_t* head, const uint8_t* scales, int) {
    return from_float16(head) * from_bytes(scales);
  }
  static Floats least(const uint8_t* head, const uint8_t* scales) {
    return all(0) - from_float16(head + 2 * OUTS) * from_bytes(scales + OUTS);
  }
  static void put_head(const uint8_t* from, uint8_t* to, int output) {
    put_two(from, to, output);
    put_two(from + 2, to + 2 * OUTS, output);
  }
  static void put_scales(const uint8_t* from, int group, uint8_t* to, int output) {
    const uint8_t* six = from + 4;  // 12 bytes of eight scales and eight least values
    const int i = group % 4;
    const bool first = group < 4;
    to[output] = first ? six[i] & 63 : (six[8 + i] & 15) | (six[i] >> 6) << 4;
    to[OUTS + output] = first ? six[4 + i] & 63 : six[8 + i] >> 4 | (six[4 + i] >> 6) << 4;
  }
  static void steps_of(const uint8_t* from, int group, uint8_t* steps) {
    const uint8_t* low = from + 16 + (BITS == 5 ? GROUP : 0) + GROUP * (group / 2);
    take_bits(low, GROUP, 4 * (group % 2), 15, 0, steps);
    if constexpr (BITS == 5) take_bits(from + 16, GROUP, group, 1, 4, steps, true);
  }
};

using Q4_K = Nested<4>;
using Q5_K = Nested<5>;

struct Q6_K : Steps<6> {
  static constexpr int GROUPS = 8, PARTS = 2, HEAD = 2 * OUTS, SCALES = 2 * OUTS, ZERO = 32;
  static constexpr int FILE_BYTES = 210;
  static constexpr bool HAS_LEAST = false, SIGNED = false;

  static Floats scale(const uint8_t* head, const uint8_t* scales, int part) {
    return from_float16(head) * from_bytes((const int8_t*)scales + OUTS * part);
  }
  static void put_head(const uint8_t* from, uint8_t* to, int output) {
    put_two(from + 208, to, output);
  }
  static void put_scales(const uint8_t* from, int group, uint8_t* to, int output) {
    to[output] = from[192 + 2 * group], to[OUTS + output] = from[193 + 2 * group];
  }
  static void steps_of(const uint8_t* from, int group, uint8_t* steps) {
    const int half = group / 4, nth = group % 4;
    const uint8_t *low = from + 64 * half + 32 * (nth % 2), *high = from + 128 + 32 * half;
    take_bits(low, GROUP, 4 * (nth / 2), 15, 0, steps);
    take_bits(high, GROUP, 2 * nth, 3, 4, steps, true);
  }
};

template <typename Kind>
constexpr int64_t OF_GROUP = Kind::SCALES + Kind::BYTES;
template <typename Kind>
constexpr int64_t OF_BLOCK = Kind::HEAD + Kind::GROUPS * OF_GROUP<Kind>;

// work(Kind{}) of the kind with this number in GGUF; whether there is one.
template <typename Work>
bool of_kind(int64_t number, const Work& work) {
  switch (number) {
    case 2: work(Q4_0{}); return true;
    case 3: work(Q4_1{}); return true;
    case 6: work(Q5_0{}); return true;
    case 7: work(Q5_1{}); return true;
    case 8: work(Q8_0{}); return true;
    case 12: work(Q4_K{}); return true;
    case 13: work(Q5_K{}); return true;
    case 14: work(Q6_K{}); return true;
    case 20: work(IQ4_NL{}); return true;
    case 39: work(MXFP4{}); return true;
  }
  return false;
}

// 16 rows of a file, `inputs` each, into blocks.
template <typename Kind>
void lay_out(const uint8_t* from, int64_t inputs, uint8_t* to) {
  const int64_t blocks = inputs / (GROUP * Kind::GROUPS);
  for (int64_t b = 0; b < blocks; ++b, to += OF_BLOCK<Kind>)
    for (int output = 0; output < OUTS; ++output) {
      const uint8_t* own = from + (output * blocks + b) * Kind::FILE_BYTES;
      Kind::put_head(own, to, output);
      for (int g = 0; g < Kind::GROUPS; ++g) {
        uint8_t steps[GROUP], *group = to + Kind::HEAD + g * OF_GROUP<Kind>;
        Kind::put_scales(own, g, group, output);
        Kind::steps_of(own, g, steps);
        Kind::put(steps, group + Kind::SCALES, output);
      }
    }
}

// One output's weights out of its blocks.
template <typename Kind>
void read_row(const uint8_t* from, int64_t inputs, int output, float* to) {
  for (int64_t b = 0; b < inputs / (GROUP * Kind::GROUPS); ++b, from += OF_BLOCK<Kind>)
    for (int g = 0; g < Kind::GROUPS; ++g) {
      const uint8_t* group = from + Kind::HEAD + g * OF_GROUP<Kind>;
      for (int i = 0; i < LINES; ++i) {
        float scales[OUTS], leasts[OUTS] = {};
        lines::put(scales, Kind::scale(from, group, i * Kind::PARTS / LINES));
        if constexpr (Kind::HAS_LEAST) lines::put(leasts, Kind::least(from, group));
        for (int byte = 4 * output; byte < 4 * output + 4; ++byte) {
          const uint8_t step = Kind::step(group + Kind::SCALES, i, byte);
          float number = (float)(int)step - Kind::ZERO;
          if constexpr (Kind::SIGNED) number = Kind::number(step);
          *to = scales[output] * number;
          if constexpr (Kind::HAS_LEAST) *to += leasts[output];
          ++to;
        }
      }
    }
}

}  // namespace file_blocks
