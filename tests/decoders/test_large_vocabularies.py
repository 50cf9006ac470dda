"""Choosing among many tokens part by part: the same choice as from all of them at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

from decoders.backends import cpp_kernels
from decoders.records import Sampling
from decoders.sampling import randomness as chance_module
from decoders.sampling.argmax import WIDTH, likeliest
from decoders.sampling.filters import probabilities
from decoders.sampling.kernels import ON_CPU
from decoders.sampling.randomness import Generator
from decoders.zoo.catalogue import cache_dir

pytestmark = pytest.mark.instructions

CPU = torch.device("cpu")
FEW = st.sampled_from([WIDTH, 2 * WIDTH, 12 * WIDTH])


@examples(100)
@given(size=st.one_of(FEW, st.integers(1, 700)), rows=st.integers(0, 4), seed=st.integers(0, 99))
def test_the_likeliest_is_that_of_argmax(size: int, rows: int, seed: int) -> None:
    """Of equal ones the first: there are few values here."""
    generator = torch.Generator().manual_seed(seed)
    lead = (rows, 2) if seed % 2 else (rows,)
    for spread in (1, 30):
        logits = torch.randint(-spread, spread, (*lead, size), generator=generator).bfloat16()
        assert torch.equal(likeliest(logits), logits.argmax(-1))
        assert torch.equal(likeliest(logits.mT.contiguous().mT), logits.argmax(-1))
    for row in logits.view(-1, size):
        assert likeliest(row) == row.argmax()


def test_the_likeliest_beside_infinities() -> None:
    logits = torch.full((3, 2 * WIDTH), -torch.inf)
    logits[1, 700], logits[2, 5] = 0.0, torch.inf
    assert likeliest(logits).tolist() == [0, 700, 5]


@pytest.fixture(scope="module", params=["PyTorch", "kernel"])
def draws(request: pytest.FixtureRequest) -> Iterator[str]:
    """By whom; the second where this processor has what the kernels need."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "kernel":
            if not cpp_kernels.load_kernel(cache_dir() / "compiled", print):
                pytest.skip("this processor has no kernels, or there is no compiler")
            patch.setattr(ON_CPU, "draw", torch.ops.draftpick.draw_rows)
        else:
            patch.setattr(ON_CPU, "draw", None)
        yield request.param


class At(Generator):
    """Whose numbers are given."""

    def __init__(self, *heights: float) -> None:
        super().__init__(CPU, 0)
        self._next = torch.tensor(heights, dtype=torch.float64)


@examples(100)
@given(
    size=st.one_of(FEW, st.integers(1, 700), st.integers(1, 12).map(lambda n: 64 * n)),
    tokens=st.lists(st.integers(0, 12 * WIDTH - 1), min_size=1, max_size=9),
    height=st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 1 - 2.0**-53])),
    seed=st.integers(0, 99),
)
def test_what_is_drawn_by_parts_is_what_is_drawn_at_once(
    draws: str, size: int, tokens: list[int], height: float, seed: int
) -> None:
    """Of a few tokens, which may be at the edges of parts, and of all."""
    generator = torch.Generator().manual_seed(seed)
    few, every = torch.zeros(size), torch.rand(size, generator=generator).softmax(-1)
    few[[token % size for token in tokens]] = torch.rand(1, generator=generator)
    probs = torch.stack([few, every]).to(torch.float64 if seed % 2 else torch.float32)
    drawn = At(height, height).follow(probs, torch.zeros(1, dtype=torch.int64)).tolist()
    for row, token in zip(probs.double(), drawn, strict=True):
        assert row[token] > 0
        assert row[:token].sum() <= height * row.sum() * (1 + 1e-12)
        assert row[: token + 1].sum() >= height * row.sum() * (1 - 1e-12)


@pytest.mark.parametrize("size", [WIDTH, 300])
def test_a_row_of_zeros_harms_no_other(draws: str, size: int) -> None:
    probs = torch.zeros(2, size)
    probs[1, 7] = 0.5
    ids = torch.zeros(1, dtype=torch.int64)
    nothing, drawn = At(0.5, 0.999).follow(probs, ids).tolist()
    assert drawn == 7 and 0 <= nothing < size


def test_sums_that_end_below_a_height_give_the_first_of_the_greatest() -> None:
    """By rounding alone: what comes after it has no chance."""
    below, height = torch.tensor([[0.1, 0.3, 0.3]]), torch.tensor([[0.3]])
    assert chance_module._first_above(below, height).item() == 1


def test_the_kernel_draws_what_pytorch_draws(draws: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    for size in (49152, 6143, 40):
        probs = (8 * torch.randn(64, size, generator=generator)).softmax(-1)
        ids = torch.zeros(63, dtype=torch.int64)
        made = Generator(CPU, 3).follow(probs, ids)
        with monkeypatch.context() as patch:
            patch.setattr(ON_CPU, "draw", None)
            assert torch.equal(Generator(CPU, 3).follow(probs, ids), made)
        strided = probs.repeat_interleave(2, 1)[:, ::2]
        assert torch.equal(Generator(CPU, 3).follow(strided, ids), made)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("size", [16, 49152])
def test_the_kernel_s_probabilities_are_pytorch_s(
    kernel: None, size: int, temperature: float
) -> None:
    """A row's bits do not depend on the others, and what is impossible stays so."""
    generator = torch.Generator().manual_seed(1)
    logits = (20 * torch.randn(9, size, generator=generator)).bfloat16()
    logits[4, 3:9], logits[5] = -torch.inf, 7.0
    made = probabilities(logits, Sampling(temperature))
    exact = (logits.double() / temperature).softmax(-1)
    torch.testing.assert_close(made.double(), exact, atol=1e-9, rtol=1e-5)
    assert made[4, 3:9].sum() == 0
    for row in range(9):
        alone = probabilities(logits[row : row + 1], Sampling(temperature))
        assert torch.equal(alone[0], made[row])
    filtered = probabilities(logits, Sampling(temperature, top_k=5))
    assert (filtered[0] > 0).sum() <= 5


def test_draws_do_not_depend_on_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    probs = torch.randn(500, 4 * WIDTH, generator=torch.Generator().manual_seed(1)).softmax(-1)
    monkeypatch.setattr(ON_CPU, "draw", None)
    by_parts = Generator(CPU, 3)
    ids = torch.zeros(499, dtype=torch.int64)
    made = by_parts.follow(probs, ids)
    for widths in ((), (64,), (3, 128)):
        monkeypatch.setattr(chance_module, "WIDTHS", widths)
        assert torch.equal(Generator(CPU, 3).follow(probs, ids), made)
