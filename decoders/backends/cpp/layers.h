// Some layers of a model for a few tokens of one or several sequences: products, attention, and what
// lies between them, without a call of PyTorch's for each. A token's result has the same bits in any
// company.

#pragma once

#include <vector>

#include "attention.h"
#include "experts.h"
#include "products.h"

namespace layers {

using namespace lines;
using products::Matrix;

constexpr int64_t TENSORS = 20;  // of a layer, in the order of LayerWeights, two of a matrix

struct Layer {
  const uint16_t *attention_norm, *mlp_norm, *bias, *head_norms, *attention_out_norm, *mlp_out_norm;
  const uint16_t *out_bias, *sinks;
  Matrix qkv, out, gate_up, down;
  bool norms_at_once;  // of all heads
  std::optional<Experts> experts;

  Layer(Tensors w, int64_t taken, bool whole)
      : attention_norm(data(w[0])), mlp_norm(data(w[5])), bias(data(w[10])),
        head_norms(data(w[11])), attention_out_norm(data(w[12])), mlp_out_norm(data(w[13])),
        out_bias(data(w[15])), sinks(data(w[16])),
        qkv{w[1], w[2]}, out{w[3], w[4]}, gate_up{w[6], w[7]}, down{w[8], w[9]},
        norms_at_once(w[11].dim() == 1) {
    if (w[14].numel())
      experts = experts_of(w[14], w[6], w[7], w[8], w[9], taken, whole, w.slice(17, 3));
  }

  int64_t width() const { return experts ? 0 : down.inputs(); }
};

// What a pass works with.
struct Scratch {
  std::vector<uint16_t> x, qkv, seen, made, wide, narrow;
};

struct Run {
  int64_t rows, hidden, heads, kv, d;
  double eps;
  float scale, cap;
  Activation how;
  const int64_t *of_rows, *slots, *bits;  // [rows]
  int64_t of_row, of_plane, of_position;  // strides of a layer's room

  // h and what is made of it, normed where there are weights, as what is read next.
  void read(const uint16_t* h, const uint16_t* weight, Scratch& s) const {
    by_rows(rows, hidden, [&](int64_t row) {
      uint16_t* x = s.x.data() + row * hidden;
      if (weight)
        norms::norm_row(h + row * hidden, weight, hidden, eps, x);
      else
        std::memcpy(x, h + row * hidden, hidden * sizeof *x);
    });
  }

  // What was made, with its bias and normed where there are weights, added to h; and h as `read`
  // gives it.
  void add_made(uint16_t* h, const uint16_t* bias, const uint16_t* out_norm,
                const uint16_t* weight, bool last, Scratch& s) const {
    by_rows(rows, hidden, [&](int64_t row) {
      uint16_t *made = s.made.data() + row * hidden, *own = h + row * hidden;
      if (bias) add(made, bias, hidden);
      if (out_norm) norms::norm_row(made, out_norm, hidden, eps, made);
      add(own, made, hidden);
      uint16_t* x = s.x.data() + row * hidden;
      if (weight)
        norms::norm_row(own, weight, hidden, eps, x);
      else if (!last)
        std::memcpy(x, own, hidden * sizeof *x);
    });
  }

