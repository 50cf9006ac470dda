// The token at a place, by the clocks of ../../sampling/race.py, which says what they are. Blocks whose
// greatest score cannot win are passed over, so that few tokens are asked for their numbers.

#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "lines.h"
#include "tensors.h"

namespace race {

constexpr int64_t BLOCK = 256;  // tokens
constexpr uint32_t OF_BLOCKS = 0, OF_TOKENS = 1;
constexpr double NEVER = -std::numeric_limits<double>::infinity();

struct Words {
  uint32_t c0, c1, c2, c3;
};

// Philox4x32-10.
inline Words philox(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2) {
  uint32_t low = (uint32_t)key, high = (uint32_t)(key >> 32), c3 = 0;
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const uint64_t one = (uint64_t)c0 * 0xD2511F53u, two = (uint64_t)c2 * 0xCD9E8D57u;
    c0 = (uint32_t)(two >> 32) ^ c1 ^ low, c1 = (uint32_t)two;
    c2 = (uint32_t)(one >> 32) ^ c3 ^ high, c3 = (uint32_t)one;
    low += 0x9E3779B9u, high += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}

// A number between 0 and 1, and the exponential time that it stands for.
inline double share(const Words& of) {
  return ((double)(int64_t)(((uint64_t)of.c0 << 20) | (of.c1 >> 12)) + 0.5) * 0x1p-52;
}
inline double wait(double share) { return -std::log(share); }

inline double value(uint16_t bits) { return lines::as_float((uint32_t)bits << 16); }
inline double value(double number) { return number; }
inline lines::Floats floats(const uint16_t* of) { return lines::floats((const void*)of); }
inline lines::Floats floats(const float* of) { return lines::load(of); }

// The greatest of n numbers; nan where one of them is.
template <typename Number>
double greatest(const Number* numbers, int64_t n) {
  if constexpr (sizeof(Number) < sizeof(double)) {
    if (n >= lines::LANES) {
      lines::Floats most = floats(numbers);
      uint16_t same = lines::equal(most, most);
      for (int64_t i = lines::LANES; i < n; i += lines::LANES) {  // some twice
        const lines::Floats next = floats(numbers + std::min(i, n - lines::LANES));
        most = lines::larger(most, next);
        same &= lines::equal(next, next);
      }
      return same == 0xFFFF ? lines::greatest_of(most) : std::nan("");
    }
  }
  double top = NEVER;
  for (int64_t i = 0; i < n; ++i) {
    const double next = value(numbers[i]);
    if (std::isnan(next)) return next;
    top = std::max(top, next);
  }
  return top;
}

// What a row's numbers are drawn by.
struct Clocks {
  uint64_t key;
  uint32_t place;
};

// Neighbours that belong to one block: from begins[i] up to begins[i + 1].
struct Runs {
  std::vector<int64_t> begins;
  std::vector<uint32_t> blocks, first;  // the token of a block that rings first
  std::vector<double> tops, shares;     // the greatest score, and the number of the block's clock

