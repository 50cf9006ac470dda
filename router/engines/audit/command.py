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
from .requests import SET, AuditOptions, audit_requests


def audit(
    *,
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
    options: AuditOptions,
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
    from router.engines.audit.run import audit as run
    from router.engines.server import server_at, with_model

    if plain_url is None and plain_body is None:
        raise DraftpickError(
            "name what answers without drafts: --plain-url, the same model at another address, or "
            "--plain-body, the fields of a request that switch drafts off"
        )
    if out is not None:
        check_file(out, "--out")
    shared = fields_of("--body", body)
    drafted = server_at(url, model, api_key_env, shared)
    more = fields_of("--plain-body", plain_body)
    plain = server_at(plain_url or url, model, api_key_env, {**shared, **more}, "--plain-url")
    if (plain.url, plain.extra_body) == (drafted.url, drafted.extra_body):
        raise DraftpickError(
            f"{plain.name} is the audited server itself, asked alike; name another with "
            "--plain-url, or what switches its drafts off with --plain-body"
        )
    asked = audit_requests(shipped("train") if queries is None else read_queries(queries), limit)
    with client() as connections, progress("asking", "answers") as on_done:
        drafted, plain = with_model(connections, drafted), with_model(connections, plain)
        found = run(connections, plain, drafted, asked, options, on_done)
    record, said = report.as_json(found), report.sentences(found)
    said += write_report(record, out)
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
    ours = (*RESERVED_FIELDS, *SET)
    if isinstance(found, dict) and (taken := [name for name in found if name in ours]):
        raise DraftpickError(f"{option}: {', '.join(taken)} is set by every request; leave it out")
    if not isinstance(found, dict) or not found:
        raise DraftpickError(
            f"{option} is a JSON object with fields of a request, such as "
            f"'{{\"speculative\": false}}', not {text[:60]!r}"
        )
    return found
