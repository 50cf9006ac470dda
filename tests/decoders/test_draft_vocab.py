"""A drafter over a part of the target's vocabulary."""

from pathlib import Path

import pytest
import torch
from decoder_toys import CPU
from hypothesis import given
from hypothesis import strategies as st

from decoders.methods.neural.drafter import NeuralDrafter
from decoders.protocols import DraftRequest
from decoders.records import Sampling
from decoders.sampling.draft_vocab import FILE, DraftVocab
from decoders.sampling.randomness import Generator
from decoders.testing.toys import ToyBackend


@given(st.sets(st.integers(0, 19), min_size=1))
def test_every_kept_id_goes_there_and_back(kept: set[int]) -> None:
    vocab = DraftVocab(sorted(kept), 20)
    assert vocab.size == len(kept) + 1
    for token in range(20):
        draft_id = int(vocab.from_target[token])
        if token in kept:
            assert int(vocab.to_target[draft_id]) == token
        else:
            assert draft_id == vocab.size - 1  # "other"


@pytest.mark.parametrize("rows", [(), (3,), (2, 3)])
def test_probabilities_land_on_their_tokens(rows: tuple[int, ...]) -> None:
    vocab = DraftVocab([1, 4, 6], 8)
    probs = torch.rand(*rows, 3, dtype=torch.float64)
    wide = vocab.expand(probs)
    assert wide.shape == (*rows, 8) and wide.dtype == probs.dtype
    assert torch.equal(wide[..., [1, 4, 6]], probs)
    assert torch.equal(wide.sum(-1), wide[..., [1, 4, 6]].sum(-1))


def test_saved_and_loaded(tmp_path: Path) -> None:
    assert DraftVocab.load(tmp_path) is None
    DraftVocab([2, 3, 5], 9).save(tmp_path)
    again = DraftVocab.load(tmp_path)
    assert (tmp_path / FILE).is_file() and again is not None
    assert again.to_target.tolist() == [2, 3, 5]
    assert (again.target_vocab, again.size) == (9, 4)


def test_the_commonest_ids_and_those_to_keep() -> None:
    texts = [[5, 5, 5, 1], [1, 7, 7, 2], [9]]
    vocab = DraftVocab.commonest(texts, 4, 12, keep=[11])
    assert vocab.to_target.tolist() == [5, 7, 11] or vocab.to_target.tolist() == [1, 5, 11]
    assert vocab.size == 4
    few = DraftVocab.commonest([[3]], 10, 12, keep=[3, 0])
    assert few.to_target.tolist() == [0, 3]


def test_a_drafter_stops_before_a_token_it_is_unsure_of() -> None:
    """Raw probabilities 0.9, 0.6, 0.9 along the chain, whatever the temperature."""
    table = torch.full((3, 3, 3), -20.0, dtype=torch.float64)
    for last, p in ((0, 0.9), (1, 0.6), (2, 0.9)):
        table[:, last, (last + 1) % 3] = torch.tensor(p, dtype=torch.float64).log()
        table[:, last, last] = torch.tensor(1 - p, dtype=torch.float64).log()
    for bar, made in ((0.0, [1, 2, 0]), (0.5, [1, 2, 0]), (0.7, [1]), (0.95, [])):
        drafter = NeuralDrafter(ToyBackend(table))
        drafter.reset([0])
        proposal = drafter.propose([0, 0], DraftRequest(3, Sampling(), Generator(CPU, 0), bar))
        assert proposal.ids.tolist() == made
        assert proposal.ids.dtype == torch.int64
