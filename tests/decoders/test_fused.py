"""Fused kernels: what the layers of `llama_model` give, and the same bits at every width.

Without a GPU Triton's interpreter runs them, a program after the other.
"""

import importlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from decoder_toys import Tiny

pytest.importorskip("triton")

from decoder_toys import random_exit, some
from torch import Tensor

from decoders.backends.cuda import fused
from decoders.backends.cuda.fused import FusedLayers
from decoders.backends.cuda.recorded import Run, cuda_graphs
from decoders.backends.families import Attention
from decoders.backends.llama.attention import attention_masks
from decoders.backends.llama.kv import KVCache
from decoders.backends.llama.model import (
    LayerWeights,
    Place,
    Weights,
    rms_norm,
    rope_tables,
    ropes_at,
    through,
)
from decoders.backends.llama.shape import Shape
from decoders.backends.native import LlamaBackend
from decoders.backends.recurrent.cell import CellConfig, RecurrentCell
from decoders.backends.recurrent.head import FusedHead, GatedBlock, RecurrentHead, fits
from decoders.backends.rope import Rotation
from decoders.backends.weights.int4 import GROUP, Int4Weight, quantised, to_int4
from decoders.backends.weights.int8 import to_int8
from decoders.backends.weights.packed import Rounding, linear
from decoders.device_rounds import WIDEST
from decoders.methods.neural.drafter import NeuralDrafter
from decoders.records import Request
from decoders.sampling.draft_vocab import DraftVocab
from decoders.testing.toys import ListedLengths, autoregressive, run, speculative

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
DTYPE = torch.bfloat16
CONTEXT = 640
MLP = 32
FITS = {
    "hidden_size": 64, "intermediate_size": 64, "vocab_size": 16, "num_hidden_layers": 2
}  # int4 too; the interpreter takes a hundredth of a second for a program  # fmt: skip
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6] * 3
LONG = () if CUDA else pytest.mark.slow  # the interpreter takes many seconds

