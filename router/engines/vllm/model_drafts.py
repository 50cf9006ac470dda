"""A small draft model beside vLLM, by draftpick's own backend: one pass drafts for all rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from decoders.backends.batched.slots import BatchSlots, PassRequest, SlotBackend
from decoders.backends.native import LlamaBackend
from decoders.common.errors import DraftpickError
from decoders.costs.pass_costs import PassCosts
from decoders.costs.passes import assume
from decoders.earlier.votes import Draft
from decoders.models import targets
from decoders.protocols import DraftLength
from decoders.records import StepStats
from decoders.sampling.draft_vocab import DraftVocab

from .engine import EngineFacts
from .rows import ArmDrafter, TrackedRequest
from .step_costs import StepCosts

SPARE = 16  # sequences more than vLLM has rows, for requests that are absent


@dataclass(eq=False)
class Drafting:
    """A request's own draft length, and the seconds of the passes that its last draft took."""

    length: DraftLength
    draft_s: float = 0.0


class ModelDrafts(ArmDrafter):
    """Its most likely tokens in turn, as many as the recipe's length wants by what was accepted and
    what steps and its own passes cost, until it is less sure of one than `min_confidence`. A draft
    is sent whole.

    recipe: a NeuralRecipe.
    model, vocab: as `Checkpoint.load` gives them.
    target: what steps cost is known of it.
    """

    def __init__(
        self, recipe: Any, model: LlamaBackend, vocab: DraftVocab | None, target: Target, rows: int
    ) -> None:
        self._recipe, self._vocab, self._target = recipe, vocab, target
        self._drafting: WeakKeyDictionary[TrackedRequest, Drafting] = WeakKeyDictionary()
        # Without a request; what passes cost they know already.
        self._lengths: list[DraftLength] = []
        self._context, self._device = model.context, model.device
        self._slots = BatchSlots(model, rows + SPARE)
        self._free = list(self._slots.all)
        self._held: WeakKeyDictionary[TrackedRequest, SlotBackend] = WeakKeyDictionary()

    @torch.inference_mode()
    def draft(self, requests: Sequence[TrackedRequest], most: Sequence[int]) -> list[Draft]:
        drafts = [Draft() for _ in requests]
        wanted = dict[int, PassRequest]()  # by place in `requests`
        states = [self._of(request) for request in requests]
        bounds = [min(k, state.length.next()) for k, state in zip(most, states, strict=True)]
        for at, request in enumerate(requests):
            fits = request.length + bounds[at] <= self._context
            slot = self._slot(request) if fits and bounds[at] else None
            if slot is not None:
                wanted[at] = PassRequest(slot, self._unread(slot, request))
        while wanted:
            started = time.perf_counter()
            read = self._slots.read(list(wanted.values()))
            last = torch.stack([each[-1] for each in read])  # [rows, V]
            chances, picked = self._likeliest(last)
            for at in wanted:
                states[at].draft_s += time.perf_counter() - started
            going = dict[int, PassRequest]()
            for (at, want), chance, token in zip(wanted.items(), chances, picked, strict=True):
                made = drafts[at]
                if chance < self._recipe.length.min_confidence:
                    continue
                made.chances.append(chance * (made.chances[-1] if made.chances else 1.0))
                made.ids.append(token)
                if len(made.ids) < bounds[at]:
                    going[at] = PassRequest(want.slot, self._own([token]))
            wanted = going
        for request in requests:
            slot = self._held.get(request)
            if slot is not None:  # what was drafted is read again where it comes
                slot.truncate(min(slot.length, request.length))
        return drafts

    def _likeliest(self, logits: Tensor) -> tuple[list[float], list[int]]:
        """[n, V] -> each row's most likely token in the target's ids, and its chance."""
        if self._vocab is not None:
            logits = logits[:, : self._vocab.size - 1]
        chances, ids = logits.float().softmax(-1).max(-1)
        if self._vocab is not None:
            ids = self._vocab.to_target[ids]
        return chances.tolist(), ids.tolist()

    def _own(self, ids: Sequence[int]) -> Tensor:
        """The target's ids as the draft model counts them."""
        made = torch.tensor(ids, dtype=torch.int64, device=self._device)
        return made if self._vocab is None else self._vocab.from_target[made]

    def _slot(self, request: TrackedRequest) -> SlotBackend | None:
        """The sequence of a request, which holds the beginning of its text, at first nothing; None
        where all are taken."""
        if request not in self._held:
            if not self._free:
                return None
            slot = self._free.pop()
            slot.truncate(0)
            self._held[request] = slot
        return self._held[request]

    def _unread(self, slot: SlotBackend, request: TrackedRequest) -> Tensor:
        """What the model has still to read; a prompt it has read up to its last token."""
        ids = request.ids.tolist()
        if slot.length == 0 and len(ids) > 1:
            slot.prefill(self._own(ids[:-1]).tolist())
        return self._own(ids[slot.length :])

    def _of(self, request: TrackedRequest) -> Drafting:
        """The request's state before a draft."""
        state = self._drafting.get(request)
        if state is None:
            kept = self._lengths.pop() if self._lengths else self._recipe.length.build(self._target)
            state = self._drafting[request] = Drafting(kept)
        state.draft_s = 0.0
        return state

    def learn(self, request: TrackedRequest, draft: Draft) -> None:
        state, costs = self._drafting.get(request), self._target.costs
        if state is not None and costs.seen:  # before that a step's seconds are not known
            drafted = len(request.verified)
            accepted = min(len(request.came) - 1, drafted)
            state.length.observe(StepStats(drafted, accepted, state.draft_s, costs.usual))

    def forget(self, request: TrackedRequest) -> None:
        state = self._drafting.pop(request, None)
        if state is not None:
            state.length.reset()
            self._lengths.append(state.length)
        slot = self._held.pop(request, None)
        if slot is not None:
            self._free.append(slot)