  void number(Clocks clocks) {
    const size_t n = blocks.size();
    first.resize(n), shares.resize(n);
    for (size_t i = 0; i < n; ++i) {
      const Words words = philox(clocks.key, blocks[i], clocks.place, OF_BLOCKS);
      shares[i] = share(words);
      first[i] = words.c2 & (BLOCK - 1);
    }
  }
};

// The first of the numbers that is none; -1 where all are.
template <typename Number>
int64_t divide(const Number* scores, int64_t n, const int64_t* names, Runs& runs) {
  runs.begins.clear(), runs.blocks.clear(), runs.tops.clear();
  for (int64_t begin = 0, end; begin < n; begin = end) {
    const int64_t block = (names ? names[begin] : begin) / BLOCK;
    end = std::min(n, begin + (names ? 1 : BLOCK));
    while (names && end < n && names[end] / BLOCK == block) ++end;
    const double top = greatest(scores + begin, end - begin);
    if (std::isnan(top)) {
      while (!std::isnan(value(scores[begin]))) ++begin;
      return begin;
    }
    runs.begins.push_back(begin), runs.blocks.push_back(block), runs.tops.push_back(top);
  }
  runs.begins.push_back(n);
  return -1;
}

// Writes the first `count` of n to ring. names: the tokens' ids; null for their places.
template <typename Number>
void pick(const Number* scores, int64_t n, const int64_t* names, double heat, Clocks clocks,
          int64_t count, int64_t* to) {
  static thread_local Runs runs;
  const int64_t none = divide(scores, n, names, runs);
  std::vector<std::pair<double, int64_t>> rung;  // the last of them first
  const auto sooner = [](const auto& one, const auto& other) { return one.first > other.first; };
  double bar = NEVER;  // nothing below it is among the first
  const auto take = [&](double rate, int64_t i) {
    if (!(rate > bar)) return;
    if ((int64_t)rung.size() == count) {
      std::pop_heap(rung.begin(), rung.end(), sooner);
      rung.pop_back();
    }
    rung.emplace_back(rate, i);
    std::push_heap(rung.begin(), rung.end(), sooner);
    if ((int64_t)rung.size() == count) bar = rung.front().first;
  };
  const auto ask = [&](size_t run) {
    const double top = heat > 0 ? runs.tops[run] / heat : runs.tops[run];
    double waited = 0, clock = 0;
    if (heat > 0) {
      // a wait is 1 - share at least: most blocks are passed over without a logarithm
      if ((1 - runs.shares[run]) > 1.0001 * BLOCK * std::exp((float)(top - bar))) return;
      waited = wait(runs.shares[run]) / BLOCK, clock = std::log(waited);
    }
    if (!(top - clock > bar)) return;
    for (int64_t i = runs.begins[run]; i < runs.begins[run + 1]; ++i) {
      double rate = value(scores[i]);
      if (heat > 0) {
        rate /= heat;
        if (!(rate - clock > bar)) continue;
        const int64_t token = names ? names[i] : i;
        if (token % BLOCK != runs.first[run]) {
          const Words words = philox(clocks.key, (uint32_t)token, clocks.place, OF_TOKENS);
          rate -= std::log(waited + wait(share(words)));
        } else {
          rate -= clock;
        }
      }
      take(rate, i);
    }
  };
  if (none < 0) {
    if (heat > 0) runs.number(clocks);
    const auto best = std::max_element(runs.tops.begin(), runs.tops.end()) - runs.tops.begin();
    ask(best);
    for (size_t run = 0; run < runs.tops.size(); ++run)
      if (run != (size_t)best) ask(run);
  } else {
    rung.emplace_back(0, none);
  }
  std::sort_heap(rung.begin(), rung.end(), sooner);
  int64_t made = 0;
  for (const auto& each : rung) to[made++] = each.second;
  for (int64_t other = 0; made < count; ++other)  // that cannot be drawn
    if (std::find(to, to + made, other) == to + made) to[made++] = other;
}

// logits [T, N] -> int64 [T, count]. clocks(row): its own; heat(row): its temperature.
// names int64 [N].
template <typename Heat, typename Of>
Tensor picked(const Tensor& logits, const std::optional<Tensor>& names, int64_t count,
              const Heat& heat, const Of& clocks) {
  CHECK(logits.dim() == 2 && 0 < count && count <= logits.size(1));
  const int64_t rows = logits.size(0), n = logits.size(1);
  const Tensor numbers = in_a_row(logits);
  const int64_t* ids = nullptr;
  if (names) {
    CHECK(names->scalar_type() == kLong && names->is_contiguous() && names->numel() == n);
    ids = names->const_data_ptr<int64_t>();
  }
  Tensor made = empty({rows, count}, kLong);
  int64_t* to = made.mutable_data_ptr<int64_t>();
  const auto every = [&](const auto* of) {
    lines::by_rows(rows, n, [&](int64_t row) {
      pick(of + row * n, n, ids, heat(row), clocks(row), count, to + row * count);
    });
  };
  if (numbers.scalar_type() == kBFloat16) {
    every((const uint16_t*)numbers.const_data_ptr());
  } else if (numbers.scalar_type() == kFloat) {
    every(numbers.const_data_ptr<float>());
  } else {
    CHECK(numbers.scalar_type() == kDouble, "scores in bfloat16, float or double");
    every(numbers.const_data_ptr<double>());
  }
  return made;
}

// heats double [T], keys and places int64 [T].
Tensor pick_rows(const Tensor& logits, const Tensor& heats, const Tensor& keys,
                 const Tensor& places, const std::optional<Tensor>& names,
                 int64_t count) {
  for (const Tensor& each : {heats, keys, places})
    CHECK(each.dim() == 1 && each.size(0) == logits.size(0) && each.is_contiguous());
  const auto *heat = heats.const_data_ptr<double>();
  const auto *key = keys.const_data_ptr<int64_t>(), *place = places.const_data_ptr<int64_t>();
  return picked(
      logits, names, count, [&](int64_t row) { return heat[row]; },
      [&](int64_t row) { return Clocks{(uint64_t)key[row], (uint32_t)place[row]}; });
}

// A chain's, whose first is at `place`.
Tensor pick_chain(const Tensor& logits, double heat, int64_t key, int64_t place,
                  const std::optional<Tensor>& names, int64_t count) {
  return picked(
      logits, names, count, [&](int64_t) { return heat; },
      [&](int64_t row) { return Clocks{(uint64_t)key, (uint32_t)(place + row)}; });
}

}  // namespace race
