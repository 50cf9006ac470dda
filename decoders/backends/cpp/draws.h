// Tokens drawn from rows of probabilities by inversion, part by part: first which part of a row a
// height falls into, then which token of the part. Sums are in double precision.

#pragma once

#include <ATen/Dispatch.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "lines.h"
#include "tensors.h"

namespace draws {

using namespace lines;

constexpr int64_t PART = 512;  // tokens

template <typename T>
double sum(const T* of, int64_t n) {
  const Doubles none = no_doubles();
  Doubles sums[4] = {none, none, none, none};
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    for (int64_t j = 0; j < 4; ++j) sums[j] = sums[j] + doubles(of + i + 8 * j);
  }
  double rest = 0;
  for (; i < n; ++i) rest += of[i];
  return rest + sum_of((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// The token at whose end the sums first exceed share * total; one that cannot be drawn is never
// taken, but where none can.
template <typename T>
int64_t drawn(const T* probs, int64_t n, double share, std::vector<double>& below) {
  const int64_t parts = (n + PART - 1) / PART;
  double total = 0;
  for (int64_t part = 0; part < parts; ++part) {
    total += sum(probs + part * PART, std::min(PART, n - part * PART));
    below[part] = total;
  }
  if (!(total > 0)) return n - 1;
  const double height = std::min(share * total, std::nextafter(total, 0.0));
  const int64_t part = std::upper_bound(below.begin(), below.begin() + parts, height) - below.begin();
  double at = part ? below[part - 1] : 0.0;
  int64_t last = n - 1;  // that can be drawn, for sums of a part that end below it by rounding
  for (int64_t i = part * PART; i < std::min(n, (part + 1) * PART); ++i) {
    if (!(probs[i] > 0)) continue;
    at += probs[i];
    last = i;
    if (at > height) break;
  }
  return last;
}

// probs [n, N] float or double, need not sum to 1; heights [n] double, from 0 to below 1.
at::Tensor draw_rows(const at::Tensor& probs, const at::Tensor& heights) {
  TORCH_CHECK(probs.dim() == 2 && heights.dim() == 1 && probs.size(0) == heights.size(0));
  TORCH_CHECK(probs.size(1) > 0 && heights.scalar_type() == at::kDouble);
  const at::Tensor rows = probs.contiguous(), shares = heights.contiguous();
  const int64_t n = rows.size(1);
  at::Tensor made = at::empty({rows.size(0)}, rows.options().dtype(at::kLong));
  std::vector<double> below((n + PART - 1) / PART);
  AT_DISPATCH_FLOATING_TYPES(rows.scalar_type(), "draw_rows", [&] {
    for (int64_t row = 0; row < rows.size(0); ++row) {
      made.data_ptr<int64_t>()[row] = drawn(rows.data_ptr<scalar_t>() + row * n, n,
                                            shares.data_ptr<double>()[row], below);
    }
  });
  return made;
}

// exp((numbers - their greatest) / temperature) as shares of their sum, n a multiple of 16.
inline void soften(const uint16_t* numbers, int64_t n, float temperature, float* to) {
  Floats top = floats(numbers);
  for (int64_t i = LANES; i < n; i += LANES) top = larger(top, floats(numbers + i));
  const float by = 1.44269504f / temperature;
  const Floats least = all(-greatest_of(top) * by), none = all(-200);  // 2 to it is 0
  Doubles low = no_doubles(), high = low;
  for (int64_t i = 0; i < n; i += LANES) {
    const Floats height = fma(floats(numbers + i), all(by), least);
    const Floats chance = exp2_of(larger(height, none));
    put(to + i, chance);
    low = low + lower(chance);
    high = high + upper(chance);
  }
  const Floats share = all(1 / sum_of(low + high));
  for (int64_t i = 0; i < n; i += LANES) put(to + i, load(to + i) * share);
}

// logits bfloat16 [n, N], N a multiple of 16 -> float [n, N] probabilities at a temperature.
at::Tensor soften_rows(const at::Tensor& logits, double temperature) {
  TORCH_CHECK(logits.dim() == 2 && logits.scalar_type() == at::kBFloat16);
  TORCH_CHECK(logits.size(1) > 0 && logits.size(1) % LANES == 0 && temperature > 0);
  const at::Tensor rows = logits.contiguous();
  const int64_t n = rows.size(1);
  at::Tensor made = at::empty(rows.sizes(), rows.options().dtype(at::kFloat));
  by_rows(rows.size(0), n, [&](int64_t row) {
    soften((const uint16_t*)rows.const_data_ptr() + row * n, n, temperature,
           made.data_ptr<float>() + row * n);
  });
  return made;
}

}  // namespace draws
