"""vLLM's side of the seam, without vLLM: a scheduler that moves rows, reads prompts in parts,
preempts, verifies drafts, and hands a proposer the arrays that vLLM 0.32 does.

The model is a function of the text, so plain decoding's answers are known.
"""

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

EOS = 2
VOCABULARY = 64


def repeating(ids: Sequence[int]) -> int:
    """A model that copies where it can, so that prompt lookup is accepted now and then."""
    seed = int.from_bytes(hashlib.sha256(repr(list(ids[-3:])).encode()).digest()[:4], "big")
    if seed % 4 and len(ids) > 12:
        return int(ids[len(ids) - 7])
    return EOS if seed % 61 == 0 else 3 + seed % 12


def plain(prompt: Sequence[int], most: int, model: Callable[..., int] = repeating) -> list[int]:
    """What the model answers."""
    ids = list(prompt)
    while len(ids) < len(prompt) + most:
        ids.append(model(ids))
        if ids[-1] == EOS:
            break
    return ids[len(prompt) :]


@dataclass
class Asked:
    """One request. drafted, accepted: tokens, as vLLM counts them."""

    name: str
    prompt: list[int]
    most: int
    ids: list[int] = field(default_factory=list)
    unread: int = 0
    draft: list[int] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0

    def __post_init__(self) -> None:
        self.ids, self.unread = list(self.prompt), len(self.prompt)

    @property
    def answer(self) -> list[int]:
        return self.ids[len(self.prompt) :]

    @property
    def over(self) -> bool:
        return len(self.answer) >= self.most or EOS in self.answer


class Batch:
    """Rows of requests. chance: of all that the scheduler does by chance.

    preempt: the chance that a step loses a request for a while.
    chunk: tokens of a prompt that one step reads.
    """

    def __init__(
        self,
        asked: Sequence[Asked],
        rows: int,
        chance: random.Random,
        preempt: float = 0.1,
        chunk: int = 8,
        model: Callable[..., int] = repeating,
    ) -> None:
        self.waiting, self.rows = list(asked), list[Asked]()
        self._most_rows, self._chance, self._model = rows, chance, model
        self._preempt, self._chunk = preempt, chunk
        longest = max(len(each.prompt) + each.most for each in asked) + 32
        self.token_ids = np.zeros((rows, longest), dtype=np.int32)
        self.lengths = np.zeros(rows, dtype=np.int32)

    def schedule(self) -> None:
        """Let go of what is over, and of some by preemption, which wait a step at least; move rows,
        fill empty ones."""
        preempted = list[Asked]()
        for each in list(self.rows):
            lost = not each.over and self._chance.random() < self._preempt
            if each.over or lost:
                at = self.rows.index(each)
                self.rows[at] = self.rows[-1]  # the last row takes the empty place
                self.rows.pop()
            if lost:
                each.draft, each.unread = [], len(each.ids)
                preempted.append(each)
        while self.waiting and len(self.rows) < self._most_rows:
            self.rows.append(self.waiting.pop(0))
        for each in preempted:
            self.waiting.insert(self._chance.randrange(len(self.waiting) + 1), each)
        if len(self.rows) > 1 and self._chance.random() < 0.2:
            i, j = self._chance.sample(range(len(self.rows)), 2)
            self.rows[i], self.rows[j] = self.rows[j], self.rows[i]

    def run(self) -> list[list[int]]:
        """One pass: by row, the tokens that came."""
        came = list[list[int]]()
        for row, each in enumerate(self.rows):
            each.unread = max(0, each.unread - self._chunk)
            tokens = list[int]()
            if not each.unread:
                tokens = self._verified(each)
                each.ids += tokens
                each.drafted += len(each.draft)
                each.accepted += len(tokens) - 1
            each.draft = []
            self.token_ids[row, : len(each.ids)] = each.ids
            self.token_ids[row, len(each.ids) :] = self._chance.randrange(VOCABULARY)  # rubbish
            self.lengths[row] = len(each.ids)
            came.append(tokens)
        return came

    def _verified(self, each: Asked) -> list[int]:
        tokens = list[int]()
        for drafted in [*each.draft, None]:
            tokens.append(self._model(each.ids + tokens))
            if tokens[-1] != drafted:
                break
        return tokens

    def take(self, drafts: Sequence[Sequence[int]], most: int) -> None:
        """The proposer's answer, by its contract."""
        assert len(drafts) == len(self.rows)
        for each, draft in zip(self.rows, drafts, strict=True):
            assert len(draft) <= most and all(type(token) is int for token in draft)
            assert not (draft and each.unread)
            each.draft = list(draft)


def answers(batch: Batch, proposer: Any, most: int = 5, steps: int = 5000) -> None:
    """Run the engine until all is answered."""
    everyone = [*batch.waiting, *batch.rows]
    while any(not each.over for each in everyone):
        batch.schedule()
        came = batch.run()
        drafts = proposer.propose(came, batch.lengths, batch.token_ids, slot_mappings=None)
        batch.take(drafts, most)
        steps -= 1
        assert steps, "the engine does not come to an end"


def vllm_config(options: Any = None, **named: Any) -> SimpleNamespace:
    """As far as a proposer looks at it. named: fields of the speculative configuration."""
    speculative = {
        "method": "custom_class",
        "model": "router.engines.vllm.Proposer",
        "num_speculative_tokens": 5,
    }
    return SimpleNamespace(
        additional_config={} if options is None else {"draftpick": options},
        speculative_config=SimpleNamespace(**(speculative | named)),
        model_config=SimpleNamespace(
            model="toy",
            tokenizer="toy",
            revision=None,
            dtype="float32",
            quantization=None,
            max_model_len=4096,
            hf_config=SimpleNamespace(eos_token_id=EOS),
            get_vocab_size=lambda: VOCABULARY,
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=8),
    )
