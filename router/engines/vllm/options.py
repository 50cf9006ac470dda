"""Options of the proposer: the defaults, or one JSON object.

vLLM hands a proposer its own configuration and nothing else, so the object or its file comes in
`--additional-config '{"draftpick": "FILE"}'`, or the file in the environment variable
DRAFTPICK_VLLM.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from collect.lines import reading
from decoders.arms import ArmRecipe
from decoders.arms.file import AUTOREGRESSIVE, arms_of, load_arms, mistaken, sentences
from decoders.common.errors import DraftpickError
from decoders.recipes.strict import Strict

VARIABLE, KEY = "DRAFTPICK_VLLM", "draftpick"
# In the place of a file; places are relative to the working folder.
NO_FILE = Path("--additional-config")
# Matches of 8 tokens: shorter ones have broken tool calls in vLLM (vllm-project/vllm#40875).
COPY = {"kind": "max_gram", "shortest": 8, "longest": 16, "length": {"k": 16}, "by_cost": True}
DEFAULTS: dict[str, Any] = {"arms": {"copy": COPY}, "policy": "copy"}


class Rule(Strict):
    """The arm of contexts up to a length, while up to a number of requests run; None for any.

    context_to: tokens of prompt and answer so far.
    running_to: requests that the engine decodes, this one included.
    """

    arm: str
    context_to: Annotated[int, Field(ge=1)] | None = None
    running_to: Annotated[int, Field(ge=1)] | None = None


class Options(Strict):
    """All that may be set.

    arms: as in an arms file, or the place of one; without them DEFAULTS. `autoregressive` is always
        among them.
    policy: a policy's folder, an arm's name, or rules, of which the first that holds decides and
        the last must hold always.
    decide_every: tokens of an answer after which its arm is chosen again; 0 for once a request.
    explore: share of the decisions that take any arm at random.
    seed: of the draws; None for others at every start.
    log: folder of the log of decisions; None writes none.
    log_embeddings: keep the embedding that the policy read.
    learn: folder where a policy that learns is saved, and goes on from at the next start; None
        does not learn.
    share_answers: arms of the kind `suffix` draft from the answers to all requests; else from the
        request's own text alone, since vLLM does not say who asks.
    token_cost: of a verified token more, in steps of the engine over none, until steps have shown
        it.
    """

    arms: dict[str, Any] | str
    policy: str | list[Rule] = AUTOREGRESSIVE
    decide_every: Annotated[int, Field(ge=0)] = 0
    explore: Annotated[float, Field(ge=0, le=1)] = 0.0
    seed: int | None = None
    log: str | None = None
    log_embeddings: bool = False
    learn: str | None = None
    share_answers: bool = False
    token_cost: Annotated[float, Field(ge=0)] = 0.03

    @model_validator(mode="before")
    @classmethod
    def _usual(cls, body: Any) -> Any:
        return {**DEFAULTS, **body} if isinstance(body, dict) and "arms" not in body else body

    @model_validator(mode="after")
    def _last_rule_holds(self) -> Options:
        if isinstance(self.policy, list) and (
            not self.policy
            or self.policy[-1].context_to is not None
            or self.policy[-1].running_to is not None
        ):
            raise ValueError('policy: the last rule must hold always; add {"arm": NAME} to it')
        return self


def given(additional_config: Any) -> tuple[Options, dict[str, ArmRecipe], Path]:
    """The options, their arms, and the place that names in them are relative to, by what vLLM was
    started with or the environment; the defaults where neither says anything. Raises DraftpickError
    as `read_options`."""
    said = additional_config.get(KEY) if isinstance(additional_config, dict) else None
    said = said or os.environ.get(VARIABLE) or {}
    if isinstance(said, str):
        place = Path(said).expanduser()
        return *read_options(place), place
    if not isinstance(said, dict):
        raise DraftpickError(
            "the proposer's options are a JSON object or the name of its file, as in vLLM's option "
            f'--additional-config \'{{"{KEY}": "FILE"}}\', not {said!r}'
        )
    return *made_of(json.dumps(said), NO_FILE), NO_FILE


def read_options(path: Path) -> tuple[Options, dict[str, ArmRecipe]]:
    """The options and their arms; places in the file are relative to its folder.

    Raises DraftpickError with every mistake and the path of its field.
    """
    with reading(path):
        text = path.read_text(encoding="utf-8")
    return made_of(text, path)


def made_of(text: str, path: Path) -> tuple[Options, dict[str, ArmRecipe]]:
    """Read what the file at `path` holds; raises as `read_options`."""
    try:
        options = Options.model_validate_json(text)
    except ValidationError as error:
        found = sentences("", error, list(Options.model_fields))
        raise mistaken(path, found) from error
    if isinstance(options.arms, str):
        arms = load_arms(within(path, options.arms))
    else:
        arms = arms_of({"arms": options.arms}, path)
    return options, arms


def within(path: Path, named: str) -> Path:
    """A place that the options at `path` name."""
    return path.parent / Path(named).expanduser()
