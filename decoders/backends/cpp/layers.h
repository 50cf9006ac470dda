// Some layers of a model for a few tokens of one or several sequences: products, attention, and what
// lies between them, without a call of PyTorch's for each. A token's result has the same bits in any
// company.

#pragma once

#include <ATen/Parallel.h>

#include <vector>

#include "attention.h"
#include "norms.h"
#include "products.h"
#include "tensors.h"

namespace layers {

using namespace lines;
using products::Matrix;

// A layer's tensors, in the order of LayerWeights; optional ones may be undefined.
struct Layer {
  at::Tensor attention_norm, mlp_norm, bias, head_norms;
  Matrix qkv, out, gate_up, down;
};

inline const uint16_t* data(const at::Tensor& of) { return (const uint16_t*)of.const_data_ptr(); }

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

// The heads of a token's queries and keys; of_heads: the norms [2, d] of either,
// or null.
inline void turn_heads(uint16_t* own, const uint16_t* of_heads, const uint16_t* cos,
                       const uint16_t* sin, int64_t heads, int64_t kv, int64_t d, float eps) {
  for (int64_t head = 0; head < heads + kv; ++head, own += d) {
    if (of_heads) norms::norm_row(own, of_heads + (head < heads ? 0 : d), d, eps, own);
    turn(own, cos, sin, d);
  }
}

// gate / (1 + exp(-gate)) * up
inline void gate(const uint16_t* gate_up, int64_t size, uint16_t* to) {
  const Floats one = all(1), by = all(-1.44269504f);
  for (int64_t i = 0; i < size; i += LANES) {
    const Floats g = floats(gate_up + i), share = one + exp2_of(g * by);
    store(to + i, g / share * floats(gate_up + size + i));
  }
}

// What a pass works with.
struct Scratch {
  std::vector<uint16_t> x, qkv, seen, made, wide, narrow;
};

struct Run {
  int64_t rows, hidden, heads, kv, d;
  double eps;
  const uint16_t *cos, *sin;       // [rows, d]
  const int64_t *of_rows, *slots;  // [rows]

