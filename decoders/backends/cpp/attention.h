// Attention of a pass's tokens over the cache rows of their sequences.
//
// Query heads that share a key head are lanes of one vector, sixteen at a time: scores are made as
// [keys, lanes], so that each lane's softmax is its own column and the cache is read as it lies.
// Keys are taken in blocks, with the softmax rescaled from block to block (Dao et al.,
// FlashAttention). What a lane does not see adds exactly nothing, so that a token's result does not
// depend on what is read with it. Its products are made by the processor's tiles or its vectors.

#pragma once

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <vector>

#ifdef __AMX_BF16__
#include "attention_amx.h"
#else
#include "attention_vectors.h"
#endif
#include "eight_bits.h"
#include "tensors.h"

namespace attention {

constexpr int64_t BLOCK = 128;  // keys between two rescalings
constexpr int64_t SPAN = 63;    // positions from `begin` on that the bits cover
constexpr float LOG2E = 1.44269504f;
constexpr float UNSEEN = -1e30f;
constexpr float LEAST = -1e20f;  // of scores that are seen

// Neighbouring tokens of one sequence: all see its positions before `begin`, none those from `end`,
// windows aside.
struct Reading {
  int64_t row, begin, end, first, count;
};

// A room in 8 bits has bytes (eight_bits.h), which its strides count; `room` is none of them then.
struct Pass {
  const uint16_t *q, *room;
  uint16_t* out;                                // [N, H * D]
  int64_t of_head, of_token;                    // strides of q
  int64_t of_row, of_plane, of_position;        // and of the room
  int64_t heads, kv, d;
  float scale, cap;  // of scores, which the cap bends to stay below it; 0 for none
  const int64_t* bits;
  const int8_t* bytes = nullptr;
  const int64_t* lows = nullptr;  // [N], the first position that a token's window holds
  const uint16_t* sinks = nullptr;  // [H], a score of nothing, part of every sum

