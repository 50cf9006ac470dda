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
  const at::Tensor &values, &grid;

  bool of_file() const { return values.scalar_type() == at::kByte; }
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
    else if (values.scalar_type() == at::kBFloat16)
      multiply(p, Bf16{(const uint16_t*)values.const_data_ptr()});
    else
      multiply(p, Int8{(const int8_t*)values.const_data_ptr(),
                       (const uint16_t*)grid.const_data_ptr()});
  }

  at::Tensor times(const at::Tensor& x) const {
    at::Tensor out = at::empty({x.size(0), outputs()}, x.options());
    times((const uint16_t*)x.const_data_ptr(), x.size(0), (uint16_t*)out.data_ptr());
    return out;
  }
};

at::Tensor int4_blocks(const at::Tensor& x, const at::Tensor& values, const at::Tensor& grid) {
  TORCH_CHECK(x.dim() == 2 && x.scalar_type() == at::kBFloat16 && x.is_contiguous());
  TORCH_CHECK(values.dim() == 4 && values.scalar_type() == at::kInt && values.is_contiguous());
  TORCH_CHECK(grid.dim() == 4 && grid.scalar_type() == at::kBFloat16 && grid.is_contiguous());
  const int64_t n = values.size(0), k = values.size(1);
  TORCH_CHECK(k > 0 && x.size(1) == k * GROUP);
  TORCH_CHECK(values.sizes() == at::IntArrayRef({n, k, 4, OUTS}));
  TORCH_CHECK(grid.sizes() == at::IntArrayRef({n, k, OUTS, 2}));
  return Matrix{values, grid}.times(x);
}

at::Tensor int8_blocks(const at::Tensor& x, const at::Tensor& values, const at::Tensor& scale) {
  TORCH_CHECK(x.dim() == 2 && x.scalar_type() == at::kBFloat16 && x.is_contiguous());
  TORCH_CHECK(values.dim() == 5 && values.scalar_type() == at::kChar && values.is_contiguous());
  TORCH_CHECK(scale.dim() == 1 && scale.scalar_type() == at::kBFloat16 && scale.is_contiguous());
  const int64_t n = values.size(0), k = values.size(1);
  TORCH_CHECK(k > 0 && x.size(1) == k * GROUP && scale.size(0) == n * OUTS);
  TORCH_CHECK(values.sizes() == at::IntArrayRef({n, k, PAIRS, OUTS, 2}));
  return Matrix{values, scale}.times(x);
}

at::Tensor bf16_blocks(const at::Tensor& x, const at::Tensor& values) {
  TORCH_CHECK(x.dim() == 2 && x.scalar_type() == at::kBFloat16 && x.is_contiguous());
  TORCH_CHECK(values.dim() == 5 && values.scalar_type() == at::kBFloat16 && values.is_contiguous());
  const int64_t n = values.size(0), k = values.size(1);
  TORCH_CHECK(k > 0 && x.size(1) == k * GROUP);
  TORCH_CHECK(values.sizes() == at::IntArrayRef({n, k, PAIRS, OUTS, 2}));
  return Matrix{values, values}.times(x);
}

}  // namespace products
