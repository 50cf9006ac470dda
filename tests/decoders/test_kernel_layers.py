"""Whole layers by the kernels in C++, and what lies between their products.

That their passes are those of ordinary attention, and a token's bits the same in any company, is in
test_row_attention.py, for the models that use them.
"""

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from decoder_toys import CPU, FITS_ROWS, Tiny, by_rows, some, some_tokens
from effort import examples
from gguf_toys import random_rows
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from decoders.backends import cpp_kernels
from decoders.backends.cpp.layers import ACTIVATIONS, KernelLayers
from decoders.backends.cpp.row_attention import AttentionSpans
from decoders.backends.families import Attention, Experts
from decoders.backends.llama.model import (
    LayerWeights,
    Weights,
    added,
    all_heads,
    experts,
    gated,
    turned,
)
from decoders.backends.llama.reading import SequenceSlice
from decoders.backends.llama.shape import Shape
from decoders.backends.native import LlamaBackend
from decoders.backends.rope import Rotation
from decoders.backends.weights.blocked import NARROW
from decoders.backends.weights.file_blocks import FileBlocks, FileRows, to_file_blocks
from decoders.backends.weights.kernel_weight import KernelWeight
from decoders.backends.weights.packed import Matrix, Rounding, dense

pytestmark = pytest.mark.instructions

SHAPE = Shape(1, 96, 3, 1, 32, 16, 64, 1e-5, (Attention(Rotation((), 1.0)),))
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@examples(25)
@given(rows=st.integers(1, 40), width=st.sampled_from([32, 96, 576]), seed=st.integers(0, 99))
def test_what_lies_between_products_is_that_of_ordinary_operations(
    kernel: None, rows: int, width: int, seed: int
) -> None:
    """To bfloat16's rounding, of which ordinary operations make one or two more."""
    ops = torch.ops.draftpick

    def near(mine: Tensor, exact: Tensor) -> bool:
        return torch.allclose(mine.double(), exact.double(), rtol=0.02, atol=0.02)

    h, a, weight = some(rows, width, seed=seed), some(rows, width, seed=seed + 1), some(width)
    more, x = ops.add_norm_rows(h, a, weight, 1e-5)
    both = added(h.double(), a.double(), weight.double(), 1e-5)
    assert near(more, both[0]) and near(x, both[1])
    gate_up = some(rows, 2 * width, seed=seed) * 8
    gate_up[0, 0], gate_up[0, 1] = -3e38, 3e30
    for kind in ACTIVATIONS:
        made = ops.gate_rows(gate_up, ACTIVATIONS.index(kind))
        assert near(made, gated(gate_up.double(), kind))


@pytest.mark.parametrize("activation", ["silu", "clamped"])
@pytest.mark.parametrize("whole", [True, False])
def test_experts_are_those_of_ordinary_operations(
    kernel: None, whole: bool, activation: str
) -> None:
    """Each token's likeliest three of five, by their shares; alone, its bits are the same."""
    d, f, count = 64, 32, 5

    def blocks(outputs: int, inputs: int, parts: int) -> FileBlocks:
        rng = np.random.default_rng(outputs)
        rows = [random_rows("Q8_0", outputs, inputs, rng) for _ in range(count * parts)]
        return to_file_blocks([FileRows(torch.from_numpy(each), 8, inputs) for each in rows])

    shape = replace(SHAPE, hidden=d, experts=Experts(count, 3, whole, f), activation=activation)
    gate_up, down, router = blocks(f, d, 2), blocks(d, f, 1), some(count, d, seed=3)
    layer = LayerWeights(None, router, router, None, gate_up, down, router=router)
    biases = [router.new_empty(0)] * 3
    if activation == "clamped":
        biases = [some(count, seed=4), some(count, 2 * f, seed=5), some(count, d, seed=6)]
        names = ("router_bias", "gate_up_bias", "down_bias")
        layer = replace(layer, **dict(zip(names, biases, strict=True)))
    how = ACTIVATIONS.index(activation)
    parts = (router, *gate_up.stored, *down.stored, 3, whole, how, biases)
    x, run = some(9, d, seed=1), torch.ops.draftpick.expert_rows
    made, exact = run(x, *parts), experts(x, layer, router, shape)
    assert torch.allclose(made.double(), exact.double(), rtol=0.05, atol=0.02 * exact.std())
    assert torch.equal(torch.cat([run(row[None], *parts) for row in x]), made)
    for at, wrong in [
        (0, router[:, :32]),
        (2, gate_up.table[:-1]),
        (4, down.table[1:]),
        (5, 6),
        (7, 3),
        (8, [router, *biases[1:]]),
    ]:
        with pytest.raises(RuntimeError):
            run(x, *parts[:at], wrong, *parts[at + 1 :])


