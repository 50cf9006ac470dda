"""Speculative beam search: the k most likely continuations, several steps to a target pass.

The draft model runs the same search some steps ahead, from the current beams. One target pass
scores all that it went through, as a tree over the prompt's cache. The target's own search then
walks on with those scores until one of its beams was not drafted. Nothing is approximated: beams
and scores are those of transformers' `generate(num_beams=k, do_sample=False)`, whatever is drafted.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...common.errors import DraftpickError, NotANumber
from ...methods.tree.drafter import read_nodes
from ...protocols import DraftLength, Job, TreeBackend, decoder_prefix
from ...recipes.mistakes import require_trees
from ...records import DecodeResult, Request, Sampling, StepStats
from ...sampling.draft_vocab import DraftVocab
from ...sampling.filters import log_probabilities, penalise
from ...sampling.stopping import Stopper
from ...tally import Tally

Ids = tuple[int, ...]  # a continuation: target ids that follow the prompt
PROMPT = -1  # the node that stands for the prompt


class TokenTree:
    """after_prompt: [N] logits that follow the prompt, which `backend` has just read.
    vocab: the part of the target's ids that the backend knows.
    """

    def __init__(
        self, backend: TreeBackend, after_prompt: Tensor, vocab: DraftVocab | None = None
    ) -> None:
        self._backend, self._vocab = backend, vocab
        self._nodes: dict[tuple[int, int], int] = {}  # (parent, token) -> node, as the backend's
        self._rows = {PROMPT: after_prompt}  # what follows a node

    @property
    def room(self) -> int:
        """Tokens that can still be read."""
        return self._backend.context - self._backend.length

    def has(self, ids: Ids) -> bool:
        """Whether the continuation has been read to its end."""
        return len(self._path(ids)) == len(ids)

    def missing(self, continuations: Iterable[Ids]) -> int:
        """Tokens of these that have not been read."""
        unread = set()
        for ids in continuations:
            unread |= {ids[:end] for end in range(len(self._path(ids)) + 1, len(ids) + 1)}
        return len(unread)

    def read(self, continuations: Iterable[Ids]) -> int:
        """Read in one pass what has not been read of these; how many tokens that was."""
        first, tokens, parents = len(self._nodes), list[int](), list[int]()
        for ids in continuations:
            path = self._path(ids)
            node = path[-1] if path else PROMPT
            for token in ids[len(path) :]:
                parents.append(node)
                node = first + len(tokens)
                tokens.append(token)
                self._nodes[parents[-1], token] = node
        if tokens:
            new = torch.tensor(tokens, device=self._backend.device)
            rows = read_nodes(self._backend, self._vocab, new, parents)
            self._rows |= {first + i: row for i, row in enumerate(rows)}
        return len(tokens)

    def logits(self, continuations: Sequence[Ids]) -> Tensor:
        """[n, N] for what follows each; all have been read, and none was let go since."""
        return torch.stack([self._rows[[PROMPT, *self._path(ids)][-1]] for ids in continuations])

    def keep(self, continuations: Iterable[Ids]) -> None:
        """Forget what is on the way to none of these."""
        paths = [self._path(ids) for ids in continuations]
        kept = sorted({node for path in paths for node in path})
        if len(kept) < len(self._nodes):
            self._backend.keep(kept)
        number = {PROMPT: PROMPT, **{node: i for i, node in enumerate(kept)}}
        self._nodes = {
            (number[parent], token): number[node]
            for (parent, token), node in self._nodes.items()
            if node in number
        }
        ends = {path[-1] if path else PROMPT for path in paths}  # the others' rows have been used
        self._rows = {number[node]: self._rows[node] for node in ends if node in self._rows}

    def _path(self, ids: Ids) -> list[int]:
        """The nodes along a continuation, as far as it has been read."""
        nodes, node = list[int](), PROMPT
        for token in ids:
            if (node, token) not in self._nodes:
                break
            node = self._nodes[node, token]
            nodes.append(node)
        return nodes


NEVER = -1e9  # transformers' score of what must not be chosen


@dataclass(frozen=True)
class Beam:
    """ids: new tokens.
    score: the sum of their log-probabilities; of a finished beam, that sum over len(ids) **
        length_penalty.
    """

    ids: Ids
    score: float


@dataclass(frozen=True)
class Found:
    """beams: the finished ones, the best first.
    result: the best one as an answer.
    """

    beams: list[Beam]
    result: DecodeResult


def require_greedy(arm: str, request: Request) -> None:
    """Raises DraftpickError at a temperature above 0."""
    if not request.sampling.greedy:
        raise DraftpickError(
            f"arm {arm!r} is a beam search, which draws nothing; ask for temperature 0 or choose "
            "another arm"
        )


class BeamDraft:
    """Beam search by a draft model, some steps ahead. width: continuations kept a step."""

    def __init__(self, backend: TreeBackend, vocab: DraftVocab | None, width: int) -> None:
        self.width = width
        self.parameters, self.context = backend.parameters, backend.context
        self.calls = 0
        self._backend, self._vocab = backend, vocab

    def reset(self, prompt_ids: list[int]) -> None:
        """A new query."""
        if self._vocab is None:
            after = self._backend.prefill(prompt_ids).logits
        else:
            ids = self._vocab.translate(prompt_ids)
            after = self._backend.prefill(ids).logits[: self._vocab.size - 1]
        self._tree = TokenTree(self._backend, after, self._vocab)
        self.calls = 1

    def propose(self, beams: list[Beam], steps: int, eos: frozenset[int]) -> list[list[Beam]]:
        """The states of a search from `beams`, by step; fewer steps where the
        draft model's context is full. Finished continuations are left out."""
        ends = [beam.ids for beam in beams]
        self._tree.keep(ends)
        room = self._tree.room - self._tree.missing(ends)
        made: list[list[Beam]] = []
        level = beams
        for _ in range(min(steps, room // self.width) if room >= 0 else 0):
            level_ids = [beam.ids for beam in level]
            self.calls += self._tree.read(level_ids) > 0
            log_probs = log_probabilities(self._tree.logits(level_ids))  # [n, N]
            most = self.width + len(eos) * len(level)  # enough, whatever ends
            likely = best(level, log_probs, most, self._vocab)
            level = [beam for beam in likely if beam.ids[-1] not in eos][: self.width]
            made.append(level)
        return made


@dataclass(frozen=True)
class BeamSearch:
    """The Strategy of beam arms, for a target that reads trees. No draft: one step a pass."""

    name: str
    beams: int
    length_penalty: float
    length: DraftLength
    draft: BeamDraft | None = None

    @property
    def parameters(self) -> int:
        return self.draft.parameters if self.draft else 0

    @property
    def context(self) -> int:
        return self.draft.context if self.draft else sys.maxsize

    def decode(self, job: Job) -> DecodeResult:
        """Decode a prompt; `emit` is called once, when the best beam is known."""
        result = self.search(job).result
        job.emit(result.ids)
        return result

    @torch.inference_mode()
    def search(self, job: Job) -> Found:
        """Raises DraftpickError at a temperature above 0, and where the beams outgrow the target's
        cache."""
        require_greedy(self.name, job.request)
        target, stopper, tally = job.target, job.stopper, Tally(job)
        tree = TokenTree(require_trees(self.name, target, "a target"), job.prefilled.logits)
        self.length.reset()
        if self.draft:
            self.draft.reset(job.prompt_ids)
        tally.prefill_s += tally.clock.lap()
        # each round's first new token, how many drafts were accepted
        walked: list[tuple[int, int]] = []

        start = decoder_prefix(target, job.prompt_ids)
        search = _Search(self.beams, self.length_penalty, start, job.request.sampling, stopper)
        search.step(tree)
        while not search.over:
            tally.other_s += tally.clock.lap()
            ends, written = search.ends, search.length
            tree.keep(ends)
            levels = self._propose(tree, search, job.request.max_new_tokens - written - 1)
            lap_draft = tally.clock.lap()
            read = tree.read([*ends, *(beam.ids for level in levels for beam in level)])
            lap_verify = tally.clock.lap()
            tally.rounds += 1
            tally.passed(read)
            tally.drafted += sum(map(len, levels))
            tally.draft_s += lap_draft
            tally.verify_s += lap_verify

            search.step(tree)
            while not search.over and all(map(tree.has, search.ends)):
                search.step(tree)
            accepted = search.length - written - 1
            walked.append((written, accepted))
            self.length.observe(StepStats(len(levels), accepted, lap_draft, lap_verify))
        target.truncate(len(start))
        ids = stopper.admit(list(search.finished[0].ids))
        tally.accepted = _accepted(walked, len(ids))
        calls, size = (self.draft.calls, self.draft.parameters) if self.draft else (0, 0)
        result = tally.close(self.name, ids, calls, calls * size)
        return Found(search.finished, result)

    def _propose(self, tree: TokenTree, search: _Search, most: int) -> list[list[Beam]]:
        """Levels to read besides the beams' own ends, as far as the target's cache has room."""
        room = tree.room - tree.missing(search.ends)
        if room < 0:
            raise DraftpickError(
                f"arm {self.name!r}: {self.beams} beams of {search.length} tokens do not fit the "
                "target's context with the prompt; lower `beams` or --max-new-tokens"
            )
        if self.draft is None:
            return []
        steps = min(self.length.next(), most, room // self.draft.width)
        return self.draft.propose(search.running, steps, search.eos)


class _Search:
    """transformers' beam search with early_stopping=False, one step at a time.

    running: the k beams, the best first.
    finished: the best k that have ended so far.
    """

    def __init__(
        self,
        beams: int,
        length_penalty: float,
        start: list[int],
        sampling: Sampling,
        stopper: Stopper,
    ) -> None:
        self.running = [Beam((), 0.0)] + [Beam((), NEVER)] * (beams - 1)
        self.finished: list[Beam] = []
        self.over = False
        self.eos = stopper.eos
        self._k, self._length_penalty = beams, length_penalty
        self._start, self._sampling, self._stopper = start, sampling, stopper

    @property
    def ends(self) -> list[Ids]:
        """The running beams' tokens."""
        return [beam.ids for beam in self.running]

    @property
    def length(self) -> int:
        """New tokens of every running beam."""
        return len(self.running[0].ids)

    def step(self, tree: TokenTree) -> None:
        """One token more for each beam; the tree has read them all."""
        log_probs = log_probabilities(tree.logits(self.ends))  # [k, V]
        if self._sampling.repetition_penalty != 1:
            log_probs = penalise(log_probs, self._sampling, self._seen(log_probs))
        # enough that k go on, whatever ends with an end-of-sequence token
        most = max(2, 1 + len(self.eos)) * self._k
        candidates = best(self.running, log_probs, most)
        if any(math.isnan(beam.score) for beam in candidates):
            raise NotANumber
        ended = [self._stopper.ends(list(beam.ids)) != "" for beam in candidates]
        going = [
            Beam(b.ids, b.score + NEVER * end) for b, end in zip(candidates, ended, strict=True)
        ]
        self.running = sorted(going, key=_by_score)[: self._k]
        # what ends counts where it is among the k best; the rest only replaces it
        new = [b for b, end in zip(candidates[: self._k], ended, strict=False) if end]
        weight = self.length**self._length_penalty
        self.finished += [Beam(b.ids, b.score / weight) for b in new]
        self.finished = sorted(self.finished, key=_by_score)[: self._k]
        hopeless = (
            len(self.finished) == self._k
            and self.running[0].score / weight <= self.finished[-1].score
        )
        self.over = all(ended) or hopeless

    def _seen(self, like: Tensor) -> Tensor:
        """[k, V] bool: the tokens that each beam goes on from, and its own."""
        seen = torch.zeros(like.shape, dtype=torch.bool, device=like.device)
        for row, ids in zip(seen, self.ends, strict=True):
            row[[*self._start, *ids]] = True
        return seen


def best(
    beams: list[Beam], log_probs: Tensor, most: int, vocab: DraftVocab | None = None
) -> list[Beam]:
    """The most likely continuations by a token, the best first. log_probs: [len(beams), N]."""
    before = torch.tensor(
        [beam.score for beam in beams], dtype=log_probs.dtype, device=log_probs.device
    )
    scores = (log_probs + before.unsqueeze(1)).flatten()
    scores, places = scores.topk(min(most, len(scores)))
    parents, tokens = places // log_probs.shape[-1], places % log_probs.shape[-1]
    if vocab is not None:
        tokens = vocab.to_target[tokens]
    # a step's one host read; float64 holds every index
    read = torch.stack([scores.double(), parents.double(), tokens.double()]).T.tolist()
    return [Beam((*beams[int(parent)].ids, int(token)), score) for score, parent, token in read]


def _by_score(beam: Beam) -> float:
    return -beam.score


def _accepted(walked: list[tuple[int, int]], tokens: int) -> list[int]:
    """At i, how often a step's (i + 1)-th drafted token was accepted, in as many tokens."""
    accepted = [0] * max((count for _, count in walked), default=0)
    for start, count in walked:
        for position in range(min(count, tokens - start)):
            accepted[position] += 1
    return accepted
