// The operations of the headers beside this file, for processors with AVX2 or AVX-512 and for 64-bit
// Arm. With AMX they multiply on tiles, else by vectors.

#include "attention.h"
#include "cell.h"
#include "layers.h"
#include "norms.h"
#include "products.h"
#include "race.h"

STABLE_TORCH_LIBRARY_FRAGMENT(draftpick, library) {
  library.def("int4_blocks(Tensor x, Tensor values, Tensor grid) -> Tensor");
  library.def("int8_blocks(Tensor x, Tensor values, Tensor scale) -> Tensor");
  library.def("bf16_blocks(Tensor x, Tensor values) -> Tensor");
  library.def("file_blocks(Tensor x, Tensor values, Tensor table) -> Tensor");
  library.def("file_rows(Tensor values, Tensor table, Tensor ids) -> Tensor");
  library.def("file_lay_out(Tensor rows, int kind, int inputs, Tensor(a!) to) -> ()");
  library.def("file_bytes(int kind, int outputs, int inputs) -> int");
  library.def(
      "attend_rows(Tensor q, Tensor room, Tensor rows, Tensor begins, Tensor bits, "
      "float? scale=None, float cap=0, Tensor? lows=None, Tensor? sinks=None) -> Tensor");
  library.def(
      "run_layers(Tensor h, Tensor cos, Tensor sin, Tensor rows, Tensor slots, Tensor begins, "
      "Tensor bits, Tensor lows, Tensor(a!) rooms, Tensor[] weights, int[] kinds, float eps, "
      "float scale, float cap, int how=0, int taken=0, bool whole=False) -> Tensor");
  library.def(
      "expert_rows(Tensor x, Tensor router, Tensor gate_up, Tensor gate_table, Tensor down, "
      "Tensor down_table, int taken, bool whole, int how, Tensor[] biases) -> Tensor");
  library.def(
      "turn_rows(Tensor(a!) qkv, Tensor? head_norms, Tensor cos, Tensor sin, int heads, int kv, "
      "float eps) -> ()");
  library.def(
      "add_norm_rows(Tensor h, Tensor a, Tensor weight, float eps) -> (Tensor, Tensor)");
  library.def("gate_rows(Tensor gate_up, int how=0) -> Tensor");
  library.def(
      "cell_step(Tensor states, Tensor tokens, Tensor embedding, Tensor[] weights, float eps) -> "
      "(Tensor, Tensor)");
  library.def(
      "pick_rows(Tensor logits, Tensor heats, Tensor keys, Tensor places, Tensor? names, int count) "
      "-> Tensor");
  library.def(
      "pick_chain(Tensor logits, float heat, int key, int place, Tensor? names, int count) -> "
      "Tensor");
  library.def(
      "cell_pick(Tensor state, Tensor unread, Tensor ids, int k, float heat, int key, int place, "
      "Tensor embedding, Tensor[] weights, float eps) -> Tensor");
  library.def("norm_rows(Tensor x, Tensor weight, float eps) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(draftpick, CPU, library) {
  library.impl("int4_blocks", TORCH_BOX(&products::int4_blocks));
  library.impl("int8_blocks", TORCH_BOX(&products::int8_blocks));
  library.impl("bf16_blocks", TORCH_BOX(&products::bf16_blocks));
  library.impl("file_blocks", TORCH_BOX(&file_products::file_blocks));
  library.impl("file_rows", TORCH_BOX(&file_products::file_rows));
  library.impl("file_lay_out", TORCH_BOX(&file_products::file_lay_out));
  library.impl("attend_rows", TORCH_BOX(&attention::attend_rows));
  library.impl("run_layers", TORCH_BOX(&layers::run_layers));
  library.impl("expert_rows", TORCH_BOX(&layers::expert_rows));
  library.impl("turn_rows", TORCH_BOX(&layers::turn_rows));
  library.impl("add_norm_rows", TORCH_BOX(&layers::add_norm_rows));
  library.impl("gate_rows", TORCH_BOX(&layers::gate_rows));
  library.impl("cell_step", TORCH_BOX(&cell::cell_step));
  library.impl("pick_rows", TORCH_BOX(&race::pick_rows));
  library.impl("pick_chain", TORCH_BOX(&race::pick_chain));
  library.impl("cell_pick", TORCH_BOX(&cell::cell_pick));
  library.impl("norm_rows", TORCH_BOX(&norms::norm_rows));
}

// It takes no tensor.
STABLE_TORCH_LIBRARY_IMPL(draftpick, CompositeExplicitAutograd, library) {
  library.impl("file_bytes", TORCH_BOX(&file_products::file_bytes));
}