@pytest.mark.parametrize("normed", ["each", "all", None])
def test_queries_and_keys_are_turned_in_place(kernel: None, normed: str | None) -> None:
    heads, kv, d, rows = SHAPE.heads, SHAPE.kv_heads, SHAPE.head_dim, 5
    sizes = {"each": (2, d), "all": ((heads + kv) * d,)}
    qkv, norms = some(rows, (heads + 2 * kv) * d), some(*sizes[normed], seed=1) if normed else None
    cos, sin = all_heads((some(rows, d, seed=2), some(rows, d, seed=3)), SHAPE)
    of_heads = None if norms is None else norms.double()
    exact = turned(qkv.double(), of_heads, SHAPE, (cos.double(), sin.double()))
    torch.ops.draftpick.turn_rows(qkv, norms, cos[0], sin[0], heads, kv, SHAPE.norm_eps)
    made = qkv.view(rows, -1, d).transpose(0, 1)
    assert torch.allclose(made.double(), exact, rtol=0.02, atol=0.05)
    assert torch.equal(made[heads + kv :].double(), exact[heads + kv :])


@pytest.mark.every(2)
@pytest.mark.parametrize("tokens", [64, 300])
@pytest.mark.parametrize(
    ("kind", "rounding"),
    [
        ("qwen2", "int4"),
        ("qwen3", "int8"),
        ("llama", None),
        ("gemma3", "int4"),
        ("olmo2", "int8"),
        ("olmo3", None),
        ("phi3", "int4"),
    ],
)
def test_logits_are_as_near_to_exact_ones_as_those_of_ordinary_operations(
    kernel: None, tiny: Tiny, kind: str, rounding: Rounding | None, tokens: int
) -> None:
    """In the mean over many tokens; exact ones are float32's, of the same weights: rounded ones, or
    those that prompts are read by."""

    def exact(matrix: Matrix) -> Tensor:
        of_drafts = tokens <= NARROW and isinstance(matrix, KernelWeight)
        return (matrix.dequantised() if of_drafts else dense(matrix)).float()

    folder = tiny(kind, **FITS_ROWS, max_position_embeddings=512)
    plain, backend = (
        LlamaBackend.load(folder, CPU, torch.bfloat16, rounding=rounding, blocked=True)
        for _ in range(2)
    )
    backend.compile_layers()
    whole = plain.weights
    layers = [
        replace(w, **{name: exact(t) for name, t in w.tensors().items()}) for w in whole.layers
    ]
    weights = Weights(exact(whole.embedding), layers, exact(whole.norm), exact(whole.head))
    likes = LlamaBackend(plain.shape, weights, None)
    apart = dict.fromkeys((plain, backend), 0.0)
    for seed in range(3):
        ids = some_tokens(tokens, seed)
        for each in (likes, *apart):
            each.prefill(PROMPT)
        wanted = likes.extend(ids)
        for each in apart:
            apart[each] += float((each.extend(ids) - wanted).abs().mean())
    assert apart[backend] < 1.2 * apart[plain]


def test_a_twin_has_the_same_passes(kernel: None, tiny: Tiny) -> None:
    backend = by_rows(tiny("qwen2", **FITS_ROWS), "int4")
    twin = backend.sharing_weights(64)
    assert twin.passes == "compiled" and twin.weights is backend.weights
    read = [each.prefill(PROMPT).logits for each in (backend, twin)]
    drafted = [each.extend(torch.tensor([5, 6])) for each in (backend, twin)]
    backend.prefill([7, 7])  # each has a cache of its own
    drafted.append(twin.extend(torch.tensor([2])))
    assert torch.equal(*read) and torch.equal(*drafted[:2]) and twin.length == len(PROMPT) + 3


