"""When an arm is down: the next best one by the policy's scores answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from decoders.common.errors import ArmDown, DraftpickError

from ..protocols import Bounded
from ..records import Ask, Pick

if TYPE_CHECKING:
    from decoders.records import Request
    from policies import Policy


def redirected(pick: Pick, policy: Policy, down: Mapping[str, ArmDown]) -> Pick:
    """The pick, or where its arm is down the best one by its scores that is not, each with the
    probability that it has while these are down.

    A draw goes to the best of the others whenever it falls on an arm that is down, so the
    probability of that one is its own and theirs. Raises ArmDown where all of the policy's arms are
    down.
    """
    made, arms = pick.decision, policy.arms
    left = [index for index, arm in enumerate(arms) if arm not in down]
    if not left:
        why = "; ".join(f"{arm}: {error.reason}" for arm, error in down.items())
        raise ArmDown(", ".join(down), why, min(error.pause_s for error in down.values()))
    best = max(left, key=made.scores.__getitem__)
    index = best if made.arm in down else made.index
    made = replace(made, arm=arms[index], index=index)
    if pick.drawn:
        own = policy.distribution(pick.x)[0] if made.probabilities is None else made.probabilities
        chances = [float(each) for each in own]
        for other, arm in enumerate(arms):
            if arm in down:
                chances[best] += chances[other]
                chances[other] = 0.0
        made = replace(made, propensity=chances[index], probabilities=chances)
    return replace(pick, decision=made)


def unfit(engine: Any, arms: Sequence[str], request: Request) -> dict[str, ArmDown]:
    """By arm, why it cannot answer such a request. Raises the last one's DraftpickError where none
    can."""
    found, refusal = dict[str, ArmDown](), None
    for name in arms:
        try:
            engine.arm(name).check(request)
        except DraftpickError as error:
            refusal, found[name] = error, ArmDown(name, str(error), 0.0)
    if refusal is not None and len(found) == len(arms):
        raise refusal
    return found


def outgrown(engine: Bounded, arms: Sequence[str], ask: Ask) -> dict[str, ArmDown]:
    """By arm, why it is of no use for so long a prompt; none where that holds of all of them."""
    found = dict[str, ArmDown]()
    for name in arms:
        why = engine.outgrown(name, ask.prompt_ids, ask.request)
        if why is not None:
            found[name] = ArmDown(name, why, 0.0)
    return found if len(found) < len(arms) else {}


def passed_over(
    first: Pick, taken: str, policy: Policy, down: Mapping[str, ArmDown]
) -> dict[str, str] | None:
    """Why each arm that is down and came before the one taken did not answer; None for none.

    first: the policy's choice.
    """
    wanted, of = first.arm, dict(zip(policy.arms, first.decision.scores, strict=True))
    before = [arm for arm in down if taken != wanted and (arm == wanted or of[arm] > of[taken])]
    return {arm: down[arm].reason for arm in before} or None
