"""What most often follows a token, or two, in a corpus: Max-Gram's answer where nothing matches."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from ...common.errors import DraftpickError
from ...common.tensor_files import header_of, require

FILE = "bigram.safetensors"


@dataclass(frozen=True)
class NextTokenTable:
    """after_one: token -> (the token that follows it most often, the share of times it does).
    after_two: the same for pairs of tokens, the older first; asked before after_one.
    """

    after_one: dict[int, tuple[int, float]]
    after_two: dict[tuple[int, int], tuple[int, float]] = field(default_factory=dict)

    def next(self, line: list[int]) -> tuple[int, float] | None:
        """For the end of `line`; None where the table has no answer."""
        found = self.after_two.get((line[-2], line[-1])) if len(line) > 1 else None
        return found or self.after_one.get(line[-1])

    def save(self, folder: Path, vocab: int) -> None:
        import torch
        from safetensors.torch import save_file

        ones, pairs = sorted(self.after_one), sorted(self.after_two)
        state = {
            "vocab": torch.tensor([vocab]),
            "one": torch.tensor(ones, dtype=torch.int32),
            "one_next": torch.tensor([self.after_one[k][0] for k in ones], dtype=torch.int32),
            "one_share": torch.tensor([self.after_one[k][1] for k in ones], dtype=torch.float16),
            "two": torch.tensor(pairs, dtype=torch.int32).view(-1, 2),
            "two_next": torch.tensor([self.after_two[k][0] for k in pairs], dtype=torch.int32),
            "two_share": torch.tensor([self.after_two[k][1] for k in pairs], dtype=torch.float16),
        }
        save_file(state, folder / FILE)

    @classmethod
    def load(cls, folder: Path, vocab: int) -> NextTokenTable:
        """Drafters of the same file share one. Raises DraftpickError where it was made for another
        vocabulary."""
        table, made_for = _read(folder / FILE, (folder / FILE).stat().st_mtime_ns)
        if made_for != vocab:
            raise DraftpickError(
                f"{folder / FILE} is for a vocabulary of {made_for}, the target has {vocab}; make "
                "one with `draftpick align --kind bigram`"
            )
        return table


@lru_cache(4)
def _read(file: Path, written_ns: int) -> tuple[NextTokenTable, int]:
    """A table, which nobody changes, and the vocabulary that it is for."""
    from safetensors.torch import load_file

    held = header_of(file)
    one, two = (held.get(name, (0,))[0] for name in ("one", "two"))
    columns = {"one": one, "one_next": one, "one_share": one, "two_next": two, "two_share": two}
    needed = {"vocab": (1,), "two": (two, 2), **{name: (n,) for name, n in columns.items()}}
    require(file.parent, held, needed)
    state = {name: t.tolist() for name, t in load_file(file).items()}
    ones = zip(state["one"], state["one_next"], state["one_share"], strict=True)
    twos = zip(state["two"], state["two_next"], state["two_share"], strict=True)
    table = NextTokenTable(
        {token: (after, share) for token, after, share in ones},
        {(older, newer): (after, share) for (older, newer), after, share in twos},
    )
    return table, state["vocab"][0]
