"""The likeliest of many tokens, and the one whose clock rings first: numbers, law, kernels."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from decoders.sampling import race
from decoders.sampling.argmax import WIDTH, likeliest
from decoders.sampling.race import ON_CPU
from decoders.sampling.randomness import Generator

pytestmark = pytest.mark.instructions

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


# -- numbers --------------------------------------------------------------------------------------


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 in whole numbers, as its authors print it."""
    (a, b, c, d), (low, high) = counter, key
    for _ in range(10):
        one, two = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (two >> 32) ^ b ^ low, two & race.LOW, (one >> 32) ^ d ^ high, one & race.LOW
        low, high = (low + 0x9E3779B9) & race.LOW, (high + 0xBB67AE85) & race.LOW
    return [a, b, c, d]


PI = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0]
KNOWN = {  # the authors' own test vectors
    (0, 0, 0, 0, 0, 0): [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8],
    (race.LOW,) * 6: [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD],
    tuple(PI): [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
}


def test_the_numbers_are_philox_s() -> None:
    for (*counter, low, high), words in KNOWN.items():
        assert philox(counter, [low, high]) == words
    generator = torch.Generator().manual_seed(0)
    keys = torch.randint(-(2**63), 2**63 - 1, (40,), generator=generator)
    first, second = (torch.randint(0, 2**32, (40,), generator=generator) for _ in range(2))
    made = torch.stack(race.philox(keys, first, second, 1), 1)
    for row, key, a, b in zip(made.tolist(), keys.tolist(), first, second, strict=True):
        assert row == philox([int(a), int(b), 1, 0], [key & race.LOW, key >> 32 & race.LOW])


def test_keys_depend_on_seed_and_names() -> None:
    keys = {race.key_of(seed, *names) for seed, names in product(range(50), [(), (0,), ("a", 1)])}
    assert len(keys) == 150 and race.key_of(1, 2) == race.key_of(1, 2)


def test_seeds_beyond_what_a_generator_takes_draw() -> None:
    chances = [Generator(torch.device("cpu"), seed) for seed in (5, 2**64 + 5)]
    one, other = (chance.accept(torch.full((20,), 0.5)).tolist() for chance in chances)
    assert one == other


# -- law ------------------------------------------------------------------------------------------


def picks(logits: Tensor, n: int, seed: int = 1, temperature: float = 1.0) -> Tensor:
    return race.pick(logits.expand(n, -1).contiguous(), temperature, race.key_of(seed), 0)[:, 0]


@pytest.mark.parametrize("size", [5, 256, 700])
def test_each_token_is_drawn_as_often_as_it_should_be(kernel: None, size: int) -> None:
    from scipy.stats import chisquare

    n = 60_000
    logits = torch.randn(size, generator=torch.Generator().manual_seed(size))
    counts = picks(logits, n, temperature=0.8).bincount(minlength=size)
    expected = (logits.double() / 0.8).softmax(-1) * n
    assert chisquare(counts.numpy(), expected.numpy()).pvalue > 1e-3


def test_places_are_independent(kernel: None) -> None:
    from scipy.stats import chi2_contingency

    drawn = picks(torch.tensor([0.3, 0.0, -0.4, 0.2]), 60_000)
    for apart in (1, 2, 7):
        table = torch.zeros(4, 4)
        table.index_put_((drawn[:-apart], drawn[apart:]), torch.tensor(1.0), accumulate=True)
        assert chi2_contingency(table.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("size", [4, 600])
def test_two_models_agree_as_often_as_the_coupling_says(kernel: None, size: int) -> None:
    """Both pick x with 1 / sum of max(p_i / p_x, q_i / q_x)."""
    generator, n = torch.Generator().manual_seed(size), 60_000
    one, other = (torch.randn(size, generator=generator) for _ in range(2))
    same = (picks(one, n) == picks(other, n)).double().mean()
    p, q = one.double().softmax(-1), other.double().softmax(-1)
    ratios = torch.maximum(p / p.unsqueeze(1), q / q.unsqueeze(1))
    expected = (1 / ratios.sum(1)).sum()
    assert abs(same - expected) < 4 * (expected * (1 - expected) / n) ** 0.5
    assert expected > 1.5 * (p * q).sum()  # and far above what independent draws would have


# -- the kernel, a few candidates, all of them ----------------------------------------------------


def ways() -> dict[str, Callable[..., Tensor]]:
    def without_kernels(*given: Any) -> Tensor:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ON_CPU, "pick", None)
            patch.setattr(ON_CPU, "pick_chain", None)
            return race.pick(*given)

    def every_token(*given: Any) -> Tensor:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(race, "CANDIDATES", 1 << 20)
            return without_kernels(*given)

    return {"kernel": race.pick, "candidates": without_kernels, "all": every_token}


@examples(60)
@given(
    size=st.sampled_from([1, 3, 16, 255, 256, 257, 700, 5000]),
    rows=st.integers(0, 4),
    dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32, torch.float64]),
    temperature=st.sampled_from([0.0, 0.1, 0.7, 1.0, 30.0]),
    named=st.sampled_from(["", "in order", "in any order"]),
    count=st.integers(1, 3),
    seed=st.integers(0, 999),
)
def test_all_ways_pick_the_same(
    kernel: None,
    size: int,
    rows: int,
    dtype: torch.dtype,
    temperature: float,
    named: str,
    count: int,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = (4 * torch.randn(rows, size, generator=generator)).to(dtype)
    logits[:, :: 2 + seed % 3] = -torch.inf if seed % 2 and size > 12 else 0.25
    keys = torch.randint(-(2**63), 2**63 - 1, (rows,), generator=generator)
    heat = torch.full((rows,), temperature, dtype=torch.float64)
    names = None
    if named:
        names = torch.randperm(3 * size, generator=generator)[:size]
        names = names.sort().values if named == "in order" else names
    places, count = torch.arange(rows) * 7, min(count, size)
    if temperature == 0:
        count = 1  # equal ones have an order only in their first
    given = heat, keys, places, names, count
    made = {way: pick(logits, *given) for way, pick in ways().items()}
    strided = race.pick(logits.repeat_interleave(2, 1)[:, ::2], *given)
    for ids in (*made.values(), strided):
        assert ids.shape == (rows, count) and torch.equal(ids, made["kernel"])
    for row in range(rows):  # in a chain too
        of = temperature, int(keys[row]), 7 * row, names, count
        assert torch.equal(race.pick(logits[row : row + 1], *of)[0], made["kernel"][row])


def test_a_row_without_a_number_gives_one_that_is_none(kernel: None) -> None:
    logits = torch.zeros(4, 600)
    logits[0, 300], logits[1] = torch.nan, torch.nan
    logits[2, 7] = -torch.nan
    for pick in ways().values():
        for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
            for temperature in (0.0, 1.0):
                ids = pick(logits.to(dtype), temperature, 5, 0)[:, 0]
                own = logits.gather(1, ids.unsqueeze(1)).squeeze(1)
                assert own.isnan().tolist() == [True, True, True, False]


def test_what_cannot_be_drawn_comes_last(kernel: None) -> None:
    logits = torch.full((1, 700), -torch.inf)
    logits[0, [3, 650]] = torch.tensor([0.0, 1.0])
    for pick in ways().values():
        ids = pick(logits, 1.0, 5, 0, None, 4)[0].tolist()
        assert {*ids[:2]} == {3, 650} and len({*ids}) == 4
