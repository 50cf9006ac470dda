"""Every arm of an arms file beside the target alone: the tables of
docs/notes/methods_measured.md.

    python benchmarks/methods.py --config arms.yaml --limit 3 --work runs/methods --out methods.md

Each arm answers each question at every --temperatures, paired and interleaved with autoregressive
decoding, the prefill included. Every answer is journaled in --work: stopped and started again with
the same options, the run goes on; with --no-ask it sums up what is there.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from collect.queries import OVERALL, ordered, shipped_folder
from collect.rouge import rouge_l
from decoders import Engine, Request, Sampling
from decoders.common.files import write_atomically
from decoders.common.provenance import measured_on
from decoders.zoo import TARGET
from router.routing.router import Router
from router.specbench.bench import ask_all, load_questions
from router.specbench.markdown import interval, percent, table_lines, times
from router.specbench.quality import measure_of, score
from router.specbench.records import BASELINE, Row
from router.specbench.run import Asker
from router.specbench.summary import summarise

MEASURE_NAMES = {
    "bleu": "BLEU",
    "rouge_2": "ROUGE-2",
    "rouge_l": "ROUGE-L",
    "exact_match": "exact match",
}
FIRST = ("translation", "summarization", "rag", "qa", "math")  # of the columns of quality


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--config", type=Path, help="arms file; default: the arms that ship")
    parser.add_argument("--drafter", help="a folder in the place of DRAFTER in the arms file")
    parser.add_argument("--exit", help="a folder in the place of EXIT, likewise")
    parser.add_argument("--arms", default="", help="comma-separated; default: all of the file")
    parser.add_argument("--queries", nargs="*", type=Path, help="default: the shipped test queries")
    parser.add_argument("--limit", type=int, default=3, help="queries a task")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 1.0])
    parser.add_argument("--target", default=TARGET)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, default=Path("runs/methods"))
    parser.add_argument("--out", type=Path, default=Path("methods.md"))
    parser.add_argument(
        "--no-ask", action="store_true", help="make the tables of what --work holds"
    )
    given = parser.parse_args(argv)

    names = [name for name in given.arms.split(",") if name]
    if names:
        names = ["autoregressive", *names]
    files = given.queries or [shipped_folder("test")]
    questions = load_questions(files, given.limit, given.seed)
    config = given.config
    folders = {"DRAFTER": given.drafter, "EXIT": given.exit}
    if any(folders.values()):
        text = given.config.read_text(encoding="utf-8")
        for place, folder in folders.items():
            text = text.replace(place, folder or place)
        config = given.work / "arms.yaml"
        write_atomically(config, text)
    engine = Engine.load(
        given.target, config, only=names or None, dtype=given.dtype, device=given.device
    )
    hardware = measured_on(given.dtype, given.device)
    page = list(heading(engine, given.max_new_tokens, hardware))
    for temperature in given.temperatures:
        request = Request(given.max_new_tokens, Sampling(temperature), seed=given.seed)
        folder = given.work / f"temperature-{temperature:g}"
        asker = Asker(Router(engine, None), engine.arm_names, request, given.seed)
        rows = ask_all(asker, questions, folder, ask=not given.no_ask)
        plain = rows
        if temperature:  # sampled answers are compared with the target's greedy ones
            held = {row.question_id for row in rows}
            greedy = Request(given.max_new_tokens, seed=given.seed)
            alone = Asker(Router(engine, None), [BASELINE], greedy, given.seed)
            asked = [question for question in questions if question.id in held]
            plain = ask_all(alone, asked, folder / "greedy", ask=not given.no_ask)
        answers = first_answers(plain)
        page += ["", f"## Temperature {temperature:g}", "", f"{len(rows)} questions.", ""]
        page += table_lines(*table_of(engine, rows, answers, request))
    write_atomically(given.out, "\n".join(page) + "\n")
    print("\n".join(page))


def heading(engine: Engine, max_new_tokens: int, hardware: dict[str, Any]) -> Iterator[str]:
    """What was measured on what, and what the columns mean."""
    yield "# Methods, measured"
    yield ""
    yield (
        f"Target {engine.target_name}, up to {max_new_tokens} new tokens, "
        + ", ".join(f"{name} {value}" for name, value in hardware.items() if value)
        + "."
    )
    yield ""
    yield (
        "Speed-up: tokens a second, prefill included, over autoregressive decoding of the same "
        "questions, measured side by side; 95% intervals by bootstrap over questions. SWI: the "
        "speed-up if every pass cost the parameters that it reads (an early exit's: the layers "
        "below it, its adapter and the head). Agreement: ROUGE-L with the target's greedy answer. "
        "The quality columns compare with references, by task. Other ids: answers that differ from "
        "the target's greedy ones; of a lossless method these are near-ties that low precision "
        "rounds the other way. Failed: answers that are missing from the row."
    )


def table_of(
    engine: Engine, rows: Sequence[Row], answers: Mapping[str, str], request: Request
) -> tuple[list[str], list[list[str]]]:
    """Headings and a row for each arm, in the order of the arms file. answers: the target's greedy
    ones, by question id."""
    seed = request.seed or 0
    greedy = request.sampling.greedy
    cells = summarise(rows, greedy=greedy, eos_ids=engine.eos_ids, seed=seed)["arms"]
    judged = {arm: quality_of(rows, arm) for arm in engine.arm_names}
    tasks = [
        task
        for task in dict.fromkeys([*FIRST, *ordered(row.task for row in rows)])
        if any(task in found for found in judged.values())
    ]
    headings = [
        "method", "lossless", "speed-up", "95% interval", "decode only", "accepted a round",
        "acceptance", "target calls a token", "SWI", "agreement",
        *[f"{task}, {MEASURE_NAMES.get(judge_of(task), judge_of(task))}" for task in tasks],
        "other ids", "failed",
    ]  # fmt: skip
    made = []
    for arm in engine.arm_names:
        failed = sum(row.answers[arm].error is not None for row in rows)
        lossless = "yes" if engine.arm(arm).lossless else "no"
        figures = cells[arm][OVERALL]
        if figures is None:
            blank = ["-"] * (len(headings) - 3)
            made.append([arm, lossless, *blank, f"{failed} of {len(rows)}"])
            continue
        other = "-"
        if figures["differs_from_ar"] is not None:
            other = f"{figures['differs_from_ar']} of {figures['compared']}"
        made.append(
            [
                arm,
                lossless,
                times(figures["speedup_vs_ar"]),
                interval(figures["ci95"]),
                times(figures["decode_speedup_vs_ar"]),
                f"{figures['mean_accepted']:.2f}",
                percent(figures["acceptance_rate"]),
                f"{figures['target_calls_per_token']:.3f}",
                times(swi_of(engine, rows, arm)),
                percent(agreement(rows, arm, answers)),
                *[percent(judged[arm].get(task)) for task in tasks],
                other,
                f"{failed} of {len(rows)}" if failed else "-",
            ]
        )
    return headings, made


def judge_of(task: str) -> str | None:
    """The measure that papers report of a task first."""
    return "rouge_2" if task == "summarization" else measure_of(task)


def quality_of(rows: Sequence[Row], arm: str) -> dict[str, float]:
    """By task, how good the arm's first answers are, where it has a measure and references."""
    found = {}
    for task in {row.task for row in rows}:
        measure = judge_of(task)
        asked = [row for row in rows if row.task == task and answered(row, arm)]
        judged = [(text_of(row, arm), row.reference) for row in asked if row.reference]
        if measure is not None and judged:
            texts, references = zip(*judged, strict=True)
            found[task] = score(measure, texts, references)
    return found


