"""Check what an engine would start with: `python -m router.engines.vllm [FILE [MODEL]]`."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from decoders.common.errors import DraftpickError
from policies.errors import PolicyError

from .answers import log_and_learning
from .choosing import ByPolicy, chooser
from .engine import METHOD, OLDEST, EngineFacts, installed
from .kinds import drafter_of
from .options import KEY, NO_FILE, given


def check(path: Path | None = None, model: str = "") -> str:
    """A sentence on what would run.

    path: None for what vLLM does where it is named no options.
    model: as vLLM will be given it; draft models and policies that read text need it.

    Raises DraftpickError or PolicyError for options that are wrong, and for a vLLM that is missing
    or too old.
    """
    options, arms, place = given({KEY: str(path)} if path else None)
    if find_spec("vllm") is None:
        raise DraftpickError(
            "vLLM is not installed here; run this by the Python that runs vLLM, or `pip install "
            "'draftpick[vllm]'`"
        )
    if not _has_the_method():
        raise DraftpickError(
            f"vLLM{installed()} has no proposers of one's own; {OLDEST} is the first that has"
        )
    engine = EngineFacts(model, model, most=8, context=1024, rows=1, vocabulary=_vocabulary(model))
    for arm in arms.values():
        if arm.kind == "neural" and not model:
            raise DraftpickError(
                f"the arm {arm.name!r} needs vLLM's model to be checked; name it after the file"
            )
        drafter_of(arm, engine)
    choice = chooser(options, place, arms, engine)
    policy = choice.policy if isinstance(choice, ByPolicy) else None
    log_and_learning(options, place, policy)
    by = "rules" if policy is None else f"the policy {policy.name!r}"
    where = "without options" if place == NO_FILE else place
    return f"{where}: {', '.join(arms)} by {by}, in vLLM{installed()}"


def _has_the_method() -> bool:
    try:
        return find_spec(f"vllm.v1.spec_decode.{METHOD}_proposer") is not None
    except ModuleNotFoundError:  # a package above it is not there either
        return False


def _vocabulary(model: str) -> int:
    """Tokens of the model; 0 where none is named."""
    if not model:
        return 0
    from decoders.models.drafts import TargetInfo
    from decoders.models.targets import resolve

    return TargetInfo.of_folder(resolve(model), None).vocab_size


def main() -> int:
    if len(sys.argv) > 3:
        print("usage: python -m router.engines.vllm [FILE [MODEL]]", file=sys.stderr)
        return 2
    try:
        print(check(Path(sys.argv[1]) if sys.argv[1:] else None, *sys.argv[2:]))
    except (DraftpickError, PolicyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
