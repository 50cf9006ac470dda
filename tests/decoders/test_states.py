"""Final states that backends hand on: what the head reads, however they were computed."""

from typing import Any

import pytest
import torch
from backend_toys import MADE, PROMPT, close, held, ids, make
from decoder_toys import CPU, Tiny, native
from torch import Tensor

from decoders.backends import native as llama_module
from decoders.backends.transformers.hf import HFBackend
from decoders.protocols import StateBackend

LAYERED = ("native-float64", "native-int8", "hf-seq2seq", "hf-seq2seq-with-exit")
KINDS = {*MADE, "mt5", "umt5"} - {"stranger"}  # which has no states


@pytest.fixture(scope="module", params=sorted(KINDS))
def backend(request: pytest.FixtureRequest, tiny: Tiny, tiny_t5: Tiny) -> StateBackend:
    made = make(request.param, tiny, tiny_t5)
    assert isinstance(made, StateBackend)
    made.keep_states()
    return made


def read(backend: StateBackend, start: int, end: int) -> Tensor:
    """[end - start, V] logits, of the states that were handed on."""
    states = backend.final_states(start, end)
    assert states.shape == (end - start, backend.state_size) and states.dtype == backend.dtype
    every = torch.arange(backend.vocab_size)
    return states.double() @ backend.head_rows(every).double().T


def test_the_head_reads_them(backend: StateBackend) -> None:
    start = held(backend)
    first = backend.prefill(PROMPT).logits
    close(read(backend, start - 1, start)[0], first)
    logits = backend.extend(ids(4, 9, 1))
    close(read(backend, start, start + 3), logits)
    backend.truncate(start + 1)
    more = backend.extend(ids(2))
    close(read(backend, start, start + 2), torch.cat([logits[:1], more]))
    assert logits.double().std() > 0.2


def test_embeddings_and_rows(backend: StateBackend) -> None:
    embedded, rows = backend.embed(ids(3, 1, 3)), backend.head_rows(ids(3, 1, 3))
    for made in (embedded, rows):
        assert made.shape == (3, backend.state_size) and made.dtype == backend.dtype
        assert torch.equal(made[0], made[2]) and not torch.equal(made[0], made[1])


def test_asking_twice_changes_nothing(backend: StateBackend) -> None:
    backend.prefill(PROMPT)
    before, length = backend.final_states(0, backend.length).clone(), backend.length
    backend.keep_states()
    assert backend.length == length
    assert torch.equal(backend.final_states(0, length), before)


@pytest.mark.parametrize("kind", ["native-float64", "hf", "hf-seq2seq"])
def test_what_was_read_before_is_forgotten(kind: str, tiny: Tiny, tiny_t5: Tiny) -> None:
    """Its states are not known; and logits are what they were."""
    made: Any = make(kind, tiny, tiny_t5)
    first = made.prefill(PROMPT).logits
    made.keep_states()
    assert made.length == 0
    close(made.prefill(PROMPT).logits, first)


@pytest.mark.parametrize("kind", LAYERED)
def test_a_token_that_left_early(kind: str, tiny: Tiny, tiny_t5: Tiny) -> None:
    made: Any = make(kind, tiny, tiny_t5)
    made.keep_states()
    made.prefill(PROMPT)
    for depth in (1, 2):
        start = made.length
        hidden, layers = made.extend_until(7, lambda h, below, at, depth=depth: at == depth)
        assert layers == depth and made.length == start + 1
        close(read(made, start, start + 1)[0], made.read_out(hidden))


def test_native_states_are_those_of_transformers(tiny: Tiny) -> None:
    """Of a prompt, a chain and a path of a tree; each with rows and embeddings."""
    one, other = native(tiny()), HFBackend.load(tiny(), CPU, torch.float32)
    for model in (one, other):
        model.keep_states()
        model.prefill(PROMPT)
        model.extend(ids(7, 7))
        model.extend(ids(4, 9, 1), [-1, -1, 1])
        model.keep([1, 2])
    close(one.final_states(0, 12), other.final_states(0, 12))
    every = torch.arange(16)
    assert torch.equal(one.embed(every), other.embed(every))
    assert torch.equal(one.head_rows(every), other.head_rows(every))


def test_a_head_of_its_own(tiny: Tiny) -> None:
    made = native(tiny(tie_word_embeddings=False))
    made.keep_states()
    made.prefill(PROMPT)
    logits = made.extend(ids(4, 9, 1))
    close(read(made, 8, 11), logits)
    assert not torch.equal(made.head_rows(ids(3)), made.embed(ids(3)))


def test_a_prompt_in_chunks_and_one_held_in_part(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, pieces = native(tiny(), torch.float64), native(tiny(), torch.float64)
    for model in (whole, pieces):
        model.keep_states()
    whole.prefill(PROMPT)
    monkeypatch.setattr(llama_module, "PREFILL_CHUNK", 3)
    pieces.prefill([*PROMPT[:5], 1, 2])
    pieces.prefill(PROMPT, cached=5)
    close(pieces.final_states(0, 8), whole.final_states(0, 8))
