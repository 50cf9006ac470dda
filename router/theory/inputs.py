"""Where `draftpick theory` takes acceptance and costs from: the command line, a file, an arm."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from decoders.common.errors import DraftpickError, NoSuchName
from decoders.common.text import from_json
from decoders.costs.measured import Costs

if TYPE_CHECKING:
    from collect.queries import Query
    from decoders.engine import Engine
    from decoders.options import EngineOptions
    from decoders.records import DecodeResult


MOST_DRAFTERS = 3  # every split of the draft among them is looked at


@dataclass(frozen=True)
class DrafterFigures:
    """acceptance: share of its tokens that are accepted, each for itself.
    cost: one drafted token, in target passes of one token.
    verify: at k, the target pass over k + 1 tokens in the same unit; None takes 1 for all.
    """

    name: str
    acceptance: float
    cost: float
    verify: tuple[float, ...] | None = None


def parse_numbers(option: str, text: str, low: float, high: float | None = None) -> list[float]:
    """Numbers separated by commas, each from low to high. Raises DraftpickError."""
    found = []
    for part in text.split(","):
        try:
            number = float(part)
        except ValueError:
            raise DraftpickError(
                f"{option} takes numbers such as 0.7 or 0.8,0.6, not {part!r}"
            ) from None
        if not (math.isfinite(number) and low <= number and (high is None or number <= high)):
            limit = f"{low:g} or more" if high is None else f"between {low:g} and {high:g}"
            raise DraftpickError(f"{option} must be {limit}, not {part.strip()}")
        found.append(number)
    return found


def from_numbers(acceptances: Sequence[float], costs: Sequence[float]) -> list[DrafterFigures]:
    """A drafter for each acceptance and its cost, at most MOST_DRAFTERS."""
    if len(costs) != len(acceptances):
        raise DraftpickError(
            f"there are {len(acceptances)} acceptance rates and costs of {len(costs)} drafters; "
            "give as many of each"
        )
    if len(costs) > MOST_DRAFTERS:
        raise DraftpickError(f"cascades of at most {MOST_DRAFTERS} drafters, not {len(costs)}")
    return [
        DrafterFigures(f"drafter {i}", acceptance, cost)
        for i, (acceptance, cost) in enumerate(zip(acceptances, costs, strict=True), 1)
    ]


def parameter_costs(parameters: Sequence[float]) -> list[float]:
    """Each drafter's parameters over the target's, the target first (the costs of SWI)."""
    target, *drafters = parameters
    if target <= 0 or not drafters:
        raise DraftpickError(
            "--parameters takes the target's count first, then each drafter's, such as 135e6,20e6"
        )
    return [count / target for count in drafters]


def read_costs(path: Path) -> Costs:
    """The costs in a JSON file: a collection's manifest, or what `draftpick costs` wrote."""
    try:
        record = from_json(path.read_text(encoding="utf-8"))
        costs = Costs.from_json(record.get("costs", record))
    except OSError as error:
        raise DraftpickError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError):
        costs = Costs((), {})
    if not costs.verify_s or min(costs.verify_s) <= 0:
        raise DraftpickError(
            f"{path} holds no measured costs; give the manifest.json of a folder that "
            "`draftpick collect` wrote, or a file of `draftpick costs`"
        )
    return costs


def from_costs(arm: str, acceptance: float, costs: Costs, longest: int) -> DrafterFigures:
    """An arm with measured seconds: its drafted token, and the target at every width."""
    if arm not in costs.draft_s:
        raise NoSuchName("arm with a drafting cost", arm, list(costs.draft_s))
    alone = costs.verify(1)
    widths = [costs.verify(k + 1) / alone for k in range(longest + 1)]
    return DrafterFigures(arm, acceptance, costs.draft_s[arm] / alone, tuple(widths))


def measured_acceptance(
    engine: Engine, arm: str, queries: Sequence[Query], max_new_tokens: int
) -> float:
    """The share of single drafted tokens that are accepted, over answers to the queries' first
    turns."""
    from decoders.records import Request

    request = Request(max_new_tokens)
    prompts = [
        engine.encode_chat([{"role": "user", "content": query.turns[0]}]) for query in queries
    ]
    return acceptance_of(engine.decode(arm, prompt, request) for prompt in prompts)


def acceptance_of(results: Iterable[DecodeResult]) -> float:
    """Accepted over tried, for answers that drafted one token a round.

    A round without a draft counts as a rejection (Max-Gram found nothing to copy), but for one an
    answer, whose last round has no room for a draft.
    """
    tried = accepted = 0
    for result in results:
        without = result.rounds - result.drafted
        tried += result.drafted + max(0, without - 1)
        accepted += result.accepted
    if not tried:
        raise DraftpickError("nothing was drafted; choose an arm that drafts, or longer answers")
    return accepted / tried


def load_single(options: EngineOptions, arm: str) -> Engine:
    """An engine with that arm alone, drafting one token a round so that each is judged alone."""
    from decoders.arms import DraftingRecipe, LengthRecipe
    from decoders.engine import Engine

    recipe = options.recipes([arm])[arm]
    if not isinstance(recipe, DraftingRecipe) or recipe.branches:
        raise DraftpickError(
            f"arm {arm!r} does not draft one token after another, which is what the formulas are "
            "about; name an arm of a draft model, an exit or Max-Gram"
        )
    single = recipe.model_copy(update={"length": LengthRecipe(k=1)})
    return Engine.from_options(replace(options, arms={arm: single}), only=[arm])
