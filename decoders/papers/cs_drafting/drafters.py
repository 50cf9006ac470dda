"""The two cascades of Chen et al., "Cascade Speculative Drafting".

Vertical (section 3.1): a drafter that contains the speculative loop. A middle model verifies what
an inner drafter proposes, round after round, until enough tokens are drafted; the target verifies
those. Horizontal (section 3.2): earlier draft positions from the better drafter, later ones from
cheaper ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...lengths import FixedLength
from ...loop import SpeculativeDecoding, commit, run_round
from ...methods.chain import roll_back
from ...methods.plain.drafter import NullDrafter
from ...protocols import Backend, Drafter, DraftLength, DraftRequest, RequestScope, enter, work
from ...records import Proposal
from ...requests.reading import PromptReader
from ...sampling.filters import raw_probabilities
from ...tally import Clock
from ...verify import Coupled
from ...verify.chains import joined
from ..rules.lossy import Lenient


class VerticalDrafter:
    """Drafts what the middle model accepts of its inner drafter's proposals.

    verifier_model: the middle model, in the target's ids.
    inner: what drafts for it.
    length: how much at a time.
    lenience: of its verification.
    writes_on: after the first verification of a proposal the middle model goes on alone, else more
        is drafted for it. That is the hierarchy of three models (Tulsian et al., "Fast
        Inference from Transformers via Speculative Decoding", Algorithm 3) but for two points: a
        rejected token is replaced from the residual, so that the proposal's distribution is the
        middle model's own, and the token that verification itself adds is used.
    """

    def __init__(
        self,
        verifier_model: Backend,
        inner: Drafter,
        length: DraftLength,
        lenience: float = 1.0,
        writes_on: bool = False,
    ) -> None:
        self.verifier_model, self.inner = verifier_model, inner
        self.parameters = verifier_model.parameters + inner.parameters
        self.lenience = lenience
        self.context = min(verifier_model.context, inner.context)
        self.strategy = SpeculativeDecoding("", inner, Lenient(lenience), length)
        alone = SpeculativeDecoding(
            "", NullDrafter(verifier_model.device), Lenient(), FixedLength(0)
        )
        self._later = alone if writes_on else self.strategy
        self._verifications = 0
        self._prompts = PromptReader(verifier_model)
        self._scope = RequestScope()

    @property
    def calls(self) -> int:
        return self._verifications + self.inner.calls

    @property
    def work(self) -> int:
        return self._verifications * self.verifier_model.parameters + work(self.inner)

    def enter(self, scope: RequestScope) -> None:
        self._scope = scope
        enter(self.inner, scope)

    def reset(self, prompt_ids: list[int]) -> None:
        self._prompts.read(prompt_ids, self._scope)
        self._verifications = 1
        self.inner.reset(prompt_ids)
        self.strategy.length.reset()

    def propose(self, context: list[int], asked: DraftRequest) -> Proposal:
        """k tokens. They have been verified, so none is left out for `min_confidence`."""
        return self.draft(context, asked.k, asked)

    @torch.inference_mode()
    def draft(self, context: list[int], least: int, asked: DraftRequest) -> Proposal:
        """Round after round until `least` tokens are accepted, and never more than `asked.k`."""
        line, clock = list(context), Clock(self.verifier_model.device)
        distributions: list[Tensor] = []
        raws: list[Tensor] = []
        strategy = self._strategy(self.strategy, asked)
        while len(line) < len(context) + least:
            room = len(context) + asked.k - len(line)
            made = run_round(
                self.verifier_model, strategy, line, room, asked.sampling, asked.chance, clock
            )
            self._verifications += 1
            line += made.verdict.ids
            if made.verdict.distribution is not None:
                distributions.append(made.verdict.distribution)
            if asked.needs_raw:
                raws.append(raw_probabilities(made.logits[: len(made.verdict.ids)]))
            commit(self.verifier_model, strategy, line, made)
            strategy = self._strategy(self._later, asked)
        ids = torch.tensor(line[len(context) :], device=self.verifier_model.device)
        return Proposal(
            ids,
            torch.cat(distributions) if distributions else None,
            torch.cat(raws) if raws else None,
        )

    def _strategy(self, strategy: SpeculativeDecoding, asked: DraftRequest) -> SpeculativeDecoding:
        """Strictly by the middle model's own tokens, where the target goes by its own."""
        strict = self.lenience == 1 and not asked.needs_probs
        return replace(strategy, verifier=Coupled()) if strict else strategy

    def commit(self, context: list[int]) -> None:
        self._verifications += roll_back(self.verifier_model, context, self.verifier_model.extend)
        self._prompts.holds(context)
        self.inner.commit(context)


@dataclass(frozen=True)
class Part:
    """One drafter of the cascade.

    tokens: by how many its limit lies above that of the part before it.
    min_confidence: it stops before a token that it gives less.
    """

    drafter: Drafter
    tokens: int
    min_confidence: float = 0.0


class HorizontalDrafter:
    """Each part drafts until the limits of the parts up to it are reached together: where one was
    short, the next makes up for it. A vertical cascade may pass its limit, as the tokens that it
    has accepted beyond it cost nothing more.

    owned: how many parts, from the first, are this drafter's own to reset and commit. The others
        must be at work inside those, sharing their cache: None for all.
    """

    def __init__(self, parts: Sequence[Part], owned: int | None = None) -> None:
        self.parts = list(parts)
        self._own = [part.drafter for part in self.parts[:owned]]
        self.parameters = sum(drafter.parameters for drafter in self._own)
        self.context = min(drafter.context for drafter in self._own)

    @property
    def calls(self) -> int:
        return sum(drafter.calls for drafter in self._own)

    @property
    def work(self) -> int:
        return sum(work(drafter) for drafter in self._own)

    def enter(self, scope: RequestScope) -> None:
        for drafter in self._own:
            enter(drafter, scope)

    def reset(self, prompt_ids: list[int]) -> None:
        for drafter in self._own:
            drafter.reset(prompt_ids)

    def propose(self, context: list[int], asked: DraftRequest) -> Proposal:
        line, made, limit = list(context), list[Proposal](), 0
        for part in self.parts:
            limit = min(limit + part.tokens, asked.k)
            drafted = len(line) - len(context)
            if drafted >= limit:
                continue
            least, most, drafter = limit - drafted, asked.k - drafted, part.drafter
            if isinstance(drafter, VerticalDrafter):
                proposal = drafter.draft(line, least, replace(asked, k=most))
            else:
                bar = max(asked.min_confidence, part.min_confidence)
                proposal = drafter.propose(line, replace(asked, k=least, min_confidence=bar))
            made.append(proposal)
            line += proposal.ids.tolist()
        return joined(made)

    def commit(self, context: list[int]) -> None:
        for drafter in self._own:
            drafter.commit(context)


def cs_drafter(
    verifier_models: Sequence[Backend],
    last: Drafter,
    K: Sequence[Sequence[int]],
    lenience: float,
    longest: int,
) -> HorizontalDrafter:
    """Build the drafter for the target.

    verifier_models: from larger to smaller.
    last: drafts with no help.
    K: row 0 is for the target, row i + 1 for verifier_models[i]; each says how many tokens the
        models after the row's own add in turn.
    longest: bounds any one draft.

    A model's step is the same inside a larger model's step and next to it, so each model has one
    drafter and one cache.
    """
    drafters = [last]

    def row(i: int) -> HorizontalDrafter:
        parts = [Part(d, tokens) for d, tokens in zip(drafters, K[i][i:], strict=True)]
        return HorizontalDrafter(parts, owned=1)  # the largest holds the others inside

    for i in reversed(range(len(verifier_models))):
        step = VerticalDrafter(verifier_models[i], row(i + 1), FixedLength(longest), lenience)
        drafters.insert(0, step)
    return row(0)
