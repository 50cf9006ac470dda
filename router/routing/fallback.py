"""When an arm is down: the next best one by the policy's scores answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from decoders.common.errors import ArmDown, DraftpickError
from decoders.records import Request
from policies import Policy

from ..protocols import RoutingEngine
from ..records import RouteDecision


def unchosen(policy: Policy) -> Sequence[str]:
    """Arms that may answer where the policy has chosen another or none: all of them, or only the
    lossless ones of a policy that bounds what answers lose."""
    return getattr(policy, "lossless", policy.arms)


def redirected(
    decision: RouteDecision, policy: Policy, down: Mapping[str, ArmDown]
) -> RouteDecision:
    """The decision, or where its arm is down the best `unchosen` one by its scores that is not,
    each with the probability that it has while these are down.

    A draw goes to the best of the others whenever it falls on an arm that is down, so the
    probability of that one is its own and theirs. Raises ArmDown where no arm may take the place
    of one that is down.
    """
    left = [arm for arm in unchosen(policy) if arm not in down]
    if not left:
        if decision.arm not in down:
            return decision
        why = "; ".join(f"{arm}: {error.reason}" for arm, error in down.items())
        raise ArmDown(", ".join(down), why, min(error.pause_s for error in down.values()))
    best = max(left, key=decision.scores.__getitem__)
    taken = best if decision.arm in down else decision.arm
    if not decision.drawn:
        return replace(decision, arm=taken)
    own = decision.probabilities
    own = policy.distribution(decision.x)[0] if own is None else own
    chances = dict(zip(policy.arms, map(float, own), strict=True))
    for arm in down:
        if arm in chances:
            chances[best] = min(1.0, chances[best] + chances[arm])  # sums are rounded
            chances[arm] = 0.0
    probabilities = list(chances.values())
    return replace(decision, arm=taken, propensity=chances[taken], probabilities=probabilities)


def unfit(engine: RoutingEngine, arms: Sequence[str], request: Request) -> dict[str, ArmDown]:
    """Why each arm cannot answer such a request. Raises the last one's DraftpickError where none
    can."""
    found, refusal = dict[str, ArmDown](), None
    for name in arms:
        try:
            engine.arms[name].check(request)
        except DraftpickError as error:
            refusal, found[name] = error, ArmDown(name, str(error), 0.0)
    if refusal is not None and len(found) == len(arms):
        raise refusal
    return found


def arms_past_context(
    engine: RoutingEngine, arms: Sequence[str], prompt_ids: Sequence[int], request: Request
) -> dict[str, ArmDown]:
    """Arms whose context the prompt exceeds, with the reason; empty if every arm is affected."""
    found = dict[str, ArmDown]()
    for name in arms:
        why = engine.why_too_long(name, prompt_ids, request)
        if why is not None:
            found[name] = ArmDown(name, why, 0.0)
    return found if len(found) < len(arms) else {}


def passed_over(
    first: RouteDecision, taken: str, down: Mapping[str, ArmDown]
) -> dict[str, str] | None:
    """Why each arm that is down and came before the one taken did not answer; None for none.

    first: the policy's choice.
    """
    wanted, of = first.arm, first.scores
    before = [arm for arm in down if taken != wanted and (arm == wanted or of[arm] > of[taken])]
    return {arm: down[arm].reason for arm in before} or None
