"""Lossy verification (Narasimhan et al., "Faster Cascades via Speculative Decoding", Lemma 2,
after Tran-Thien, "An optimal lossy variant of speculative decoding"), the lossless one beside it,
and the lenient one inside a cascade.

pi = max(min(q, p / (1 - alpha)), p / beta): the draft's q, held between two multiples of the
target's p. With beta = 1 pi sums to more than 1, and the residual makes up for it. `lossy_star`
chooses the beta that makes pi sum to 1; `lossy_budget` also chooses alpha, the greatest whose pi
stays within a KL divergence from p. No other pi within it accepts more drafts.

At temperature 0 both distributions are one-hot, and every pi here is the target's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...records import Proposal, Sampling, Verdict
from ...sampling.argmax import likeliest, numbered
from ...sampling.filters import probabilities, raw_probabilities
from ...sampling.randomness import RandomSource
from ...verify import Coupled
from .step import (
    accept_and_resample,
    acceptance,
    at,
    draft_distribution,
    draft_raw,
    leading,
    target_distribution,
    verdict,
)

STEPS = 24  # a budget of 1e-9 is then used up to a millionth of it
TINY = 1e-300  # instead of a zero to divide by
LARGEST = 700.0  # whose exponential is a finite float64


class Lossless:
    """Speculative sampling (Leviathan et al., "Fast Inference from Transformers via Speculative
    Decoding", Algorithm 1): a drafted x, drawn from q, is accepted with min(1, p(x) / q(x)), the
    most that independent draws allow.

    Answers are distributed as the target's own, but not the ones that it writes to the same seed.
    """

    lossless: bool = True
    needs_raw, needs_probs = False, True

    def wanted(self, proposal: Proposal, target: Tensor, draft: Tensor, logits: Tensor) -> Tensor:
        """[K, V] pi of [K, V] each, the distribution that is drawn towards; logits are the
        target's."""
        return target

    def verify(
        self,
        proposal: Proposal,
        target_logits: Tensor,
        sampling: Sampling,
        chance: RandomSource,
        place: int,
    ) -> Verdict:
        if sampling.greedy and not self.needs_raw:  # pi is the target's
            return Coupled().verify(proposal, target_logits, sampling, chance, place)
        target = target_distribution(target_logits, sampling)  # [K + 1, V]
        draft, pi = draft_distribution(proposal, target), target[:-1]  # [K, V]
        if len(proposal.ids):
            pi = self.wanted(proposal, pi, draft, target_logits[:-1])
        return accept_and_resample(proposal, pi, draft, target, chance)


@dataclass(frozen=True)
class Lossy(Lossless):
    """mixture: (target [K, V], draft [K, V]) -> pi [K, V], one of the functions below."""

    mixture: Callable[[Tensor, Tensor], Tensor]
    lossless: bool = False

    def wanted(self, proposal: Proposal, target: Tensor, draft: Tensor, logits: Tensor) -> Tensor:
        return self.mixture(target, draft)


def lossy(target: Tensor, draft: Tensor, *, alpha: float, beta: float = 1.0) -> Tensor:
    """[K, V] each. 0 <= alpha < 1, beta >= 1 - alpha; beta = 1 is the common heuristic."""
    return torch.maximum(torch.minimum(draft, target / (1 - alpha)), target / beta)


def lossy_star(target: Tensor, draft: Tensor, *, alpha: float) -> Tensor:
    """[K, V] each; pi sums to 1. 0 <= alpha < 1."""
    rows = _Breakpoints(target, draft)
    cap = torch.full_like(rows.most, 1 / (1 - alpha))
    return rows.between(rows.floor(rows.above(cap)), cap).to(target.dtype)


def lossy_budget(target: Tensor, draft: Tensor, *, kl_budget: float) -> Tensor:
    """[K, V] each; pi sums to 1 and KL(pi || p) <= kl_budget, in nats for each token.

    The more mass is moved off the draft, the smaller the divergence, down to 0 at pi = p. The least
    that meets the budget is bracketed by the Illinois rule, on the root of the divergence, which is
    quadratic near 0; the end of the bracket that meets it is taken.
    """
    rows = _Breakpoints(target, draft)
    meets, exceeds = rows.most, rows.least  # [K, 1]
    over = rows.divergence(exceeds).sqrt() - kl_budget**0.5
    meets = torch.where(over <= 0, exceeds, meets)
    under = torch.full_like(over, -(kl_budget**0.5))
    fitted: Tensor | None = None
    for _ in range(STEPS):
        share = under / (under - over).clamp(max=-TINY)
        moved = meets + share * (exceeds - meets)
        value = rows.divergence(moved).sqrt() - kl_budget**0.5
        fits = value <= 0
        # where the same end moves twice, the other's value is halved, or it would stay for ever
        half = 1.0 if fitted is None else torch.where(fits == fitted, 0.5, 1.0)
        under, over = torch.where(fits, value, half * under), torch.where(fits, half * over, value)
        meets, exceeds = torch.where(fits, moved, meets), torch.where(fits, exceeds, moved)
        fitted = fits
    return rows.between(rows.floor(meets), rows.cap(meets)).to(target.dtype)


class _Breakpoints:
    """pi = max(min(q, cap * p), floor * p) as a function of the mass it moves, off the tokens that
    q favours and onto those that p favours, the same so that pi sums to 1.

    Sorted by log(q / p), the tokens raised to the floor are the first ones and those held at the
    cap the last, so that running sums answer for any mass; between two tokens' ratios floor and cap
    have a closed form. All float64.

    least: [K, 1] what must move, the draft's mass where p is 0.
    most: the total variation distance, where pi = p.
    """

    def __init__(self, target: Tensor, draft: Tensor) -> None:
        p, q = target.double(), draft.double()
        self.target, self.draft = p / p.sum(-1, True), q / q.sum(-1, True)
        p, q = _drafted(self.target, self.draft)
        # nan where both are 0: such a token counts nowhere
        ratio = (q.log() - p.log()).nan_to_num(0.0, torch.inf, -torch.inf)
        order = _order(ratio)
        ratio, p, q = ratio.gather(-1, order), p.gather(-1, order), q.gather(-1, order)
        # each end's sums from that end, where the terms are small: [K, V + 1]
        self._p_first, self._q_first = _running(p), _running(q)
        self._p_last, self._q_last = _running(p.flip(-1)), _running(q.flip(-1))
        self._kl = _running((q * ratio).masked_fill(ratio.isinf(), 0.0))
        self.most = (self.target - self.draft).clamp(min=0).sum(-1, True)
        # with the floor, or the cap, at a token's own multiple of p: what those before it gain, or
        # those after it lose; [K, V] ascending, the second from the last token on
        multiple = ratio.clamp(max=LARGEST).exp()
        self._gain = multiple * self._p_first[:, :-1] - self._q_first[:, :-1]
        lose = self._q_last[:, :-1] - multiple.flip(-1) * self._p_last[:, :-1]
        no_target = self.draft.masked_fill(self.target > 0, 0.0).sum(-1, True)
        self._lose = torch.where(ratio.flip(-1) == torch.inf, no_target, lose)
        self.least = self._lose[:, :1].contiguous()
        # where floor and cap end, whatever rounding says: the next token's multiple, and 1
        self._most_floor = F.pad(multiple.clamp(max=1), (0, 1), value=1.0)
        self._least_cap = F.pad(multiple.flip(-1).clamp(min=1), (0, 1), value=1.0)

    def above(self, cap: Tensor) -> Tensor:
        """[K, 1] the draft's mass above cap * p."""
        return (self.draft - cap * self.target).clamp(min=0).sum(-1, True)

    def _raised(self, moved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """How many tokens are at the floor; their p, and their pi."""
        count = torch.searchsorted(self._gain, moved)
        return count, self._p_first.gather(-1, count), self._q_first.gather(-1, count) + moved

    def _clamped(self, moved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """How many tokens are at the cap; their p, and their pi."""
        count = torch.searchsorted(self._lose, moved, right=True)
        pi = (self._q_last.gather(-1, count) - moved).clamp(min=0)
        return count, self._p_last.gather(-1, count), pi

    def floor(self, moved: Tensor) -> Tensor:
        """[K, 1] 1 / beta."""
        count, p, pi = self._raised(moved)
        return torch.where(p > 0, pi / p, 0.0).minimum(self._most_floor.gather(-1, count))

    def cap(self, moved: Tensor) -> Tensor:
        """[K, 1] 1 / (1 - alpha)."""
        count, p, pi = self._clamped(moved)
        return torch.where(p > 0, pi / p, torch.inf).maximum(self._least_cap.gather(-1, count))

    def divergence(self, moved: Tensor) -> Tensor:
        """[K, 1] KL(pi || p)."""
        raised, p_floor, at_floor = self._raised(moved)
        capped, p_cap, at_cap = self._clamped(moved)
        last = self._kl.shape[-1] - 1 - capped
        between = self._kl.gather(-1, last) - self._kl.gather(-1, raised)
        return (_kl(at_floor, p_floor) + between + _kl(at_cap, p_cap)).clamp(min=0)

    def between(self, floor: Tensor, cap: Tensor) -> Tensor:
        """[K, V] pi."""
        capped = (cap * self.target).nan_to_num(0.0, torch.inf)  # nothing where p is 0
        return torch.maximum(torch.minimum(self.draft, capped), floor * self.target)


def _drafted(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Both [K, V], or on a CPU, where they are many, [K, 1 + n] of the n tokens that a row's q has;
    the others, which are all at the floor, as one in front. A drafter knows a part of a target's
    vocabulary, or draws from a few tokens."""
    if p.device.type != "cpu":  # elsewhere their number would have to be read
        return p, q
    known = q.numpy().any(0)
    if known.all():
        return p, q
    in_draft, others = (torch.from_numpy(np.flatnonzero(which)) for which in (known, ~known))
    rest = p[:, others].sum(-1, True)
    p, q = p[:, in_draft], q[:, in_draft]
    return torch.cat([rest, p], -1), torch.cat([torch.zeros_like(rest), q], -1)


def _order(ratio: Tensor) -> Tensor:
    """[K, V] indices, ascending. On a CPU numpy takes a tenth of torch's time."""
    if ratio.device.type == "cpu":
        return torch.from_numpy(ratio.numpy().argsort(-1))
    return ratio.argsort(-1)


def _running(x: Tensor) -> Tensor:
    """[K, V] -> [K, V + 1], the sums of the first 0..V."""
    return F.pad(x.cumsum(-1), (1, 0))


def _kl(pi: Tensor, p: Tensor) -> Tensor:
    """What tokens of these masses, all in the ratio pi / p, add to KL(pi || p)."""
    return torch.where(p > 0, torch.xlogy(pi, pi / p), 0.0)


class Lenient:
    """Verification inside a cascade, where a draft model verifies what the target then verifies
    again (Chen et al., "Cascade Speculative Drafting", section 3.1).

    Sampled: token x, drawn from q, is accepted with min(1, l p(x) / q(x)); at the first rejection
    the next token is drawn from norm(max(0, p - q)); when all are accepted, from p. Greedy: x is
    accepted while it is the verifying model's argmax or l p(x) >= q(x), p and q the models' raw
    probabilities.

    lenience: l >= 1. 1 is strict: the verifying model's distribution, and greedily its argmax.

    Its verdicts hold the distribution of what was accepted, which the target's own verification
    needs to be lossless.
    """

    def __init__(self, lenience: float = 1.0) -> None:
        self.lenience = lenience
        self.lossless = lenience == 1
        self.needs_raw = lenience > 1
        self.needs_probs = True

    def verify(
        self,
        proposal: Proposal,
        target_logits: Tensor,
        sampling: Sampling,
        chance: RandomSource,
        place: int,
    ) -> Verdict:
        if sampling.greedy:
            best = numbered(likeliest(target_logits), target_logits)  # [K + 1]
            accept = best[:-1] == proposal.ids
            if self.needs_raw:
                accept |= self._likely_enough(proposal, target_logits[:-1])
            accepted = leading(accept)
            return verdict(proposal, accepted, at(best, accepted))
        target = probabilities(target_logits, sampling)  # [K + 1, V]
        draft = draft_distribution(proposal, target)  # [K, V]
        pi = lossy(target[:-1], draft, alpha=1 - 1 / self.lenience)
        made = accept_and_resample(proposal, pi, draft, target, chance)
        distribution = torch.cat([reached_distribution(pi, draft, target[:-1]), target[-1:]])
        # the last token has its position's, whether it replaces a draft or follows them all
        return replace(made, distribution=distribution[: made.accepted + 1])

    def _likely_enough(self, proposal: Proposal, logits: Tensor) -> Tensor:
        """[K] bool: l p(x) >= q(x)."""
        sure = raw_probabilities(logits)  # [K, V]
        odds = acceptance(sure, draft_raw(proposal, sure), proposal.ids)
        return self.lenience * odds >= 1


def reached_distribution(pi: Tensor, draft: Tensor, target: Tensor) -> Tensor:
    """[K, V], the distribution that accepting and resampling (`step.py`) gives each position that
    is reached: min(pi, q), and the rest spread as max(0, pi - q). pi need not sum to 1."""
    kept = torch.minimum(pi, draft)
    left = (pi - draft).clamp(min=0)
    total = left.sum(-1, keepdim=True)
    spread = torch.where(total > 0, left / total, target)
    return kept + (1 - kept.sum(-1, keepdim=True)).clamp(min=0) * spread
