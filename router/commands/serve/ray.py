"""Builds the Serve application that configuration files name: `router.commands.serve.ray:app`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import typer

from decoders.common.errors import DraftpickError

from ...serve.on_ray import application
from ..with_records import with_records
from .plan import plan
from .served import Served

USAGE_ERROR: Any = typer.BadParameter.__base__  # also of options that there are not
SPARE = 32  # requests that no queue holds: /metrics, the page, those that get 429
SERVES_OWN = {"host", "port", "engine", "ray_address"}  # options that the file has elsewhere


def app(args: dict[str, Any]) -> Any:
    """Build the Serve application.

    args: options of `draftpick serve` by name, such as {"target": "model", "max_tokens": 512}; a
        list repeats an option, and true and false are of a switch.

    Raises DraftpickError for what the command would refuse.
    """
    asked = {name.replace("-", "_"): value for name, value in args.items()}
    if wrong := sorted(SERVES_OWN & asked.keys()):
        raise DraftpickError(
            f"{', '.join(wrong)}: not among args; Serve's own http_options say where it listens"
        )
    parser = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    parser.command()(with_records(plan))
    try:
        return application_of(parser(["--engine=ray", *_words(asked)], standalone_mode=False))
    except USAGE_ERROR as error:
        raise DraftpickError(error.format_message()) from error


def application_of(served: Served) -> Any:
    """The Serve application of what is served, on a cluster that is connected."""
    asked, make = served.asked, served.placed().make
    return application(make, asked.replicas, asked.slots + asked.queue + SPARE, asked.drain)


def _words(args: Mapping[str, Any]) -> Iterator[str]:
    """Options as on a command line."""
    for name, value in args.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{option}" if value else f"--no-{option}"
        else:
            for each in value if isinstance(value, list) else [value]:
                yield f"--{option}={each}"