def agreement(rows: Sequence[Row], arm: str, answers: Mapping[str, str]) -> float | None:
    """The mean ROUGE-L F-measure of the arm's first answers with these, by question id."""
    pairs = [
        (text_of(row, arm), answers[row.question_id])
        for row in rows
        if row.question_id in answers and answered(row, arm)
    ]
    same = [1.0 if ours == theirs else rouge_l(theirs, ours) for ours, theirs in pairs]
    return sum(same) / len(same) if same else None


def first_answers(rows: Sequence[Row]) -> dict[str, str]:
    """The target's first-turn texts by question id, failed answers left out."""
    return {row.question_id: text_of(row, BASELINE) for row in rows if answered(row, BASELINE)}


def answered(row: Row, arm: str) -> bool:
    """Whether the arm and the target both did."""
    return row.answers[arm].error is None and row.answers[BASELINE].error is None


def text_of(row: Row, arm: str) -> str:
    return row.answers[arm].turns[0].result.text.strip()


def swi_of(engine: Engine, rows: Sequence[Row], arm: str) -> float | None:
    """Standardized walltime improvement (Chen et al., section 5.1): the speed-up over a pass of the
    target for each token, if passes took the time of their parameters. None where a row does not
    say what the drafter read."""
    results = [turn.result for row in rows for turn in row.answers[arm].turns]
    drafted = sum(result.draft_work for result in results)
    if math.isnan(drafted):
        return None
    target = engine.target.parameters
    spent = sum(result.target_calls for result in results) * target + drafted
    return sum(len(result.ids) for result in results) * target / spent if spent else 0.0


if __name__ == "__main__":
    main()
