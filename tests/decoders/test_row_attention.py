"""Attention by the kernel of attention.h, and the passes that go by it.

What a token sees is told by a number of positions and some bits; that is compared with attention in
float64, and with PyTorch's own by the models that use it.
"""

from typing import Any

import pytest
import torch
from backend_toys import ids
from decoder_toys import CPU, FITS_ROWS, Tiny, near, some_tokens, threads
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from decoders.backends.batched.row_passes import RowPasses
from decoders.backends.batched.slots import BatchSlots, PassRequest
from decoders.backends.cpp.layers import KernelLayers
from decoders.backends.cpp.row_attention import SPAN, AttentionSpans
from decoders.backends.llama.eight_bits import decoded, encoded
from decoders.backends.llama.reading import SequenceSlice
from decoders.backends.llama.tree import Tree
from decoders.backends.native import LlamaBackend
from decoders.backends.weights.blocked import NARROW
from decoders.backends.weights.packed import Rounding

pytestmark = pytest.mark.instructions

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
READ = 512  # positions of the rooms here


# -- what a token sees, on any machine -------------------------------------------------------------


def test_a_token_of_a_chain_sees_what_came_before_and_itself() -> None:
    spans = AttentionSpans.of([SequenceSlice(3, 10, 2), SequenceSlice(5, 0, 3)])
    assert spans.rows.tolist() == [3, 3, 5, 5, 5]
    assert spans.slots.tolist() == spans.depths.tolist() == [10, 11, 0, 1, 2]
    assert spans.begins.tolist() == [10, 10, 0, 0, 0]
    assert spans.bits.tolist() == [0b1, 0b11, 0b1, 0b11, 0b111]


@examples(100)
@given(st.data())
def test_a_node_of_a_tree_sees_its_own_branch(data: st.DataObject) -> None:
    """Whatever the tree, grown in any number of parts."""
    base = data.draw(st.integers(1, 40))
    tree, first = Tree(base), base
    for _ in range(data.draw(st.integers(1, 3))):
        old = len(tree.parents)
        parents = [
            data.draw(st.integers(-1, old + i - 1)) for i in range(data.draw(st.integers(1, 6)))
        ]
        depths, seen = tree.grow(parents)
        spans = AttentionSpans.of(
            [SequenceSlice(1, first, len(parents), torch.tensor(depths), seen)]
        )
        assert spans is not None and spans.depths.tolist() == depths
        assert spans.slots.tolist() == list(range(first, first + len(parents)))
        for own, begin, bits in zip(seen, spans.begins.tolist(), spans.bits.tolist(), strict=True):
            told = [at < begin or bool(bits >> at - begin & 1) for at in range(tree.end)]
            assert told == own.tolist() and bits > 0
        first += len(parents)


def test_a_long_chain_is_told_in_parts_and_a_large_tree_not_at_all() -> None:
    spans = AttentionSpans.of([SequenceSlice(0, 5, SPAN + 2)])
    assert spans is not None and spans.begins.tolist() == [5] * SPAN + [5 + SPAN] * 2
    assert spans.bits[[0, 1, SPAN - 1, SPAN, -1]].tolist() == [1, 3, 2**SPAN - 1, 1, 3]
    for nodes in (SPAN, SPAN + 1):
        depths, seen = Tree(5).grow([-1] * nodes)
        tree = SequenceSlice(1, 5, nodes, torch.tensor(depths), seen)
        assert (AttentionSpans.of([SequenceSlice(0, 5, 1), tree]) is None) == (nodes > SPAN)


# -- the kernel ------------------------------------------------------------------------------------


