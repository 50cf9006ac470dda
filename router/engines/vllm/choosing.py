"""Which arm drafts for a request: by a policy that reads what a proposer can know."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import policies
from collect.features import RequestContext, feature_vector
from decoders.arms import ArmRecipe
from decoders.arms.file import fingerprint
from decoders.common.errors import DraftpickError
from decoders.spelling import text_of
from policies import Policy
from policies.learners.exploring import ExploringPolicy
from policies.records import ANY

from ...logs.record import probabilities
from .engine import EngineFacts
from .options import Options, Rule, within

KNOWN = ("log-prompt-length", "requests-running", "repeated-bigrams")  # features
SPECIAL = "hashing"  # the one embedder whose text a proposer can make


@dataclass(frozen=True)
class Choice:
    """One decision.

    probabilities: arm -> the chance that it had.
    drawn: from these; else the best was taken.
    x: what the policy read.
    embedding: the part of it that is one; None without.
    features: by name, all that are known.
    policy: the policy's fingerprint, and its name.
    """

    arm: str
    propensity: float
    probabilities: dict[str, float]
    drawn: bool
    policy: tuple[str, str]
    x: Any = None
    embedding: Any = None
    features: dict[str, float] = field(default_factory=dict)


class ByRules:
    """Hand-made rules: the first that holds decides. Raises DraftpickError for one of another
    arm."""

    def __init__(self, rules: Sequence[Rule], arms: Sequence[str], explore: float) -> None:
        for rule in rules:
            if rule.arm not in arms:
                raise DraftpickError(
                    f"a rule of the policy names the arm {rule.arm!r}; there are {', '.join(arms)}"
                )
        self._rules, self._arms, self._explore = rules, tuple(arms), explore
        said = json.dumps([[rule.model_dump() for rule in rules], explore], sort_keys=True)
        self._name = (hashlib.sha256(said.encode()).hexdigest()[:16], "rules")

    def choose(self, ids: Any, running: int, rng: np.random.Generator) -> Choice:
        """ids: [S] the text that the model goes on from. running: requests, this one included."""
        best = next(
            rule.arm
            for rule in self._rules
            if (rule.context_to is None or len(ids) <= rule.context_to)
            and (rule.running_to is None or running <= rule.running_to)
        )
        share = self._explore / len(self._arms)
        chances = {arm: share + (1 - self._explore) * (arm == best) for arm in self._arms}
        arm = best
        if self._explore:
            arm = self._arms[int(rng.choice(len(self._arms), p=list(chances.values())))]
        return Choice(
            arm,
            chances[arm],
            chances,
            drawn=self._explore > 0,
            policy=self._name,
            features=features_of(ids, running),
        )


class ByPolicy:
    """A trained policy.

    engine: whose tokenizer gives the text that `hashing` reads.
    explore: share of the decisions that take any arm; a policy that learns explores by itself.

    Raises DraftpickError for a policy of other arms, or one that reads what a proposer cannot know.
    """

    def __init__(
        self,
        policy: Policy,
        arms: Mapping[str, ArmRecipe],
        engine: EngineFacts,
        explore: float = 0.0,
        learns: bool = False,
    ) -> None:
        unknown = [name for name in policy.origin.features if name not in KNOWN]
        if unknown:
            raise DraftpickError(
                f"the policy {policy.name!r} reads {', '.join(unknown)}, which vLLM does not tell "
                f"a proposer; train it with --features {','.join(KNOWN)}"
            )
        kind = policy.embedder.partition("@")[0]
        if policy.embedder != ANY and kind != SPECIAL:
            raise DraftpickError(
                f"the policy {policy.name!r} reads embeddings of {policy.embedder}, which a "
                "proposer does not have; train one with --embedder hashing, or one that reads "
                "features alone"
            )
        self._embed = None if policy.embedder == ANY else hashing_of(policy.embedder, engine)
        own = {name: arms[name] for name in policy.arms if name in arms}
        policies.check_compatible(policy, list(arms), policy.embedder, fingerprint(own))
        self.policy = ExploringPolicy(policy, explore) if explore else policy
        self._draws = bool(explore) or learns
        self._name = (getattr(self.policy, "fingerprint", None) or policy.name, self.policy.name)

    def choose(self, ids: Any, running: int, rng: np.random.Generator) -> Choice:
        features = features_of(ids, running)
        x = np.array([features[name] for name in self.policy.origin.features], dtype=np.float32)
        embedding = None
        if self._embed is not None:
            embedding = self._embed(ids)
            x = np.concatenate([embedding, x])
        decision = self.policy.choose(x, rng if self._draws else None)
        arm, drawn = decision.arm, self._draws
        chances = probabilities(self.policy, arm, decision.probabilities, x, drawn)
        about = drawn, self._name, x, embedding, features
        return Choice(arm, decision.propensity, chances, *about)


def chooser(
    options: Options, place: Path, arms: Mapping[str, ArmRecipe], engine: EngineFacts
) -> ByRules | ByPolicy:
    """place: of the options' file. Raises DraftpickError as the classes do, and where the policy
    needs a package that is not there."""
    if isinstance(options.policy, list):
        return ByRules(options.policy, list(arms), options.explore)
    if options.policy in arms:
        return ByRules([Rule(arm=options.policy)], list(arms), options.explore)
    folder = within(place, options.policy)
    if not folder.is_dir():
        known = ", ".join(arms)
        raise DraftpickError(
            f"the policy {options.policy!r} is neither an arm (there are {known}) nor a folder"
        )
    if options.learn and options.explore:
        raise DraftpickError("a policy that learns explores on its own; leave `explore` out")
    learned = within(place, options.learn) if options.learn else folder
    if learned != folder and learned.is_dir():
        told = f"note: the policy in {learned} goes on to learn; the one in {folder} is not read"
        print(told, file=sys.stderr, flush=True)
        folder = learned
    try:
        policy = policies.load(folder)
        learns = isinstance(policy, policies.LearningPolicy) and options.learn is not None
        made = ByPolicy(policy, arms, engine, options.explore, learns)
        made.choose(np.zeros(2, dtype=np.int32), 1, np.random.default_rng(0))
    except ModuleNotFoundError as error:
        raise DraftpickError(
            f"the policy in {folder} needs the package {error.name}, which is not installed beside "
            "vLLM; install it there"
        ) from error
    return made


def features_of(ids: Any, running: int) -> dict[str, float]:
    """All that are known. ids: [S] int; running: requests, this one included."""
    context = RequestContext(ids.tolist(), max_new_tokens=1, running=running - 1)
    return dict(zip(KNOWN, feature_vector(KNOWN, context).tolist(), strict=True))


def hashing_of(embedder: str, engine: EngineFacts) -> Any:
    """From token ids to the embedding of their text, special tokens left out."""
    from collect.embedders import load_embedder

    if not engine.tokenizer:
        raise DraftpickError(
            "the policy reads the prompt's text, which takes the tokenizer of vLLM's model; name "
            "the model after the file"
        )
    made = load_embedder(embedder)
    assert made is not None
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(engine.tokenizer)

    def embed(ids: Any) -> Any:
        return made.embed([text_of(tokenizer, ids.tolist())])[0]

    return embed
