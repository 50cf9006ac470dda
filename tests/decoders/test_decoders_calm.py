"""CALM beside a plain account of it that keeps no cache, and its limits."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from decoder_toys import CPU, autoregressive, native, random_exit, run, transformers_model
from torch import Tensor

from decoders.backends import llama
from decoders.backends.hf import HFBackend
from decoders.backends.llama import LlamaBackend
from decoders.backends.llama_model import layer
from decoders.cascades import CONFIDENCES, Calm
from decoders.chance import Generator
from decoders.errors import ContextTooLong, DraftpickError
from decoders.lengths import FixedLength
from decoders.loop import Method
from decoders.recipes import recipe
from decoders.records import DecodeResult, Request, Sampling
from decoders.stopping import Stopper
from decoders.verify import Lossless

Tiny = Callable[..., Path]
PROMPTS = [[3], [3, 1, 4, 1, 5, 9, 2, 6], [7, 11, 7, 11, 7]]
LAYERS = 6


@pytest.fixture(scope="module")
def target(tiny: Tiny) -> LlamaBackend:
    return native(tiny(seed=4, num_hidden_layers=LAYERS), torch.float64)


def plain(
    target: LlamaBackend, how: Calm, prompt: list[int], request: Request
) -> tuple[list[int], list[int]]:
    """(ids, layers of each decoded token) by the method's description: a layer's keys and values
    at a position come from the state that reached it there, so each layer is run anew over the
    states that reached it at all positions."""
    w, shape = target.weights, target.shape
    reached: list[list[Tensor]] = [[] for _ in range(shape.layers)]  # by layer, by position: [d]
    ids, depths, most = list(prompt), [], request.max_new_tokens
    for position in range(len(prompt) + most - 1):
        h = w.embedding[ids[position]]
        written = position - len(prompt) + 1
        threshold = math.inf
        if written > 0 and how.threshold < 1:
            threshold = 0.9 * how.threshold + 0.1 * math.exp(-how.decay * written / most)
        depth = 0
        while depth < shape.layers:
            below = h
            reached[depth].append(h)
            states = torch.stack(reached[depth]).unsqueeze(0)  # [1, T, d]
            rope, _ = target.positions(0, position + 1)
            h = layer(states, w.layers[depth], shape, rope, None)[0, -1]
            depth += 1
            norm = target.final_norm(h)
            probs = (norm @ w.embedding.T).softmax(-1).sort(descending=True).values
            cosine = F.cosine_similarity(h, below, dim=0) if depth > 1 else torch.tensor(-1.0)
            sure = {"softmax": probs[0] - probs[1], "saturation": cosine}[how.confidence]
            if sure >= threshold:
                break
        for above in range(depth, shape.layers):
            reached[above].append(h)
        if position >= len(prompt):
            depths.append(depth)
        if position >= len(prompt) - 1:
            logits = target.final_norm(h) @ w.embedding.T
            seen, penalty = torch.tensor(ids), request.sampling.repetition_penalty
            old = logits[seen]
            logits[seen] = torch.where(old < 0, old * penalty, old / penalty)
            ids.append(int(logits.argmax()))
    return ids[len(prompt) :], depths


def check(target: LlamaBackend, how: Calm, request: Request) -> list[DecodeResult]:
    results = []
    for prompt in PROMPTS:
        result = run(target, how, prompt, request)
        ids, depths = plain(target, how, prompt, request)
        assert result.ids == ids
        assert result.mean_layers == pytest.approx(sum(depths) / len(depths))
        results.append(result)
    return results


@pytest.mark.parametrize("penalty", [1.0, 1.4])
@pytest.mark.parametrize("decay", [0.0, 4.0])
@pytest.mark.parametrize(("confidence", "threshold"), [("saturation", 0.93), ("softmax", 0.6)])
def test_it_equals_the_plain_account(
    target: LlamaBackend, confidence: str, threshold: float, decay: float, penalty: float
) -> None:
    how = Calm("calm", threshold, confidence, decay)
    results = check(target, how, Request(16, Sampling(repetition_penalty=penalty)))
    mean = sum(result.mean_layers or 0 for result in results) / len(results)
    assert 1.5 < mean < LAYERS - 0.2  # some tokens leave early, some do not


def test_skipped_layers_without_their_keys_and_values_are_caught(
    target: LlamaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama, "skip_layer", lambda *args: None)
    with pytest.raises(AssertionError):
        check(target, Calm("calm", 0.93, decay=0.0), Request(16))


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.2, top_k=9, top_p=0.9)])
@pytest.mark.parametrize("confidence", CONFIDENCES)
def test_at_threshold_1_the_answer_is_the_target_s(
    target: LlamaBackend, confidence: str, sampling: Sampling
) -> None:
    for prompt in PROMPTS:
        request = Request(20, sampling, seed=1)
        result = run(target, Calm("calm", 1.0, confidence), prompt, request)
        theirs = run(target, autoregressive(), prompt, request)
        assert result.ids == theirs.ids
        assert (result.rounds, result.target_calls) == (theirs.rounds, theirs.target_calls)
        assert result.mean_layers == LAYERS


def test_at_threshold_0_nothing_goes_far(target: LlamaBackend) -> None:
    for confidence, layers in (("softmax", 1), ("saturation", 2)):  # a cosine needs two states
        how = Calm("calm", 0.0, confidence, decay=1e9)
        result = run(target, how, PROMPTS[1], Request(20))
        assert result.mean_layers == layers
        assert result.ids != run(target, autoregressive(), PROMPTS[1], Request(20)).ids


def test_thresholds_decay() -> None:
    """Equation 5 by hand: 0.9 lambda + 0.1 exp(-tau t / N), never above 1."""
    how = Calm("calm", 0.8, decay=4.0)
    assert how.threshold_at(0, 10) == pytest.approx(0.82)
    assert how.threshold_at(5, 10) == pytest.approx(0.72 + 0.1 * math.exp(-2))
    assert how.threshold_at(10, 10) == pytest.approx(0.72 + 0.1 * math.exp(-4))
    assert Calm("calm", 0.8, decay=0.0).threshold_at(7, 10) == pytest.approx(0.82)
    assert Calm("calm", 1.0, decay=4.0).threshold_at(10, 10) == math.inf


def test_one_token_asked_for_needs_no_layer(target: LlamaBackend) -> None:
    result = run(target, Calm("calm", 0.9), [3, 1], Request(1))
    assert (result.rounds, result.mean_layers) == (0, None)


def test_the_target_is_itself_again_afterwards(tiny: Tiny) -> None:
    """Also with an exit opened, whose states CALM does not keep."""
    target = native(tiny(seed=4, num_hidden_layers=LAYERS))
    drafter = random_exit(target, 2, seed=1, noise=0.05)
    prompt, request = PROMPTS[1], Request(16)
    alone = run(native(tiny(seed=4, num_hidden_layers=LAYERS)), autoregressive(), prompt, request)
    prefilled = target.prefill(prompt)
    for how in (Method("exit", drafter, Lossless(), FixedLength(3)), autoregressive()) * 2:
        run(target, Calm("calm", 0.5), prompt, request)
        target.truncate(len(prompt))
        stopper, chance = Stopper(request, ()), Generator(CPU)
        result = how.decode(target, prompt, prefilled, request, stopper, chance, lambda ids: None)
        assert result.ids == alone.ids


def test_a_token_that_never_leaves_is_read_as_ever(target: LlamaBackend) -> None:
    target.prefill([3, 1, 4])
    asked: list[int] = []
    h, depth = target.extend_until(5, lambda h, below, depth: bool(asked.append(depth)))
    assert (depth, asked, target.length) == (LAYERS, [*range(1, LAYERS)], 4)
    after = target.extend(torch.tensor([9]))
    logits = target.read_out(h)
    target.prefill([3, 1, 4])
    again = target.extend(torch.tensor([5, 9]))
    torch.testing.assert_close(torch.stack([logits, after[0]]), again)


def test_a_full_context(tiny: Tiny) -> None:
    target = native(tiny())
    target.prefill([1] * target.context)
    with pytest.raises(ContextTooLong):
        target.extend_until(1, lambda *args: False)


def test_other_backends_are_refused(tiny: Tiny) -> None:
    arm = recipe(name="early", kind="calm", threshold=0.9)
    with pytest.raises(DraftpickError, match="'early': leaving early needs the native backend"):
        arm.build(HFBackend(transformers_model(tiny())), None)
