// What lies between a layer's products, a row at a time.

#pragma once

#include "norms.h"
#include "tensors.h"

namespace layers {

using namespace lines;

// Null for what a layer lacks, which is a tensor of nothing.
inline const uint16_t* data(const Tensor& of) {
  return of.numel() ? (const uint16_t*)of.const_data_ptr() : nullptr;
}

inline void add(uint16_t* to, const uint16_t* more, int64_t size) {
  for (int64_t i = 0; i < size; i += LANES)
    store(to + i, floats(to + i) + floats(more + i));
}

// A head's halves a, b turned: a cos - b sin, b cos + a sin. sin: the first half negated.
inline void turn(uint16_t* head, const uint16_t* cos, const uint16_t* sin, int64_t d) {
  const int64_t half = d / 2;
  for (int64_t i = 0; i < half; i += LANES) {
    const Floats a = floats(head + i), b = floats(head + half + i);
    store(head + i, fma(b, floats(sin + i), a * floats(cos + i)));
    store(head + half + i, fma(a, floats(sin + half + i), b * floats(cos + half + i)));
  }
}

// The heads of a token's queries and keys; of_heads: the norms [2, d] of either, or of all at once
// [(heads + kv) * d], or null.
inline void turn_heads(uint16_t* own, const uint16_t* of_heads, bool at_once, const uint16_t* cos,
                       const uint16_t* sin, int64_t heads, int64_t kv, int64_t d, float eps) {
  if (at_once && of_heads) {
    norms::norm_row(own, of_heads, heads * d, eps, own);
    norms::norm_row(own + heads * d, of_heads + heads * d, kv * d, eps, own + heads * d);
  }
  for (int64_t head = 0; head < heads + kv; ++head, own += d) {
    if (of_heads && !at_once) norms::norm_row(own, of_heads + (head < heads ? 0 : d), d, eps, own);
    turn(own, cos, sin, d);
  }
}

// In the order of ACTIVATIONS (layers.py).
enum Activation : int64_t { SILU, GELU, CLAMPED };

inline Floats at_most(Floats x, float limit) { return all(0) - larger(all(0) - x, all(-limit)); }

// gate / (1 + exp(-gate)) * up; or of GELU, where the exponent is twice that of its hyperbolic
// tangent (Hendrycks and Gimpel, Gaussian Error Linear Units, section 2); or of both clamped, where
// it is 1.702 times as large, and 1 is added to up.
inline void gate(const uint16_t* gate_up, int64_t size, Activation how, uint16_t* to) {
  constexpr float EXPONENTS[] = {-1.44269504f, -2.30220819f, -2.45546696f}, LIMIT = 7;
  const Floats one = all(1), by = all(EXPONENTS[how]), cube = all(0.044715f);
  for (int64_t i = 0; i < size; i += LANES) {
    Floats g = floats(gate_up + i), up = floats(gate_up + size + i);
    if (how == CLAMPED) {
      g = at_most(g, LIMIT);
      up = one + at_most(larger(up, all(-LIMIT)), LIMIT);
    }
    const Floats of = how == GELU ? fma(g * g * g, cube, g) : g;
    const Floats share = one + exp2_of(of * by);
    store(to + i, g / share * up);
  }
}

}  // namespace layers
