// Layers with several MLPs, of which a token takes the likeliest and adds their answers by their
// shares, in the order of experts (Shazeer et al., Outrageously Large Neural Networks, section 2.1).

#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "file_operations.h"
#include "pointwise.h"

namespace layers {

struct Experts {
  const uint16_t* router;                 // [count, hidden]
  int64_t count, taken;
  bool whole;                             // whether shares are made to sum to 1
  file_products::Matrix gate_up, down;    // those of all, below each other
  const uint16_t *router_bias, *gate_up_bias, *down_bias;  // of all, or null

  file_products::Matrix part(const file_products::Matrix& of, int64_t nth) const {
    const int64_t parts = of.parts / count;
    return {of.values, of.table + 4 * nth * parts, parts};
  }

  // shares [count] of a token x [hidden], 0 of experts that it does not take.
  void choose(const uint16_t* x, int64_t hidden, float* shares) const {
    for (int64_t expert = 0; expert < count; ++expert) {
      Floats sum = all(0);
      for (int64_t i = 0; i < hidden; i += LANES)
        sum = fma(floats(x + i), floats(router + expert * hidden + i), sum);
      shares[expert] = sum_of(sum) + (router_bias ? number_of(router_bias[expert]) : 0);
    }
    const float top = *std::max_element(shares, shares + count);
    float total = 0;
    for (int64_t i = 0; i < count; ++i) total += shares[i] = std::exp(shares[i] - top);
    std::vector<int64_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + taken, order.end(), [&](int64_t a, int64_t b) {
      return shares[a] > shares[b] || (shares[a] == shares[b] && a < b);
    });
    if (whole) {
      total = 0;
      for (int64_t i = 0; i < taken; ++i) total += shares[order[i]];
    }
    for (int64_t i = 0; i < count; ++i)
      shares[order[i]] = i < taken ? shares[order[i]] / total : 0;
  }

  // x [rows, hidden] -> made [rows, hidden]
  void answer(const uint16_t* x, int64_t rows, int64_t hidden, Activation how,
              uint16_t* made) const {
    const int64_t width = part(down, 0).inputs();
    std::vector<float> shares(rows * count), sums(rows * hidden);
    by_rows(rows, count * hidden, [&](int64_t row) {
      choose(x + row * hidden, hidden, shares.data() + row * count);
    });
    std::vector<uint16_t> read(rows * hidden), wide(2 * rows * width), narrow(rows * width);
    std::vector<int64_t> whose;
    for (int64_t expert = 0; expert < count; ++expert) {
      whose.clear();
      for (int64_t row = 0; row < rows; ++row)
        if (shares[row * count + expert] > 0) whose.push_back(row);
      const int64_t n = whose.size();
      if (!n) continue;
      for (int64_t i = 0; i < n; ++i)
        std::copy_n(x + whose[i] * hidden, hidden, read.data() + i * hidden);
      part(gate_up, expert).times(read.data(), n, wide.data());
      by_rows(n, 4 * width, [&](int64_t i) {
        uint16_t* own = wide.data() + 2 * i * width;
        if (gate_up_bias) add(own, gate_up_bias + 2 * expert * width, 2 * width);
        gate(own, width, how, narrow.data() + i * width);
      });
      part(down, expert).times(narrow.data(), n, read.data());
      by_rows(n, hidden, [&](int64_t i) {
        if (down_bias) add(read.data() + i * hidden, down_bias + expert * hidden, hidden);
        const Floats share = all(shares[whose[i] * count + expert]);
        float* sum = sums.data() + whose[i] * hidden;
        for (int64_t at = 0; at < hidden; at += LANES)
          put(sum + at, fma(floats(read.data() + i * hidden + at), share, load(sum + at)));
      });
    }
    for (int64_t at = 0; at < rows * hidden; at += LANES) store(made + at, load(sums.data() + at));
  }
};

// router: bfloat16 [E, d]. gate_up, down: values and table of E matrices each, below each other.
// biases: bfloat16 [E], [E, 2 f] and [E, d], of the router and of these, nothing for none.
Experts experts_of(const Tensor& router, const Tensor& gate_up, const Tensor& gate_table,
                   const Tensor& down, const Tensor& down_table, int64_t taken,
                   bool whole, Tensors biases) {
  file_products::check_matrix(gate_up, gate_table);
  file_products::check_matrix(down, down_table);
  const Experts made{data(router), router.size(0), taken, whole,
                     file_products::matrix_of(gate_up, gate_table),
                     file_products::matrix_of(down, down_table),
                     data(biases[0]), data(biases[1]), data(biases[2])};
  CHECK(router.dim() == 2 && router.scalar_type() == kBFloat16 && router.is_contiguous());
  CHECK(made.count > 0 && taken > 0 && taken <= made.count);
  CHECK(made.gate_up.parts % made.count == 0 && made.down.parts % made.count == 0);
  const auto first = made.part(made.gate_up, 0), last = made.part(made.down, 0);
  CHECK(first.inputs() == router.size(1) && last.outputs() == router.size(1));
  CHECK(first.outputs() == 2 * last.inputs() && router.size(1) % LANES == 0);
  const int64_t sizes[] = {1, first.outputs(), last.outputs()};
  for (int i = 0; i < 3; ++i)
    CHECK(!biases[i].numel() || biases[i].numel() == made.count * sizes[i]);
  return made;
}

// x bfloat16 [N, d] -> [N, d]
Tensor expert_rows(const Tensor& x, const Tensor& router, const Tensor& gate_up,
                   const Tensor& gate_table, const Tensor& down,
                   const Tensor& down_table, int64_t taken, bool whole, int64_t how,
                   Tensors biases) {
  CHECK(how >= SILU && how <= CLAMPED && biases.size() == 3);
  CHECK(x.dim() == 2 && x.scalar_type() == kBFloat16 && x.is_contiguous());
  const Experts of = experts_of(router, gate_up, gate_table, down, down_table, taken, whole, biases);
  CHECK(x.size(1) == router.size(1));
  Tensor made = empty(x.sizes(), kBFloat16);
  of.answer(data(x), x.size(0), x.size(1), (Activation)how, (uint16_t*)made.data_ptr());
  return made;
}

}  // namespace layers
