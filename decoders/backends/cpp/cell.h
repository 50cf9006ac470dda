// Steps of a recurrent drafter's cell: gated blocks over a state and the embedding of the token that
// follows it, and the target's head over the draft tokens, without a call of PyTorch's for each. A
// row's result has the same bits in any company.

#pragma once

#include <tuple>
#include <vector>

#include "layers.h"
#include "norms.h"
#include "products.h"
#include "race.h"
#include "tensors.h"

namespace cell {

using layers::data;
using namespace lines;
using products::Matrix;

constexpr int64_t OF_CELL = 4, OF_BLOCK = 5;  // tensors

struct Block {
  const Tensor& norm;
  Matrix gate_up, down;
};

struct Cell {
  const Tensor &embedding, &embed_norm, &norm;
  Matrix head;
  std::vector<Block> blocks;
  int64_t d;
  float eps;
  std::vector<uint16_t> x, wide, narrow, made;

  // embedding: [V, d]. weights: norm of the embedding [d], that in front of the head [d], the head;
  // of each block its norm [d], gate and up [2 w, 2 d] (then [2 w, d]), down [d, w].
  Cell(const Tensor& embedding, Tensors weights, double eps)
      : embedding(embedding),
        embed_norm(weights[0]),
        norm(weights[1]),
        head{weights[2], weights[3]},
        d(embedding.size(1)),
        eps(eps) {
    for (size_t i = OF_CELL; i < weights.size(); i += OF_BLOCK)
      blocks.push_back({weights[i], {weights[i + 1], weights[i + 2]}, {weights[i + 3], weights[i + 4]}});
    for (const Tensor& each : {embedding, embed_norm, norm})
      CHECK(each.scalar_type() == kBFloat16 && each.is_contiguous() && each.size(-1) == d);
    CHECK(d % LANES == 0 && head.inputs() == d && !blocks.empty());
    for (const Block& block : blocks) {
      const int64_t inputs = &block == &blocks.front() ? 2 * d : d;
      CHECK(block.norm.numel() == d && block.norm.scalar_type() == kBFloat16);
      CHECK(block.gate_up.inputs() == inputs && block.down.outputs() == d);
      CHECK(block.gate_up.outputs() == 2 * block.down.inputs());
    }
  }

  // states [rows, d] become those after the tokens [rows].
  void advance(uint16_t* states, const int64_t* tokens, int64_t rows) {
    bool first = true;
    made.resize(rows * d);
    for (const Block& block : blocks) {
      const int64_t inputs = block.gate_up.inputs(), width = block.down.inputs();
      x.resize(rows * inputs), wide.resize(2 * rows * width), narrow.resize(rows * width);
      for (int64_t row = 0; row < rows; ++row) {
        uint16_t* to = x.data() + row * inputs;
        norms::norm_row(states + row * d, data(block.norm), d, eps, to);
        if (first) {
          CHECK(tokens[row] >= 0 && tokens[row] < embedding.size(0));
          norms::norm_row(data(embedding) + tokens[row] * d, data(embed_norm), d, eps, to + d);
        }
      }
      block.gate_up.times(x.data(), rows, wide.data());
      by_rows(rows, 4 * width, [&](int64_t row) {
        uint16_t* own = wide.data() + 2 * row * width;
        layers::gate(own, width, layers::SILU, narrow.data() + row * width);
      });
      block.down.times(narrow.data(), rows, made.data());
      for (int64_t row = 0; row < rows; ++row)
        layers::add(states + row * d, made.data() + row * d, d);
      first = false;
    }
  }

  // Logits [rows, N] of states.
  void score(const uint16_t* states, int64_t rows, uint16_t* logits) {
    x.resize(rows * d);
    for (int64_t row = 0; row < rows; ++row)
      norms::norm_row(states + row * d, data(norm), d, eps, x.data() + row * d);
    head.times(x.data(), rows, logits);
  }
};

void check(const Tensor& states, const Tensor& tokens, int64_t d) {
  CHECK(states.scalar_type() == kBFloat16 && states.dim() == 2 && states.size(1) == d);
  CHECK(tokens.scalar_type() == kLong && tokens.dim() == 1 && tokens.is_contiguous());
}

// states [n, d], tokens int64 [n] -> the next states, and logits [n, N].
std::tuple<Tensor, Tensor> cell_step(const Tensor& states, const Tensor& tokens,
                                     const Tensor& embedding, Tensors weights, double eps) {
  Cell cell(embedding, weights, eps);
  check(states, tokens, cell.d);
  const int64_t rows = states.size(0);
  CHECK(tokens.size(0) == rows);
  Tensor next = copied(states);
  Tensor logits = empty({rows, cell.head.outputs()}, kBFloat16);
  if (!rows) return {next, logits};
  cell.advance((uint16_t*)next.data_ptr(), tokens.const_data_ptr<int64_t>(), rows);
  cell.score((const uint16_t*)next.const_data_ptr(), rows, (uint16_t*)logits.data_ptr());
  return {next, logits};
}

// From a state [1, d], reads `unread` int64 [u], then drafts k tokens, of which choose(logits, names)
// says which row of the head each is; int64 [k] of what `ids` int64 [N] calls the rows.
template <typename Choose>
Tensor drafts(const Tensor& state, const Tensor& unread, const Tensor& ids, int64_t k,
              const Tensor& embedding, Tensors weights, double eps, const Choose& choose) {
  Cell cell(embedding, weights, eps);
  check(state, unread, cell.d);
  check(state, ids, cell.d);
  const int64_t count = unread.size(0), rows = cell.head.outputs();
  CHECK(state.size(0) == 1 && count > 0 && k > 0 && ids.size(0) == rows);
  const int64_t *tokens = unread.const_data_ptr<int64_t>(), *names = ids.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < rows; ++i) CHECK(names[i] >= 0 && names[i] < embedding.size(0));
  const Tensor now = copied(state);
  auto* at = (uint16_t*)now.data_ptr();
  for (int64_t i = 0; i + 1 < count; ++i) cell.advance(at, tokens + i, 1);
  int64_t token = tokens[count - 1];
  Tensor drafted = empty({k}, kLong);
  std::vector<uint16_t> logits(rows);
  for (int64_t i = 0; i < k; ++i) {
    cell.advance(at, &token, 1);
    cell.score(at, 1, logits.data());
    drafted.mutable_data_ptr<int64_t>()[i] = token = names[choose(logits.data(), names)];
  }
  return drafted;
}

// Each by its clocks, the first at `place`; the likeliest at no heat.
Tensor cell_pick(const Tensor& state, const Tensor& unread, const Tensor& ids,
                 int64_t k, double heat, int64_t key, int64_t place, const Tensor& embedding,
                 Tensors weights, double eps) {
  return drafts(state, unread, ids, k, embedding, weights, eps,
                [&](const uint16_t* logits, const int64_t* names) {
    int64_t picked;
    race::pick(logits, ids.size(0), names, heat, {(uint64_t)key, (uint32_t)place++}, 1, &picked);
    return picked;
  });
}

}  // namespace cell
