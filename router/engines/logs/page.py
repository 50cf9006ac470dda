"""The report of replayed traffic as one page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from ...html import page, picture
from . import plots
from .report import TrafficReport, tabulated


def page_of(made: TrafficReport, said: Sequence[str], noted: Sequence[str]) -> str:
    """said, noted: sentences on what to do, and on what was left out."""
    return page("draftpick headroom", _body(made, said, noted))


def _body(made: TrafficReport, said: Sequence[str], noted: Sequence[str]) -> Iterator[str]:
    from policies.tracking.figures import headroom_figure

    traffic = made.source.traffic
    tokens = sum(len(each.ids) for each in traffic.answers)
    yield "<h1>What drafting would gain on this traffic</h1>"
    yield (
        f'<p class="soft">{len(traffic.answers):,} answers with {tokens:,} tokens, replayed '
        "through every configuration.</p>"
    )
    yield "<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in said) + "</ul>"
    if made.speeds:
        yield "<h2>Speed-up over plain decoding</h2>"
        yield picture(plots.speeds(made), "speed-up by configuration and load")
    yield "<h2>By draft length</h2>"
    yield picture(plots.by_length(made), "acceptance and tokens a pass by draft length")
    if made.by_task:
        yield "<h2>Tokens a pass by kind of work</h2>"
        yield picture(plots.by_work(made), "tokens a pass by kind of work and configuration")
    if made.found is not None:
        yield "<h2>What choosing by query would add</h2>"
        yield picture(headroom_figure(made.found), "what each choice earns, and where the gap lies")
    for table in tabulated(made):
        yield table.for_page()
    yield "<h2>How it was found</h2>"
    yield (
        '<p class="soft">At each place of an answer a draft is accepted as far as it equals what '
        "the model wrote, so that the rounds of every configuration follow exactly from the text. "
        "Seconds are those rounds times what a pass costs by the tokens that it reads. Reading "
        "prompts is left out. Intervals are 95% bootstrap intervals over conversations, and those "
        "of speed-ups hold the error of the costs where these were measured several times.</p>"
    )
    yield "<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in noted) + "</ul>"
