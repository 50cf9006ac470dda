"""Many answers at once: each is what it would be alone, whatever is written beside it."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from decoder_toys import CPU, FITS_INT4, FITS_ROWS, Tiny, by_rows, native
from replayed import traced

from collect.replay import writer
from collect.replay.known import Draws
from collect.replay.stack import Stack, states_before
from collect.replay.writer import Answer, Ask, Writer, most_rows, write
from decoders.backends.batched.row_passes import RowPasses
from decoders.backends.cuda.recorded import cuda_graphs
from decoders.backends.llama.kv import KVCache
from decoders.backends.native import LlamaBackend
from decoders.backends.weights.int8 import WIDE
from decoders.backends.weights.packed import Rounding
from decoders.common.errors import DraftpickError
from decoders.models import memory
from decoders.records import Request, Sampling
from decoders.sampling import race
from decoders.sampling.race import ON_CPU, key_of
from decoders.sampling.randomness import Generator
from decoders.testing.toys import autoregressive, run

EOS = (6, 13)
CAPACITY = 60

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(scope="module")
def model(tiny: Tiny) -> LlamaBackend:
    return native(tiny())


def asks(n: int, seed: int = 0, heat: Sequence[float] = (0.0,)) -> list[Ask]:
    """Of all lengths, some prompts twice in a row."""
    rng, made = random.Random(seed), list[Ask]()
    for i in range(n):
        prompt = [rng.randrange(16) for _ in range(rng.randrange(1, 30))]
        if i % 4 == 1:
            prompt = made[-1].prompt
        made.append(Ask(prompt, rng.randrange(1, 25), heat[i % len(heat)], key_of(seed, i)))
    return made


def alone(model: LlamaBackend, ask: Ask) -> list[int]:
    """The loop's own answer, by the clocks of the same key."""
    chance, request = Generator(model.device, 0), Request(ask.most, Sampling(ask.temperature))
    chance.key = ask.key
    return run(model, autoregressive(), ask.prompt, request, chance=chance, eos_ids=EOS).ids