  // cache: the layer's room, or nothing where it is in 8 bits, at `bytes`. cos, sin: [rows, d].
  // lows: as of Pass.
  void operator()(const Layer& w, uint16_t* cache, int8_t* bytes, const uint16_t* cos,
                  const uint16_t* sin, const int64_t* lows, const attention::Plan& plan,
                  uint16_t* h, Scratch& s) const {
    const int64_t all = heads + 2 * kv, width = w.width();
    read(h, w.attention_norm, s);
    w.qkv.times(s.x.data(), rows, s.qkv.data());
    by_rows(rows, all * d, [&](int64_t row) {
      uint16_t* own = s.qkv.data() + row * all * d;
      if (w.bias) add(own, w.bias, all * d);
      turn_heads(own, w.head_norms, w.norms_at_once, cos + row * d, sin + row * d, heads, kv, d,
                 eps);
      const int64_t to = of_rows[row] * of_row + slots[row] * of_position;
      for (int64_t plane = 0; plane < 2 * kv; ++plane) {
        const uint16_t* from = own + (heads + plane) * d;
        const int64_t at = to + plane * of_plane;
        if (bytes)
          eight_bits::encode(from, d, bytes + at);
        else
          std::memcpy(cache + at, from, d * sizeof *from);
      }
    });
    const attention::Pass p{s.qkv.data(), cache, s.seen.data(), d, all * d, of_row, of_plane,
                            of_position, heads, kv, d, scale, cap, bits, bytes, lows, w.sinks};
    attention::attend(p, plan);
    w.out.times(s.seen.data(), rows, s.made.data());
    add_made(h, w.out_bias, w.attention_out_norm, w.mlp_norm, false, s);
    if (w.experts) {
      w.experts->answer(s.x.data(), rows, hidden, how, s.made.data());
    } else {
      w.gate_up.times(s.x.data(), rows, s.wide.data());
      by_rows(rows, 4 * width, [&](int64_t row) {
        gate(s.wide.data() + 2 * row * width, width, how, s.narrow.data() + row * width);
      });
      w.down.times(s.narrow.data(), rows, s.made.data());
    }
    add_made(h, nullptr, w.mlp_out_norm, nullptr, true, s);
  }
};

// h: [N, d]. cos, sin: [K, N, D] of every kind of layer, sin's first half negated. rows, slots,
// begins, bits: int64 [N], as of `attend_rows`, and where in its row a token lies. lows: int64
// [K, N], likewise. rooms: [L, B, 2 KV, S, D], or in 8 bits. weights: TENSORS of each layer. kinds:
// of every layer. scale, cap: of scores. how: an Activation. taken, whole: as of Experts. Gives
// [N, d].
Tensor run_layers(const Tensor& h, const Tensor& cos, const Tensor& sin,
                  const Tensor& rows, const Tensor& slots, const Tensor& begins,
                  const Tensor& bits, const Tensor& lows, const Tensor& rooms,
                  Tensors weights, Sizes kinds, double eps, double scale,
                  double cap, int64_t how, int64_t taken, bool whole) {
  CHECK(h.dim() == 2 && h.scalar_type() == kBFloat16 && rooms.dim() == 5);
  CHECK(cos.dim() == 3 && how >= SILU && how <= CLAMPED);
  const int64_t n = h.size(0), hidden = h.size(1), of_kinds = cos.size(0), d = cos.size(2);
  const int64_t kv = rooms.size(2) / 2, count = TENSORS;
  CHECK(eight_bits::fits(rooms, d) && rooms.stride(4) == 1 && d % 32 == 0);
  CHECK(rooms.size(3) % attention::STEP == 0 && hidden % LANES == 0);
  CHECK((int64_t)weights.size() == count * rooms.size(0));
  CHECK((int64_t)kinds.size() == rooms.size(0));
  for (const Tensor& each : {cos, sin})
    CHECK(each.scalar_type() == kBFloat16 && each.is_contiguous() &&
          each.sizes() == Sizes({of_kinds, n, d}));
  attention::check_places({rows, slots, begins, bits}, n);
  CHECK(lows.sizes() == Sizes({of_kinds, n}));
  attention::check_lows(lows, begins);
  Tensor made = copied(h);
  if (!n || weights.empty()) return made;
  for (size_t layer = 0; layer < weights.size(); layer += count)
    for (size_t i : {layer + 1, layer + 3, layer + 6, layer + 8})
      if (weights[i].scalar_type() == kByte)
        file_products::check_matrix(weights[i], weights[i + 1]);
  const int64_t heads = Matrix{weights[1], weights[2]}.outputs() / d - 2 * kv;
  const int64_t width = weights[14].numel() ? 0 : Matrix{weights[8], weights[9]}.inputs();
  CHECK(kv > 0 && heads > 0 && heads % kv == 0 && width % LANES == 0);
  const int64_t* of_bits = bits.const_data_ptr<int64_t>();
  const Run run{n, hidden, heads, kv, d, eps, (float)scale, (float)cap, (Activation)how,
                rows.const_data_ptr<int64_t>(), slots.const_data_ptr<int64_t>(), of_bits,
                rooms.stride(1), rooms.stride(2), rooms.stride(3)};
  for (int64_t i = 0; i < n; ++i)
    CHECK(run.slots[i] >= 0 && run.slots[i] < rooms.size(3));
  Scratch s;
  s.x.resize(n * hidden), s.made.resize(n * hidden), s.seen.resize(n * heads * d);
  s.qkv.resize(n * (heads + 2 * kv) * d), s.wide.resize(2 * n * width), s.narrow.resize(n * width);
  attention::Pass like{nullptr, nullptr, nullptr, 0, 0, 0, 0, 0, heads, kv, d, 0, 0, of_bits};
  std::vector<attention::Plan> plans;  // of every kind
  for (int64_t kind = 0; kind < of_kinds; ++kind) {
    like.lows = lows.const_data_ptr<int64_t>() + kind * n;
    plans.emplace_back(like, run.of_rows, begins.const_data_ptr<int64_t>(), n, rooms.size(1),
                       rooms.size(3));
  }
  int8_t* bytes = eight_bits::bytes_of(rooms);
  auto* cache = bytes ? nullptr : (uint16_t*)rooms.data_ptr();
  for (int64_t layer = 0; layer < rooms.size(0); ++layer) {
    const Layer one(weights.slice(layer * count, count), taken, whole);
    const int64_t of_kind = kinds[layer] * n;
    CHECK(of_kind >= 0 && kinds[layer] < of_kinds && one.width() <= width);
    for (size_t i : {0, 5, 12, 13, 15}) {
      const int64_t size = weights[layer * count + i].numel();
      CHECK(!size || size == hidden);
    }
    const Tensor& norms = weights[layer * count + 11];
    CHECK(!norms.numel() || norms.numel() == (norms.dim() == 1 ? (heads + kv) * d : 2 * d));
    CHECK(!one.sinks || weights[layer * count + 16].numel() == heads);
    CHECK(!one.experts || weights[layer * count + 14].size(1) == hidden);
    const int64_t at = layer * rooms.stride(0);
    run(one, bytes ? nullptr : cache + at, bytes ? bytes + at : nullptr, data(cos) + of_kind * d,
        data(sin) + of_kind * d, lows.const_data_ptr<int64_t>() + of_kind, plans[kinds[layer]],
        (uint16_t*)made.data_ptr(), s);
  }
  return made;
}

// The parts of a layer for passes in which the products are another's.

void check_rows(std::initializer_list<Tensor> all) {
  for (const Tensor& each : all)
    CHECK(each.dim() == 2 && each.scalar_type() == kBFloat16 && each.is_contiguous() &&
          each.size(1) % LANES == 0);
}

// In place, qkv [N, (H + 2 KV) * D]; head_norms [2, D] or [(H + KV) * D]; cos and sin [N, D].
void turn_rows(const Tensor& qkv, const std::optional<Tensor>& head_norms,
               const Tensor& cos, const Tensor& sin, int64_t heads, int64_t kv,
               double eps) {
  check_rows({qkv, cos, sin});
  const int64_t d = cos.size(1), all = (heads + 2 * kv) * d;
  CHECK(qkv.size(1) == all && cos.size(0) == qkv.size(0) && d % (2 * LANES) == 0);
  CHECK(sin.sizes() == cos.sizes());
  const bool at_once = head_norms && head_norms->dim() == 1;
  if (head_norms) CHECK(head_norms->numel() == (at_once ? (heads + kv) * d : 2 * d));
  const uint16_t* of_heads = head_norms ? data(*head_norms) : nullptr;
  auto* own = (uint16_t*)qkv.data_ptr();
  by_rows(qkv.size(0), all, [&](int64_t row) {
    turn_heads(own + row * all, of_heads, at_once, data(cos) + row * d, data(sin) + row * d, heads,
               kv, d, eps);
  });
}

// h + a [N, d], and the same normed.
std::tuple<Tensor, Tensor> add_norm_rows(const Tensor& h, const Tensor& a,
                                         const Tensor& weight, double eps) {
  check_rows({h, a});
  const int64_t d = h.size(1);
  CHECK(a.sizes() == h.sizes() && weight.numel() == d && weight.is_contiguous());
  Tensor made = copied(h), x = empty(h.sizes(), kBFloat16);
  auto *to = (uint16_t*)made.data_ptr(), *normed = (uint16_t*)x.data_ptr();
  by_rows(h.size(0), d, [&](int64_t row) {
    add(to + row * d, data(a) + row * d, d);
    norms::norm_row(to + row * d, data(weight), d, eps, normed + row * d);
  });
  return {made, x};
}

// [N, 2 f] -> [N, f]
Tensor gate_rows(const Tensor& gate_up, int64_t how) {
  check_rows({gate_up});
  CHECK(how >= SILU && how <= CLAMPED);
  const int64_t width = gate_up.size(1) / 2;
  CHECK(width % LANES == 0);
  Tensor made = empty({gate_up.size(0), width}, kBFloat16);
  by_rows(made.size(0), 4 * width, [&](int64_t row) {
    gate(data(gate_up) + 2 * row * width, width, (Activation)how,
         (uint16_t*)made.data_ptr() + row * width);
  });
  return made;
}

}  // namespace layers