def test_layers_with_wrong_shapes_are_refused(kernel: None, tiny: Tiny) -> None:
    backend = by_rows(tiny("qwen2", **FITS_ROWS), "int4")
    layers = backend.compiled
    assert isinstance(layers, KernelLayers)
    backend.prefill(PROMPT)
    spans = AttentionSpans.of([SequenceSlice(0, 8, 2)])
    h = backend.embed(torch.tensor([5, 6]))
    assert layers.read(h, 0, 2, spans).shape == h.shape
    assert torch.equal(layers.read(h, 0, 0, spans), h)
    given = [h, *(part[None, 8:10] for part in backend._rope[0]), spans.rows, spans.slots]
    given += [spans.begins, spans.bits, spans.lows(0)[None], backend._cache.all]
    rest = [layers._weights, layers._kinds, 1e-5, 0.1, 0.0, False]
    run = torch.ops.draftpick.run_layers
    assert run(*given, *rest).shape == h.shape
    for at, wrong in [
        (0, h.float()), (1, given[1][:, :1]), (2, given[2][..., :8]), (3, spans.rows + 1),
        (4, spans.slots - 9), (4, spans.slots + 5000), (5, spans.begins - 9), (6, spans.bits * 0),
        (7, given[7] + 20), (7, given[7] - 1), (7, given[7][:, :1]), (8, given[8][:1]),
        (8, given[8].float()), (8, given[8][..., :16]),
    ]:  # fmt: skip
        with pytest.raises(RuntimeError):
            run(*given[:at], wrong, *given[at + 1 :], *rest)


RUNS = """
import sys
import pytest
import torch
from decoders.backends import cpp_kernels
best, *emulated = sys.argv[1:]
if emulated:
    torch.cpu._is_amx_tile_supported = torch.cpu._init_amx = lambda: True
    cpp_kernels.SETS["AMX"] = cpp_kernels.BF16 | {"avx512_f": " ".join(["-mavx512f", *emulated])}
for name in [*cpp_kernels.SETS]:
    if name == best:
        break
    del cpp_kernels.SETS[name]
cpp_kernels.SETS[best] = cpp_kernels.SETS[best] | {"avx2": "-mavx2 -O1"}  # -O3 takes twice as long
assert cpp_kernels.instructions() == best
names = ["blocked", "gguf", "row_attention", "kernel_layers", "race", "recurrent_kernels"]
files = [f"tests/decoders/test_{name}.py" for name in names]
sys.exit(pytest.main([*files, "-q", "-m", "not slow", "-p", "no:cacheprovider"]))
"""


def run_again(*given: str) -> None:
    """All tests of the kernels, in a process of their own."""
    done = subprocess.run((sys.executable, "-c", RUNS, *given), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("lesser", [*cpp_kernels.SETS][1:-2])
def test_a_processor_with_fewer_instructions_does_the_same(kernel: None, lesser: str) -> None:
    """By those for a lesser set that this processor has; AVX2 is for `make avx2`."""
    if not cpp_kernels.has(lesser) or lesser == cpp_kernels.instructions():
        pytest.skip(f"this processor has {cpp_kernels.instructions()}")
    run_again(lesser)


@pytest.mark.slow
def test_a_processor_with_tiles_does_the_same(kernel: None) -> None:
    """By tiles that are emulated, which end the process where they are used wrongly."""
    if not cpp_kernels.has("AVX512_BF16") or cpp_kernels.has("AMX"):
        pytest.skip(f"this processor has {cpp_kernels.instructions()}")
    tiles = Path(__file__).with_name("emulated_tiles.h")
    seen = hashlib.sha256(tiles.read_bytes()).hexdigest()[:8]  # so that a change compiles again
    run_again("AMX", f"-include {tiles}", f"-DEMULATED=0x{seen}")


@pytest.mark.slow
def test_the_code_for_tiles_compiles_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the compiler's own instructions for them, which emulated ones stand in for above."""
    monkeypatch.setattr(cpp_kernels, "ALWAYS", ["-O0"])  # it comes after the level of users
    made = tmp_path / "kernels.so"
    refused = cpp_kernels.compile_kernels(made, [*cpp_kernels.TILES.values()])
    assert refused is None and made.exists()


def test_kernels_are_made_in_a_folder_of_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "a package's" / "kernels.cpp"
    source.parent.mkdir()
    source.write_text("int draftpick_answer() { return 42; }\n")
    monkeypatch.setattr(cpp_kernels, "SOURCE", source)
    made = tmp_path / "my cache; it's $HOME" / "kernels.so"
    assert cpp_kernels.compile_kernels(made, []) is None
    assert cpp_kernels._opened(made) is None and os.listdir(made.parent) == [made.name]
    source.write_text("no C++\n")
    assert "rror: " in str(cpp_kernels.compile_kernels(made.with_name("b.so"), []))
