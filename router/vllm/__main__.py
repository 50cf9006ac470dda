"""Check options before an engine is started with them: `python -m router.vllm FILE`."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from decoders.common.errors import DraftpickError

from .choosing import ByPolicy, chooser
from .engine import METHOD, OLDEST, EngineFacts, installed
from .kinds import drafter_of
from .options import read_options

ANY_ENGINE = EngineFacts("", "", most=8, context=1024, rows=8, vocabulary=1)


def check(path: Path) -> str:
    """A sentence on what would run. Raises DraftpickError for options that are wrong, and for a
    vLLM that is missing or too old."""
    options, arms = read_options(path)
    for arm in arms.values():
        drafter_of(arm, ANY_ENGINE)
    choice = chooser(options, path, arms, ANY_ENGINE)
    by = f"the policy {choice.policy.name!r}" if isinstance(choice, ByPolicy) else "rules"
    if find_spec("vllm") is None:
        raise DraftpickError("vLLM is not installed here; run this by the Python that runs vLLM")
    if find_spec(f"vllm.v1.spec_decode.{METHOD}_proposer") is None:
        raise DraftpickError(
            f"vLLM{installed()} has no proposers of one's own; {OLDEST} is the first that has"
        )
    return f"{path}: {', '.join(arms)} by {by}, in vLLM{installed()}"


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m router.vllm FILE", file=sys.stderr)
        return 2
    try:
        print(check(Path(sys.argv[1])))
    except DraftpickError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