  void operator()(const Layer& w, const at::Tensor& room, const int64_t* bits,
                  const attention::Plan& plan, uint16_t* h, Scratch& s) const {
    const int64_t all = heads + 2 * kv, width = w.down.inputs();
    by_rows(rows, hidden, [&](int64_t row) {
      norms::norm_row(h + row * hidden, data(w.attention_norm), hidden, eps,
                      s.x.data() + row * hidden);
    });
    w.qkv.times(s.x.data(), rows, s.qkv.data());
    int8_t* bytes = eight_bits::bytes_of(room);
    auto* cache = bytes ? nullptr : (uint16_t*)room.data_ptr();
    const uint16_t* of_heads = w.head_norms.defined() ? data(w.head_norms) : nullptr;
    by_rows(rows, all * d, [&](int64_t row) {
      uint16_t* own = s.qkv.data() + row * all * d;
      if (w.bias.defined()) add(own, data(w.bias), all * d);
      turn_heads(own, of_heads, cos + row * d, sin + row * d, heads, kv, d, eps);
      const int64_t to = of_rows[row] * room.stride(0) + slots[row] * room.stride(2);
      for (int64_t plane = 0; plane < 2 * kv; ++plane) {
        const uint16_t* from = own + (heads + plane) * d;
        const int64_t at = to + plane * room.stride(1);
        if (bytes)
          eight_bits::encode(from, d, bytes + at);
        else
          std::memcpy(cache + at, from, d * sizeof *from);
      }
    });
    const attention::Pass p{s.qkv.data(), cache,          s.seen.data(),  d, all * d,
                            room.stride(0), room.stride(1), room.stride(2), heads, kv, d, bits,
                            bytes};
    attention::attend(p, plan);
    w.out.times(s.seen.data(), rows, s.made.data());
    by_rows(rows, hidden, [&](int64_t row) {
      add(h + row * hidden, s.made.data() + row * hidden, hidden);
      norms::norm_row(h + row * hidden, data(w.mlp_norm), hidden, eps, s.x.data() + row * hidden);
    });
    w.gate_up.times(s.x.data(), rows, s.wide.data());
    by_rows(rows, 4 * width, [&](int64_t row) {
      gate(s.wide.data() + 2 * row * width, width, s.narrow.data() + row * width);
    });
    w.down.times(s.narrow.data(), rows, s.made.data());
    by_rows(rows, hidden, [&](int64_t row) {
      add(h + row * hidden, s.made.data() + row * hidden, hidden);
    });
  }
};

// h: [N, d]. cos, sin: [N, D], sin's first half negated. rows, slots, begins, bits: int64 [N], as of
// `attend_rows`, and where in its row a token lies. rooms: [L, B, 2 KV, S, D], or in 8 bits. weights:
// `count` of each layer, in the order of LayerWeights, two of a matrix. has_bias: whether one is of q, k and v.
// Gives [N, d].
at::Tensor run_layers(const at::Tensor& h, const at::Tensor& cos, const at::Tensor& sin,
                      const at::Tensor& rows, const at::Tensor& slots, const at::Tensor& begins,
                      const at::Tensor& bits, const at::Tensor& rooms, at::TensorList weights,
                      int64_t count, bool has_bias, double eps) {
  TORCH_CHECK(h.dim() == 2 && h.scalar_type() == at::kBFloat16 && rooms.dim() == 5);
  TORCH_CHECK(cos.dim() == 2);
  const int64_t n = h.size(0), hidden = h.size(1), d = cos.size(1), kv = rooms.size(2) / 2;
  TORCH_CHECK(eight_bits::fits(rooms, d) && rooms.stride(4) == 1 && d % 32 == 0);
  TORCH_CHECK(rooms.size(3) % attention::STEP == 0 && count >= 10 && hidden % LANES == 0);
  TORCH_CHECK((int64_t)weights.size() == count * rooms.size(0));
  for (const at::Tensor& each : {cos, sin})
    TORCH_CHECK(each.scalar_type() == at::kBFloat16 && each.is_contiguous() &&
                each.sizes() == at::IntArrayRef({n, d}));
  attention::check_places({rows, slots, begins, bits}, n);
  at::Tensor made = h.clone(at::MemoryFormat::Contiguous);
  if (!n || weights.empty()) return made;
  for (size_t layer = 0; layer < weights.size(); layer += count)
    for (size_t i : {layer + 1, layer + 3, layer + 6, layer + 8})
      if (weights[i].scalar_type() == at::kByte)
        file_products::check_matrix(weights[i], weights[i + 1]);
  const int64_t heads = Matrix{weights[1], weights[2]}.outputs() / d - 2 * kv;
  const int64_t width = Matrix{weights[8], weights[9]}.inputs();
  TORCH_CHECK(kv > 0 && heads > 0 && heads % kv == 0 && width % LANES == 0);
  const Run run{n, hidden, heads, kv, d, eps, data(cos), data(sin),
                rows.const_data_ptr<int64_t>(), slots.const_data_ptr<int64_t>()};
  for (int64_t i = 0; i < n; ++i)
    TORCH_CHECK(run.slots[i] >= 0 && run.slots[i] < rooms.size(3));
  Scratch s;
  s.x.resize(n * hidden), s.made.resize(n * hidden), s.seen.resize(n * heads * d);
  s.qkv.resize(n * (heads + 2 * kv) * d), s.wide.resize(2 * n * width), s.narrow.resize(n * width);
  const int64_t* of_bits = bits.const_data_ptr<int64_t>();
  const attention::Pass like{nullptr, nullptr, nullptr, 0, 0, 0, 0, 0, heads, kv, d, of_bits};
  const attention::Plan plan(like, run.of_rows, begins.const_data_ptr<int64_t>(), n, rooms.size(1),
                             rooms.size(3));
  for (int64_t layer = 0; layer < rooms.size(0); ++layer) {
    const auto w = weights.slice(layer * count, count);
    Layer one{w[0], w[5], {}, {}, {w[1], w[2]}, {w[3], w[4]}, {w[6], w[7]}, {w[8], w[9]}};
    if (has_bias) one.bias = w[10];
    if (count > 10 + has_bias) one.head_norms = w[10 + has_bias];
    run(one, rooms.select(0, layer), of_bits, plan, (uint16_t*)made.data_ptr(), s);
  }
  return made;
}

// The parts of a layer for passes in which the products are another's.

void check_rows(std::initializer_list<at::Tensor> all) {
  for (const at::Tensor& each : all)
    TORCH_CHECK(each.dim() == 2 && each.scalar_type() == at::kBFloat16 && each.is_contiguous() &&
                each.size(1) % LANES == 0);
}

// In place, qkv [N, (H + 2 KV) * D]; head_norms [2, D]; cos and sin as of `run_layers`.
void turn_rows(const at::Tensor& qkv, const std::optional<at::Tensor>& head_norms,
               const at::Tensor& cos, const at::Tensor& sin, int64_t heads, int64_t kv,
               double eps) {
  check_rows({qkv, cos, sin});
  const int64_t d = cos.size(1), all = (heads + 2 * kv) * d;
  TORCH_CHECK(qkv.size(1) == all && cos.size(0) == qkv.size(0) && d % (2 * LANES) == 0);
  TORCH_CHECK(sin.sizes() == cos.sizes());
  if (head_norms) TORCH_CHECK(head_norms->sizes() == at::IntArrayRef({2, d}));
  const uint16_t* of_heads = head_norms ? data(*head_norms) : nullptr;
  auto* own = (uint16_t*)qkv.data_ptr();
  by_rows(qkv.size(0), all, [&](int64_t row) {
    turn_heads(own + row * all, of_heads, data(cos) + row * d, data(sin) + row * d, heads, kv, d,
               eps);
  });
}

// h + a [N, d], and the same normed.
std::tuple<at::Tensor, at::Tensor> add_norm_rows(const at::Tensor& h, const at::Tensor& a,
                                                 const at::Tensor& weight, double eps) {
  check_rows({h, a});
  const int64_t d = h.size(1);
  TORCH_CHECK(a.sizes() == h.sizes() && weight.numel() == d && weight.is_contiguous());
  at::Tensor made = h.clone(), x = at::empty_like(made);
  auto *to = (uint16_t*)made.data_ptr(), *normed = (uint16_t*)x.data_ptr();
  by_rows(h.size(0), d, [&](int64_t row) {
    add(to + row * d, data(a) + row * d, d);
    norms::norm_row(to + row * d, data(weight), d, eps, normed + row * d);
  });
  return {made, x};
}

// [N, 2 f] -> [N, f]
at::Tensor gate_rows(const at::Tensor& gate_up) {
  check_rows({gate_up});
  const int64_t width = gate_up.size(1) / 2;
  TORCH_CHECK(width % LANES == 0);
  at::Tensor made = at::empty({gate_up.size(0), width}, gate_up.options());
  by_rows(made.size(0), 4 * width, [&](int64_t row) {
    gate(data(gate_up) + 2 * row * width, width, (uint16_t*)made.data_ptr() + row * width);
  });
  return made;
}

}  // namespace layers