if not CUDA:
    from interpreter import interpret

    interpret()


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreted program takes a hundredth of a second, of a few rows or of many. How many rows
    it has decides nothing of what a row gives."""
    if not CUDA:
        launch = importlib.import_module("decoders.backends.cuda.fused_launch")
        monkeypatch.setattr(launch, "tile_of", lambda *_: (2, 2))


def as_it_is(run: Run) -> Run:
    """A recorder that runs a pass anew each time: kernels cannot be traced."""
    return run


def model(heads: int, kv_heads: int, biased: bool = False) -> tuple[Shape, Weights]:
    generator = torch.Generator().manual_seed(heads)

    def matrix(*size: int) -> Tensor:
        return (torch.randn(*size, generator=generator) * size[-1] ** -0.5).to(DEVICE, DTYPE)

    def norm() -> Tensor:
        return (1 + 0.1 * torch.randn(48, generator=generator)).to(DEVICE, DTYPE)

    d, head_dim, vocab = 48, 16, 40
    rows = (heads + 2 * kv_heads) * head_dim
    layers = [
        LayerWeights(
            norm(),
            matrix(rows, d),
            matrix(d, heads * head_dim),
            norm(),
            matrix(2 * MLP, d),
            matrix(d, MLP),
            matrix(rows) if biased else None,
        )
        for _ in range(2)
    ]
    frequencies = tuple(10000.0 ** (-i / 8) for i in range(8))
    kinds = (Attention(Rotation(frequencies, 1.0)),)
    shape = Shape(2, d, heads, kv_heads, head_dim, vocab, CONTEXT, 1e-5, kinds)
    return shape, Weights(matrix(vocab, d), layers, norm(), matrix(vocab, d))


def room(shape: Shape) -> KVCache:
    """A cache of a sequence that has been read."""
    cache = KVCache(2, 1, shape.kv_heads, CONTEXT, shape.head_dim, DTYPE, DEVICE)
    cache.all.copy_(torch.randn(cache.all.shape, generator=torch.Generator().manual_seed(1)))
    return cache


def states(t: int, d: int) -> Tensor:
    return some(t, d, seed=t).to(DEVICE)


def fused_layers(shape: Shape, weights: Weights, cache: KVCache | None = None) -> FusedLayers:
    rope, cache = rope_tables(shape, DEVICE, DTYPE), cache or room(shape)
    return FusedLayers(shape, weights, rope, cache, WIDEST)


def at(start: int) -> Tensor:
    return torch.tensor([start], device=DEVICE)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "biased", "t", "start"),
    [
        (4, 4, True, 3, 254),
        *(
            pytest.param(*case, marks=LONG)
            for case in (
                *((3, 1, False, t, start) for t, start in ((1, 0), (3, 254), (17, 505))),
                *((8, 2, True, 1, 0), (8, 2, True, 17, 505)),
            )
        ),
    ],
)
def test_layers_are_those_of_the_model(
    heads: int, kv_heads: int, biased: bool, t: int, start: int
) -> None:
    """Within bfloat16's rounding, relative to the states' size."""
    shape, weights = model(heads, kv_heads, biased)
    rope, h = rope_tables(shape, DEVICE, DTYPE), states(t, shape.hidden)
    plain, cache = room(shape), room(shape)
    positions = torch.arange(start, start + t, device=DEVICE)
    seen = torch.arange(start + t, device=DEVICE) <= positions.unsqueeze(1)
    place = Place(ropes_at(rope, positions, shape), attention_masks(seen, shape, DTYPE))
    slots = plain.slots(start, t, place.read(start + t))
    expected = through(h, weights.layers, shape, place, slots)
    layers = fused_layers(shape, weights, cache)
    made = layers.through(h, 0, 2, at(start - 5), 5).clone()
    near = 2e-2
    assert off(made, expected) < near
    assert off(cache.all, plain.all) < near
    assert torch.equal(cache.all[..., start + t :, :], plain.all[..., start + t :, :])
    final = layers.normed(made, torch.empty_like(made))
    assert off(final, rms_norm(made, weights.norm, shape.norm_eps)) < near
    assert off(layers.logits(final), linear(final, weights.head)) < near


def off(made: Tensor, expected: Tensor) -> float:
    """|made - expected| / |expected|; NaN passes no comparison."""
    made, expected = made.double(), expected.double()
    return float((made - expected).norm() / expected.norm())


@pytest.mark.parametrize(
    ("heads", "kv_heads", "splits"),
    [
        (3, 1, ([4], [1, 3])),
        *(
            pytest.param(*heads, ([17], [1, 16], [3, 7, 5, 2]), marks=LONG)
            for heads in ((3, 1), (4, 4))
        ),
    ],
)
def test_a_token_has_the_same_bits_at_every_width(
    heads: int, kv_heads: int, splits: tuple[list[int], ...]
) -> None:
    """Read alone, with a few or with 16 others; over the end of a span of keys too. The second
    layer, and with 16 others both."""
    first = 1 if splits[0] == [4] else 0
    shape, weights = model(heads, kv_heads)
    h = states(sum(splits[0]), shape.hidden)
    made, kept = [], []
    for widths in splits:
        cache, done, parts = room(shape), 0, []
        layers = fused_layers(shape, weights, cache)
        for t in widths:
            through = layers.through(h[done : done + t], first, 2, at(253 + done), 0)
            final = layers.normed(through, torch.empty_like(through))
            parts.append(layers.logits(final).clone())
            done += t
        made.append(torch.cat(parts))
        kept.append(cache.all)
    assert made[0].isfinite().all()
    for other, cache in zip(made[1:], kept[1:], strict=True):
        assert torch.equal(made[0], other)
        assert torch.equal(kept[0], cache)


@pytest.mark.slow
def test_a_split_may_read_several_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a cache so long that there are fewer programs than spans of keys."""
    shape, weights = model(4, 2)
    h = states(2, shape.hidden)
    made = []
    for splits in (3, 2, 1):
        launch = importlib.import_module("decoders.backends.cuda.fused_launch")
        monkeypatch.setattr(launch, "splits_of", lambda *_, splits=splits: splits)
        made.append(fused_layers(shape, weights).through(h, 0, 2, at(600), 0).clone())
    assert off(made[1], made[0]) < 1e-2
    assert off(made[2], made[0]) < 1e-2


@pytest.mark.parametrize(
    ("held", "spans"), [(99 << 10, [256, 128, 64]), (163 << 10, [256, 256, 64])]
)
def test_attention_takes_as_much_shared_memory_as_a_gpu_has(
    held: int, spans: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    has = SimpleNamespace(shared_memory_per_block_optin=held)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: has)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    shared = fused.launcher(torch.device("cuda")).shared
    launch = importlib.import_module("decoders.backends.cuda.fused_launch")
    assert [launch.span_of(d, shared) for d in (64, 128, 256)] == spans


