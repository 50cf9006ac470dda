// what attention.h and its products share.

#pragma once

#include "lines.h"

namespace attention {

using lines::exp2_of;
using lines::rounded;
using lines::store;

constexpr int64_t LANES = 16;  // queries of a vector
constexpr int64_t STEP = 32;   // keys of a product with values

struct alignas(64) Line {
  uint32_t words[LANES];
};

inline float* floats_of(Line* at) { return (float*)at; }

}  // namespace attention
