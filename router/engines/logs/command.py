"""`draftpick headroom --from-logs`: what drafting would gain on an engine's traffic."""

from __future__ import annotations

from collect.table_options import TableOptions
from decoders.common.errors import DraftpickError, NoSuchName
from decoders.common.terminal import progress

from ...commands.headroom import HeadroomOptions
from ...commands.options import names_in
from ...tabulated import tell
from .options import TrafficOptions


class LogSource(TrafficOptions):
    """Logs of an engine, as a source of headroom."""

    @property
    def given(self) -> bool:
        """Whether there are logs."""
        return bool(self.from_logs)

    def report(self, asked: HeadroomOptions) -> None:
        """Print what drafting would gain."""
        table, usual = asked.as_table(), TableOptions()
        for name in ("alpha", "embedder", "temperatures", "repetitive", "weights"):
            if getattr(table, name) != getattr(usual, name):
                raise DraftpickError(f"--{name} is for REWARDS; leave it out with --from-logs")
        from collect.features import FEATURES

        from .replaying import replay_logs
        from .report import notes, report, sentences, tabulated, to_paste

        loads, by = sorted(set(table.at_once or ())), names_in(asked.by)
        for name in by:
            if name not in FEATURES:
                raise NoSuchName("feature", name, tuple(FEATURES))
        with progress("replaying", "arms") as on_done:
            source = replay_logs(self, table.arms, loads, asked.reward, on_done, asked.seed)
        made = report(source, asked.reward, loads, by, asked.seed)
        if asked.out is not None:
            if made.found is None:
                raise DraftpickError(f"--out {asked.out}: {made.why_not}; leave --out away")
            from policies.selection.figure import draw_headroom

            draw_headroom(made.found, asked.out)
        said, noted = sentences(made), notes(source)
        record = made.as_json(said) | {"notes": noted}
        said += [*(f"Note: {each}." for each in noted), *to_paste(made)]
        if asked.out is not None:
            said.append(f"Figure: {asked.out}")
        tell(record, tabulated(made), said, as_json=asked.as_json)
