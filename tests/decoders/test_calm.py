"""CALM beside a plain account of it that keeps no cache, and its limits."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from decoder_toys import Tiny, native, transformers_model
from t5_toys import seq2seq
from torch import Tensor

from decoders.arms import recipe
from decoders.backends.llama.model import layer
from decoders.backends.transformers.hf import HFBackend
from decoders.backends.transformers.hf_seq2seq import HFSeq2SeqBackend
from decoders.common.errors import ContextTooLong, DraftpickError
from decoders.papers.calm.strategy import CONFIDENCES, Calm
from decoders.protocols import LayeredBackend, decoder_prefix
from decoders.records import DecodeResult, Request, Sampling
from decoders.testing.toys import autoregressive, run

PROMPTS = [[3], [3, 1, 4, 1, 5, 9, 2, 6], [7, 11, 7, 11, 7]]
LAYERS = 6
KINDS = ("llama", "t5", "t5-unscaled-head", "umt5")


@pytest.fixture(scope="module", params=KINDS)
def target(request: pytest.FixtureRequest, tiny: Tiny, tiny_t5: Tiny) -> LayeredBackend:
    if request.param == "llama":
        return native(tiny(seed=4, num_hidden_layers=LAYERS), torch.float64)
    config = {"tie_word_embeddings": False} if "unscaled" in request.param else {}
    folder = tiny_t5(request.param.split("-")[0], seed=4, num_decoder_layers=LAYERS, **config)
    t5 = seq2seq(folder, torch.float64)
    if not config:  # else the toy's head, which scales what it reads, is never sure
        t5.model.decoder.final_layer_norm.weight.data *= 8
    return t5


@dataclass(frozen=True)
class Account:
    """A model without a cache. embed: token -> [d]. layer: number, [T, d] -> [T, d], causal.
    logits: [d] after any layer -> [V]."""

    embed: Callable[[int], Tensor]
    layer: Callable[[int, Tensor], Tensor]
    logits: Callable[[Tensor], Tensor]


def account_of(target: LayeredBackend, prompt: list[int]) -> Account:
    if isinstance(target, HFSeq2SeqBackend):
        return t5_account(target.model, prompt)
    w = target.weights

    def run_layer(number: int, states: Tensor) -> Tensor:
        place = target.positions(0, len(states))
        after: Tensor = layer(states.unsqueeze(0), w.layers[number], target.shape, place)[0]
        return after

    return Account(
        lambda token: w.embedding[token], run_layer, lambda h: target.final_norm(h) @ w.embedding.T
    )


def t5_account(model: Any, source: list[int]) -> Account:
    encoded = model.encoder(torch.tensor([source])).last_hidden_state
    blocks, config = model.decoder.block, model.config
    scaled = getattr(config, "scale_decoder_outputs", True)

    def run_layer(number: int, states: Tensor) -> Tensor:
        t = len(states)
        mask = torch.full((1, 1, t, t), -torch.inf, dtype=states.dtype).triu(1)
        more = {}
        if config.model_type == "t5":  # its blocks share the first one's bias
            more["position_bias"] = blocks[0].layer[0].SelfAttention.compute_bias(t, t)
        out = blocks[number](states[None], mask, encoder_hidden_states=encoded, **more)
        after: Tensor = (out[0] if isinstance(out, tuple) else out)[0]
        return after

    def logits(h: Tensor) -> Tensor:
        normed = model.decoder.final_layer_norm(h)
        after: Tensor = model.lm_head(normed * config.d_model**-0.5 if scaled else normed)
        return after

    return Account(lambda token: model.shared.weight[token], run_layer, logits)


@torch.no_grad()
def plain(
    target: LayeredBackend, strategy: Calm, prompt: list[int], request: Request
) -> tuple[list[int], list[int]]:
    """(ids, layers of each decoded token) by the method's description: a layer's keys and values
    at a position come from the state that reached it there, so each layer is run anew over the
    states that reached it at all positions."""
    account, start = account_of(target, prompt), decoder_prefix(target, prompt)
    reached: list[list[Tensor]] = [[] for _ in range(LAYERS)]  # by layer, by position: [d]
    ids, depths, most = list(start), [], request.max_new_tokens
    for position in range(len(start) + most - 1):
        h = account.embed(ids[position])
        written = position - len(start) + 1
        threshold = math.inf
        if written > 0 and strategy.threshold < 1:
            threshold = 0.9 * strategy.threshold + 0.1 * math.exp(-strategy.decay * written / most)
        depth = 0
        while depth < LAYERS:
            below = h
            reached[depth].append(h)
            h = account.layer(depth, torch.stack(reached[depth]))[-1]
            depth += 1
            probs = account.logits(h).softmax(-1).sort(descending=True).values
            cosine = F.cosine_similarity(h, below, dim=0) if depth > 1 else torch.tensor(-1.0)
            sure = {"softmax": probs[0] - probs[1], "saturation": cosine}[strategy.confidence]
            if sure >= threshold:
                break
        for above in range(depth, LAYERS):
            reached[above].append(h)
        if position >= len(start):
            depths.append(depth)
        if position >= len(start) - 1:
            logits = account.logits(h)
            seen, penalty = torch.tensor(ids), request.sampling.repetition_penalty
            old = logits[seen]
            logits[seen] = torch.where(old < 0, old * penalty, old / penalty)
            ids.append(int(logits.argmax()))
    return ids[len(start) :], depths


def check(target: LayeredBackend, strategy: Calm, request: Request) -> list[DecodeResult]:
    results = []
    for prompt in PROMPTS:
        result = run(target, strategy, prompt, request)
        ids, depths = plain(target, strategy, prompt, request)
        assert result.ids == ids
        assert result.mean_layers == pytest.approx(sum(depths) / len(depths))
        results.append(result)
    return results


@pytest.mark.every(3)
@pytest.mark.parametrize("penalty", [1.0, 1.4])
@pytest.mark.parametrize("decay", [0.0, 4.0])
@pytest.mark.parametrize(("confidence", "threshold"), [("saturation", 0.9), ("softmax", 0.6)])
def test_it_equals_the_plain_account(
    target: LayeredBackend, confidence: str, threshold: float, decay: float, penalty: float
) -> None:
    strategy = Calm("calm", threshold, confidence, decay)
    results = check(target, strategy, Request(16, Sampling(repetition_penalty=penalty)))
    mean = sum(result.mean_layers or 0 for result in results) / len(results)
    assert 1.5 < mean < LAYERS - 0.2  # some tokens leave early, some do not


@pytest.mark.every(3)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.2, top_k=9, top_p=0.9)])
@pytest.mark.parametrize("confidence", CONFIDENCES)
def test_at_threshold_1_the_answer_is_the_target_s(
    target: LayeredBackend, confidence: str, sampling: Sampling
) -> None:
    for prompt in PROMPTS:
        request = Request(14, sampling, seed=1)
        result = run(target, Calm("calm", 1.0, confidence), prompt, request)
        theirs = run(target, autoregressive(), prompt, request)
        assert result.ids == theirs.ids
        assert (result.rounds, result.target_calls) == (theirs.rounds, theirs.target_calls)
        assert result.mean_layers == LAYERS


def test_at_threshold_0_nothing_goes_far(target: LayeredBackend) -> None:
    for confidence, layers in (("softmax", 1), ("saturation", 2)):  # a cosine needs two states
        strategy = Calm("calm", 0.0, confidence, decay=1e9)
        result = run(target, strategy, PROMPTS[1], Request(14))
        assert result.mean_layers == layers
        assert result.ids != run(target, autoregressive(), PROMPTS[1], Request(14)).ids


def test_one_token_asked_for_needs_no_layer(target: LayeredBackend) -> None:
    result = run(target, Calm("calm", 0.9), [3, 1], Request(1))
    assert (result.rounds, result.mean_layers) == (0, None)


def test_a_token_that_never_leaves_is_read_as_ever(target: LayeredBackend) -> None:
    target.prefill([3, 1, 4])
    asked: list[int] = []
    h, depth = target.extend_until(5, lambda h, below, depth: bool(asked.append(depth)))
    read = len(decoder_prefix(target, [3, 1, 4])) + 1
    assert (depth, asked, target.length) == (LAYERS, [*range(1, LAYERS)], read)
    after = target.extend(torch.tensor([9]))
    logits = target.read_out(h)
    target.prefill([3, 1, 4])
    again = target.extend(torch.tensor([5, 9]))
    torch.testing.assert_close(torch.stack([logits, after[0]]), again)


def test_a_token_after_a_tree_ends_it(tiny: Tiny) -> None:
    target, chain = native(tiny()), native(tiny())
    target.prefill([3])
    target.extend(torch.tensor([1, 2]), [-1, -1])
    with pytest.raises(ValueError, match="keep a path"):
        target.extend_until(4, lambda *args: False)
    target.keep([1])
    target.extend_until(4, lambda *args: False)
    chain.prefill([3, 2, 4])
    expected = chain.extend(torch.tensor([5]))
    torch.testing.assert_close(target.extend(torch.tensor([5]), [-1]), expected)


def test_a_full_context(tiny: Tiny, tiny_t5: Tiny) -> None:
    for target in (native(tiny()), seq2seq(tiny_t5())):
        target.prefill([1])
        target.extend(torch.tensor([1] * (target.context - 1)))
        with pytest.raises(ContextTooLong):
            target.extend_until(1, lambda *args: False)


def test_an_encoder_decoder_reads_its_source_once(tiny_t5: Tiny) -> None:
    """Tokens that leave early go by the keys of the encoder's states that the start token left; no
    trace of them is left in the next answer."""
    target, keys = seq2seq(tiny_t5(num_decoder_layers=LAYERS)), list[int]()
    alone = run(target, autoregressive(), PROMPTS[1], Request(16)).ids
    for block in target.model.decoder.block:
        block.layer[1].EncDecAttention.k.register_forward_hook(lambda *_: keys.append(1))
    for _ in range(2):
        result = run(target, Calm("calm", 0.8), PROMPTS[1], Request(16))
        assert result.mean_layers is not None and result.mean_layers < LAYERS
        assert len(keys) == LAYERS
        keys.clear()
        assert run(target, autoregressive(), PROMPTS[1], Request(16)).ids == alone
        keys.clear()


def test_other_backends_are_refused(tiny: Tiny) -> None:
    arm = recipe(name="early", kind="calm", threshold=0.9)
    with pytest.raises(DraftpickError, match="'early': leaving early needs the native backend"):
        arm.build(HFBackend(transformers_model(tiny())), None)
