// The operations of the headers beside this file, for processors with AVX-512. With AMX they
// multiply on tiles, else by vectors.

#include <torch/library.h>

#include "attention.h"
#include "draws.h"
#include "norms.h"
#include "products.h"

TORCH_LIBRARY_FRAGMENT(draftpick, library) {
  library.def("int4_blocks(Tensor x, Tensor values, Tensor grid) -> Tensor");
  library.def("int8_blocks(Tensor x, Tensor values, Tensor scale) -> Tensor");
  library.def("attend_rows(Tensor q, Tensor room, Tensor rows, Tensor begins, Tensor bits) -> Tensor");
  library.def("draw_rows(Tensor probs, Tensor heights) -> Tensor");
  library.def("norm_rows(Tensor x, Tensor weight, float eps) -> Tensor");
}

TORCH_LIBRARY_IMPL(draftpick, CPU, library) {
  library.impl("int4_blocks", &products::int4_blocks);
  library.impl("int8_blocks", &products::int8_blocks);
  library.impl("attend_rows", &attention::attend_rows);
  library.impl("draw_rows", &draws::draw_rows);
  library.impl("norm_rows", &norms::norm_rows);
}
