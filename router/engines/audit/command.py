"""`draftpick audit URL`: whether drafting changes a server's answers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from decoders.common.errors import DraftpickError
from decoders.common.files import check_file
from decoders.common.terminal import progress
from decoders.common.text import from_json

from ...commands.options import AsJson
from ...tabulated import tell
from ..options import KeyVariable, Model, Questions, ReportFile, Url, write_report


def audit(
    url: Url,
    plain_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The same model without drafts, at another address."),
    ] = None,
    plain_body: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="Fields of a request that switch its drafts off."),
    ] = None,
    body: Annotated[
        str | None, typer.Option(metavar="JSON", help="Further fields of every request.")
    ] = None,
    model: Model = None,
    api_key_env: KeyVariable = None,
    queries: Questions = None,
    limit: Annotated[int, typer.Option(min=1, help="Questions, evenly taken.")] = 150,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 96,
    at_once: Annotated[int, typer.Option("--clients", min=1, help="Requests under way.")] = 4,
    draws: Annotated[
        int, typer.Option(min=0, help="Sampled answers to each of 8 questions; 0: none.")
    ] = 12,
    temperature: Annotated[float, typer.Option(help="Of the sampled answers.")] = 1.0,
    texts: Annotated[
        bool, typer.Option("--texts", help="Compare texts alone, without log-probabilities.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Random seed of the tests.")] = 0,
    out: ReportFile = None,
    as_json: AsJson = False,
) -> None:
    """Report where the answers of a server with and without drafts part: greedy ones beyond ties,
    sampled ones by a two-sample test, tool calls and JSON among them. The exit code is 1 if they
    do.

    \b
    Examples:
      draftpick audit http://gpu-2:8000/v1 --plain-url http://gpu-1:8000/v1
      draftpick audit http://gpu-2:8000/v1 --plain-body '{"speculative": false}'
    """
    from collect.queries import read_queries, shipped
    from decoders.endpoints.stream import client
    from router.engines.audit import report
    from router.engines.audit.requests import audit_requests
    from router.engines.audit.run import AuditOptions
    from router.engines.audit.run import audit as run
    from router.engines.server import server_at, with_model

    if plain_url is None and plain_body is None:
        raise DraftpickError(
            "name what answers without drafts: --plain-url, the same model at another address, or "
            "--plain-body, the fields of a request that switch drafts off"
        )
    if plain_body is None and plain_url is not None and plain_url.rstrip("/") == url.rstrip("/"):
        raise DraftpickError(
            f"--plain-url {plain_url} is the audited server itself; name another, or what switches "
            "its drafts off with --plain-body"
        )
    if not 0 < temperature < 10:
        raise DraftpickError(f"--temperature of sampled answers is above 0, not {temperature:g}")
    if out is not None:
        check_file(out, "--out")
    shared = fields_of("--body", body)
    drafted = server_at(url, model, api_key_env, shared)
    more = fields_of("--plain-body", plain_body)
    plain = server_at(plain_url or url, model, api_key_env, {**shared, **more}, "--plain-url")
    asked = audit_requests(shipped("train") if queries is None else read_queries(queries), limit)
    options = AuditOptions(max_new_tokens, at_once, texts, temperature, draws, seed=seed)
    with client() as connections, progress("asking", "answers") as on_done:
        drafted, plain = with_model(connections, drafted), with_model(connections, plain)
        found = run(connections, plain, drafted, asked, options, on_done)
    record, said = report.as_json(found), report.sentences(found)
    write_report(record, out)
    if out is not None:
        said.append(f"Report: {out}")
    tell(record, report.tabulated(found), said, as_json=as_json)
    if found.parted:
        raise typer.Exit(1)


def fields_of(option: str, text: str | None) -> dict[str, Any]:
    """A JSON object on the command line. Raises DraftpickError."""
    from decoders.endpoints.recipe import RESERVED_FIELDS

    if text is None:
        return {}
    try:
        found = from_json(text)
    except ValueError:
        found = None
    if isinstance(found, dict) and (taken := [name for name in found if name in RESERVED_FIELDS]):
        raise DraftpickError(f"{option}: {', '.join(taken)} is set by every request; leave it out")
    if not isinstance(found, dict) or not found:
        raise DraftpickError(
            f"{option} is a JSON object with fields of a request, such as "
            f"'{{\"speculative\": false}}', not {text[:60]!r}"
        )
    return found
