"""`draftpick headroom --from-logs`: what drafting would gain on an engine's traffic."""

from __future__ import annotations

import json
from functools import partial

import typer

from collect.table_options import TableOptions
from decoders.common.errors import DraftpickError
from decoders.common.terminal import progress, show

from ...commands.headroom import HeadroomOptions
from ...commands.options import names_in
from ...tabulated import for_terminal
from .options import TrafficOptions


class LogSource(TrafficOptions):
    """Logs of an engine, as a source of headroom."""

    @property
    def given(self) -> bool:
        """Whether there are logs."""
        return bool(self.from_logs)

    def report(self, asked: HeadroomOptions) -> None:
        """Print what drafting would gain."""
        from .replaying import replay_logs
        from .report import notes, report, sentences, tabulated, to_paste

        table, usual = asked.as_table(), TableOptions()
        for name in ("embedder", "temperatures", "repetitive", "weights"):
            if getattr(table, name) != getattr(usual, name):
                raise DraftpickError(f"--{name} is for REWARDS; leave it out with --from-logs")
        loads = sorted(set(table.at_once or ()))
        with progress("replaying", "arms") as on_done:
            source = replay_logs(self, table.arms, loads, on_done, asked.seed)
        made = report(source, asked.reward, loads, names_in(asked.by), asked.seed)
        if asked.out is not None:
            if made.found is None:
                raise DraftpickError(f"--out {asked.out}: {made.why_not}; leave --out away")
            from policies.selection.figure import draw_headroom

            draw_headroom(made.found, asked.out)
        said, noted = sentences(made), notes(source)
        if asked.as_json:
            typer.echo(json.dumps(made.as_json(said) | {"notes": noted}))
            return
        show(partial(for_terminal, tabulated(made)))
        for sentence in (*said, *(f"Note: {each}." for each in noted)):
            typer.echo(sentence)
        for line in to_paste(made):
            typer.echo(line)
        if asked.out is not None:
            typer.echo(f"Figure: {asked.out}")
