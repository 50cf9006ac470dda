"""The engine, policy and embedder of a router, from options and names."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import policies
from collect.embedders import EMBEDDERS, Embedder, is_own, kind_of, load_embedder
from collect.features import FEATURES
from decoders.arms import AUTOREGRESSIVE, ENGINES, UNTRAINED_ARMS, remote
from decoders.options import EngineOptions
from decoders.records import Request
from decoders.zoo.catalogue import TARGET
from policies import Policy, PolicyError
from policies.records import ANY

from ..protocols import RoutingEngine

DEFAULT_POLICY = Path(__file__).parents[1] / "default_policy"
MODEL_POLICIES = Path(__file__).parents[1] / "model_policies"  # a folder each, by known name
BEST_FIXED = "hybrid"  # the arm that ships and is best on average
UNTRAINED = "max-gram"  # the arm for a target that no policy was trained for
FIXED = "fixed"  # the policy that always takes it
OWN_POLICY = (
    "make a policy for it with `draftpick collect --target TARGET --config ARMS --out rewards` and "
    "`draftpick train --rewards rewards --out policy`, and add --policy policy; or name an arm, "
    "for instance --arm autoregressive"
)

OF_ENDPOINTS = (
    "To choose, make a policy with `draftpick collect --queries FILE --config ARMS --out rewards` "
    "and `draftpick train --rewards rewards --reward measured --out policy`, then add --policy "
    "policy"
)


def shipped_policy(options: EngineOptions) -> Path | None:
    """The folder of the policy that ships for the target's own arms, or for the default target's;
    None where none was trained for these arms."""
    name = options.made_for
    folder = DEFAULT_POLICY if name is None else MODEL_POLICIES / name
    return folder if (folder / "policy.json").is_file() else None


def shipped_for(options: EngineOptions) -> tuple[EngineOptions, Policy]:
    """Options and policy where the user named no policy."""
    arms = {} if options.arms is None else options.recipes()
    if arms and all(arm.remote for arm in arms.values()):
        first, *others = arms
        if others:
            print(f"no --policy: every query goes to {first}. {OF_ENDPOINTS}", file=sys.stderr)
        return options, policies.fixed_policy([first, *others], first)
    folder = shipped_policy(options)
    if folder is None:
        print(
            f"no policy ships for {options.made_for}: every query goes to {UNTRAINED}. To do "
            f"better, make a policy with `draftpick collect --target {options.target} --out "
            "rewards` and `draftpick train --rewards rewards --out policy`, and add --policy "
            "policy; or name an arm, for instance --arm autoregressive",
            file=sys.stderr,
        )
        return options, policies.fixed_policy(list(options.recipes()), UNTRAINED)
    chosen = policies.load(folder)
    if options.arms is None and options.made_for is None and options.target != TARGET:
        return for_any_target(options, chosen)
    return options, chosen


def for_any_target(options: EngineOptions, shipped: Policy) -> tuple[EngineOptions, Policy]:
    """Options and policy for a target that nothing was trained for: prompt lookup, and one line on
    standard error. As they are where the drafters that ship fit the target."""
    from decoders import Engine

    if Engine.unsupported_reason(options, *shipped.arms) is None:
        return options, shipped
    untrained = replace(options, arms=UNTRAINED_ARMS)
    print(
        f"no drafter or policy for {options.target} ships: answering by prompt lookup (arm "
        f"{UNTRAINED}), which needs no training. To do better: train a drafter with `draftpick "
        f"align --target {options.target}` and declare it in an arms file, then {OWN_POLICY}",
        file=sys.stderr,
    )
    return untrained, policies.fixed_policy(list(untrained.recipes()), UNTRAINED)


def require_features(policy: Policy) -> None:
    """Raise PolicyError where the policy reads a feature that is not known here."""
    unknown = [name for name in policy.origin.features if name not in FEATURES]
    if unknown:
        raise PolicyError(
            f"the policy {policy.name!r} reads the feature {', '.join(unknown)}, not known here "
            f"(known: {', '.join(FEATURES)}); import the package that adds it, or train a policy "
            "with other --features"
        )


def embedder_of(
    policy: Policy, given: str | Embedder | None = None, device: str = "auto"
) -> Embedder | None:
    """The embedder that a policy reads, loaded; None for the target's own and for a policy that
    does not look at the query.

    given: one to take in its stead, as in `load_embedder`. Raises PolicyError where its kind is
    not known here, DraftpickError where it cannot be loaded.
    """
    if policy.embedder == ANY:
        return None
    if given is not None:
        return load_embedder(given, device) if isinstance(given, str) else given
    if is_own(policy.embedder):
        return None
    if kind_of(policy.embedder) not in EMBEDDERS:
        raise PolicyError(
            f"the policy {policy.name!r} reads embeddings of {policy.embedder}, a kind that is not "
            f"known here (known: {', '.join(EMBEDDERS)}); import the package that adds it, or "
            "train a policy with another embedder"
        )
    return load_embedder(policy.embedder, device)


def load_engine(
    options: EngineOptions, only: Sequence[str] = (), request: Request | None = None
) -> RoutingEngine:
    """`decoders.Engine.from_options`, or the engine of their kind for arms that answer elsewhere.

    only: these arms, and of a target autoregressive too; without any, all.
    """
    options = options.resolved()
    if remote(arms := options.recipes()):
        elsewhere: RoutingEngine = ENGINES[next(iter(arms.values())).kind](options, only)
        return elsewhere
    from decoders import Engine

    named = [AUTOREGRESSIVE, *only] if only else None
    return Engine.from_options(options, only=named, request=request)
