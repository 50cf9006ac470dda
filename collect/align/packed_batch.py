"""Batches of whole texts for the recurrent drafter, every position of each trained on.

The target reads texts as rows [B, T], padded on the right. The drafter knows no rows: its positions
lie flat, text after text [M], so that no padding is multiplied, and a step is a shift by one. All
indices are made on the host, ahead of time: a GPU never has to say how many positions there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.common.errors import DraftpickError

from .tokens import Tokens

BUCKET = 16  # texts whose lengths differ by less are shuffled together
AHEAD = 3  # batches made while one is trained on
T = TypeVar("T")


@dataclass(frozen=True)
class PackedBatch:
    """rows: [B, T] ids, padded with 0.
    where: [M] the flat positions' indices into `rows`.
    at: [M] each one's place among those of its own text, -1 for padding at the end.
    positions: M without it.
    final: [M, d] the target's states, where they are known already.
    """

    rows: Tensor
    where: Tensor
    at: Tensor
    positions: int
    final: Tensor | None = None

    def to(self, device: torch.device) -> PackedBatch:
        return self._each(lambda part: part.to(device, non_blocking=True))

    def pinned(self) -> PackedBatch:
        """A copy in memory that a GPU can copy from on its own."""
        return self._each(lambda part: part.pin_memory())

    def _each(self, change: Callable[[Tensor], Tensor]) -> PackedBatch:
        rows, where, at = (change(part) for part in (self.rows, self.where, self.at))
        final = None if self.final is None else change(self.final)
        return PackedBatch(rows, where, at, self.positions, final)

    @property
    def ids(self) -> Tensor:
        """[M]"""
        return self.rows.reshape(-1)[self.where]


def flatten(
    texts: list[np.ndarray], multiple: int = 1, first: Sequence[int] | None = None
) -> PackedBatch:
    """Whole texts in one batch, M rounded up to a multiple.

    first: where each one's positions begin; what comes before is read by the target alone. None is
        from their starts.
    """
    begins = np.zeros(len(texts), np.int64) if first is None else np.array(first, np.int64)
    lengths = np.array([len(text) for text in texts])
    width, positions = int(lengths.max()), int((lengths - begins).sum())
    rows = np.zeros((len(texts), width), np.int64)
    inside = np.arange(width) < lengths[:, None]  # [B, T]
    rows[inside] = np.concatenate(texts)
    size = max(1, -(-positions // multiple)) * multiple
    where, at = np.zeros(size, np.int64), np.full(size, -1, np.int32)
    text, place = np.nonzero(inside & (np.arange(width) >= begins[:, None]))
    where[:positions] = text * width + place
    at[:positions] = place - begins[text]
    return PackedBatch(
        torch.from_numpy(rows), torch.from_numpy(where), torch.from_numpy(at), positions
    )


def order(lengths: np.ndarray, most: int, rng: np.random.Generator) -> list[np.ndarray]:
    """One epoch, shuffled: texts of similar length together, at most `most` padded positions in
    each batch, but one text at least."""
    ranked = np.lexsort((rng.random(len(lengths)), lengths // BUCKET))
    made, first, longest = [], 0, 0
    for at, length in enumerate(lengths[ranked].tolist()):
        if at > first and max(longest, length) * (at - first + 1) > most:
            made.append(ranked[first:at])
            first, longest = at, 0
        longest = max(longest, length)
    if len(ranked):
        made.append(ranked[first:])
    return [made[at] for at in rng.permutation(len(made))]


class Stream:
    """Batches of some texts without end, epoch after epoch; the same for the same seed.

    most: padded positions of a batch; a longer text, or one above `longest`, keeps its end.
    multiple: as in `flatten`. A prompt that has many answers is trained on with its first alone;
        with the others the target just reads it.
    answers: whether that holds of every prompt.
    states: the target's in front of each token of a text's answer [n, d], where they are kept, by
        its ids and where the answer begins; then answers alone are trained on.
    """

    def __init__(
        self,
        tokens: Tokens,
        most: int,
        longest: int,
        multiple: int,
        seed: int,
        *,
        answers: bool = False,
        states: Callable[[np.ndarray, int], Tensor] | None = None,
    ) -> None:
        least = np.maximum(tokens.answer, 1)  # one token alone has nothing to predict
        self._tokens = tokens.pick(tokens.lengths > (1 if states is None else least))
        self._states = states
        self._most, self._longest = most, min(longest, most)
        self._multiple, self._seed = multiple, seed
        if not len(self._tokens):
            raise DraftpickError("no text of two tokens or more is left to train on")
        self._lengths = np.minimum(self._tokens.lengths, self._longest)
        cut = self._tokens.lengths - self._lengths
        alone = answers or states is not None
        begins = np.maximum(self._tokens.answer - 1, 0) if alone else _new(self._tokens)
        self._first = np.maximum(begins - cut, 0)

    def steps(self, epochs: int) -> int:
        """Batches in a number of epochs."""
        return sum(len(self._order(epoch)) for epoch in range(epochs))

    def batches(self, skipped: int = 0) -> Iterator[PackedBatch]:
        """From the beginning, the first `skipped` left out."""
        epoch = 0
        while True:
            order = self._order(epoch)
            for texts in order[skipped:]:
                chosen = [self._text(int(at)) for at in texts]
                first = self._first[texts].tolist()
                if self._states is None:
                    yield flatten(chosen, self._multiple, first)
                else:
                    yield self._with_states(chosen, first, texts)
            skipped = max(0, skipped - len(order))
            epoch += 1

    def _order(self, epoch: int) -> list[np.ndarray]:
        return order(self._lengths, self._most, np.random.default_rng([self._seed, epoch]))

    def _with_states(
        self, chosen: list[np.ndarray], first: list[int], texts: np.ndarray
    ) -> PackedBatch:
        """Without each text's last token, after which nothing is said."""
        assert self._states is not None
        batch = flatten([text[:-1] for text in chosen], self._multiple, first)
        parts = []
        for text, begins, at in zip(chosen, first, texts.tolist(), strict=True):
            states = self._states(self._tokens.text(at), int(self._tokens.answer[at]))
            parts.append(states[-(len(text) - 1 - begins) :])
        short = len(batch.at) - batch.positions
        return replace(batch, final=F.pad(torch.cat(parts), (0, 0, 0, short)))

    def _text(self, at: int) -> np.ndarray:
        return self._tokens.text(at)[-self._longest :]


def _new(tokens: Tokens) -> np.ndarray:
    """[n] where in each text what no earlier one begins with begins: 0, or after a prompt that was
    there before, at its last token, whose state the first draft goes on from."""
    seen: set[bytes] = set()
    first = np.zeros(len(tokens), np.int64)
    for at, answer in enumerate(tokens.answer.tolist()):
        prompt = tokens.text(at)[:answer].tobytes()
        if prompt in seen:
            first[at] = max(0, answer - 1)
        seen.add(prompt)
    return first


def on_device(
    batches: Iterator[PackedBatch], device: torch.device
) -> Generator[PackedBatch, None, None]:
    """The same batches there, made in a thread of their own while others are trained on."""
    if device.type != "cuda":
        yield from batches
        return
    for batch in _ahead(flat.pinned() for flat in batches):
        yield batch.to(device)


def _ahead(items: Iterator[T]) -> Generator[T, None, None]:
    """An endless iterator's items, made AHEAD of their use."""
    with ThreadPoolExecutor(1) as pool:  # one thread: in order, and no two in the iterator at once
        waiting = deque(pool.submit(next, items) for _ in range(AHEAD))
        while True:
            yield waiting.popleft().result()
            waiting.append(pool.submit(next, items))
