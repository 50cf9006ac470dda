// What the operations use of PyTorch: its stable interface alone, so that kernels compiled with any
// release run with 2.13 and every later one.

#pragma once

#define TORCH_TARGET_VERSION 0x020d000000000000  // 2.13

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <cstring>
#include <vector>

#define CHECK(condition, ...) STD_TORCH_CHECK(condition, #condition, ##__VA_ARGS__)

using torch::headeronly::ScalarType;
using torch::stable::get_num_threads;
using torch::stable::parallel_for;
using torch::stable::Tensor;
using Tensors = torch::headeronly::HeaderOnlyArrayRef<Tensor>;
using Sizes = torch::headeronly::IntHeaderOnlyArrayRef;

constexpr ScalarType kByte = ScalarType::Byte, kChar = ScalarType::Char, kInt = ScalarType::Int,
                     kLong = ScalarType::Long, kBFloat16 = ScalarType::BFloat16,
                     kFloat = ScalarType::Float, kDouble = ScalarType::Double;

// By the interface in C, which takes half the time of a call through PyTorch's dispatcher.
inline Tensor empty(Sizes sizes, ScalarType type) {
  std::vector<int64_t> strides(sizes.size());
  int64_t next = 1;
  for (size_t i = sizes.size(); i-- > 0; next *= sizes[i]) strides[i] = next;
  namespace detail = torch::stable::detail;
  AtenTensorHandle made;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
      sizes.size(), sizes.data(), strides.data(), detail::to<int32_t>(detail::from(type)),
      aoti_torch_device_type_cpu(), 0, &made));
  return Tensor(made);
}

// The same numbers in a row.
inline Tensor in_a_row(const Tensor& of) {
  return of.is_contiguous() ? of : torch::stable::contiguous(of);
}

inline Tensor copied(const Tensor& of) {
  const Tensor from = in_a_row(of);
  Tensor made = empty(of.sizes(), of.scalar_type());
  std::memcpy(made.data_ptr(), from.const_data_ptr(), of.numel() * of.element_size());
  return made;
}