def without_host_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw as on a GPU, asking every token."""
    monkeypatch.setattr(ON_CPU, "pick", None)
    monkeypatch.setattr(race, "_among_few", race._among_all)


def written(model: LlamaBackend, rows: int, wanted: list[Ask], **how: Any) -> list[list[int]]:
    made = Writer(Stack.of_backend(model), rows, CAPACITY, EOS, **how)
    answers = sorted(made.answers(wanted), key=lambda answer: answer.index)
    assert [answer.ask for answer in answers] == wanted
    assert made.new_tokens == sum(len(answer.ids) for answer in answers)
    return [answer.ids for answer in answers]


@pytest.mark.every(2)
@pytest.mark.parametrize("heat", [(0.0,), (1.0, 0.0, 0.7, 1.5)])
@pytest.mark.parametrize("rows", [1, 3, 7, 64])
def test_each_answer_is_what_it_is_alone(
    model: LlamaBackend, rows: int, heat: tuple[float, ...]
) -> None:
    wanted = asks(40, heat=heat)
    expected = [alone(model, ask) for ask in wanted]
    ended = [ids[-1] in EOS for ids in expected]
    assert any(ended) and not all(ended)
    assert written(model, rows, wanted) == expected
    assert written(model, rows, []) == []


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "mistral"])
def test_other_models_too(tiny: Tiny, kind: str) -> None:
    model, wanted = native(tiny(kind)), asks(12)
    assert written(model, 4, wanted) == [alone(model, ask) for ask in wanted]


@pytest.mark.parametrize("rounding", ["int4", None])
def test_steps_by_kernels_are_those_of_ordinary_operations(
    tiny: Tiny, rounding: Rounding | None
) -> None:
    """To bfloat16's rounding; a row has the same bits in any company, and one that has ended does
    not matter."""
    model = by_rows(tiny("qwen3", **FITS_ROWS), rounding)
    stack, n, chance = Stack.of_backend(model), 9, torch.Generator().manual_seed(0)
    shape, layers = stack.shape, stack.layers
    sizes = len(layers), n, shape.kv_heads, 128, shape.head_dim
    caches = [KVCache(*sizes, torch.bfloat16, CPU) for _ in range(3)]
    caches[0].all.normal_(generator=chance)
    for cache in caches[1:]:
        cache.all.copy_(caches[0].all)
    mine, theirs, alone = (RowPasses(shape, layers, stack.rope(), c, False) for c in caches)
    assert mine._in_blocks is not None
    theirs._in_blocks = None
    positions = torch.randint(0, 60, (n,), generator=chance)
    lengths = positions + 1
    lengths[4] = 1
    h = torch.randn(n, shape.hidden, generator=chance).bfloat16()
    parts = [(slice(0, n), 61)]
    found, other = (way.through(h.clone(), positions, lengths, parts) for way in (mine, theirs))
    apart = (found.float() - other.float()).norm(dim=1) / other.float().norm(dim=1)
    assert apart.max() < 0.05
    few = alone.through(h[:3].clone(), positions[:3], lengths[:3], [(slice(0, 3), 61)])
    assert torch.equal(few, found[:3])


@pytest.mark.parametrize("rounding", ["int4", None])
def test_by_kernels_most_answers_are_those_alone(tiny: Tiny, rounding: Rounding | None) -> None:
    """Prompts are read by ordinary attention, which rounds elsewhere, and of 16 random tokens two
    are often about as likely."""
    model, wanted = by_rows(tiny(**FITS_ROWS), rounding), asks(40)
    expected = [alone(model, ask) for ask in wanted]
    same = [one == other for one, other in zip(written(model, 7, wanted), expected, strict=True)]
    assert sum(same) >= 28


def test_rows_that_end_make_room_at_once(model: LlamaBackend) -> None:
    """The steps are those of full rows, not those of the longest answer of every group."""
    wanted = [Ask([3, i % 16], 2 if i % 4 else 24) for i in range(32)]
    made = Writer(Stack.of_backend(model), 4, CAPACITY, ())
    assert all(len(answer.ids) == answer.ask.most for answer in made.answers(wanted))
    # 8 answers of 23 steps and 24 of one step in 4 rows; in groups of four it would be 8 times 23
    assert made.steps <= (8 * 23 + 24) // 4 + 23


def test_a_row_looked_at_now_and_then_writes_the_same(
    model: LlamaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where rows that have ended go on idle until the next look."""
    wanted = asks(40, heat=(0.0, 1.0))
    expected = written(model, 5, wanted)
    made = Writer(Stack.of_backend(model), 5, CAPACITY, EOS)
    made._look_every = 16
    assert [a.ids for a in sorted(made.answers(wanted), key=lambda a: a.index)] == expected


