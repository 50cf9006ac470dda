// Sixteen numbers at once, by the widest vectors that there are. `Floats` and what can be done with
// them is in the header of each set of instructions; the rest is here.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "tensors.h"

#if defined(__AVX512F__)
#include "lines_avx512.h"
#elif defined(__AVX2__)
#include "lines_avx2.h"
#else
#include "lines_neon.h"
#endif

namespace lines {

constexpr int64_t LANES = 16;
constexpr int HELD = REGISTERS / OF_FLOATS;  // Floats that fit the registers

inline float as_float(uint32_t bits) {
  float made;
  std::memcpy(&made, &bits, sizeof made);
  return made;
}

inline float number_of(uint16_t half) { return as_float(uint32_t{half} << 16); }

inline Floats floats(const void* halves) { return floats(load_halves(halves)); }

inline void store(void* to, Floats values) { put_halves(to, rounded(values)); }

// 2 ** x, to 2e-6 of it; 0 where that would not be a normal number.
inline Floats exp2_of(Floats x) {
  x = within(x);
  const Floats whole = nearest(x), f = x - whole;
  Floats p = all(1.3333558e-3f);
  p = fma(p, f, all(9.6181291e-3f));
  p = fma(p, f, all(5.5504109e-2f));
  p = fma(p, f, all(2.4022651e-1f));
  p = fma(p, f, all(6.9314718e-1f));
  p = fma(p, f, all(1.0f));
  return scaled(p, whole);
}

constexpr int64_t GRAIN = 8192;  // numbers that are worth a thread

// work(row) for rows of this many numbers.
template <typename Work>
void by_rows(int64_t rows, int64_t size, const Work& work) {
  parallel_for(0, rows, std::max<int64_t>(1, GRAIN / size), [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) work(row);
  });
}

}  // namespace lines
