"""`draftpick costs URL`: what a pass costs in somebody else's engine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decoders.common.files import check_file
from decoders.common.terminal import progress

from ..commands.options import AsJson
from ..tabulated import Tabulated, cell, tell
from .options import KeyVariable, Model, Url, write_report

if TYPE_CHECKING:
    from decoders.costs.measured import Costs

FORMAT = "draftpick-costs-1"


def costs(
    url: Url,
    out: Annotated[Path, typer.Option(metavar="JSON", help="File to write.")],
    model: Model = None,
    api_key_env: KeyVariable = None,
    most: Annotated[int, typer.Option(min=2, max=1024, help="Answers at once, at most.")] = 32,
    tokens: Annotated[int, typer.Option(min=16, help="Tokens of each answer.")] = 64,
    as_json: AsJson = False,
) -> None:
    """Time a server's steps at growing numbers of answers at once, to know what a pass over several
    tokens costs. The server must not draft, and be idle otherwise. It takes minutes.

    \b
    Example:
      draftpick costs http://localhost:8000/v1 --out costs.json
    """
    from decoders.endpoints.stream import client
    from router.engines.server import server_at, with_model
    from router.engines.step_times import costs_of_steps, sweep

    check_file(out, "--out")
    server = server_at(url, model, api_key_env)
    counts = [2**n for n in range(most.bit_length()) if 2**n <= most]
    with client() as connections, progress("timing", "steps") as on_done:
        server = with_model(connections, server)
        repeats = sweep(connections, server, counts, tokens, on_done)
    found = costs_of_steps(repeats)
    record = {
        "format": FORMAT,
        "url": server.url,
        "model": server.model,
        "tokens": tokens,
        "step_s": [{str(n): seconds for n, seconds in each.items()} for each in repeats],
        "costs": asdict(found),
    }
    said = write_report(record, out, "Costs")
    if len(repeats[0]) < len(counts):
        note = f"Note: the server writes at most {max(repeats[0])} of these answers at once."
        said.insert(0, note)
    tell(record, [table_of(repeats, found)], said, as_json=as_json)


def table_of(repeats: list[dict[int, float]], found: Costs) -> Tabulated:
    """Steps, and what passes over several tokens cost, over one token's."""
    rows = []
    for count in repeats[0]:
        seconds = sorted(each[count] for each in repeats)
        cells = [f"{count}", f"{1000 * seconds[len(seconds) // 2]:.1f}"]
        known = found if count == 1 else found.at_once.get(count)
        for width in (2, 5, 9):
            ratio = None if known is None else known.verify(width) / known.verify_s[0]
            extrapolated = known is not None and width > len(known.verify_s)
            cells.append("~" * extrapolated + cell(ratio, ".2f"))
        rows.append(cells)
    heads = ["at once", "ms a step", "2 tokens", "5 tokens", "9 tokens"]
    title = "Steps of the server; a pass over several tokens of each, over one of each"
    return Tabulated(title, heads, rows)