def exact(
    q: Tensor,
    room: Tensor,
    rows: Tensor,
    begins: Tensor,
    bits: Tensor,
    lows: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """The same in float64, a token after the other; [N, H * D]."""
    heads, tokens, d = q.shape
    group, planes = 2 * heads // room.shape[1], room.shape[1] // 2
    made, at = [], torch.arange(room.shape[2])
    for i in range(tokens):
        begin, word = int(begins[i]), int(bits[i])
        told = [0 <= p - begin < SPAN and bool(word >> p - begin & 1) for p in at.tolist()]
        seen = (at < begin) | torch.tensor(told)
        if lows is not None:
            seen &= at >= lows[i]
        keys, values = room[rows[i], :, seen].double().tensor_split(2)
        scores = q[:, i].double().view(planes, group, d) @ keys.transpose(1, 2) * d**-0.5
        if sinks is not None:
            more = sinks.double().view(planes, group, 1)
            scores = torch.cat([scores, more], -1)
        made.append((scores.softmax(-1)[..., : keys.shape[1]] @ values).view(-1))
    return torch.stack(made)


def asked(
    shape: tuple[int, int, int], readings: list[tuple[int, int, int]], seed: int
) -> tuple[Tensor, ...]:
    """What the kernel takes. shape: heads, key heads, dimensions.
    readings: row, positions before, and tokens, of which every other one sees not all before it.
    """
    heads, planes, d = shape
    generator = torch.Generator().manual_seed(seed)
    tokens = [(row, begin, i) for row, begin, count in readings for i in range(count)]
    bits = [1 << i if i % 2 else (2 << i) - 1 for _, _, i in tokens]
    rows = max(row for row, _, _ in readings) + 1
    room = torch.randn(rows, 2 * planes, READ, d, generator=generator).bfloat16()
    q = 3 * torch.randn(len(tokens), heads, d, generator=generator)
    columns = [ids(*column) for column in zip(*tokens, strict=True)]
    return q.bfloat16().transpose(0, 1), room, columns[0], columns[1], ids(*bits)


@examples(40)
@given(
    shape=st.sampled_from([(9, 3, 64), (4, 4, 32), (8, 1, 128), (14, 2, 96), (32, 2, 64)]),
    counts=st.lists(st.integers(0, 21), min_size=1, max_size=5).filter(any),
    begin=st.integers(0, READ - 21),
    window=st.sampled_from([0, 64, 200]),
    sunk=st.booleans(),
    seed=st.integers(0, 99),
)
def test_it_is_attention_and_a_token_does_not_depend_on_the_others(
    kernel: None,
    shape: tuple[int, int, int],
    counts: list[int],
    begin: int,
    window: int,
    sunk: bool,
    seed: int,
) -> None:
    readings = [(2 * i, begin * (i + 1) // len(counts), n) for i, n in enumerate(counts)]
    given_ = asked(shape, readings, seed)
    q, room, *places = given_
    lows: Any = None
    if window:  # as in a chain
        nth = torch.cat([torch.arange(count) for count in counts])
        lows = (places[1] + nth - window + 1).clamp_min(0)
    sinks = 4 * torch.randn(shape[0]).bfloat16() if sunk else None
    run, each = torch.ops.draftpick.attend_rows, [slice(i, i + 1) for i in range(q.shape[1])]
    with threads(2):
        made = run(*given_, None, 0.0, lows, sinks)
    with threads(1):
        alone = [
            run(q[:, i], room, *(p[i] for p in places), None, 0.0, low, sinks)
            for i in each
            for low in [lows[i] if window else None]
        ]
    assert torch.equal(torch.cat(alone), made)
    torch.testing.assert_close(made.double(), exact(*given_, lows, sinks), atol=0.03, rtol=0.02)


def test_what_is_not_seen_is_not_felt(kernel: None) -> None:
    """Scores far apart, keys that nobody may see, another sequence's NaN."""
    q, room, *places = asked((9, 3, 64), [(0, 200, 5), (1, 3, 2)], 1)
    before = torch.ops.draftpick.attend_rows(q, room, *places)
    room[0, :3, 205:], room[0, 3:, 205:] = torch.nan, 1e30
    room[1, :3, 2] *= 1e4
    room[0, :3, 17] = 1e3 * q[::3, 0]
    found = torch.ops.draftpick.attend_rows(q, room, *places)
    assert found.isfinite().all()
    torch.testing.assert_close(found[0, :64], room[0, 3, 17])  # the one key that matters
    room[0, 3:, 40] = torch.nan
    found = torch.ops.draftpick.attend_rows(q, room, *places)
    assert not found[:5].isfinite().any() and found[5:].isfinite().all()
    assert not torch.equal(found[5:], before[5:])


@pytest.mark.parametrize("shape", [(9, 3, 64), (4, 4, 32), (14, 2, 96), (8, 1, 128)])
def test_a_room_in_8_bits_is_that_of_its_numbers(kernel: None, shape: tuple[int, int, int]) -> None:
    q, room, *places = asked(shape, [(0, 200, 5), (1, 3, 2), (3, 0, 1)], 1)
    room[0, 0, 3, 5], room[1] = 1e3, 0
    small, run = encoded(room), torch.ops.draftpick.attend_rows
    back = decoded(small, shape[2], torch.bfloat16)
    assert torch.equal(run(q, small, *places), run(q, back, *places))
    small[0, :, 17, shape[2] :] = -1  # a step that is no number
    found = run(q, small, *places)
    assert not found[:5].isfinite().any() and found[5:].isfinite().all()


def test_wrong_shapes_and_places_are_refused(kernel: None) -> None:
    run = torch.ops.draftpick.attend_rows
    q, room, rows, begins, bits = asked((4, 2, 32), [(0, 5, 2)], 0)
    assert run(q, room, rows, begins, bits).shape == (2, 128)
    assert run(q[:, :0], room, rows[:0], begins[:0], bits[:0]).shape == (0, 128)
    for wrong in (
        (q.float(), room, rows, begins, bits),
        (q[:3], room, rows, begins, bits),
        (q[..., :16], room[..., :16], rows, begins, bits),
        (q, room[:, :3], rows, begins, bits),
        (q, room.to(torch.int8), rows, begins, bits),
        (q, encoded(room).short(), rows, begins, bits),
        (q, room[:, :, : READ - 1], rows, begins, bits),
        (q, room, rows[:1], begins, bits),
        (q, room, rows.int(), begins, bits),
        (q, room, rows + 1, begins, bits),
        (q, room, rows - 1, begins, bits),
        (q, room, rows, begins + READ, bits),
        (q, room, rows, begins - 9, bits),
        (q, room, rows, begins, bits * 0),
    ):
        with pytest.raises(RuntimeError):
            run(*wrong)


# -- models ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "rounding"), [("qwen2", "int4"), ("qwen3", "int8")])
def test_keys_and_values_in_8_bits(kernel: None, tiny: Tiny, kind: str, rounding: Rounding) -> None:
    """The bytes are those of eight_bits.py, passes of any width and those that several share have
    the same bits, and logits are those of ordinary operations but for their rounding."""
    plain, ordinary, whole, parts = (model(tiny, kind, rounding) for _ in range(4))
    for each in (ordinary, whole, parts):
        each.keep_eight_bits()
    for each in (plain, whole, parts):
        each.compile_layers()
    asked_for = some_tokens(NARROW)
    for each in (plain, ordinary, whole, parts):
        each.prefill(PROMPT * 20)
        assert each.prefill([5]).logits.isfinite().all()  # what was held is overwritten
        each.prefill(PROMPT * 20)
    made = whole.extend(asked_for)
    assert torch.equal(torch.cat([parts.extend(p) for p in asked_for.split([1, 3, 12, 80])]), made)
    near(ordinary.extend(asked_for), made)
    off = (plain.extend(asked_for) - made).abs()
    assert 0 < off.float().mean() < 0.1
    own, theirs = (each._cache.all[0, 0, :, : each.length] for each in (whole, plain))
    assert torch.equal(own, encoded(theirs)), "the first layer's, which depend on no others"
    slots = BatchSlots(whole, 2, batch_invariant=True)
    for slot in slots.all:
        slot.prefill(PROMPT * 20)
    read = slots.read([PassRequest(slot, asked_for[:9]) for slot in slots.all])
    assert all(torch.equal(each, made[:9]) for each in read)


def model(tiny: Tiny, kind: str, rounding: Rounding | None) -> LlamaBackend:
    more = {"sliding_window": 70} if kind in ("gemma2", "gemma3", "phi3", "gpt_oss") else {}
    if kind == "gpt_oss":
        more["num_experts_per_tok"] = 4  # all: which ones are taken would depend on rounding
    folder = tiny(kind, **FITS_ROWS, max_position_embeddings=700, **more)
    return LlamaBackend.load(folder, CPU, torch.bfloat16, rounding=rounding, blocked=True)


def several(slots: BatchSlots, at: list[int], widths: list[int]) -> list[PassRequest]:
    """The seats in the rows `at` hold a prompt each, and want so many tokens read; the last one a
    tree of them, if it wants more than two."""
    wanted = []
    for row, width in zip(at, widths, strict=True):
        slots.all[row].prefill((PROMPT * 20)[: 60 + 7 * row])
        wanted.append(PassRequest(slots.all[row], some_tokens(width, row)))
    if widths[-1] > 2:
        parents = [-1, *((i - 1) // 2 for i in range(1, widths[-1]))]
        wanted[-1] = PassRequest(slots.all[at[-1]], some_tokens(widths[-1], at[-1]), parents)
    return wanted


WAYS = [([0, 1], [1, 1]), ([1, 3, 15], [1, 5, 6]), ([0, 15], [30, 2]), ([0, 9], [72, 25])]
KINDS: list[tuple[str, Rounding | None]] = [
    ("qwen2", "int4"), ("qwen3", "int8"), ("llama", None), ("gemma3", "int8"), ("phi3", "int4"),
    ("gemma2", "int8"),
    ("olmo2", None),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "rounding"), [*KINDS, ("gpt_oss", None)])
def test_passes_are_those_of_ordinary_attention(
    kernel: None, tiny: Tiny, kind: str, rounding: Rounding | None
) -> None:
    plain, backend = (model(tiny, kind, rounding) for _ in range(2))
    backend.compile_layers()
    assert isinstance(backend.compiled, KernelLayers)
    for each in (plain, backend):
        each.prefill(PROMPT)
    for step, width in enumerate([1, 2, 17, NARROW, 1, NARROW + 1, 300, 5, 1]):
        near(*(each.extend(some_tokens(width, step)) for each in (backend, plain)))
        for each in (plain, backend):
            each.truncate(each.length - width // 3)
    for parents in ([-1, 0, 0, 1, 2, 2], [3, 3, 4]):  # a tree, and one that goes on
        near(*(each.extend(some_tokens(len(parents)), parents) for each in (backend, plain)))
    one, other = BatchSlots(backend, 16), BatchSlots(plain, 16)
    assert one.passes == "compiled" and other.passes == "eager"
    for at, widths in WAYS:
        mine, theirs = one.read(several(one, at, widths)), other.read(several(other, at, widths))
        near(torch.cat(mine), torch.cat(theirs))


def test_a_tree_too_large_for_bits_is_read_by_ordinary_operations(kernel: None, tiny: Tiny) -> None:
    plain, backend = (model(tiny, "llama", "int4") for _ in range(2))
    backend.compile_layers()
    batch_invariant = BatchSlots(backend, 3, batch_invariant=True)
    for each in (plain, backend, *batch_invariant.all):
        each.prefill(PROMPT)
        each.extend(some_tokens(60), list(range(-1, 59)))
    expected = plain.extend(some_tokens(5), [59, 60, 60, 61, 61])
    near(backend.extend(some_tokens(5), [59, 60, 60, 61, 61]), expected)
    ids, parents = some_tokens(5), [59, 60, 60, 61, 61]
    for made in batch_invariant.read([PassRequest(s, ids, parents) for s in batch_invariant.all]):
        near(made, expected)


def test_a_sequence_that_has_ended_looks_at_one_position(kernel: None, tiny: Tiny) -> None:
    """Behind a window too, while others of its batch go on, whose states do not change by it."""
    backend = model(tiny, "gemma3", "int8")
    cache = backend.new_cache(backend.layers, batch=2)
    passes = RowPasses(backend.shape, backend.weights.layers, backend._rope, cache, False)
    h, at = backend.embed(ids(5, 6)), ids(300, 5)
    made = [
        passes.through(h.clone(), at, lengths, [(slice(0, 2), 301)])
        for lengths in (ids(301, 6), ids(1, 6))
    ]
    assert torch.equal(made[0][1], made[1][1]) and made[1].isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "rounding"), KINDS)
def test_a_token_has_the_same_bits_in_any_company(
    kernel: None, tiny: Tiny, kind: str, rounding: Rounding | None
) -> None:
    """In passes of any width, alone and among others."""
    plain, backend = (model(tiny, kind, rounding) for _ in range(2))
    backend.compile_layers()
    for each in (plain, backend):
        each.prefill(PROMPT)
    held, wanted = backend.length, some_tokens(NARROW)
    one = torch.cat([backend.extend(wanted[i : i + 1]) for i in range(NARROW)])
    near(one, plain.extend(wanted))
    for width in range(2, NARROW + 1):
        backend.truncate(held)
        assert torch.equal(backend.extend(wanted[:width]), one[:width]), width
    backend.truncate(held)
    chain = backend.extend(wanted[:5], [-1, 0, 1, 2, 3])
    assert torch.equal(chain, one[:5])
    slots, other = (BatchSlots(each, 16, batch_invariant=True) for each in (backend, plain))
    for at, widths in [*WAYS, (list(range(16)), [1] * 16), (list(range(16)), [2] * 16)]:
        together = slots.read(several(slots, at, widths))
        alone = [each.slot.read_alone(each) for each in several(slots, at, widths)]
        assert all(map(torch.equal, together, alone)), widths
        near(torch.cat(together), torch.cat(other.read(several(other, at, widths))))