@pytest.mark.parametrize("rows", [1, 6])
def test_a_recorded_step_writes_the_same(
    model: LlamaBackend, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trace replayed: it would fail if a step read on the host, or kept anything of its time."""
    wanted = asks(20, heat=(0.0, 1.0))
    expected = written(model, rows, wanted)
    without_host_reads(monkeypatch)
    assert written(model, rows, wanted, record=traced) == expected


def test_asks_may_depend_on_answers(model: LlamaBackend) -> None:
    """Each answer asks for the next, which begins with it; nothing waits meanwhile."""
    begun, chains = [[3], [5, 1], [9, 9, 9]], dict[int, list[int]]()
    waiting = [Ask(prompt, 3) for prompt in begun]
    order: list[Ask] = []

    def take(free: int) -> list[Ask]:
        taken, waiting[:] = waiting[:free], waiting[free:]
        order.extend(taken)
        return taken

    made = Writer(Stack.of_backend(model), 2, CAPACITY, ())
    for answer in made.serve(take):
        assert order[answer.index] is answer.ask
        whole = answer.ask.prompt + answer.ids
        if len(whole) < 12:
            waiting.append(Ask(whole, 3))
        else:
            chains[whole[0]] = whole
    for prompt in begun:
        n = len(chains[prompt[0]]) - len(prompt)
        expected = run(model, autoregressive(), prompt, Request(n, eos_ids=())).ids
        assert chains[prompt[0]] == prompt + expected


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (Ask([1] * 50, 11), "50 tokens and an answer of 11 do not fit into 60"),
        (Ask([], 4), "at least one token"),
        (Ask([1], 0), "at least one token"),
    ],
)
def test_what_does_not_fit_is_told(model: LlamaBackend, ask: Ask, said: str) -> None:
    made = Writer(Stack.of_backend(model), 2, CAPACITY, EOS)
    with pytest.raises(DraftpickError, match=said):
        list(made.answers([Ask([3], 2), ask]))


def test_the_context_is_the_bound(model: LlamaBackend) -> None:
    with pytest.raises(DraftpickError, match="96 positions, and 97"):
        Writer(Stack.of_backend(model), 2, 97, EOS)
    full = Writer(Stack.of_backend(model), 2, 96, ())
    assert [len(answer.ids) for answer in full.answers([Ask([3] * 90, 6)])] == [6]


@pytest.mark.parametrize("record", [None, traced])
def test_states_in_front_of_each_token_are_kept(
    model: LlamaBackend, record: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of answers that end early and late, in rows that others had before."""
    without_host_reads(monkeypatch)
    stack, wanted = Stack.of_backend(model), asks(20, heat=(0.0, 1.0))
    wanted = [replace(ask, most=9) for ask in wanted]
    made = [*Writer(stack, 4, CAPACITY, EOS, record, keep=9).answers(wanted)]
    assert {len(answer.ids) for answer in made} >= {1, 9}
    expected = states_before(stack, [a.ask.prompt for a in made], [a.ids for a in made])
    for answer, states in zip(made, expected, strict=True):
        torch.testing.assert_close(answer.states, states, atol=1e-5, rtol=1e-5)


def test_more_prompts_than_rows(model: LlamaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [ask.prompt for ask in asks(20)]
    stack = Stack.of_backend(model)
    draws = Draws(1.0, range(20))
    greedy, sampled = (write(stack, prompts, 9, EOS, each) for each in (Draws(), draws))
    monkeypatch.setattr(writer, "CPU_ROWS", 3)
    again = write(stack, prompts, 9, EOS)
    assert again.ids == greedy.ids == [alone(model, Ask(p, 9)) for p in prompts]
    assert write(stack, prompts, 9, EOS, draws).ids == sampled.ids
    np.testing.assert_allclose(again.embeddings, greedy.embeddings, rtol=1e-5, atol=1e-5)
    assert again.prefill_s > 0 and again.decode_s > 0


def test_rows_are_bounded(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = Stack.of_backend(native(tiny()))
    assert most_rows(stack, 60) == writer.CPU_ROWS
    row = 3 * 2 * 2 * 128 * 8 * 4  # layers, keys and values, heads, positions, size, bytes
    monkeypatch.setattr(memory, "free_bytes", lambda device: 2 * 5 * row + 1)
    assert most_rows(stack, 60) == 5
    monkeypatch.setattr(memory, "free_bytes", lambda device: 0)
    assert most_rows(stack, 60) == 1
    monkeypatch.setattr(memory, "free_bytes", lambda device: None)
    folder = tiny(**FITS_INT4)
    for rounding in ("int8", "int4"):
        model = LlamaBackend.load(folder, CPU, torch.bfloat16, rounding=rounding)
        assert most_rows(Stack.of_backend(model), 60) == WIDE


def test_early_and_late_answers_come_as_they_end(model: LlamaBackend) -> None:
    wanted = [Ask([3], 20), Ask([3, 1], 2), Ask([5], 3)]
    made = Writer(Stack.of_backend(model), 2, CAPACITY, ())
    order: list[Answer] = list(made.answers(wanted))
    assert [answer.index for answer in order] == [1, 2, 0]


@needs_cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fast", [False, True])
def test_on_a_gpu_a_graph_writes_what_its_operations_write(
    tiny: Tiny, fast: bool, dtype: torch.dtype
) -> None:
    folder = tiny(head_dim=16)
    model = LlamaBackend.load(folder, torch.device("cuda"), dtype)
    wanted = asks(60, heat=(0.0, 1.0))
    eager = written(model, 16, wanted, fast=fast)
    assert written(model, 16, wanted, fast=fast, record=cuda_graphs()) == eager
    if dtype == torch.float32:
        cpu = native(folder)
        same = [one == other for one, other in zip(eager, written(cpu, 16, wanted), strict=True)]
        assert sum(same) >= 58  # two near-ties, at most


@needs_cuda
def test_on_a_gpu_a_batch_writes_the_target_s_answers(tiny: Tiny) -> None:
    model = LlamaBackend.load(tiny(head_dim=16), torch.device("cuda"), torch.float32)
    wanted = asks(12)
    out = write(Stack.of_backend(model), [ask.prompt for ask in wanted], 40, EOS)
    assert out.ids == [alone(model, Ask(ask.prompt, 40)) for ask in wanted]
    assert out.embeddings.shape == (12, model.shape.hidden)
