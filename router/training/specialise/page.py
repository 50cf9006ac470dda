"""One page about a run: README.md and the picture of who drafts how well for whom."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from decoders.arms import AUTOREGRESSIVE
from decoders.common.files import replacing, write_atomically
from policies.selection.guard import Guarded

from ...specbench.markdown import table_lines
from .drafters import UNION, Gain
from .judging import ALONE, ELSEWHERE, SHIPPED, Judgement, Ratio
from .traffic import Traffic

GAIN_HEADS = ["group", "tokens", "no row", "first right", "two", "three", "saved by copying"]
PICTURE, PAGE = "matrix.png", "README.md"


@dataclass(frozen=True)
class Found:
    """Results of a run.

    chat_template: as the command was given it.
    gains: by group, before training.
    judged: by temperature.
    arms: those that are saved.
    elsewhere: what is saved over the arm that ships, on queries unlike all groups.
    timed: way -> decoding, and whole answers, over the arm that ships.
    """

    target: str
    chat_template: str | None
    traffic: Traffic
    gains: Mapping[str, Gain]
    judged: Mapping[float, Judgement]
    guarded: Guarded
    arms: tuple[str, ...]
    elsewhere: Ratio
    timed: Mapping[str, tuple[Ratio, Ratio]]

    @property
    def conclusion(self) -> str:
        """Say in a sentence what was saved."""
        several, words = set(self.arms) - {AUTOREGRESSIVE, SHIPPED, UNION}, ""
        if not several and len(self.traffic.groups) > 1:
            words = "One drafter for all groups is as good as one for each. "
        saved, best = self.guarded.saved, self.guarded.best_fixed
        if saved != "best-fixed":
            return f"{words}A policy ({saved}) picks among {', '.join(self.arms)}."
        return f"{words}No choice was better beyond doubt than {best}, which is saved."


def write_page(out: Path, found: Found) -> None:
    """README.md and matrix.png in the folder."""
    _draw(out / PICTURE, found)
    write_atomically(out / PAGE, page(found))


def page(found: Found) -> str:
    """Markdown."""
    template = "" if found.chat_template is None else shlex.quote(found.chat_template)
    serve = f"draftpick serve --target {found.target} --config {{folder}}/arms.yaml --policy "
    lines = [
        f"# Drafters for {', '.join(found.traffic.groups)}",
        "",
        f"For {found.target}. {found.conclusion}",
        "",
        f"    {serve}{{folder}}/policy{template and ' --chat-template '}{template}",
        "",
        f"The guard: {found.guarded.verdict}",
        "",
        f"On queries unlike all groups what is saved gives {found.elsewhere} of the speed of the "
        "arm that ships.",
        "",
        *[f"- {sentence}." for sentence in found.traffic.said],
        "",
        "## What there was to gain",
        "",
        *table_lines(
            GAIN_HEADS, [[group, *gain_cells(gain)] for group, gain in found.gains.items()]
        ),
        "",
        "Tokens of held-out answers; the share that the drafter that shipped had no row for; how "
        "often its first one, two, three drafted tokens were right; the share of passes that "
        "copying saves.",
        "",
    ]
    for temperature, judged in found.judged.items():
        lines += [f"## By replay, temperature {temperature:g}", "", *_judged(judged), ""]
    if found.timed:
        lines += [
            "## Timed",
            "",
            *table_lines(
                ["greedy", "decoding", "whole answers"],
                [[way, str(decode), str(whole)] for way, (decode, whole) in found.timed.items()],
            ),
            "",
            "Speed over the arm that ships, in turns on this machine.",
            "",
        ]
    return "\n".join([*lines, f"![Drafters by group]({PICTURE})", ""])


def _judged(judged: Judgement) -> list[str]:
    groups = list(next(iter(judged.matrix.values()), {}))
    arms = [arm for arm in judged.matrix if arm != AUTOREGRESSIVE]
    return [
        *table_lines(
            ["arm", *groups],
            [[_words(arm), *(str(judged.matrix[arm][group]) for group in groups)] for arm in arms],
        ),
        "",
        "Speed over the arm that ships (alone: over its drafter without copying), geometric means "
        "over held-out queries, 95% intervals over conversations.",
        "",
        *table_lines(
            ["all groups together", "over what ships", "over the union", ELSEWHERE],
            [
                [way, str(over), str(union), str(judged.elsewhere[way])]
                for way, (over, union) in judged.choices.items()
            ],
        ),
    ]


def _words(arm: str) -> str:
    return f"{arm.removeprefix(ALONE)}, alone" if arm.startswith(ALONE) else arm


def gain_cells(gain: Gain) -> list[str]:
    """Cells under GAIN_HEADS, but for the group."""
    shares = [gain.outside, *gain.accepted, *[None] * (3 - len(gain.accepted)), gain.copied]
    return [f"{gain.tokens:,}", *("" if each is None else f"{each:.1%}" for each in shares)]


def _draw(path: Path, found: Found) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.8 * len(found.judged), 4), layout="constrained")
    places = figure.subplots(1, len(found.judged), squeeze=False)[0]
    for place, (temperature, judged) in zip(places, found.judged.items(), strict=True):
        arms = [a for a in judged.matrix if not a.startswith(ALONE) and a != AUTOREGRESSIVE]
        groups = list(judged.matrix[arms[0]])
        means = [[judged.matrix[arm][group].mean for group in groups] for arm in arms]
        place.imshow(means, cmap="RdYlGn", vmin=0.6, vmax=1.4, aspect="auto")
        for row, line in enumerate(means):
            for column, mean in enumerate(line):
                place.text(column, row, f"{mean:.2f}", ha="center", va="center")
        place.set_xticks(range(len(groups)), labels=groups)
        place.set_yticks(range(len(arms)), labels=arms)
        place.set(xlabel="queries of", ylabel="drafter of", title=f"temperature {temperature:g}")
    figure.suptitle("Speed over the arm that ships, by replay")
    with replacing(path) as stream:
        figure.savefig(stream, format="png", dpi=120)
