"""The recurrent drafter (D23): states, steps, laws, cascades, recordings and mistakes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from decoder_toys import (
    method,
    native,
    random_cell,
    recurrent,
    run,
)

from decoders.backends.recurrent_head import RecurrentHead
from decoders.draft_vocab import DraftVocab
from decoders.drafters import WidenedDrafter
from decoders.records import Request

Tiny = Callable[..., Path]
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def close(one: torch.Tensor, other: torch.Tensor, near: float = 1e-9) -> None:
    torch.testing.assert_close(one.double(), other.double(), atol=near, rtol=near)


def test_steps_are_the_trained_cell_s(tiny: Tiny) -> None:
    """On packed matrices, alone and for several sequences at once."""
    target = native(tiny())
    cell, vocab = random_cell(32, 1, torch.float32), DraftVocab([1, 4, 9], 16)
    head = RecurrentHead(target, cell, vocab)
    state, tokens = torch.randn(5, 32), torch.tensor([3, 0, 7, 7, 15])
    after, logits = head.step(state, tokens)
    expected = cell(state, target.embed(tokens))
    close(after, expected, 1e-4)
    close(logits, cell.read(expected) @ target.weights.embedding[vocab.to_target].T, 1e-3)
    one = head.step(state[2:3], tokens[2:3])
    close(one[0], after[2:3], 1e-5)
    close(one[1], logits[2:3], 1e-4)
    assert head.parameters == sum(p.numel() for p in cell.parameters()) + 3 * 32


def test_greedy_smoke(tiny: Tiny) -> None:
    target = native(tiny(), torch.float64)
    plain = run(target, method(recurrent(target, 1), 0), PROMPT, Request(30))
    made = run(target, method(recurrent(target, 1), 3), PROMPT, Request(30))
    assert made.ids == plain.ids and made.drafted > 0
    tree = WidenedDrafter(recurrent(target, 1), (3, 2), target.context)
    made = run(target, method(tree, 3), PROMPT, Request(30))
    assert made.ids == plain.ids and made.accepted > 0
