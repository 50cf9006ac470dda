"""Filters, seeds and wishes: each means what it means in transformers."""

from typing import Any

import pytest
import torch
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.overrides import TorchFunctionMode

from decoders.common.errors import DraftpickError
from decoders.records import Request, Sampling
from decoders.sampling.filters import cooled, penalise, probabilities, seen_mask
from decoders.testing.chance import transformers_filters

samplings = st.builds(
    Sampling,
    temperature=st.floats(0.2, 3.0),
    top_k=st.integers(0, 12),
    top_p=st.one_of(st.just(1.0), st.floats(0.05, 0.99)),
    repetition_penalty=st.one_of(st.just(1.0), st.floats(0.5, 2.0)),
)


@given(samplings, st.integers(0, 10_000), st.lists(st.integers(0, 9), min_size=1, max_size=6))
@examples(120)
def test_filters_equal_transformers(sampling: Sampling, seed: int, context: list[int]) -> None:
    logits = 3 * torch.randn(10, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    theirs = transformers_filters(sampling)(torch.tensor([context]), logits.unsqueeze(0).clone())
    nothing = torch.empty(0, dtype=torch.int64)
    seen = seen_mask(context, nothing, 1, 10)
    mine = probabilities(penalise(logits.unsqueeze(0), sampling, seen), sampling)
    torch.testing.assert_close(mine, theirs.softmax(-1), atol=1e-12, rtol=1e-9)
    assert torch.equal(mine == 0, theirs == -torch.inf)


@given(samplings, st.integers(0, 1000))
@examples(30)
def test_rows_are_filtered_each_by_itself(sampling: Sampling, seed: int) -> None:
    logits = torch.randn(4, 10, generator=torch.Generator().manual_seed(seed))
    together = probabilities(logits, sampling)
    alone = torch.cat([probabilities(row.unsqueeze(0), sampling) for row in logits])
    assert torch.equal(together, alone)
    torch.testing.assert_close(together.sum(-1), torch.ones(4))


def test_ties_at_the_top_k_boundary_stay_as_in_transformers() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 0.0, 2.0]])
    sampling = Sampling(1.0, top_k=2)
    theirs = transformers_filters(sampling)(torch.tensor([[0]]), logits)
    torch.testing.assert_close(probabilities(logits, sampling), theirs.softmax(-1))


class DividesAsOnCUDA(TorchFunctionMode):
    """By a number of the host as a GPU does: times its reciprocal."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in (Tensor.__truediv__, Tensor.div) and not isinstance(args[1], Tensor):
            return args[0] * (1 / torch.full((), args[1]))
        return func(*args, **(kwargs or {}))


def test_filtered_scores_have_the_bits_of_a_division_on_a_gpu_too() -> None:
    """As in recorded rounds, whose temperature is a tensor."""
    logits, sampling = torch.randn(4, 1000), Sampling(0.7, top_k=900)
    scores = cooled(logits, sampling)
    with DividesAsOnCUDA():
        assert not torch.equal(logits / 0.7, logits / torch.full((), 0.7))
        assert torch.equal(cooled(logits, sampling), scores)


def test_half_precision_logits_are_sampled_in_single() -> None:
    assert probabilities(torch.randn(1, 5, dtype=torch.bfloat16), Sampling(1.0)).dtype is (
        torch.float32
    )


def test_the_likeliest_token_survives_any_top_p() -> None:
    p = probabilities(torch.zeros(1, 6), Sampling(1.0, top_p=5e-324))
    assert (p > 0).sum() == 1


@pytest.mark.parametrize(
    ("made", "wish", "word"),
    [
        (Sampling, {"temperature": -0.1}, "temperature must be 0 or at least 1e-30"),
        (Sampling, {"temperature": 5e-324}, "temperature must be 0 or at least 1e-30"),
        (Sampling, {"top_k": -1}, "top_k"),
        (Sampling, {"top_p": 0.0}, "top_p"),
        (Sampling, {"top_p": 1.1}, "top_p"),
        (Sampling, {"repetition_penalty": 0.0}, "repetition_penalty must be from 0.01 to 100"),
        (Sampling, {"repetition_penalty": 5e-324}, "repetition_penalty must be from 0.01 to 100"),
        (Sampling, {"repetition_penalty": 1e300}, "repetition_penalty must be from 0.01 to 100"),
        (Request, {"max_new_tokens": 0}, "max_new_tokens"),
        (Request, {"stop": ("a", "")}, "stop string"),
    ],
)
def test_a_wrong_wish_is_named(made: Any, wish: dict[str, Any], word: str) -> None:
    with pytest.raises(DraftpickError, match=word):
        made(**wish)
