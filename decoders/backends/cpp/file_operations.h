// The operations on weights as a GGUF file has them: layout, products, and the weights themselves.

#pragma once

#include <algorithm>
#include <vector>

#include "file_products.h"
#include "tensors.h"

#ifdef __AMX_INT8__
#include "file_products_amx.h"
#endif

namespace file_products {

#ifndef __AMX_INT8__
template <typename Kind>
constexpr bool IN_BLOCKS = false;  // whether it is rounded to by whole blocks
using WholeRounded = Rounded;
#endif

// A matrix in the file's blocks. table: int64 [parts, 4], each kind, outputs, inputs and where its
// blocks begin; the parts' outputs follow each other.
struct Matrix {
  const uint8_t* values;
  const int64_t* table;
  int64_t parts;

  int64_t inputs() const { return table[2]; }
  int64_t outputs() const {
    int64_t made = 0;
    for (int64_t i = 0; i < parts; ++i) made += table[4 * i + 1];
    return made;
  }

  // x [rows, inputs] -> out [rows, outputs], which are whole blocks
  void times(const uint16_t* x, int64_t rows, uint16_t* out) const {
    if (!rows) return;
    Rounded rounded;
    WholeRounded whole;
    bool any[2] = {};
    for (int64_t i = 0; i < parts; ++i)
      of_kind(table[4 * i], [&](auto kind) { any[IN_BLOCKS<decltype(kind)>] = true; });
    if (any[false]) rounded.round(x, rows, inputs());
    if (any[true]) whole.round(x, rows, inputs());
    const int64_t width = outputs();
    parallel_for(0, width / OUTS, 1, [&](int64_t first, int64_t last) {
      int64_t begin = 0;
      for (int64_t i = 0; i < parts; ++i) {
        const int64_t *own = table + 4 * i, blocks = own[1] / OUTS, end = begin + blocks;
        const Part part{values + own[3], own[0], own[2], own[1], out + begin * OUTS, width};
        const int64_t from = std::max(first, begin), to = std::min(last, end);
        if (from < to)
          of_kind(own[0], [&](auto kind) {
            using Kind = decltype(kind);
            if constexpr (IN_BLOCKS<Kind>)
              multiply<Kind>(part, whole, from - begin, to - begin);
            else
              multiply<Kind>(part, rounded, from - begin, to - begin);
          });
        begin = end;
      }
    });
  }
};

inline void check_matrix(const Tensor& values, const Tensor& table) {
  CHECK(values.dim() == 1 && values.scalar_type() == kByte && values.is_contiguous());
  CHECK(table.dim() == 2 && table.size(1) == 4 && table.size(0) > 0);
  CHECK(table.scalar_type() == kLong && table.is_contiguous());
  const auto* each = table.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < table.size(0); ++i, each += 4) {
    int64_t needed = -1;
    of_kind(each[0], [&](auto kind) {
      using Kind = decltype(kind);
      if (each[2] % (GROUP * Kind::GROUPS) == 0)
        needed = each[1] / OUTS * (each[2] / (GROUP * Kind::GROUPS)) * OF_BLOCK<Kind>;
    });
    CHECK(needed >= 0 && each[1] % OUTS == 0 && each[2] == table.const_data_ptr<int64_t>()[2]);
    CHECK(each[3] >= 0 && each[3] + needed <= values.numel());
  }
}

inline Matrix matrix_of(const Tensor& values, const Tensor& table) {
  return {values.const_data_ptr<uint8_t>(), table.const_data_ptr<int64_t>(), table.size(0)};
}

// x [rows, inputs], values and table as of Matrix -> [rows, outputs]
Tensor file_blocks(const Tensor& x, const Tensor& values, const Tensor& table) {
  check_matrix(values, table);
  const Matrix matrix = matrix_of(values, table);
  CHECK(x.dim() == 2 && x.scalar_type() == kBFloat16 && x.is_contiguous());
  CHECK(x.size(1) == matrix.inputs());
  Tensor out = empty({x.size(0), matrix.outputs()}, kBFloat16);
  matrix.times((const uint16_t*)x.const_data_ptr(), x.size(0), (uint16_t*)out.data_ptr());
  return out;
}

// The weights of some outputs, ids [n] -> float32 [n, inputs].
Tensor file_rows(const Tensor& values, const Tensor& table, const Tensor& ids) {
  check_matrix(values, table);
  CHECK(ids.dim() == 1 && ids.scalar_type() == kLong && ids.is_contiguous());
  const Matrix matrix = matrix_of(values, table);
  const int64_t inputs = matrix.inputs(), outputs = matrix.outputs();
  Tensor made = empty({ids.size(0), inputs}, kFloat);
  const auto* of = ids.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < ids.size(0); ++i) CHECK(of[i] >= 0 && of[i] < outputs);
  parallel_for(0, ids.size(0), 1, [&](int64_t first, int64_t last) {
    for (; first < last; ++first) {
      int64_t id = of[first];
      const int64_t* own = matrix.table;
      for (; id >= own[1]; own += 4) id -= own[1];
      of_kind(own[0], [&](auto kind) {
        using Kind = decltype(kind);
        const int64_t bytes = inputs / (GROUP * Kind::GROUPS) * OF_BLOCK<Kind>;
        read_row<Kind>(matrix.values + own[3] + id / OUTS * bytes, inputs, id % OUTS,
                       made.mutable_data_ptr<float>() + first * inputs);
      });
    }
  });
  return made;
}

// Bytes of a matrix in blocks, its outputs rounded up; -1 of a kind or width that has none.
int64_t file_bytes(int64_t kind, int64_t outputs, int64_t inputs) {
  int64_t made = -1;
  of_kind(kind, [&](auto one) {
    using Kind = decltype(one);
    if (inputs % (GROUP * Kind::GROUPS) == 0)
      made = (outputs + OUTS - 1) / OUTS * (inputs / (GROUP * Kind::GROUPS)) * OF_BLOCK<Kind>;
  });
  return made;
}

// A file's rows uint8 [outputs, bytes] into blocks, at `to`; rows up to a whole block are 0.
void file_lay_out(const Tensor& rows, int64_t kind, int64_t inputs, const Tensor& to) {
  const int64_t outputs = rows.size(0), bytes = file_bytes(kind, outputs, inputs);
  CHECK(rows.dim() == 2 && rows.scalar_type() == kByte && rows.stride(1) == 1);
  CHECK(to.scalar_type() == kByte && to.is_contiguous() && to.numel() == bytes);
  auto* at_first = to.mutable_data_ptr<uint8_t>();
  of_kind(kind, [&](auto one) {
    using Kind = decltype(one);
    const int64_t blocks = inputs / (GROUP * Kind::GROUPS), width = blocks * Kind::FILE_BYTES;
    CHECK(rows.size(1) == width && rows.is_contiguous());
    parallel_for(0, (outputs + OUTS - 1) / OUTS, 1, [&](int64_t first, int64_t last) {
      for (; first < last; ++first) {
        const uint8_t* from = rows.const_data_ptr<uint8_t>() + first * OUTS * width;
        std::vector<uint8_t> filled;
        if (first * OUTS + OUTS > outputs) {
          filled.assign(OUTS * width, 0);
          std::copy_n(from, (outputs - first * OUTS) * width, filled.data());
          from = filled.data();
        }
        lay_out<Kind>(from, inputs, at_first + first * blocks * OF_BLOCK<Kind>);
      }
    });
  });
}

}  // namespace file_products
