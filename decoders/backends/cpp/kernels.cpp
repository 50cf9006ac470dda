// The operations of the headers beside this file, for processors with AVX2 or AVX-512 and for 64-bit
// Arm. With AMX they multiply on tiles, else by vectors.

#include <torch/library.h>

#include "attention.h"
#include "cell.h"
#include "layers.h"
#include "norms.h"
#include "products.h"
#include "race.h"

TORCH_LIBRARY_FRAGMENT(draftpick, library) {
  library.def("int4_blocks(Tensor x, Tensor values, Tensor grid) -> Tensor");
  library.def("int8_blocks(Tensor x, Tensor values, Tensor scale) -> Tensor");
  library.def("bf16_blocks(Tensor x, Tensor values) -> Tensor");
  library.def("file_blocks(Tensor x, Tensor values, Tensor table) -> Tensor");
  library.def("file_rows(Tensor values, Tensor table, Tensor ids) -> Tensor");
  library.def("file_lay_out(Tensor rows, int kind, int inputs, Tensor(a!) to) -> ()");
  library.def("file_bytes", &file_products::file_bytes);
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

TORCH_LIBRARY_IMPL(draftpick, CPU, library) {
  library.impl("int4_blocks", &products::int4_blocks);
  library.impl("int8_blocks", &products::int8_blocks);
  library.impl("bf16_blocks", &products::bf16_blocks);
  library.impl("file_blocks", &file_products::file_blocks);
  library.impl("file_rows", &file_products::file_rows);
  library.impl("file_lay_out", &file_products::file_lay_out);
  library.impl("attend_rows", &attention::attend_rows);
  library.impl("run_layers", &layers::run_layers);
  library.impl("expert_rows", &layers::expert_rows);
  library.impl("turn_rows", &layers::turn_rows);
  library.impl("add_norm_rows", &layers::add_norm_rows);
  library.impl("gate_rows", &layers::gate_rows);
  library.impl("cell_step", &cell::cell_step);
  library.impl("pick_rows", &race::pick_rows);
  library.impl("pick_chain", &race::pick_chain);
  library.impl("cell_pick", &cell::cell_pick);
  library.impl("norm_rows", &norms::norm_rows);
}
