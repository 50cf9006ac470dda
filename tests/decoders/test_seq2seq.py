"""T5-like models through the same loop, beside transformers and to the last digit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from backend_toys import close
from decoder_toys import Tiny, max_gram, recurrent
from t5_toys import EXIT_T5, from_scratch, generate_t5, lens_exit, seq2seq, seq2seq_model

from decoders.backends.transformers.hf_seq2seq import HFSeq2SeqBackend
from decoders.lengths import FixedLength
from decoders.methods.neural.drafter import NeuralDrafter
from decoders.methods.tree.drafter import TreeDrafter
from decoders.protocols import Drafter, DraftLength, EncoderDecoder, decoder_prefix
from decoders.records import Request, Sampling
from decoders.sampling.draft_vocab import DraftVocab
from decoders.testing.chance import distance, loop_distribution, reference_distribution
from decoders.testing.toys import ListedLengths, ToyBackend, autoregressive, run, speculative

SOURCES = [[3], [3, 1, 4, 1, 5, 9, 1], [2] * 9, [7, 11, 7, 11, 7, 1]]

SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("t5", {}),
    "t5-gated": ("t5", {"feed_forward_proj": "gated-gelu"}),
    "t5-unscaled-head": ("t5", {"tie_word_embeddings": False}),
    "t5-own-head": ("t5", {"own_head": True, "tie_word_embeddings": False}),
    "t5-as-deep": ("t5", {"num_layers": 2}),
    "mt5": ("mt5", {"feed_forward_proj": "gated-gelu"}),
    "umt5": ("umt5", {}),
}


@pytest.fixture(params=SHAPES)
def folder(request: pytest.FixtureRequest, tiny_t5: Tiny) -> Path:
    kind, config = SHAPES[request.param]
    return tiny_t5(kind, **config)


# -- one pass beside transformers -----------------------------------------------------------------


def test_the_same_numbers_as_transformers(folder: Path) -> None:
    model, mine = seq2seq_model(folder), seq2seq(folder)
    source, answer = SOURCES[1], [7, 7, 2, 15, 4]
    with torch.no_grad():
        theirs = model(
            input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([[0, *answer]])
        )
    read = mine.prefill(source)
    close(read.logits, theirs.logits[0, 0])
    close(mine.extend(torch.tensor(answer[:3])), theirs.logits[0, 1:4])
    close(mine.extend(torch.tensor(answer[3:])), theirs.logits[0, 4:])
    close(read.embedding, theirs.encoder_last_hidden_state[0].mean(0))
    assert mine.parameters == model.num_parameters()
    assert theirs.logits.std() > 0.2  # a model that says nothing would prove nothing


def test_the_source_is_encoded_once(tiny_t5: Tiny) -> None:
    """However many rounds follow, cross-attention's keys are computed once a layer."""
    target, calls = seq2seq(tiny_t5()), {"encoder": 0, "keys": 0}

    def count(name: str) -> Callable[..., None]:
        def noted(*_: Any) -> None:
            calls[name] += 1

        return noted

    target.model.get_encoder().register_forward_hook(count("encoder"))
    for block in target.model.decoder.block:
        block.layer[1].EncDecAttention.k.register_forward_hook(count("keys"))
    result = run(
        target, speculative(max_gram(shortest=1, source_apart=True), 3), SOURCES[1], Request(14)
    )
    assert result.rounds > 5
    assert calls == {"encoder": 1, "keys": len(target.model.decoder.block)}


def test_what_the_answer_goes_on_from(tiny_t5: Tiny) -> None:
    target, toy = seq2seq(tiny_t5(decoder_start_token_id=2)), ToyBackend.random(4, 0)
    assert isinstance(target, EncoderDecoder) and not isinstance(toy, EncoderDecoder)
    assert decoder_prefix(target, [5, 6]) == [2]
    assert decoder_prefix(toy, [1, 2]) == [1, 2]


