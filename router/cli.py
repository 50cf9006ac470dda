"""The command `draftpick`: the commands that are registered, and what is told of their errors."""

from __future__ import annotations

import errno
import os
import re
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperOption

from decoders.common import plugins
from decoders.common.errors import DraftpickError
from decoders.common.openmp import spin_briefly
from decoders.common.secrets import masked
from decoders.common.terminal import bars_as_lines, complete_streams
from decoders.common.wording import in_words

from .commands import COMMANDS
from .commands.with_records import with_records

PATH_ERRNOS = {
    errno.EACCES, errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT,
    errno.ENOTDIR, errno.EPERM, errno.EROFS,
}  # fmt: skip
"""What is wrong where a file or folder that was named cannot be one."""

EXAMPLES = """
Answer prompts by speculative decoding. A policy learns which way to draft is fastest for which
prompt, and picks one for each.

\b
Examples:
  draftpick generate "Why is the sky blue?"         answer a prompt
  draftpick serve                                   serve OpenAI's API
  draftpick collect --out rewards                   measure arms on queries
  draftpick headroom rewards                        report the possible gain
  draftpick train --rewards rewards --out policy    train a policy
  draftpick specbench --limit 5 --out bench         benchmark the arms
  draftpick demo                                    do this in ten minutes
"""

PLACE = re.compile(r"\{([\w.]+)\.(\w+)\}")


class Listing(TyperCommand):
    """A command in whose options' help `{package.DICT}` stands for the names in that dict, other
    packages' among them."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        for option in self.params:
            if isinstance(option, TyperOption) and option.help:
                option.help = PLACE.sub(_names, option.help)
        super().format_help(ctx, formatter)


def _names(place: re.Match[str]) -> str:
    plugins.load(place[1])
    return ", ".join(getattr(import_module(place[1]), place[2]))


def make_app() -> typer.Typer:
    """The application, with every command that is registered. Raises DraftpickError for a plugin
    that cannot be imported or takes the name of another's part."""
    plugins.load()
    app = typer.Typer(
        name="draftpick",
        help=EXAMPLES,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(options)
    for name, command in COMMANDS.items():
        app.command(name, cls=Listing)(with_records(command))
    return app


def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Global options. `main` reads --debug itself, wherever it is given."""


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code.

    2: the user's mistake, in one sentence. 1: anything else. 130: interrupted. No traceback
    without --debug, which may be given anywhere.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    complete_streams()
    try:
        spin_briefly()
        app = make_app()
        with bars_as_lines():
            # obj: what `demo` runs other commands by
            app([a for a in arguments if a != "--debug"], prog_name="draftpick", obj=main)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has gone; keep Python from complaining when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        return _tell(error, debug)
    return 0


def _tell(error: Exception, debug: bool) -> int:
    """Print one line about the error and return the exit code; with debug, the traceback before it.
    Neither shows a password."""
    import traceback

    if debug:
        print(masked("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    if isinstance(error, DraftpickError):
        print(f"error: {masked(in_words(error))}", file=sys.stderr)
        return 2
    if isinstance(error, OSError) and error.filename and error.errno in PATH_ERRNOS:
        print(f"error: {in_words(error)}; name another file or folder", file=sys.stderr)
        return 2
    print(f"error: {masked(in_words(error))} (run with --debug to see where)", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
