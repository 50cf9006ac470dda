"""Log-probabilities of an answer's tokens: the target's own, however the tokens were drafted."""

from pathlib import Path

import pytest
import torch
from decoder_toys import grown, max_gram, recurrent

from decoders import Engine
from decoders.arms import arms_of
from decoders.common.errors import DraftpickError
from decoders.methods.neural.drafter import NeuralDrafter
from decoders.protocols import Strategy
from decoders.records import Request, Sampling
from decoders.sampling.filters import penalise
from decoders.sampling.tree_shape import TreeShape
from decoders.testing.toys import ToyBackend, autoregressive, run, speculative

VOCAB, PROMPT, TOKENS = 7, [1, 2, 1, 2], 24
TARGET = ToyBackend.random(VOCAB, seed=3)
NEAR = ToyBackend(TARGET.table + ToyBackend.random(VOCAB, seed=5, sharpness=1.0).table)
STRATEGIES = {
    "autoregressive": autoregressive(),
    "copying": speculative(max_gram(shortest=1), 3),
    "neural": speculative(NeuralDrafter(NEAR), 3),
    "recurrent": speculative(recurrent(TARGET, 1), 2),
    "tree": speculative(
        grown(ToyBackend.random(VOCAB, 5, 1.0), None, TreeShape((3, 2), every=True), 16), 2
    ),
}
SAMPLINGS = {
    "greedy": Sampling(),
    "sampled": Sampling(temperature=0.7, top_k=4, top_p=0.9),
    "penalised": Sampling(repetition_penalty=1.3),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_they_are_the_targets_at_temperature_one(strategy: Strategy, sampling: Sampling) -> None:
    result = run(TARGET, strategy, PROMPT, Request(TOKENS, sampling, seed=1, logprobs=3))
    assert strategy is STRATEGIES["autoregressive"] or result.accepted > 0
    assert result.logprobs is not None and len(result.logprobs) == len(result.ids) == TOKENS
    context = list(PROMPT)
    for token, told in zip(result.ids, result.logprobs, strict=True):
        logits = TARGET.table[context[-2], context[-1]].unsqueeze(0)
        seen = torch.zeros(1, VOCAB, dtype=torch.bool)
        seen[0, context] = True
        wanted = penalise(logits, sampling, seen)[0].log_softmax(-1)
        assert told.logprob == pytest.approx(float(wanted[token]))
        best = wanted.topk(3)
        assert [each for each, _ in told.top] == best.indices.tolist()
        assert [score for _, score in told.top] == pytest.approx(best.values.tolist())
        context.append(token)


def test_asking_changes_no_token_and_not_asking_gives_none() -> None:
    for strategy in STRATEGIES.values():
        request = Request(TOKENS, Sampling(temperature=1.0), seed=2)
        asked = Request(TOKENS, Sampling(temperature=1.0), seed=2, logprobs=0)
        plain, told = (run(TARGET, strategy, PROMPT, each) for each in (request, asked))
        assert plain.ids == told.ids and plain.logprobs is None
        assert told.logprobs is not None and all(each.top == [] for each in told.logprobs)


def test_more_than_there_are_gives_all() -> None:
    result = run(TARGET, autoregressive(), PROMPT, Request(3, logprobs=50))
    assert all(len(each.top) == VOCAB for each in result.logprobs)


def test_arms_that_cannot_are_refused() -> None:
    document = {
        "arms": {
            "copy": {"kind": "max_gram", "length": {"k": 3}},
            "lossy": {
                "kind": "max_gram", "length": {"k": 3}, "verifier": {"rule": "lossy", "alpha": 0.5}
            },
            "beams": {"kind": "beam", "beams": 2},
        }
    }  # fmt: skip
    engine = Engine(ToyBackend.random(VOCAB, seed=3), arms_of(document, Path("toys")))
    for arm in ("autoregressive", "copy"):
        assert engine.decode(arm, PROMPT, Request(3, logprobs=1)).logprobs is not None
    for arm in ("lossy", "beams"):
        assert engine.decode(arm, PROMPT, Request(3)).logprobs is None
        with pytest.raises(DraftpickError, match=f"arm '{arm}' gives no logprobs.*autoregressive"):
            engine.decode(arm, PROMPT, Request(3, logprobs=1))
    with pytest.raises(DraftpickError, match="0 or more"):
        Request(3, logprobs=-1)
