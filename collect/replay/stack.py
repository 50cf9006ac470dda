"""A model as a stack of layers, run over many padded sequences at once: for collection.

The target, a drafter of its own and an early exit with its adapter are each an embedding, some
layers and a head; batched, they cost a fraction of one sequence at a time. `writer.py` lets a stack
write; here it reads. Native models only; others are decoded one by one (`batch.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from decoders.backends.exit_adapter import AdapterHead
from decoders.backends.llama.kv import Slot
from decoders.backends.llama.model import (
    LayerWeights,
    RopeTables,
    chain_place,
    embedded,
    layer,
    logits_of,
    rope_tables,
)
from decoders.backends.llama.shape import Shape
from decoders.backends.native import LlamaBackend
from decoders.backends.threads import threads
from decoders.backends.weights.file_blocks import FileBlocks
from decoders.backends.weights.packed import Matrix, dense, pack
from decoders.protocols import decoder_prefix
from decoders.sampling import race
from decoders.sampling.draft_vocab import DraftVocab

from .protocols import KnownAnswers

AT_ONCE = {"cpu": 1024}  # tokens; more would only take fresh memory
OTHERS_AT_ONCE = 32768
LOGITS_AT_ONCE = 256  # rows whose logits are held


@dataclass(frozen=True)
class Stack:
    """read: [..., d] states after the last layer -> [..., d] ready for the head [N, d]."""

    shape: Shape
    embedding: Tensor | FileBlocks
    layers: list[LayerWeights]
    read: Callable[[Tensor], Tensor]
    head: Matrix
    vocab: DraftVocab | None = None
    maps_input: bool = False  # whether the embedding is over the draft vocabulary

    @classmethod
    def of_backend(cls, model: LlamaBackend, vocab: DraftVocab | None = None) -> Stack:
        w = model.weights
        head = w.head if vocab is None else pack(dense(w.head)[: vocab.size - 1])
        return cls(
            model.shape, w.embedding, w.layers, model.final_norm, head, vocab, vocab is not None
        )

    @classmethod
    def of_exit(cls, above: AdapterHead) -> Stack:
        target = above.target
        layers = target.weights.layers[: above.exit_layer] + above.blocks
        embedding, read = target.weights.embedding, above.adapter.read
        return cls(target.shape, embedding, layers, read, above.head, above.vocab)

    def embed(self, ids: Tensor) -> Tensor:
        """Every pass begins here, on a CPU with as many threads as the neighbours leave cores."""
        if self.embedding.device.type == "cpu":
            threads().adapt()
        if self.maps_input and self.vocab is not None:
            ids = self.vocab.from_target[ids]
        return embedded(ids, self.embedding, self.shape)

    def to_target(self, ids: Tensor) -> Tensor:
        return ids if self.vocab is None else self.vocab.to_target[ids]

    def rope(self) -> RopeTables:
        return rope_tables(self.shape, self.embedding.device, self.embedding.dtype)

    def through(
        self, prompts: Sequence[list[int]], rope: RopeTables, slots: Sequence[Slot | None]
    ) -> Tensor:
        """Read n prompts of up to T tokens from position 0 on; [n, T, d] after the last layer.

        Shorter ones are padded on the right, where nothing looks at the pads but they themselves.

        rope: what `rope` made.
        slots: one a layer, None where keys and values need not be kept.
        """
        width = max(len(p) for p in prompts)
        ids = torch.tensor([p + [0] * (width - len(p)) for p in prompts])
        h = self.embed(ids.to(self.embedding.device))
        place = chain_place(rope, self.shape, 0, width)
        with _plain_attention(h.device):
            for w, slot in zip(self.layers, slots, strict=True):
                h = layer(h, w, self.shape, place, slot)
        return h


def _plain_attention(device: torch.device) -> AbstractContextManager[None]:
    """On CUDA without cuDNN's attention, which makes a plan for every new size: here each has a
    size of its own."""
    if device.type != "cuda":
        return nullcontext()
    kinds = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)
    return cast("AbstractContextManager[None]", sdpa_kernel(list(kinds)))


@torch.inference_mode()
def states_before(stack: Stack, prompts: list[list[int]], answers: list[list[int]]) -> list[Tensor]:
    """Per answer of n tokens [n, d]: the state in front of each, as the head reads it."""
    texts = [p + a for p, a in zip(prompts, answers, strict=True)]
    rope, slots = stack.rope(), [None] * len(stack.layers)
    made = []
    for group in in_groups(texts, stack.embedding.device):
        states = stack.read(stack.through(texts[group], rope, slots))
        for row, text, answer in zip(states, texts[group], answers[group], strict=True):
            end = len(text) - 1
            made.append(row[end - len(answer) : end])
    return made


@torch.inference_mode()
def score(stack: Stack, answers: KnownAnswers) -> list[list[DraftToken]]:
    """Per answer, per position: what the stack would draft there, given everything before it."""
    states = states_before(stack, answers.prompts, answers.ids)
    made = []
    for rows, prompt, seed in zip(states, answers.prompts, answers.seeds, strict=True):
        place, key = len(decoder_prefix(answers.target, prompt)), race.key_of(seed)
        drafted = list[DraftToken]()
        for part in torch.split(rows, LOGITS_AT_ONCE):
            clocks = Clocks(answers.temperature, key, place + len(drafted))
            logits = logits_of(part, stack.head, stack.shape)
            drafted += draft_tokens(logits, stack.vocab, clocks)[1]
        made.append(drafted)
    return made


class Clocks(NamedTuple):
    """Clocks that rows of logits are drawn by: the temperature, keys and places of `race.pick`."""

    temperature: float
    keys: int | Tensor
    places: int | Tensor


def draft_tokens(
    logits: Tensor, vocab: DraftVocab | None, clocks: Clocks
) -> tuple[Tensor, list[DraftToken]]:
    """Draft by [n, N] logits over draft tokens, as target ids [n] and as drafts."""
    scores, names = logits.float(), None if vocab is None else vocab.to_target
    best = scores.max(-1)
    picked = best.indices
    if clocks.temperature > 0:
        picked = race.pick(logits, *clocks, names)[:, 0]
    tokens = picked if names is None else names[picked]
    sure = (best.values - scores.logsumexp(-1)).exp()
    return tokens, list(map(DraftToken, tokens.tolist(), sure.tolist()))


def in_groups(texts: Sequence[Sequence[int]], device: torch.device) -> Iterator[slice]:
    """Texts that are read together, neighbours: as many as keep memory bounded, the pads up to
    the longest one of each group included."""
    first = longest = 0
    for at, text in enumerate(texts):
        longest = max(longest, len(text))
        if at > first and longest * (at + 1 - first) > AT_ONCE.get(device.type, OTHERS_AT_ONCE):
            yield slice(first, at)
            first, longest = at, len(text)
    if first < len(texts):
        yield slice(first, len(texts))


@dataclass(frozen=True)
class DraftToken:
    """token: what is drafted.
    confidence: the most likely token's probability, raw.
    """

    token: int
    confidence: float
