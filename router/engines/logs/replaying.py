"""From logs to traffic with what every arm would have done, and what passes cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from collect import rewards
from collect.replay.batch import Batch
from collect.rewards import Reward
from collect.traffic.clusters import tasks_of
from collect.traffic.engine_rules.recipe import engine_rows
from collect.traffic.logged import AbsentTarget, LoggedReplay, configurations, require_text_alone
from collect.traffic.reading import Logs, read_logs
from collect.traffic.replayed import Traffic, replayed, require_known
from collect.traffic.tokens import tokenised, vocabulary
from decoders.arms import AUTOREGRESSIVE, ArmRecipe, choose
from decoders.backends.config import text_config_of
from decoders.common.errors import DraftpickError
from decoders.costs.measured import Costs, read_costs
from decoders.engine import Engine
from decoders.models import targets
from decoders.models.drafts import TargetInfo
from decoders.options import EngineOptions
from decoders.zoo.catalogue import cache_dir

from .options import TrafficOptions

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
DRAFT_ROOM = 256  # tokens of a draft model's context beyond the longest text


@dataclass(frozen=True, eq=False)
class Found:
    """costs: None where they are not known.
    left_out: reason -> answers.
    """

    logs: Logs
    traffic: Traffic
    costs: Costs | None
    left_out: Mapping[str, int]


@dataclass(frozen=True)
class Model:
    """What is known of the model that answered."""

    tokenizer: Any
    eos_ids: tuple[int, ...]
    vocab_size: int


def replay_logs(
    options: TrafficOptions,
    only: Sequence[str] | None,
    loads: Sequence[int],
    reward: str | None,
    on_done: Callable[[int, int, str], None],
    seed: int = 0,
) -> Found:
    """only: these arms, and plain decoding.
    loads, reward: that are to be reported; with --target passes are timed for these loads.

    Raises DraftpickError for what the options name wrongly, before anything is timed or replayed,
    and as the parts of `collect.traffic` do.
    """
    arms = arms_of(options, only)
    logs = read_logs(options.from_logs or [])
    costs = None if options.costs is None else file_costs(options, arms)
    priced = costs
    if options.target is not None:  # a stand-in for what is timed below
        priced = Costs((1.0,), {}, {load: Costs((1.0,), {}) for load in loads})
    require_known(reward_of(reward, priced), priced, loads)
    for name, recipe in arms.items():
        require_text_alone(name, recipe, priced)
    known = model_of(options)
    tokens = tokenised(logs.answers, known.tokenizer, known.eos_ids)
    longest = max(len(each.prompt) + len(each.ids) for each in tokens.answers)
    target = AbsentTarget(known.vocab_size, longest + DRAFT_ROOM)
    for recipe in arms.values():  # whether draft models fit, before anything is replayed
        recipe.check_target(TargetInfo.of(target, known.tokenizer))
    if options.target is not None:
        costs = timed_costs(options.target, arms, loads)
    tasks = tasks_of([each.logged for each in tokens.answers], options.clusters, seed)
    many = len(tokens.answers)
    chosen = np.unique(np.linspace(0, many - 1, min(many, options.limit)).round().astype(int))
    replay = LoggedReplay(target, known.tokenizer, arms, costs)
    traffic = replayed(tokens.answers, tasks, replay, arms, chosen.tolist(), on_done)
    left_out = dict(tokens.left_out)
    if len(traffic.answers) < len(chosen):
        reason = "of one token, or longer than the draft model's context"
        left_out[reason] = len(chosen) - len(traffic.answers)
    return Found(logs, traffic, costs, left_out)


def reward_of(name: str | None, costs: Costs | None) -> Reward:
    """The reward, or the usual one. Raises NoSuchName."""
    return rewards.get(name or ("saved-passes" if costs is None else "time-saved"))


def arms_of(options: TrafficOptions, only: Sequence[str] | None) -> dict[str, ArmRecipe]:
    """Plain decoding first. Raises DraftpickError."""
    if options.config is not None:
        declared = EngineOptions(arms=options.config).recipes()
    else:
        declared = configurations(options.draft_model) | engine_rows()
    made = choose(declared, list(only)) if only else declared
    plain = configurations()[AUTOREGRESSIVE]
    others = {name: arm for name, arm in made.items() if arm.kind != "autoregressive"}
    return {AUTOREGRESSIVE: plain, **others}


def model_of(options: TrafficOptions, chat_template: str | None = None) -> Model:
    """The tokenizer, and what its folder says of it. chat_template: as of `load_tokenizer`. Raises
    DraftpickError."""
    name = options.target if options.tokenizer is None else options.tokenizer
    assert name is not None
    folder = Path(name).expanduser()
    if options.target is not None or not any((folder / each).is_file() for each in TOKENIZERS):
        folder = targets.resolve(name)
    tokenizer = targets.load_tokenizer(folder, chat_template)
    size = vocabulary(tokenizer)
    ends: tuple[int, ...] = ()
    if (folder / "config.json").is_file():
        size = max(size, int(text_config_of(folder).get("vocab_size") or 0))
        ends = targets.eos_ids(folder)
    if tokenizer.eos_token_id is not None:
        ends = tuple(dict.fromkeys((tokenizer.eos_token_id, *ends)))
    return Model(tokenizer, ends, size)


def file_costs(options: TrafficOptions, arms: Mapping[str, ArmRecipe]) -> Costs:
    """Costs of the file, with what a drafted token costs for each arm of a draft model. Raises
    DraftpickError where that is not known."""
    assert options.costs is not None
    costs = read_costs(options.costs)
    models = [name for name, arm in arms.items() if arm.kind == "neural"]
    unknown = [name for name in models if name not in costs.draft_s]
    if unknown and options.draft_cost is None:
        raise DraftpickError(
            f"{options.costs} does not say what a token of {', '.join(unknown)} costs; give "
            "--draft-cost, in passes of the target"
        )
    return costs if options.draft_cost is None else _with_drafts(costs, models, options.draft_cost)


def _with_drafts(costs: Costs, arms: Sequence[str], share: float) -> Costs:
    return replace(
        costs,
        draft_s={**costs.draft_s, **{arm: share * costs.verify_s[0] for arm in arms}},
        at_once={n: _with_drafts(each, arms, share) for n, each in costs.at_once.items()},
        repeats=tuple(_with_drafts(each, arms, share) for each in costs.repeats),
    )


def timed_costs(target: str, arms: Mapping[str, ArmRecipe], loads: Sequence[int]) -> Costs:
    """Passes, drafts and the rest of rounds of a model on this machine, as a collection times
    them."""
    ours = {name: arm for name, arm in arms.items() if arm.kind != "engine"}
    engine = Engine.from_options(EngineOptions(target=target, arms=ours))
    return Batch(engine, at_once=loads or (1,), folder=cache_dir() / "costs").cost_table
