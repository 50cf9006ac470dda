"""`draftpick check URL`: whether a server's drafts pay, and what to change."""

from __future__ import annotations

from typing import Annotated

import typer

from decoders.common.errors import DraftpickError
from decoders.common.files import check_file
from decoders.common.terminal import progress

from ...commands.options import AsJson
from ...tabulated import tell
from ..options import KeyVariable, Model, Questions, ReportFile, Url, write_report


def check(
    url: Url,
    model: Model = None,
    api_key_env: KeyVariable = None,
    queries: Questions = None,
    at_once: Annotated[
        int | None,
        typer.Option(
            min=1, help="Answers at once to judge it at. Default: what it has under way, or 1."
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="How long to ask at most. Each number is tried at least once.")
    ] = 45.0,
    max_new_tokens: Annotated[int, typer.Option(min=16, help="Longest answer, in tokens.")] = 96,
    out: ReportFile = None,
    as_json: AsJson = False,
) -> None:
    """Look at a running server (vLLM, SGLang, llama.cpp, draftpick) for a minute: whether it
    drafts, what is accepted, which drafts pay at this load, and what to change.

    \b
    Examples:
      draftpick check http://localhost:8000
      draftpick check http://localhost:8080 --at-once 8 --out before.json
    """
    from collect.queries import read_queries, shipped
    from decoders.endpoints.stream import client
    from router.engines.check.metrics import Metrics
    from router.engines.check.report import findings, sentences, tabulated
    from router.engines.check.report import options as to_paste
    from router.engines.check.timing import AT_ONCE, most_turns, windows
    from router.engines.server import server_at, with_model

    if not 0 <= seconds <= 3600:
        raise DraftpickError(f"--seconds is from 0 to 3600, not {seconds:g}")
    if out is not None:
        check_file(out, "--out")
    server = server_at(url, model, api_key_env)
    asked = shipped("test") if queries is None else read_queries(queries)
    with client() as connections, progress("asking", "seconds") as on_done:
        metrics = Metrics(connections, server)
        began = metrics.read()
        server = with_model(connections, server)
        texts = [each.turns[0] for each in asked]
        seen = windows(connections, server, metrics, texts, max_new_tokens, seconds, on_done)
    running = at_once or max(1.0, began.running)
    found = findings(began.engine, url, running, seen)
    record = found.as_json()
    said = [*sentences(found), *(f"  {line}" for line in to_paste(found))]
    if began.running:
        said.append(
            f"Note: {began.running:g} other requests were under way, whose drafts count here."
        )
    if seconds and len(seen) == len(AT_ONCE) * most_turns(texts):
        said.append(
            "Note: it ended when its questions were used up, since a server may draft what it "
            "remembers of an answer; --queries takes more."
        )
    said += write_report(record, out)
    tell(record, tabulated(found), said, as_json=as_json)
