// Products of bfloat16 rows with int4, int8 and bfloat16 weights, by the processor's tiles or its
// vectors.

#pragma once

#ifdef __AMX_BF16__
#include "products_amx.h"
#else
#include "products_vectors.h"
#endif

#include "file_operations.h"
#include "tensors.h"

namespace products {

// A matrix in blocks: int4 with its grid, int8 with its scale, bfloat16 with nothing, bytes of a GGUF
// file with the table of its parts.
struct Matrix {
  const Tensor &values, &grid;

  bool of_file() const { return values.scalar_type() == kByte; }
  int64_t outputs() const {
    return of_file() ? file_products::matrix_of(values, grid).outputs() : values.size(0) * OUTS;
  }
  int64_t inputs() const {
    return of_file() ? file_products::matrix_of(values, grid).inputs() : values.size(1) * GROUP;
  }

  // x [rows, inputs] -> out [rows, outputs]
  void times(const uint16_t* x, int64_t rows, uint16_t* out) const {
    if (of_file()) return file_products::matrix_of(values, grid).times(x, rows, out);
    const Product p{x, out, rows, inputs(), outputs()};
    if (values.dim() == 4)
      multiply(p, Int4{(const uint32_t*)values.const_data_ptr(),
                       (const uint32_t*)grid.const_data_ptr()});
    else if (values.scalar_type() == kBFloat16)
      multiply(p, Bf16{(const uint16_t*)values.const_data_ptr()});
    else
      multiply(p, Int8{(const int8_t*)values.const_data_ptr(),
                       (const uint16_t*)grid.const_data_ptr()});
  }

  Tensor times(const Tensor& x) const {
    Tensor out = empty({x.size(0), outputs()}, kBFloat16);
    times((const uint16_t*)x.const_data_ptr(), x.size(0), (uint16_t*)out.data_ptr());
    return out;
  }
};

Tensor int4_blocks(const Tensor& x, const Tensor& values, const Tensor& grid) {
  CHECK(x.dim() == 2 && x.scalar_type() == kBFloat16 && x.is_contiguous());
  CHECK(values.dim() == 4 && values.scalar_type() == kInt && values.is_contiguous());
  CHECK(grid.dim() == 4 && grid.scalar_type() == kBFloat16 && grid.is_contiguous());
  const int64_t n = values.size(0), k = values.size(1);
  CHECK(k > 0 && x.size(1) == k * GROUP);
  CHECK(values.sizes() == Sizes({n, k, 4, OUTS}));
  CHECK(grid.sizes() == Sizes({n, k, OUTS, 2}));
  return Matrix{values, grid}.times(x);
}

Tensor int8_blocks(const Tensor& x, const Tensor& values, const Tensor& scale) {
  CHECK(x.dim() == 2 && x.scalar_type() == kBFloat16 && x.is_contiguous());
  CHECK(values.dim() == 5 && values.scalar_type() == kChar && values.is_contiguous());
  CHECK(scale.dim() == 1 && scale.scalar_type() == kBFloat16 && scale.is_contiguous());
  const int64_t n = values.size(0), k = values.size(1);
  CHECK(k > 0 && x.size(1) == k * GROUP && scale.size(0) == n * OUTS);
  CHECK(values.sizes() == Sizes({n, k, PAIRS, OUTS, 2}));
  return Matrix{values, scale}.times(x);
}

Tensor bf16_blocks(const Tensor& x, const Tensor& values) {
  CHECK(x.dim() == 2 && x.scalar_type() == kBFloat16 && x.is_contiguous());
  CHECK(values.dim() == 5 && values.scalar_type() == kBFloat16 && values.is_contiguous());
  const int64_t n = values.size(0), k = values.size(1);
  CHECK(k > 0 && x.size(1) == k * GROUP);
  CHECK(values.sizes() == Sizes({n, k, PAIRS, OUTS, 2}));
  return Matrix{values, values}.times(x);
}

}  // namespace products
