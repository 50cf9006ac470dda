"""Keys and values in 8 bits: what they lose, and that answers stay those of one model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from decoder_toys import CPU, Tiny, native
from effort import examples
from engine_toys import PROMPT, Asked, Leaving, engine_over, lossless, places_in, together
from hypothesis import given
from hypothesis import strategies as st

from collect.replay.batch import Batch
from collect.replay.registry import adapter_of
from decoders import Engine
from decoders.backends.llama.eight_bits import decoded, encoded, width
from decoders.backends.native import LlamaBackend
from decoders.common.errors import DraftpickError
from decoders.continuous_batching import ContinuousBatch
from decoders.costs.measured import Costs
from decoders.earlier.prefixes import PrefixStore
from decoders.models import targets
from decoders.records import Request

FLAT = Costs((1.0,) * 6, {"exit": 0.1})
LONG = [1 + (i * i + 3) % 13 for i in range(200)]


@pytest.fixture(scope="module")
def places(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return places_in(tmp_path_factory.mktemp("arms"), tiny)


def in_eight_bits(folder: Path, dtype: torch.dtype = torch.float32) -> LlamaBackend:
    backend = native(folder, dtype)
    backend.keep_eight_bits()
    return backend


def engine_of(tiny: Tiny, places: dict[str, Path]) -> Engine:
    target = in_eight_bits(tiny(max_position_embeddings=256), torch.float64)
    return engine_over(target, places)


@examples(100)
@given(
    head_dim=st.sampled_from([6, 8, 32, 64, 128]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 99),
    scale=st.sampled_from([0.0, 1e-30, 1.0, 1e30]),
)
def test_no_number_is_off_by_more_than_half_a_step(
    head_dim: int, dtype: torch.dtype, seed: int, scale: float
) -> None:
    torch.manual_seed(seed)
    kv = (scale * torch.randn(2, 5, head_dim).exp()).to(dtype)
    kept = encoded(kv)
    assert kept.shape == (2, 5, width(head_dim)) and kept.dtype == torch.int8
    groups = kv.double().unflatten(-1, (-1, 32 if head_dim % 32 == 0 else head_dim))
    off = decoded(kept, head_dim, torch.float64).unflatten(-1, groups.shape[-2:]) - groups
    steps = groups.abs().amax(-1, keepdim=True) / 127
    assert bool((off.abs() <= 0.505 * steps).all())  # a step is itself rounded to 8 bits


def test_what_is_no_number_stays_none_and_spoils_no_other_group() -> None:
    kv = torch.ones(3, 64)
    kv[0, 40], kv[1, 3] = torch.nan, torch.inf
    back = decoded(encoded(kv), 64, torch.float32)
    assert not bool(back[0, 32:].isfinite().any()) and not bool(back[1, :32].isfinite().any())
    assert bool((back[0, :32] - 1).abs().max() < 0.01) and bool(back[2].isfinite().all())


def test_the_loss_is_small_and_the_memory_half(tiny: Tiny) -> None:
    """Over each position of a text: the distance of the two models' distributions."""
    folder = tiny(max_position_embeddings=512, head_dim=32)
    plain, small = native(folder), in_eight_bits(folder)
    exact, rough = (each.extend(torch.tensor(LONG)).log_softmax(-1) for each in (plain, small))
    lost = (exact.exp() * (exact - rough)).sum(-1)  # nats a token
    assert 0 < float(lost.mean()) < 1e-3 and float(lost.max()) < 0.02
    numbers = plain.position_bytes // plain.dtype.itemsize
    assert small.position_bytes == numbers + numbers // 16


def test_a_token_sees_the_same_however_many_are_read_with_it(tiny: Tiny) -> None:
    folder = tiny(max_position_embeddings=512, head_dim=32)
    whole, parts = (in_eight_bits(folder, torch.float64) for _ in range(2))
    expected = whole.extend(torch.tensor(LONG))
    read = torch.cat([parts.extend(part) for part in torch.tensor(LONG).split([150, 1, 7, 42])])
    torch.testing.assert_close(read, expected)


def test_every_arm_writes_what_plain_decoding_writes(tiny: Tiny, places: dict[str, Path]) -> None:
    engine = engine_of(tiny, places)
    plain = engine.decode("autoregressive", PROMPT * 4, Request(20)).ids
    arms = lossless(engine)
    for arm in arms:
        assert engine.decode(arm, PROMPT * 4, Request(20)).ids == plain, arm
    batch, asked = ContinuousBatch(engine, 3), [Asked(arm, PROMPT * 4, Request(20)) for arm in arms]
    together(batch, asked)
    assert all(one.result is not None and one.result.ids == plain for one in asked)
    assert engine.target_fingerprint.endswith("+kv8")
    collected = Batch(engine).target([PROMPT * 4, PROMPT], 20)
    assert collected.ids[0] == plain, "a collection reads them like this too"


def test_an_exit_is_replayed_along_what_it_reads(tiny: Tiny, places: dict[str, Path]) -> None:
    """Keys and values of its target's lower layers, which are rounded."""
    whole = engine_over(native(tiny(max_position_embeddings=256), torch.float64), places)
    for engine, batched in ((whole, True), (engine_of(tiny, places), False)):
        strategy: Any = engine.strategy("exit")
        adapter: Any = adapter_of(strategy.drafter)
        assert (adapter.stack is not None) is batched
        made = engine.decode("exit", PROMPT * 4, Request(20))
        (found,) = Batch(engine, FLAT).replay("exit", [PROMPT * 4], [made.ids], 20)
        assert (found.rounds, found.accepted) == (made.rounds, made.accepted)


def test_they_are_kept_for_later_prompts(tiny: Tiny, places: dict[str, Path]) -> None:
    ours, theirs = engine_of(tiny, places), engine_of(tiny, places)
    ours.keep_prefixes(PrefixStore(2**20))
    batch = ContinuousBatch(ours, 2)
    for prompt in (LONG[:60], [9, 9], [*LONG[:50], 3, 3]):
        one = Leaving("copy", prompt, Request(9, user=""), user="")
        together(batch, [one])
        assert one.written == theirs.decode("copy", prompt, Request(9)).ids
    assert one.prefilled is not None and one.prefilled.cached == 50


def test_a_cache_is_cleaned_of_what_is_no_number(tiny: Tiny) -> None:
    small = in_eight_bits(tiny(head_dim=32))
    small.prefill(PROMPT)
    small._cache.all[..., 32:] = -1  # steps that are no number
    small.clean()
    assert small._cache.all.count_nonzero() == 0
    assert bool(small.prefill(PROMPT).logits.isfinite().all())


def test_where_they_cannot_be_kept(tiny: Tiny) -> None:
    with pytest.raises(DraftpickError, match="unknown kv dtype 'int4'; use one of auto, int8"):
        targets.check_kv_dtype("int4", CPU)
    with pytest.raises(DraftpickError, match="--kv-dtype int8 is for CPUs, not cuda"):
        targets.check_kv_dtype("int8", torch.device("cuda"))
    other = targets.load_backend(tiny(), CPU, torch.float32, "hf")
    with pytest.raises(DraftpickError, match=r"int8 needs the native backend, .* HFBackend"):
        targets.keep_kv(other, "int8")
    targets.keep_kv(other, "auto")