@pytest.mark.slow
def test_a_gpu_with_less_shared_memory_reads_fewer_keys_at_once() -> None:
    shape, weights = model(4, 2)
    rope, h = rope_tables(shape, DEVICE, DTYPE), states(2, shape.hidden)
    made = []
    for shared in (99 << 10, 9 << 10):
        launch = replace(fused.launcher(DEVICE), shared=shared)
        layers = FusedLayers(shape, weights, rope, room(shape), WIDEST, launch)
        made.append((layers._scratch.span, layers.through(h, 0, 2, at(600), 0).clone()))
    (whole, one), (less, other) = made
    assert (whole, less) == (256, 128)
    assert off(other, one) < 1e-2


@pytest.mark.slow
def test_any_range_of_layers(tiny: Tiny) -> None:
    shape, weights = model(4, 2)
    h = states(2, shape.hidden)
    layers = fused_layers(shape, weights)
    whole, before = layers.through(h, 0, 2, at(9), 0).clone(), h.clone()
    lower = layers.through(h, 0, 1, at(9), 0).clone()
    assert torch.equal(layers.through(lower, 1, 2, at(9), 0), whole)
    assert torch.equal(h, before)
    assert torch.equal(layers.through(h, 1, 1, at(9), 0), h)


# -- whole models ---------------------------------------------------------------------------------


def pair(
    tiny: Tiny, rounding: Rounding | None = None, **sizes: int
) -> tuple[LlamaBackend, LlamaBackend]:
    """By PyTorch's operators, and fused."""
    plain, backend = (
        LlamaBackend.load(tiny(**{**FITS, **sizes}), DEVICE, DTYPE, rounding=rounding)
        for _ in range(2)
    )
    backend.record_passes(cuda_graphs() if CUDA else as_it_is, fuse=True)
    return plain, backend


@pytest.mark.parametrize(
    "rounding", [None, *(pytest.param(r, marks=LONG) for r in ("int8", "int4"))]
)
def test_logits_are_those_of_ordinary_passes(tiny: Tiny, rounding: Rounding | None) -> None:
    """In bfloat16's rounding; a wrong key moves them by a sixth."""
    plain, backend = pair(tiny, rounding, **({} if CUDA or rounding else {"num_hidden_layers": 1}))
    assert backend.passes == "fused"
    assert torch.equal(backend.prefill(PROMPT).logits, plain.prefill(PROMPT).logits)
    for tokens in ([3, 1, 2], [5]):
        ids = torch.tensor(tokens, device=DEVICE)
        made, expected = backend.extend(ids), plain.extend(ids)
        assert off(made, expected) < 0.05
        for one in (plain, backend):
            one.truncate(one.length - len(tokens) + 1)


@pytest.mark.parametrize("rounding", ["int8", "int4"])
def test_rounded_weights_are_multiplied_by_as_they_are_kept(rounding: Rounding) -> None:
    """Each as numbers of its own, summed in float32: 640 inputs are ten blocks."""
    x = states(3, 640)
    dense = states(48, 640)
    weight = to_int8(dense) if rounding == "int8" else to_int4(dense)
    made = torch.empty(3, 48, device=DEVICE)
    fused.launcher(DEVICE).added(x, fused.kept(weight), None, made)
    if isinstance(weight, Int4Weight):
        q, grid = quantised(dense)
        assert torch.equal(weight.steps(), q)
        step, zero = (part.T.float().repeat_interleave(GROUP, 1) for part in grid.unbind(-1))
        values = (q - 8) * step + zero
    else:
        values = weight.values * weight.scale.float().unsqueeze(1)
    assert off(made, x.double() @ values.double().T) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("exits", [False, True])
def test_answers_do_not_depend_on_the_draft(tiny: Tiny, exits: bool) -> None:
    alone = run(pair(tiny)[1], autoregressive(), PROMPT, Request(5))
    target = pair(tiny)[1]
    lengths = ListedLengths([2, 0, 1])
    if exits:
        strategy = speculative(random_exit(target, 1, seed=0), lengths)
    else:
        strategy = speculative(NeuralDrafter(pair(tiny)[1]), lengths)
    drafted = run(target, strategy, PROMPT, Request(5))
    assert drafted.ids == alone.ids
    if not exits:  # the drafter is the target: every token is accepted
        assert drafted.accepted == drafted.drafted > 0