  int64_t group() const { return heads / kv; }
  int64_t tiles(const Reading& r) const { return (r.count * group() + LANES - 1) / LANES; }
};

// What a thread works with. Sizes in lines, of d dimensions.
struct Room {
  alignas(64) float scores[BLOCK][LANES];
  Line chances[BLOCK / 2];     // by step, [lane][pair of keys]
  std::vector<Line> values;    // by step and 16 dimensions, [pair of keys][dimension]
  std::vector<Line> queries;   // by tile and 32 dimensions, [pair of dimensions][lane]
  std::vector<Line> sums;      // by tile and 16 dimensions, [lane][dimension]
  std::vector<Line> top, total;  // by tile, [lane]
  std::vector<uint16_t> seen;    // by tile, of the positions from `begin` on
  std::vector<uint16_t> near;    // by tile, of those from `low` to before `high`
  int64_t low, high;  // the first position that a token's window holds, and that each one's does
  std::vector<uint16_t> plain;   // keys of a block and then values, of a room in 8 bits
};

void read_queries(const Pass& p, const Reading& r, int64_t plane, Room& room) {
  const int64_t tiles = p.tiles(r), group = p.group(), half = p.d / 2, span = r.end - r.begin;
  room.queries.assign(tiles * half, Line{});
  room.seen.assign(tiles * span, 0);
  room.low = room.high = 0;
  if (p.lows) {
    const auto ends = std::minmax_element(p.lows + r.first, p.lows + r.first + r.count);
    room.low = *ends.first, room.high = *ends.second;
  }
  const int64_t edge = room.high - room.low;
  room.near.assign(tiles * edge, 0);
  for (int64_t lane = 0; lane < r.count * group; ++lane) {
    const int64_t tile = lane / LANES, column = lane % LANES, token = r.first + lane / group;
    const int64_t head = plane * group + lane % group;
    const auto* from = (const uint32_t*)(p.q + head * p.of_head + token * p.of_token);
    Line* to = room.queries.data() + tile * half;
    for (int64_t pair = 0; pair < half; ++pair) to[pair].words[column] = from[pair];
    for (int64_t i = 0; i < span; ++i)
      if (p.bits[token] >> i & 1) room.seen[tile * span + i] |= 1 << column;
    for (int64_t i = edge ? p.lows[token] - room.low : 0; i < edge; ++i)
      room.near[tile * edge + i] |= 1 << column;
  }
}

// Values of `steps` times 32 keys as pairs of keys, in the order of `interleave`.
void read_values(const uint16_t* from, int64_t of_position, int64_t d, int64_t steps, Line* to) {
  for (int64_t step = 0; step < steps; ++step, to += d)
    for (int64_t pair = 0; pair < STEP / 2; ++pair, from += 2 * of_position)
      for (int64_t part = 0; part < d / 32; ++part) {
        Line* low = to + 32 * part + pair;
        interleave(from + 32 * part, from + of_position + 32 * part, low->words, low[16].words);
      }
}

// Scores into chances, not yet divided by their sum; by how much earlier sums are to be scaled.
// at: the block's first position. open: keys of the block that every lane sees, windows aside. seen:
// of the others, from `from` on.
Floats make_chances(Room& room, int64_t tile, int64_t steps, int64_t at, int64_t open,
                    const uint16_t* seen, int64_t from, int64_t span, float scale, float cap) {
  const int64_t keys = steps * STEP, edge = room.high - room.low;
  if (cap) {  // cap * tanh(score / cap)
    const Floats one = all(1), two = all(2), most = all(cap), by = all(2 * scale / cap);
    for (int64_t key = 0; key < keys; ++key) {
      const Floats share = one + exp2_of(load(room.scores[key]) * by);
      put(room.scores[key], most - two * most / share);
    }
    scale = LOG2E;
  }
  const Floats before = load(floats_of(&room.top[tile])), unseen = all(UNSEEN);
  for (int64_t key = 0; key < std::min(keys, room.high - at); ++key) {
    const int64_t i = at + key - room.low;
    put(room.scores[key],
        where(i < 0 ? 0 : room.near[tile * edge + i], load(room.scores[key]), unseen));
  }
  for (int64_t key = open; key < keys; ++key) {
    const int64_t i = from + key - open;
    put(room.scores[key], where(i < span ? seen[i] : 0, load(room.scores[key]), unseen));
  }
  Floats even = before, odd = before;
  for (int64_t key = 0; key < keys; key += 2) {
    even = larger(even, load(room.scores[key]));
    odd = larger(odd, load(room.scores[key + 1]));
  }
  const Floats by = all(scale), top = larger(even, odd);
  const Floats least = larger(top, all(LEAST)) * all(-scale);  // or a lane that sees none sees all
  even = odd = all(0);
  for (int64_t step = 0; step < steps; ++step) {
    Words pairs[STEP / 2];
#pragma GCC unroll 4
    for (int64_t pair = 0; pair < STEP / 2; ++pair) {
      const float* of_pair = room.scores[step * STEP + 2 * pair];
      const Floats a = exp2_of(fma(load(of_pair), by, least));
      const Floats b = exp2_of(fma(load(of_pair + LANES), by, least));
      even = even + a;
      odd = odd + b;
      pairs[pair] = pairs_of(a, b);
    }
    transpose(pairs, (uint32_t(*)[LANES])(room.chances + step * LANES));
  }
  const Floats shrink = exp2_of((before - top) * by);
  float* total = floats_of(&room.total[tile]);
  put(total, fma(load(total), shrink, even + odd));
  put(floats_of(&room.top[tile]), top);
  return shrink;
}

void shrink_sums(Line* sums, int64_t d, int64_t lanes, Floats shrink) {
  if (equal(shrink, all(1)) == 0xFFFF) return;
  float by[LANES];
  put(by, shrink);
  for (int64_t part = 0; part < d / 16; ++part)
    for (int64_t lane = 0; lane < lanes; ++lane) {
      float* at = floats_of(sums + part * LANES + lane);
      put(at, load(at) * all(by[lane]));
    }
}

void write(const Pass& p, const Reading& r, int64_t plane, Room& room) {
  const int64_t group = p.group();
  for (int64_t lane = 0; lane < r.count * group; ++lane) {
    const int64_t tile = lane / LANES, column = lane % LANES, token = r.first + lane / group;
    const Floats by = all(1.0f / floats_of(&room.total[tile])[column]);
    uint16_t* to = p.out + (token * p.heads + plane * group + lane % group) * p.d;
    for (int64_t part = 0; part < p.d / 32; ++part) {
      Line* sums = room.sums.data() + tile * p.d + 2 * part * LANES + column;
      Floats low = load(floats_of(sums)) * by, high = load(floats_of(sums + LANES)) * by;
      in_order(low, high);
      store(to + 32 * part, low);
      store(to + 32 * part + 16, high);
    }
  }
}

void attend(const Pass& p, const Reading& r, int64_t plane, Room& room) {
  const int64_t tiles = p.tiles(r), span = r.end - r.begin;
  const int64_t lanes = tiles == 1 ? r.count * p.group() : LANES;
  const float scale = LOG2E * p.scale;
  const int64_t first = r.row * p.of_row + plane * p.of_plane, apart = p.kv * p.of_plane;
  if (p.bytes) room.plain.resize(2 * BLOCK * p.d);
  configure(lanes);
  read_queries(p, r, plane, room);
  room.values.resize(BLOCK / STEP * p.d);
  room.sums.assign(tiles * p.d, Line{});
  room.total.assign(tiles, Line{});
  room.top.resize(tiles);
  for (Line& top : room.top) std::fill_n(floats_of(&top), LANES, UNSEEN);
  for (int64_t lane = 0; p.sinks && lane < r.count * p.group(); ++lane) {
    const float sink = lines::number_of(p.sinks[plane * p.group() + lane % p.group()]);
    floats_of(&room.top[lane / LANES])[lane % LANES] = p.cap ? sink : sink / p.scale;
    floats_of(&room.total[lane / LANES])[lane % LANES] = 1;
  }
  for (int64_t at = room.low / BLOCK * BLOCK; at < r.end; at += BLOCK) {
    const int64_t steps = (std::min(BLOCK, r.end - at) + STEP - 1) / STEP;
    const int64_t open = std::clamp<int64_t>(r.begin - at, 0, steps * STEP);
    const uint16_t *keys = room.plain.data(), *values = keys + BLOCK * p.d;
    int64_t of_position = p.d;
    if (p.bytes) {
      const int8_t* from = p.bytes + first + at * p.of_position;
      eight_bits::decode(from, p.of_position, p.d, steps * STEP, room.plain.data());
      eight_bits::decode(from + apart, p.of_position, p.d, steps * STEP,
                         room.plain.data() + BLOCK * p.d);
    } else {
      of_position = p.of_position;
      keys = p.room + first + at * of_position;
      values = keys + apart;
    }
    read_values(values, of_position, p.d, steps, room.values.data());
    written(&room);
    for (int64_t tile = 0; tile < tiles; ++tile) {
      Line* sums = room.sums.data() + tile * p.d;
      make_scores(keys, of_position, p.d, room.queries.data() + tile * p.d / 2, steps,
                  room.scores);
      const Floats shrink = make_chances(room, tile, steps, at, open,
                                         room.seen.data() + tile * span, at + open - r.begin,
                                         span, scale, p.cap);
      shrink_sums(sums, p.d, lanes, shrink);
      add_values(sums, p.d, steps, lanes, room.chances, room.values.data());
    }
  }
  write(p, r, plane, room);
}

std::vector<Reading> readings_of(const int64_t* rows, const int64_t* begins, const int64_t* bits,
                                 int64_t tokens) {
  std::vector<Reading> made;
  for (int64_t token = 0; token < tokens; ++token) {
    CHECK(begins[token] >= 0 && bits[token] > 0);
    const int64_t end = begins[token] + 64 - __builtin_clzll(bits[token]);
    if (made.empty() || made.back().row != rows[token] || made.back().begin != begins[token])
      made.push_back({rows[token], begins[token], end, token, 0});
    made.back().end = std::max(made.back().end, end);
    ++made.back().count;
  }
  return made;
}

// A pass's readings, and how its threads share them.
struct Plan {
  std::vector<Reading> readings;
  std::vector<int64_t> work;  // of every reading's planes, summed up

