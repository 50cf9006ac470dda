// What attention.h and its products share.

#pragma once

#include "lines.h"

namespace attention {

using namespace lines;

constexpr int64_t STEP = 32;  // keys of a product with values

struct alignas(64) Line {
  uint32_t words[LANES];
};

inline float* floats_of(Line* at) { return (float*)at; }

}  // namespace attention
