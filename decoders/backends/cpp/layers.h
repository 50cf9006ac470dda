// Some layers of a model for a few tokens of one or several sequences: products, attention, and what
// lies between them, without a call of PyTorch's for each. A token's result has the same bits in any
// company.

#pragma once

#include <ATen/Parallel.h>

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

  Layer(at::TensorList w, int64_t taken, bool whole)
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

  // cos, sin: [rows, d]. lows: as of Pass.
  void operator()(const Layer& w, const at::Tensor& room, const uint16_t* cos, const uint16_t* sin,
                  const int64_t* lows, const attention::Plan& plan, uint16_t* h,
                  Scratch& s) const {
    const int64_t all = heads + 2 * kv, width = w.width();
    read(h, w.attention_norm, s);
    w.qkv.times(s.x.data(), rows, s.qkv.data());
    int8_t* bytes = eight_bits::bytes_of(room);
    auto* cache = bytes ? nullptr : (uint16_t*)room.data_ptr();
    by_rows(rows, all * d, [&](int64_t row) {
      uint16_t* own = s.qkv.data() + row * all * d;
      if (w.bias) add(own, w.bias, all * d);
      turn_heads(own, w.head_norms, w.norms_at_once, cos + row * d, sin + row * d, heads, kv, d,
                 eps);
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
                            room.stride(0), room.stride(1), room.stride(2), heads, kv, d, scale,
                            cap, bits, bytes, lows, w.sinks};
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
at::Tensor run_layers(const at::Tensor& h, const at::Tensor& cos, const at::Tensor& sin,
                      const at::Tensor& rows, const at::Tensor& slots, const at::Tensor& begins,
                      const at::Tensor& bits, const at::Tensor& lows, const at::Tensor& rooms,
                      at::TensorList weights, at::IntArrayRef kinds, double eps, double scale,
                      double cap, int64_t how, int64_t taken, bool whole) {
  TORCH_CHECK(h.dim() == 2 && h.scalar_type() == at::kBFloat16 && rooms.dim() == 5);
  TORCH_CHECK(cos.dim() == 3 && how >= SILU && how <= CLAMPED);
  const int64_t n = h.size(0), hidden = h.size(1), of_kinds = cos.size(0), d = cos.size(2);
  const int64_t kv = rooms.size(2) / 2, count = TENSORS;
  TORCH_CHECK(eight_bits::fits(rooms, d) && rooms.stride(4) == 1 && d % 32 == 0);
  TORCH_CHECK(rooms.size(3) % attention::STEP == 0 && hidden % LANES == 0);
  TORCH_CHECK((int64_t)weights.size() == count * rooms.size(0));
  TORCH_CHECK((int64_t)kinds.size() == rooms.size(0));
  for (const at::Tensor& each : {cos, sin})
    TORCH_CHECK(each.scalar_type() == at::kBFloat16 && each.is_contiguous() &&
                each.sizes() == at::IntArrayRef({of_kinds, n, d}));
  attention::check_places({rows, slots, begins, bits}, n);
  TORCH_CHECK(lows.sizes() == at::IntArrayRef({of_kinds, n}) && lows.is_contiguous());
  for (int64_t kind = 0; kind < of_kinds; ++kind) attention::check_lows(lows[kind], begins);
  at::Tensor made = h.clone(at::MemoryFormat::Contiguous);
  if (!n || weights.empty()) return made;
  for (size_t layer = 0; layer < weights.size(); layer += count)
    for (size_t i : {layer + 1, layer + 3, layer + 6, layer + 8})
      if (weights[i].scalar_type() == at::kByte)
        file_products::check_matrix(weights[i], weights[i + 1]);
  const int64_t heads = Matrix{weights[1], weights[2]}.outputs() / d - 2 * kv;
  const int64_t width = weights[14].numel() ? 0 : Matrix{weights[8], weights[9]}.inputs();
  TORCH_CHECK(kv > 0 && heads > 0 && heads % kv == 0 && width % LANES == 0);
  const int64_t* of_bits = bits.const_data_ptr<int64_t>();
  const Run run{n, hidden, heads, kv, d, eps, (float)scale, (float)cap, (Activation)how,
                rows.const_data_ptr<int64_t>(), slots.const_data_ptr<int64_t>(), of_bits};
  for (int64_t i = 0; i < n; ++i)
    TORCH_CHECK(run.slots[i] >= 0 && run.slots[i] < rooms.size(3));
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
  for (int64_t layer = 0; layer < rooms.size(0); ++layer) {
    const Layer one(weights.slice(layer * count, count), taken, whole);
    const int64_t of_kind = kinds[layer] * n;
    TORCH_CHECK(of_kind >= 0 && kinds[layer] < of_kinds && one.width() <= width);
    for (size_t i : {0, 5, 12, 13, 15}) {
      const int64_t size = weights[layer * count + i].numel();
      TORCH_CHECK(!size || size == hidden);
    }
    const at::Tensor& norms = weights[layer * count + 11];
    TORCH_CHECK(!norms.numel() || norms.numel() == (norms.dim() == 1 ? (heads + kv) * d : 2 * d));
    TORCH_CHECK(!one.sinks || weights[layer * count + 16].numel() == heads);
    TORCH_CHECK(!one.experts || weights[layer * count + 14].size(1) == hidden);
    run(one, rooms.select(0, layer), data(cos) + of_kind * d, data(sin) + of_kind * d,
        lows.const_data_ptr<int64_t>() + of_kind, plans[kinds[layer]], (uint16_t*)made.data_ptr(), s);
  }
  return made;
}

// The parts of a layer for passes in which the products are another's.

void check_rows(std::initializer_list<at::Tensor> all) {
  for (const at::Tensor& each : all)
    TORCH_CHECK(each.dim() == 2 && each.scalar_type() == at::kBFloat16 && each.is_contiguous() &&
                each.size(1) % LANES == 0);
}

// In place, qkv [N, (H + 2 KV) * D]; head_norms [2, D] or [(H + KV) * D]; cos and sin [N, D].
void turn_rows(const at::Tensor& qkv, const std::optional<at::Tensor>& head_norms,
               const at::Tensor& cos, const at::Tensor& sin, int64_t heads, int64_t kv,
               double eps) {
  check_rows({qkv, cos, sin});
  const int64_t d = cos.size(1), all = (heads + 2 * kv) * d;
  TORCH_CHECK(qkv.size(1) == all && cos.size(0) == qkv.size(0) && d % (2 * LANES) == 0);
  TORCH_CHECK(sin.sizes() == cos.sizes());
  const bool at_once = head_norms && head_norms->dim() == 1;
  if (head_norms) TORCH_CHECK(head_norms->numel() == (at_once ? (heads + kv) * d : 2 * d));
  const uint16_t* of_heads = head_norms ? data(*head_norms) : nullptr;
  auto* own = (uint16_t*)qkv.data_ptr();
  by_rows(qkv.size(0), all, [&](int64_t row) {
    turn_heads(own + row * all, of_heads, at_once, data(cos) + row * d, data(sin) + row * d, heads,
               kv, d, eps);
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
at::Tensor gate_rows(const at::Tensor& gate_up, int64_t how) {
  check_rows({gate_up});
  TORCH_CHECK(how >= SILU && how <= CLAMPED);
  const int64_t width = gate_up.size(1) / 2;
  TORCH_CHECK(width % LANES == 0);
  at::Tensor made = at::empty({gate_up.size(0), width}, gate_up.options());
  by_rows(made.size(0), 4 * width, [&](int64_t row) {
    gate(data(gate_up) + 2 * row * width, width, (Activation)how,
         (uint16_t*)made.data_ptr() + row * width);
  });
  return made;
}

}  // namespace layers