  // rows, begins, bits: as of `attend_rows`, of a cache with these rows and positions.
  // p.lows count: what lies before a window is not read.
  Plan(const Pass& p, const int64_t* rows, const int64_t* begins, int64_t tokens, int64_t of_rows,
       int64_t of_positions)
      : readings(readings_of(rows, begins, p.bits, tokens)) {
    int64_t all = 0;
    for (const Reading& r : readings) {
      CHECK(r.row >= 0 && r.row < of_rows && r.end <= of_positions);
      int64_t low = p.lows ? *std::min_element(p.lows + r.first, p.lows + r.first + r.count) : 0;
      low = low / BLOCK * BLOCK;
      for (int64_t plane = 0; plane < p.kv; ++plane)
        work.push_back(all += ((r.end - low + STEP - 1) / STEP) * (1 + p.tiles(r)));
    }
  }
};

void attend(const Pass& p, const Plan& plan) {
  const std::vector<int64_t>& work = plan.work;
  const int64_t shares = std::min<int64_t>(get_num_threads(), work.size());
  parallel_for(0, shares, 1, [&](int64_t first, int64_t last) {
    Room own;
    for (size_t i = 0; i < work.size(); ++i) {
      const int64_t middle = ((i ? work[i - 1] : 0) + work[i]) / 2;
      const int64_t share = middle * shares / work.back();
      if (share >= first && share < last) attend(p, plan.readings[i / p.kv], i % p.kv, own);
    }
    release();
  });
}

void check_places(std::initializer_list<Tensor> columns, int64_t tokens) {
  for (const Tensor& each : columns)
    CHECK(each.scalar_type() == kLong && each.is_contiguous() && each.numel() == tokens);
}

// [N], or [K, N] of K kinds of layers.
void check_lows(const Tensor& lows, const Tensor& begins) {
  const int64_t n = begins.numel();
  CHECK(lows.scalar_type() == kLong && lows.is_contiguous() && lows.size(-1) == n);
  const auto *low = lows.const_data_ptr<int64_t>(), *begin = begins.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < lows.numel(); ++i) CHECK(low[i] >= 0 && low[i] <= begin[i % n]);
}

