"""The command: its steps in their order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from decoders.common.errors import DraftpickError
from decoders.common.files import check_folder
from decoders.common.terminal import progress

from ...commands.options import at_once_in, temperatures_in
from ...tabulated import Tabulated, show_tables
from ..align import shown_by
from .options import SpecialiseOptions

if TYPE_CHECKING:
    from collect.queries import Query
    from collect.sweeps.batch import SweepOptions
    from collect.traffic.reading import Logs
    from decoders.arms import ArmRecipe

    from .drafters import Gain, Lesson
    from .traffic import Traffic

QUERIES = "queries"  # folder of what is asked
NOTHING_LEFT = 0.9  # of first tokens right, above which a drafter of a group's own is not trained


def specialise(asked: SpecialiseOptions) -> None:
    """Train drafters on what your users ask, one for all and one for each kind of work, and a
    policy that picks among them where that pays on queries that were held out. The same command
    resumes a run that was stopped.

    \b
    Examples:
      draftpick specialise --from-logs logs/ --out special
      draftpick specialise --queries sql.jsonl --out special --minutes 20
      draftpick serve --config special/arms.yaml --policy special/policy
    """
    from decoders.common.locks import sole_writer

    how, read = checked(asked)
    with sole_writer(asked.out):
        train_and_judge(asked, how, read)


def train_and_judge(asked: SpecialiseOptions, how: SweepOptions, read: list[Query] | Logs) -> None:
    from .drafters import Lesson
    from .judging import shipped_arm

    shipped = shipped_arm(asked.engine)
    traffic = traffic_of(asked, read)
    for sentence in traffic.said:
        typer.echo(f"Note: {sentence}.")
    train, apart = traffic.save(asked.out / QUERIES)
    lesson = Lesson(
        asked.engine, asked.out, start_of(shipped), asked.max_prompt, asked.max_new_tokens
    )
    names, gains = trained(asked, traffic, lesson, train, apart)
    if not names:
        typer.echo("Nothing is left to gain for any group: the drafter that ships knows them all.")
        return
    from .saving import judge_and_save

    found = judge_and_save(asked, traffic, gains, shipped, names, how)
    typer.echo(found.conclusion)
    for way, (decode, whole) in found.timed.items():
        typer.echo(f"Timed, {way}: decoding {decode}, whole answers {whole} times what ships.")
    typer.echo(f"page: {asked.out / 'README.md'}")


def checked(asked: SpecialiseOptions) -> tuple[SweepOptions, list[Query] | Logs]:
    """How the drafters will be judged, and what the files hold. Raises DraftpickError for what
    would stop a run later: a file, a folder, a store; and last the target, which may have to be
    fetched."""
    from collect.queries import read_queries
    from collect.sweeps.batch import SweepOptions
    from collect.traffic.reading import read_logs
    from decoders.models import targets
    from policies.mlflow_store import using

    how = SweepOptions(
        max_new_tokens=asked.max_new_tokens,
        similarity=False,
        temperatures=temperatures_in(asked.temperatures),
        at_once=at_once_in(asked.at_once),
    )
    check_folder(asked.out, "--out")
    targets.device_of(asked.device)
    targets.check_template(asked.chat_template)
    read: list[Query] | Logs
    if asked.queries:
        read = read_queries([*asked.queries, *(asked.held_out or [])])
    else:
        read = read_logs(asked.from_logs or [])
    with using(asked.tracking_uri):
        targets.resolve(asked.target)
    return how, read


def traffic_of(asked: SpecialiseOptions, read: list[Query] | Logs) -> Traffic:
    from collect.queries import read_queries

    from .traffic import of_logs, of_queries

    if isinstance(read, list):
        apart = {query.id for query in read_queries(asked.held_out)} if asked.held_out else None
        return of_queries(read, apart, asked.groups, asked.limit)
    from ...engines.logs.options import TrafficOptions
    from ...engines.logs.replaying import model_of

    options = TrafficOptions(from_logs=asked.from_logs, target=asked.target)
    model = model_of(options, asked.chat_template)
    kept = asked.out / QUERIES
    return of_logs(read, model, asked.groups, asked.limit, asked.show_words, kept)


def start_of(shipped: ArmRecipe) -> Path | None:
    """The folder of the recurrent drafter that ships for the target."""
    from decoders.backends.recurrent.cell import CELL
    from decoders.models.drafts import folder_of

    from .judging import cell_of

    cell = cell_of(shipped)
    return None if cell is None else folder_of(shipped.name, cell.drafter, CELL)


def trained(
    asked: SpecialiseOptions, traffic: Traffic, lesson: Lesson, train: Path, apart: Path
) -> tuple[list[str], dict[str, Gain]]:
    """Names of the drafters, the one of all groups first, none where nothing is to gain; and what
    there was to gain by group. Raises DraftpickError where the target answered nothing of any group
    that could gain."""
    from collect.align.training_stage import finished

    from .drafters import UNION

    took, many = lesson.take_over(traffic.train, traffic, train.stem), len(traffic.train)
    if took is not None:
        typer.echo(f"{took:,} of {many:,} logged answers are the target's own; it writes the rest.")
    judged = lesson.tokens(apart, lesson.write(apart, None))
    tokens = lesson.tokens(train, lesson.write(train, asked.write_minutes))
    if lesson.begun and len(tokens) < many:
        typer.echo(f"Drafters are begun: {many - len(tokens)} queries stay without an answer.")
    held_out = lesson.held_out(judged)
    gains = lesson.gains(held_out, judged)
    show_gains(gains)
    gaining = [group for group in traffic.groups if not _known(gains[group])]
    worth = [group for group in gaining if group in tokens.names()]
    for group in traffic.groups:
        if group not in gaining:
            typer.echo(f"{group}: the drafter that ships is right often enough; none is trained.")
        elif group not in worth:
            typer.echo(f"{group}: the target answered none of it in time; none is trained.")
    if not worth and gaining:
        raise DraftpickError("nothing is there to train on; raise --write-minutes, or leave it out")
    if not worth:
        return [], gains
    stages = lesson.stages(worth, asked.minutes)
    todo = [(stage, recipe) for stage, recipe in stages if finished(stage, recipe) is None]
    if todo:
        with progress("the target reads", "tokens") as tick:
            lesson.states.read(tokens, lesson.target.teacher, tick)
    for stage, recipe in todo:
        with progress(f"training {stage.out.name}", "%") as tick:
            lesson.train(stage, recipe, tokens, held_out, shown_by(tick))
    several = worth if len(worth) > 1 else []
    return [UNION, *several], gains


def _known(gain: Gain) -> bool:
    return bool(gain.accepted) and gain.accepted[0] > NOTHING_LEFT


def show_gains(gains: dict[str, Gain]) -> None:
    from .page import GAIN_HEADS, gain_cells

    title = "What the drafter that ships knows of each group"
    rows = [[group, *gain_cells(gain)] for group, gain in gains.items()]
    show_tables([Tabulated(title, GAIN_HEADS, rows)])