@pytest.mark.parametrize("penalty", [1.0, 0.8, 1.3])
def test_ids_equal_transformers_generate(folder: Path, penalty: float) -> None:
    """Plain decoding's, whose ids every arm writes (tests/decoders/test_contract.py)."""
    target, model = seq2seq(folder), seq2seq_model(folder)
    for source in SOURCES:
        theirs = generate_t5(model, source, 14, repetition_penalty=penalty)
        request = Request(14, Sampling(repetition_penalty=penalty))
        assert run(target, autoregressive(), source, request).ids == theirs


# -- sampled: every draw and every acceptance walked ----------------------------------------------

SAMPLINGS = {
    "plain": Sampling(1.0),
    "all": Sampling(1.3, top_k=2, top_p=0.9, repetition_penalty=1.7),
}
LENGTHS: dict[str, Callable[[], DraftLength]] = {
    "fixed": lambda: FixedLength(2),
    "confident": lambda: FixedLength(2, min_confidence=0.36),
    "sits-out": lambda: ListedLengths([0, 2, 1]),
}
SMALL = EXIT_T5 | {"num_decoder_layers": 1}


def small(tiny_t5: Tiny) -> HFSeq2SeqBackend:
    return seq2seq(tiny_t5(seed=12, **SMALL), torch.float64)


def few(target: HFSeq2SeqBackend, vocab: DraftVocab | None = None) -> Drafter:
    return lens_exit(target, 1, seed=2, vocab=vocab, noise=0.3)


DRAFTERS: dict[str, Callable[[HFSeq2SeqBackend, Tiny], Drafter]] = {
    "neural": lambda target, tiny_t5: NeuralDrafter(small(tiny_t5)),
    "max-gram": lambda target, tiny_t5: max_gram(shortest=1, source_apart=True),
    "tree": lambda target, tiny_t5: TreeDrafter(small(tiny_t5), None, (2,), 96),
    "exit": lambda target, tiny_t5: few(target),
    "recurrent": lambda target, tiny_t5: recurrent(target, 2),
    "exit-reduced": lambda target, tiny_t5: few(target, DraftVocab([0, 2], 3)),
}


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("drafter", "sampling", "length", "eos"),
    [
        ("neural", "all", "fixed", (1,)),
        ("neural", "plain", "fixed", ()),
        ("max-gram", "all", "fixed", (1,)),
        ("exit", "all", "fixed", (1,)),  # few outcomes
        ("exit", "plain", "confident", (1,)),
        ("exit", "plain", "sits-out", ()),
        ("tree", "all", "fixed", ()),
        ("tree", "all", "fixed", (1,)),  # all outcomes of "plain" take half a minute
        ("max-gram", "plain", "fixed", ()),
        ("exit", "all", "sits-out", ()),
        ("exit", "plain", "fixed", ()),
        ("exit-reduced", "plain", "fixed", ()),
        ("recurrent", "all", "fixed", ()),
    ],
)
def test_the_distribution_is_the_target_s(
    drafter: str, sampling: str, length: str, eos: tuple[int, ...], tiny_t5: Tiny
) -> None:
    folder = tiny_t5(seed=11, **(EXIT_T5 if "exit" in drafter else SMALL))
    source, request = [2, 1, 2, 0, 1], Request(4, SAMPLINGS[sampling])
    target, model = seq2seq(folder, torch.float64), seq2seq_model(folder, torch.float64)
    truth = reference_distribution(from_scratch(model, source), [target.start_id], request, eos)
    strategy = speculative(DRAFTERS[drafter](target, tiny_t5), LENGTHS[length]())
    distribution = loop_distribution(target, strategy, source, request, eos)
    assert sum(distribution.values()) == pytest.approx(1.0, abs=1e-9)
    assert distance(distribution, truth) < 1e-9
    assert max(truth.values()) < 0.9  # there is something to get wrong
