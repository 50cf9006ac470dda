"""The manifest of a collection: what was collected, with what, where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from decoders.common.errors import Damaged, DraftpickError
from decoders.common.identity import comparable
from decoders.common.text import from_json
from decoders.costs.measured import Costs

from ..records import ArmInfo

FORMAT = "draftpick-rewards-5"  # raised with a column, and with what one means
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Identity:
    """What must stay the same for rows to belong in one table; checked when a sweep resumes.

    embedder: the target's own space, in which every collection stores its queries.
    temperature: of the autoregressive arm's sampled answer that is scored against its greedy one.
    seed: of sampled answers.
    similarity: whether drafters also wrote on their own; `rouge_l` is None where not.
    temperatures: those at which every arm was collected.
    at_once, draws: as of SweepOptions.
    """

    target: str
    embedder: str
    arms: tuple[str, ...]
    arms_fingerprint: str
    max_new_tokens: int
    temperature: float
    seed: int
    measured: bool
    similarity: bool = True
    temperatures: tuple[float, ...] = (0.0,)
    at_once: tuple[int, ...] = (1,)
    draws: int = 1

    def differences(self, other: Identity) -> list[str]:
        """The fields that differ, a target's name and its space's left out where both have the hash
        of their weights."""
        return [
            field.name
            for field in fields(self)
            if comparable(getattr(self, field.name)) != comparable(getattr(other, field.name))
        ]


@dataclass(frozen=True)
class Manifest:
    """identity: see there.
    arms, costs: what rewards need.
    sessions: the provenance of every run that wrote to the folder, the first one first (its machine
        is the one the costs are of); `timed_by` as of the engine.
    embedder: the space that policies are to read; "" for the target's own, identity.embedder.
    """

    identity: Identity
    arms: tuple[ArmInfo, ...]
    costs: Costs
    sessions: tuple[dict[str, Any], ...]
    embedder: str = ""

    @property
    def reads(self) -> str:
        """The embedder that `draftpick train` reads by default."""
        return self.embedder or self.identity.embedder


def timed_otherwise(sessions: Sequence[dict[str, Any]], session: dict[str, Any]) -> str | None:
    """What the folder's costs were measured by, where that is not what `session` runs by; None
    where it is, or where one of them does not say (endpoints)."""
    first, now = sessions[0].get("timed_by"), session.get("timed_by")
    return first if first and now and first != now else None


def read_manifest(folder: str | Path) -> Manifest:
    """The manifest of a collection; raises DraftpickError where there is none, or a damaged one."""
    path = Path(folder) / MANIFEST
    try:
        record = from_json(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise DraftpickError(
            f"{folder} holds no collected rewards ({MANIFEST} is missing); make them with "
            f"`draftpick collect --out {folder}`"
        ) from None
    except OSError as error:
        raise DraftpickError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError:
        raise Damaged(f"{path} is damaged: not JSON; collect again into another --out") from None
    try:
        if record["format"] != FORMAT:
            raise DraftpickError(
                f"{path} has the format {record['format']!r}, and this version reads {FORMAT}; "
                "collect again into another --out"
            )
        return Manifest(
            identity=_identity(record["identity"]),
            arms=tuple(ArmInfo(**arm) for arm in record["arms"]),
            costs=Costs.from_json(record["costs"]),
            sessions=tuple(record["sessions"]),
            embedder=str(record["embedder"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(
            f"{path} is damaged: {error} is wrong or missing; collect again into another --out"
        ) from error


def _identity(record: dict[str, Any]) -> Identity:
    lists = {name: tuple(each) for name, each in record.items() if isinstance(each, list)}
    return Identity(**{**record, **lists})
