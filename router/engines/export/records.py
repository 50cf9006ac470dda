"""What is exported, and the sentences on what gets lost on the way that engines share."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from decoders.arms import ArmRecipe, DraftingRecipe

MODEL = "MODEL"
Ranges = Sequence[tuple[int, int, int]]  # (least, most, tokens of a draft) by requests running


@dataclass(frozen=True)
class Exported:
    """An arm in another engine's words.

    options: to be added to the server's command line.
    differs: in what the engine does otherwise than the arm, a sentence each.
    file: the name and the text of a file that the options name.
    """

    options: tuple[str, ...]
    differs: tuple[str, ...] = ()
    file: tuple[str, str] | None = None


PLAIN = Exported(())


class NoCounterpart(Exception):
    """Why an arm has no counterpart in another engine."""


class Engine(Protocol):
    """What the module of an engine has."""

    @property
    def COMMAND(self) -> tuple[str, ...]:
        """The words that start a server."""

    def exported(self, arm: ArmRecipe) -> Exported:
        """An arm that drafts. Raises NoCounterpart."""

    def by_load(self, arm: ArmRecipe, ranges: Ranges) -> Exported:
        """The arm with draft lengths by the number of requests that run, more than one length or
        one that is not its own. Raises NoCounterpart."""


def command_line(words: Sequence[str], one: Exported, model: str = MODEL) -> str:
    """A server's command line, for a shell; before it, what writes the file that it reads.

    words: the engine's COMMAND.
    """
    line = shlex.join([*(model if word == MODEL else word for word in words), *one.options])
    if one.file is None:
        return line
    name, text = one.file
    return f"cat > {shlex.quote(name)} <<'END'\n{text.rstrip()}\nEND\n{line}"


def copying(arm: Any) -> tuple[str, ...]:
    lost = []
    if arm.drafter is not None:
        lost.append(f"the table {arm.drafter!r}, for where nothing matches, is left out")
    if arm.by_cost or arm.stop_below:
        lost.append("drafts do not end where their chance of being accepted no longer pays")
    if arm.earliest:
        lost.append("which of several matches is taken is the engine's choice")
    return tuple(lost)


def chain(arm: Any) -> tuple[str, ...]:
    return ("the tree becomes a chain",) if arm.branch else ()


def written(
    arm: DraftingRecipe,
    options: Sequence[str],
    differs: Sequence[str] = (),
    stops: bool = False,
    file: tuple[str, str] | None = None,
) -> Exported:
    """An arm, with what is lost of its draft length besides what `differs` says.

    stops: the engine ends a draft before a token of little confidence. Raises NoCounterpart for a
    lossy verifier.
    """
    if not arm.lossless:
        raise NoCounterpart(f"the lossy verifier {arm.verifier.rule!r} is draftpick's own")
    lost = list(differs)
    if arm.length.kind != "fixed":
        lost.append(
            f"drafts have up to {arm.length.longest} tokens; the {arm.length.kind} draft length is "
            "left out"
        )
    if arm.length.min_confidence and not stops:
        lost.append("drafts do not end before a token below `min_confidence`")
    if arm.context_to is not None:
        lost.append(f"contexts above {arm.context_to} tokens (`context_to`) have drafts too")
    return Exported(tuple(options), tuple(lost), file)


def whole_vocabulary(arm: Any) -> str:
    """The draft model as others can load it: a shipped name becomes its folder."""
    from decoders.sampling.draft_vocab import FILE
    from decoders.zoo.catalogue import shipped_folders

    folder = shipped_folders().get(arm.drafter, Path(arm.drafter).expanduser())
    if (folder / FILE).is_file():
        raise NoCounterpart(
            f"the draft model {arm.drafter!r} knows a part of the target's vocabulary "
            f"({FILE}), which only draftpick reads; train one with the target's own tokenizer"
        )
    return str(folder) if folder.is_dir() else arm.drafter


def why_not(arm: ArmRecipe, engine: str) -> str:
    if arm.remote:
        return f"it is a server already, at {getattr(arm, 'url', 'its address')}"
    return f"{engine} has no `{arm.kind}`"