@pytest.mark.slow
def test_final_states_come_with_the_logits(tiny: Tiny) -> None:
    backend = pair(tiny)[1]
    backend.prefill(PROMPT)
    ids = torch.tensor([7, 2], device=DEVICE)
    logits, states = backend.recorded.extend(ids, backend.length)
    assert off(linear(states, backend.weights.head), logits) < 0.01


# -- a recurrent drafter's blocks -----------------------------------------------------------------


def test_a_fused_step_is_that_of_a_recurrent_cell() -> None:
    torch.manual_seed(0)
    cell = RecurrentCell(CellConfig(hidden=48, width=64)).requires_grad_(False)
    for norm in (cell.norm, cell.embed_norm, *cell.norms):
        norm.add_(0.1 * torch.randn_like(norm))
    cell = cell.to(DEVICE, DTYPE)
    state, embedded = states(2, 48).split(1)
    head = states(50, 48)  # a vocabulary that no tile divides
    blocks = map(GatedBlock, cell.norms, cell.gate_up, cell.down)
    plain: Any = SimpleNamespace(
        config=cell.config,
        vocab=None,
        device=DEVICE,
        dtype=DTYPE,
        blocks=list(blocks),
        embed=lambda token: embedded,
        embed_norm=cell.embed_norm,
        norm=cell.norm,
        head=head,
    )
    made, logits = FusedHead(plain).step(state, torch.tensor([7], device=DEVICE))
    expected = cell(state, embedded)
    assert off(made, expected) < 1e-2
    assert off(logits, cell.read(expected) @ head.T) < 2e-2


@pytest.mark.slow
@pytest.mark.parametrize("rounding", [None, "int8", "int4"])
def test_a_fused_head_takes_the_steps_of_the_plain_one(
    tiny: Tiny, rounding: Rounding | None
) -> None:
    target = LlamaBackend.load(tiny(**FITS), DEVICE, DTYPE, rounding=rounding)
    torch.manual_seed(0)
    cell = RecurrentCell(CellConfig(hidden=64, width=128)).to(DEVICE, DTYPE)
    vocab = DraftVocab([0, 2, 3, 5, 8, 9, 12, 15], 16).to(DEVICE)
    head = RecurrentHead(target, cell.requires_grad_(False), vocab)
    assert fits(head)
    one, token = states(1, 64), torch.tensor([7], device=DEVICE)
    made, plain = FusedHead(head).step(one, token), head.step(one, token)
    for mine, theirs in zip(made, plain, strict=True):
        assert mine.shape == theirs.shape
        assert off(mine, theirs) < 0.02
    assert off(FusedHead(head).advance(one, token), head.advance(one, token)) < 0.02
    narrow = RecurrentCell(CellConfig(hidden=64, width=40)).to(DEVICE, DTYPE)
    assert not fits(RecurrentHead(target, narrow.requires_grad_(False), vocab))


def test_a_triton_that_cannot_run_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fused.broken(DEVICE) is None

    def without_a_compiler(device: torch.device) -> None:
        raise RuntimeError("Failed to find C compiler.\nSet CC")

    monkeypatch.setattr(fused, "launcher", without_a_compiler)
    assert fused.broken.__wrapped__(DEVICE) == "RuntimeError: Failed to find C compiler."


def test_what_does_not_fit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    shape, weights = model(4, 2)
    if not CUDA:
        assert fused.unsupported_reason(shape, weights) == "the kernels are for CUDA, not for cpu"
    on_cuda = replace(weights, embedding=torch.empty(1, device="meta", dtype=DTYPE))
    monkeypatch.setattr(torch.Tensor, "device", torch.device("cuda"))
    assert fused.unsupported_reason(shape, on_cuda) is None
    assert "40" in str(fused.unsupported_reason(replace(shape, head_dim=40), on_cuda))
    assert "multiples of 16" in str(fused.unsupported_reason(replace(shape, hidden=50), on_cuda))
    normed = replace(weights.layers[0], head_norms=weights.norm)
    assert "normed" in str(fused.unsupported_reason(shape, replace(on_cuda, layers=[normed])))
    wide = replace(on_cuda, embedding=torch.empty(1, device="meta"))
    assert "bfloat16" in str(fused.unsupported_reason(shape, wide))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert fused.unsupported_reason(shape, on_cuda) == "Triton is not installed"