@dataclass(frozen=True)
class StepPasses(PassCosts):
    """vLLM's steps as a target's passes, over so many tokens of each request that it decodes now,
    by what its steps have shown. costs: of these."""

    costs: StepCosts = field(default_factory=StepCosts)

    def __call__(self, width: float) -> float:
        base, a_token = self.costs.line
        return base + a_token * self.costs.rows * width

    def ratios(self, longest: int) -> tuple[float, ...]:
        return tuple(self(k + 1) / self(1) for k in range(longest + 1))


@dataclass(eq=False)
class Target:
    """What a draft model is loaded for: vLLM's model, as far as a backend would tell it."""

    vocab_size: int
    context: int
    device: torch.device
    costs: StepCosts
    dtype: torch.dtype = torch.bfloat16
    recorded: None = None


def model_drafts(recipe: Any, engine: EngineFacts) -> ModelDrafts:
    """Raises DraftpickError where the model does not fit vLLM's or would have to be fetched and may
    not, where it is of a kind that the native backend does not run, and for a `prompt_window`."""
    if recipe.prompt_window is not None:
        raise DraftpickError(
            f"the arm {recipe.name!r} reads the last {recipe.prompt_window} tokens of a prompt, "
            "and in vLLM's proposer a draft model reads all of it; leave `prompt_window` out"
        )
    device = targets.device_of("auto")
    target: Any = Target(engine.vocabulary, engine.context, device, engine.costs)
    assume(target, StepPasses((1.0,), costs=engine.costs))
    tokenizer = targets.load_tokenizer(targets.resolve(engine.tokenizer))
    model, vocab = recipe.load_model(target, tokenizer)
    if not isinstance(model, LlamaBackend):
        raise DraftpickError(
            f"the arm {recipe.name!r}: {recipe.drafter} does not run by draftpick's native "
            "backend, which drafts for all of vLLM's rows at once; take another draft model"
        )
    return ModelDrafts(recipe, model, vocab, target, engine.rows)
