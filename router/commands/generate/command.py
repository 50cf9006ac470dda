"""`draftpick generate`; heavy imports wait until the command runs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from decoders.common.errors import DraftpickError
from decoders.common.files import check_folder

from ..options import AsJson, Embedder, EngineRecord, LogOptions, Policy, RequestRecord, router_for


def generate(
    *,
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt; - reads it from standard input.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="File of JSON lines with prompt, turns or messages. A prompt that fails gives a "
            "line with the error."
        ),
    ] = None,
    arm: Annotated[str | None, typer.Option(help="Force an arm (see `draftpick arms`).")] = None,
    policy: Policy = None,
    embedder: Embedder = None,
    dynamic: Annotated[
        bool, typer.Option("--dynamic", help="Sample the arm from the policy's distribution.")
    ] = False,
    explore: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            help="Pick an arm uniformly at random for this share of the answers, such as 0.1.",
        ),
    ] = 0.0,
    learn_into: Annotated[
        Path | None,
        typer.Option(
            "--learn",
            metavar="FOLDER",
            help="Update the policy after every answer, and save it here. It must be an online "
            "policy, such as `draftpick train --policy thompson` makes.",
        ),
    ] = None,
    request: RequestRecord,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Random seed; with --prompts, each prompt gets its own, derived from it."
        ),
    ] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Stop at this string. Repeatable.")] = None,
    json_schema: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Answer in JSON that this JSON schema takes."),
    ] = None,
    log: LogOptions,
    as_json: AsJson = False,
    options: EngineRecord,
) -> None:
    """Answer a prompt with the arm that the policy picks. The answer goes to standard output; the
    arm, its propensity and the speed go to standard error. The exit code is 1 if a prompt of a file
    failed.

    \b
    Examples:
      draftpick generate "Translate German to English: Guten Morgen."
      draftpick generate --prompts prompts.jsonl --json > answers.jsonl
      draftpick generate --prompts prompts.jsonl --explore 0.2 --log log
      draftpick generate "Name a city and its river." --json-schema city.json
    """
    from ...routing.messages import as_messages
    from .prompts import Prompt, read_prompts, schema_in
    from .run import generate_all

    if (prompt is None) == (prompts is None):
        raise DraftpickError("give either a PROMPT or --prompts FILE")
    if not 0 <= explore <= 1:
        raise DraftpickError(f"--explore is a share from 0 to 1, not {explore:g}")
    if explore and arm is not None:
        raise DraftpickError("--explore draws arms, --arm forces one; give either")
    if learn_into is not None and (explore or arm is not None):
        raise DraftpickError("--learn samples arms itself; leave --arm and --explore out")
    choosing = {"--policy": policy, "--embedder": embedder, "--dynamic": dynamic}
    if arm is not None and (unread := [name for name, given in choosing.items() if given]):
        raise DraftpickError(
            f"--arm forces an arm, so that nothing reads {', '.join(unread)}; leave --arm out, or "
            "the others"
        )
    # Mistakes that need no model are reported before one is loaded.
    if learn_into is not None:
        check_folder(learn_into, "--learn")
    grammar = None if json_schema is None else schema_in(json_schema)
    request = replace(request, stop=tuple(stop or ()), seed=seed, grammar=grammar)
    if prompts is not None:
        asked = read_prompts(prompts)
    else:
        words = sys.stdin.read() if prompt == "-" else str(prompt)
        as_messages(words)
        asked = [Prompt(None, (), (words,))]
    named = [] if arm is None else [arm]
    router = router_for(options, policy, arm is None, named, request, embedder, log)
    if explore:
        router, dynamic = router.exploring(explore, greedy=not dynamic), True
    if learn_into is not None:
        router = router.learning(learn_into)
    try:
        failed = generate_all(router, asked, request, arm=arm, dynamic=dynamic, as_json=as_json)
    finally:
        router.save_learned()
    if failed:
        raise typer.Exit(1)
