"""A model as a stack of layers, run over many padded sequences at once: for collection.

The target, a drafter of its own and an early exit with its adapter are each an embedding, some
layers and a head; batched here, they cost a fraction of one sequence at a time. Native models only;
others are decoded one by one (`batch.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .backends.early_exit import AdapterHead
from .backends.kv import KVCache
from .backends.llama import LlamaBackend
from .backends.llama_model import (
    LayerWeights,
    Shape,
    all_heads,
    attention_mask,
    layer,
    rope_table,
    rounded,
)
from .backends.packed import Matrix, dense, linear, pack
from .backends.sync import synchronize
from .draft_vocab import DraftVocab
from .drafters import EarlyExitDrafter, NeuralDrafter


@dataclass(frozen=True)
class Stack:
    """read: [..., d] states after the last layer -> [..., d] ready for the head [N, d]."""

    shape: Shape
    embedding: Tensor
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
    def of_drafter(cls, drafter: object) -> Stack | None:
        """None where the drafter is not a native model."""
        if isinstance(drafter, EarlyExitDrafter) and isinstance(drafter.head, AdapterHead):
            above, target = drafter.head, drafter.head.target
            layers = target.weights.layers[: above.exit_layer] + above.blocks
            embedding, read = target.weights.embedding, above.adapter.read
            return cls(target.shape, embedding, layers, read, above.head, above.vocab)
        if isinstance(drafter, NeuralDrafter) and isinstance(drafter.backend, LlamaBackend):
            return cls.of_backend(drafter.backend, drafter.vocab)
        return None

    def embed(self, ids: Tensor) -> Tensor:
        if self.maps_input and self.vocab is not None:
            ids = self.vocab.from_target[ids]
        return F.embedding(ids, self.embedding)

    def to_target(self, ids: Tensor) -> Tensor:
        return ids if self.vocab is None else self.vocab.to_target[ids]


@dataclass(frozen=True)
class Written:
    """Answers to n prompts. ids: new tokens, end-of-sequence included. embeddings: [n, d] float32,
    each prompt's last state as the head reads it. Seconds are of the whole batch."""

    ids: list[list[int]]
    embeddings: Tensor
    prefill_s: float
    decode_s: float


class _Sequences:
    """Left-padded prompts in one cache; every row's newest token stands in the same column."""

    def __init__(self, stack: Stack, prompts: list[list[int]], room: int) -> None:
        self.stack, device = stack, stack.embedding.device
        width = max(len(p) for p in prompts)
        self.ids = torch.zeros(len(prompts), width, dtype=torch.int64, device=device)
        self.pad = torch.tensor([width - len(p) for p in prompts], device=device)  # [B]
        for row, prompt in enumerate(prompts):
            self.ids[row, width - len(prompt) :] = torch.tensor(prompt, device=device)
        shape, dtype = stack.shape, stack.embedding.dtype
        self.cache = KVCache(
            len(stack.layers),
            len(prompts),
            shape.kv_heads,
            rounded(width + room),
            shape.head_dim,
            dtype,
            device,
        )
        self.rope = rope_table(stack.shape, device, dtype)
        self.length = 0

    def forward(self, ids: Tensor) -> Tensor:
        """Append [B, T] columns; [B, T, d] ready for the head."""
        start, t = self.length, ids.shape[1]
        columns = torch.arange(start, start + t, device=ids.device)
        positions = (columns - self.pad[:, None]).clamp(min=0)  # [B, T]
        rope = all_heads((self.rope[0][positions], self.rope[1][positions]), self.stack.shape)
        keys = torch.arange(start + t, device=ids.device)
        mask = (keys <= columns[:, None]) & (keys >= self.pad[:, None, None])  # [B, T, S]
        mask |= keys == columns[:, None]  # a pad row sees itself, so that it is no NaN
        h = self.stack.embed(ids)
        added = attention_mask(mask, self.stack.shape, h.dtype)
        slots = self.cache.slots(start, t, added.shape[-1])
        for w, slot in zip(self.stack.layers, slots, strict=True):
            h = layer(h, w, self.stack.shape, rope, added, slot)
        self.length += t
        return self.stack.read(h)


@torch.inference_mode()
def write(
    stack: Stack,
    prompts: list[list[int]],
    max_new_tokens: int,
    eos_ids: tuple[int, ...],
    temperature: float = 0.0,
    seed: int = 0,
) -> Written:
    """Every prompt's answer, greedy or sampled at `temperature` (no filters)."""
    device = stack.embedding.device
    started = time.perf_counter()
    generator = torch.Generator(device).manual_seed(seed)
    rows = _Sequences(stack, prompts, max_new_tokens)
    states = rows.forward(rows.ids)[:, -1]  # [B, d]
    embeddings = states.float().cpu()
    synchronize(device)
    prefilled = time.perf_counter()
    ends = torch.tensor(eos_ids, device=device)
    columns: list[Tensor] = []
    over = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    while len(columns) < max_new_tokens:
        logits = linear(states, stack.head)  # [B, N]
        if temperature > 0:
            probs = (logits.float() / temperature).softmax(-1)
            race = torch.empty_like(probs).exponential_(1.0, generator=generator)
            chosen = (probs / race).argmax(-1)
        else:
            chosen = logits.argmax(-1)
        columns.append(stack.to_target(chosen))
        over |= torch.isin(columns[-1], ends)
        if bool(over.all()):
            break
        states = rows.forward(columns[-1].unsqueeze(1))[:, -1]
    ids = [_until_end(row, eos_ids) for row in torch.stack(columns, 1).tolist()]
    return Written(ids, embeddings, prefilled - started, time.perf_counter() - prefilled)


def _until_end(ids: list[int], eos_ids: tuple[int, ...]) -> list[int]:
    for count, token in enumerate(ids, 1):
        if token in eos_ids:
            return ids[:count]
    return ids


@torch.inference_mode()
def states_before(stack: Stack, prompts: list[list[int]], answers: list[list[int]]) -> list[Tensor]:
    """Per answer of n tokens [n, d]: the state in front of each, as the head reads it."""
    rows = _Sequences(stack, [p + a for p, a in zip(prompts, answers, strict=True)], 0)
    states = rows.forward(rows.ids)
    return [states[row, -len(answer) - 1 : -1] for row, answer in enumerate(answers)]


@torch.inference_mode()
def score(stack: Stack, prompts: list[list[int]], answers: list[list[int]]) -> list[list[Guess]]:
    """Per answer, per position: what the stack would draft there, given everything before it."""
    made = []
    for states in states_before(stack, prompts, answers):
        logits = linear(states, stack.head).float()  # [n, N]
        best = logits.max(-1)
        sure = (best.values - logits.logsumexp(-1)).exp().tolist()
        tokens = stack.to_target(best.indices).tolist()
        made.append([Guess(t, c) for t, c in zip(tokens, sure, strict=True)])
    return made


@dataclass(frozen=True)
class Guess:
    """token: the draft's most likely one. confidence: its probability, raw."""

    token: int
    confidence: float
