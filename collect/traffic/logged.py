"""Arms replayed along answers that another engine wrote: its tokenizer is known, its weights are
not here.

What copies and what a draft model drafts follows from the text alone, so that the collection's
replay (`replay.py`) needs nothing of the target but its vocabulary.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from decoders.arms import AUTOREGRESSIVE, ArmRecipe, recipe
from decoders.common.errors import DraftpickError
from decoders.costs.measured import Costs
from decoders.costs.pass_costs import PassCosts
from decoders.costs.passes import assume
from decoders.earlier.answers import EarlierAnswers
from decoders.lengths import FixedLength
from decoders.loop import SpeculativeDecoding
from decoders.protocols import RequestScope, enter
from decoders.records import Prefilled

from ..replay.protocols import KnownAnswers, ReplayedLoop
from ..replay.records import Replay
from ..replay.replay import Draft, replay
from ..replay.unbatched import replayed
from .engine_rules.recipe import EngineRecipe
from .engine_rules.rule import Rule
from .records import KnownText

KINDS = ("autoregressive", "max_gram", "suffix", "neural")  # of arms that read the text alone
FREE = 1 << 30  # a limit that bounds no draft
NGRAM, SUFFIX, DRAFT = "ngram", "suffix", "draft"
LENGTHS = (2, 4, 8, 16)  # tokens of a draft


def configurations(
    draft_model: str | None = None, lengths: Sequence[int] = LENGTHS
) -> dict[str, ArmRecipe]:
    """Arms of ours named KIND-LENGTH: matches of 2 tokens or more, suffix decoding over the
    conversation and earlier answers, and the draft model where one is given."""
    kinds = {
        NGRAM: {"kind": "max_gram", "shortest": 2, "longest": 12},
        SUFFIX: {"kind": "suffix", "by_cost": False},
    }
    if draft_model is not None:
        kinds[DRAFT] = {"kind": "neural", "drafter": draft_model}
    made = {AUTOREGRESSIVE: recipe(kind=AUTOREGRESSIVE, name=AUTOREGRESSIVE)}
    for kind, body in kinds.items():
        for k in lengths:
            name = f"{kind}-{k}"
            made[name] = recipe(**{**body, "name": name, "length": {"k": k}})  # type: ignore[arg-type]
    return made


class AbsentTarget:
    """Stands for a target of which the vocabulary alone is known: it counts positions, and has no
    logits to give.

    context: room that draft models are given.
    dtype: of their weights.
    """

    parameters = 0

    def __init__(
        self,
        vocab_size: int,
        context: int = sys.maxsize,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        self.vocab_size, self.context, self.dtype = vocab_size, context, dtype
        self.device = device or torch.device("cpu")
        self._held = 0

    @property
    def length(self) -> int:
        return self._held

    def prefill(self, prompt_ids: list[int]) -> Prefilled:
        self._held = len(prompt_ids)
        return Prefilled(torch.zeros(0), torch.zeros(0))

    def extend(self, ids: Tensor) -> Tensor:
        self._held += len(ids)
        return torch.zeros(len(ids), 0)

    def truncate(self, length: int) -> None:
        self._held = length


class LoggedReplay:
    """Replays arms along texts.

    costs: what passes of the engine cost; for arms that go by it. None where it is not known.

    Raises DraftpickError for an arm that reads more than the text, one that is lossy, and one that
    goes by costs where they are not known.
    """

    def __init__(
        self,
        target: AbsentTarget,
        tokenizer: Any,
        arms: Mapping[str, ArmRecipe],
        costs: Costs | None = None,
    ) -> None:
        for name, each in arms.items():
            require_text_alone(name, each, costs)
        if costs is not None:
            assume(target, PassCosts(costs.verify_s))
        self._target, self._tokenizer, self._arms, self._costs = target, tokenizer, arms, costs

    def replay(
        self, arm: str, texts: Sequence[KnownText], asked: Sequence[int]
    ) -> list[Replay | None]:
        """For each of the texts asked for, by their places; None for one that is longer than the
        arm drafts to.

        An arm that drafts from earlier answers has had, before each text, all that were complete
        when it was asked for; without spans, all that stand before it.
        """
        arm_recipe = self._arms[arm]
        if arm_recipe.kind == "autoregressive":
            return [Replay.without_drafts(texts[at].ids) for at in asked]
        if isinstance(arm_recipe, EngineRecipe):
            return _by_rule(arm_recipe, texts, asked)
        strategy = arm_recipe.build(self._target, self._tokenizer)
        assert isinstance(strategy, SpeculativeDecoding)
        if arm_recipe.reads_earlier:
            return self._in_turn(arm, strategy, texts, asked)
        made: dict[int, Replay] = {}
        by_limit: dict[int | None, list[int]] = {}
        for at in asked:
            if _fits(texts[at], strategy):
                by_limit.setdefault(texts[at].limit, []).append(at)
        for limit, places in by_limit.items():
            known = _known(self._target, [texts[at] for at in places])
            made |= dict(zip(places, self._along(arm, strategy, known, limit), strict=True))
        return [made.get(at) for at in asked]

    def _in_turn(
        self,
        arm: str,
        strategy: SpeculativeDecoding,
        texts: Sequence[KnownText],
        asked: Sequence[int],
    ) -> list[Replay | None]:
        answers, wanted, made = EarlierAnswers(), set(asked), dict[int, Replay]()
        enter(strategy.drafter, RequestScope(answers=answers))
        for at, complete in before_each(texts):
            for earlier in complete:
                answers.add("", texts[earlier].prompt, texts[earlier].ids)
            if at in wanted and _fits(texts[at], strategy):
                known = _known(self._target, [texts[at]])
                (made[at],) = self._along(arm, strategy, known, texts[at].limit)
        return [made.get(at) for at in asked]

    def _along(
        self, arm: str, strategy: SpeculativeDecoding, known: KnownAnswers, limit: int | None
    ) -> list[Replay]:
        length = strategy.length
        if self._costs is None:
            loop = ReplayedLoop(length, limit or FREE, agreement=False)
        else:
            draft_s = self._costs.draft_s.get(arm, 0.0)
            loop = ReplayedLoop(length, limit or FREE, draft_s, self._costs.verify, False)
        return replayed(strategy, known, loop)


def _by_rule(
    row: EngineRecipe, texts: Sequence[KnownText], asked: Sequence[int]
) -> list[Replay | None]:
    """Along those texts that are asked for; where answers draw on each other, all are read."""
    rule, kept, made, wanted = row.made(), dict[int, Any](), dict[int, Replay](), set(asked)
    if not row.reads_earlier:
        return [_along(rule, row, texts[at])[0] for at in asked]
    for at, complete in before_each(texts):
        for earlier in complete:
            rule.remember(kept.pop(earlier))
        read = None if at in wanted else rule.read(texts[at].prompt, texts[at].ids)
        if read is None:
            made[at], read = _along(rule, row, texts[at])
        kept[at] = read
    return [made[at] for at in asked]


def _along(rule: Rule, row: EngineRecipe, text: KnownText) -> tuple[Replay, Any]:
    """What came of it, and what the rule keeps of the answer."""
    rule.begin(text.prompt)
    at = 0

    def draft(end: int, k: int) -> list[int]:
        nonlocal at
        new, at = text.ids[at:end], end
        return rule.draft(new, k)

    loop = ReplayedLoop(FixedLength(row.longest), text.limit or FREE, agreement=False)
    made = replay(text.ids, Draft(draft), loop)
    return made, rule.end(text.ids[at:])


def require_text_alone(name: str, recipe: ArmRecipe, costs: Costs | None) -> None:
    """Raises DraftpickError for an arm that cannot be replayed along a text."""
    if isinstance(recipe, EngineRecipe):
        return
    branches = bool(getattr(recipe, "branches", False))
    if recipe.kind not in KINDS or branches:
        what = "drafts trees, which" if branches else f"is of the kind {recipe.kind!r}, which"
        raise DraftpickError(
            f"the arm {name!r} {what} needs the target itself, and logs hold its texts alone; take "
            f"arms of the kinds {', '.join(KINDS)}, without `width`"
        )
    if not recipe.lossless:
        raise DraftpickError(
            f"the arm {name!r} is lossy, so that its answers are not those of the logs; leave "
            "`verifier` out"
        )
    if recipe.uses_cost_model and costs is None:
        raise DraftpickError(
            f"the arm {name!r} goes by what passes cost, which is not known here; give --costs, or "
            "a fixed length without `by_cost`"
        )


def before_each(texts: Sequence[KnownText]) -> Iterator[tuple[int, list[int]]]:
    """Each text's place in the order in which they were asked for, with the places of those that
    were complete by then and were not given before. Without spans, in the given order."""
    spans = [each.span for each in texts]
    if any(span is None for span in spans):
        for at in range(len(texts)):
            yield at, [at - 1] if at else []
        return
    known = [span for span in spans if span is not None]
    # What took no time is complete before what is asked for at that moment.
    begins = sorted(range(len(texts)), key=lambda at: known[at])
    ends = sorted(range(len(texts)), key=lambda at: known[at][::-1])
    given = 0
    for at in begins:
        first = given
        while given < len(ends) and known[ends[given]][1] <= known[at][0] and ends[given] != at:
            given += 1
        yield at, ends[first:given]


def _known(target: AbsentTarget, texts: Sequence[KnownText]) -> KnownAnswers:
    """How they were drawn is not known: a draft model's likeliest tokens are compared with them."""

    def read() -> list[Tensor]:
        raise NotImplementedError("no target has read these texts")

    prompts, ids = [each.prompt for each in texts], [each.ids for each in texts]
    return KnownAnswers(target, prompts, ids, 0.0, [0] * len(texts), batched=True, read=read)


def _fits(text: KnownText, strategy: SpeculativeDecoding) -> bool:
    return len(text.prompt) + len(text.ids) <= strategy.drafts_to