// q: [H, N, D]. room: [B, 2 KV, S, D], keys and then values of each row, S a multiple of STEP; in 8
// bits int8 [B, 2 KV, S, D + D / 16].
// rows, begins, bits: int64 [N]: a token sees the positions of its row below its begin, and of those
// from there on the i-th where its i-th bit is set, one at least. scale: of scores; none is 1 /
// sqrt(D). cap: as of Pass. lows: int64 [N], the first positions that tokens' windows hold, not above
// their begins; none without windows. sinks: bfloat16 [H], as of Pass. Gives [N, H * D].
Tensor attend_rows(const Tensor& q, const Tensor& room, const Tensor& rows, const Tensor& begins,
                   const Tensor& bits, std::optional<double> scale, double cap,
                   const std::optional<Tensor>& lows, const std::optional<Tensor>& sinks) {
  CHECK(q.dim() == 3 && q.scalar_type() == kBFloat16 && q.stride(2) == 1);
  CHECK(room.dim() == 4 && room.stride(3) == 1);
  const int64_t heads = q.size(0), tokens = q.size(1), d = q.size(2), kv = room.size(1) / 2;
  CHECK(d > 0 && d % 32 == 0 && eight_bits::fits(room, d) && room.size(2) % STEP == 0);
  CHECK(kv > 0 && room.size(1) == 2 * kv && heads % kv == 0);
  check_places({rows, begins, bits}, tokens);
  if (lows) check_lows(*lows, begins);
  if (sinks)
    CHECK(sinks->scalar_type() == kBFloat16 && sinks->is_contiguous() && sinks->numel() == heads);
  Tensor out = empty({tokens, heads * d}, kBFloat16);
  const Pass p{(const uint16_t*)q.const_data_ptr(),
               (const uint16_t*)room.const_data_ptr(),
               (uint16_t*)out.data_ptr(),
               q.stride(0),
               q.stride(1),
               room.stride(0),
               room.stride(1),
               room.stride(2),
               heads,
               kv,
               d,
               (float)scale.value_or(1 / std::sqrt((double)d)),
               (float)cap,
               bits.const_data_ptr<int64_t>(),
               eight_bits::bytes_of(room),
               lows ? lows->const_data_ptr<int64_t>() : nullptr,
               sinks ? (const uint16_t*)sinks->const_data_ptr() : nullptr};
  attend(p, Plan(p, rows.const_data_ptr<int64_t>(), begins.const_data_ptr<int64_t>(), tokens,
                 room.size(0), room.size(2)));
  return out;
}

}  // namespace attention
