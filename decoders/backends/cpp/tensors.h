// What the operations use of PyTorch's tensors. All of <ATen/ATen.h> takes twice as long to read.

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
