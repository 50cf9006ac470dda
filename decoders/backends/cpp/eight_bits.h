// Keys and values in 8 bits: of each head D whole numbers, then the step of each 32 in bfloat16
// (llama/eight_bits.py).

#pragma once

#include <cmath>
#include <cstring>

#include "lines.h"
#include "tensors.h"

namespace eight_bits {

using namespace lines;

constexpr int64_t GROUP = 32;
constexpr float MOST = 127;

inline int64_t width(int64_t d) { return d + d / GROUP * 2; }

// Whether a room, whose last size is of a head of d numbers, is of bfloat16 or in 8 bits.
inline bool fits(const Tensor& room, int64_t d) {
  const bool eight = room.scalar_type() == kChar;
  if (!eight && room.scalar_type() != kBFloat16) return false;
  return room.size(-1) == (eight ? width(d) : d);
}

inline int8_t* bytes_of(const Tensor& room) {
  return room.scalar_type() == kChar ? (int8_t*)room.data_ptr() : nullptr;
}

inline float step_of(const int8_t* from, int64_t d, int64_t group) {
  uint16_t bits;
  std::memcpy(&bits, from + d + 2 * group, sizeof bits);
  return c10::BFloat16(bits, c10::BFloat16::from_bits());
}

// `count` heads' numbers, each `of_position` bytes after the one before, to [count, d].
inline void decode(const int8_t* from, int64_t of_position, int64_t d, int64_t count,
                   uint16_t* to) {
  alignas(64) float numbers[GROUP];
  for (int64_t i = 0; i < count; ++i, from += of_position, to += d)
    for (int64_t group = 0; group < d / GROUP; ++group) {
      const float step = step_of(from, d, group);
      for (int64_t k = 0; k < GROUP; ++k) numbers[k] = step * (float)from[group * GROUP + k];
      store(to + group * GROUP, load(numbers));
      store(to + group * GROUP + LANES, load(numbers + LANES));
    }
}

// One head's numbers [d].
inline void encode(const uint16_t* from, int64_t d, int8_t* to) {
  float numbers[GROUP];
  for (int64_t group = 0; group < d / GROUP; ++group) {
    float top = 0;
    bool none = false;  // some are no numbers
    for (int64_t k = 0; k < GROUP; ++k) {
      numbers[k] = c10::BFloat16(from[group * GROUP + k], c10::BFloat16::from_bits());
      none |= numbers[k] != numbers[k];
      top = std::max(top, std::fabs(numbers[k]));
    }
    const c10::BFloat16 step = none ? NAN : top / MOST;
    const float by = (float)step > 0 ? (float)step : 1.0f;
    for (int64_t k = 0; k < GROUP; ++k) {
      const float whole = std::nearbyint(numbers[k] / by);
      to[group * GROUP + k] = none ? 0 : (int8_t)std::min(std::max(whole, -MOST), MOST);
    }
    std::memcpy(to + d + 2 * group, &step.x, sizeof step.x);
  }
}

}  // namespace eight_bits
