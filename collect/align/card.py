"""A finished drafter's folder: its files, a `card.json` with their hashes, and the model card of
it."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from decoders.common.provenance import provenance
from decoders.common.secrets import masked_arguments
from decoders.zoo.catalogue import sha256_of

from .recipe import Recipe

_WHAT = {
    "drafter": "A small transformers model that drafts for {target}, over a reduced vocabulary "
    "where there is a `draft_vocab.json`. It is no use on its own: it predicts what its target "
    "writes.",
    "exit": "An adapter on the hidden states after the first layers of {target}, with which the "
    "target drafts for itself. It shares the target's lower layers, their cache and its head.",
    "recurrent": "A small recurrent cell that drafts for {target} from its final states, over a "
    "reduced vocabulary (`draft_vocab.json`). It shares the target's embedding and head, and is no "
    "use on its own.",
    "eagle3": "An EAGLE-3 head that drafts for {target} from the states after three of its layers, "
    "over a reduced vocabulary (`d2t`). It shares the target's embedding, and is no use on its "
    "own. vLLM loads it (`method: eagle3`).",
    "bigram": "The token that most often follows each token, and each pair, in what {target} "
    "writes, and how often: Max-Gram's answer where nothing matches.",
}


def render(name: str, card: dict[str, Any]) -> str:
    """Markdown: what it is, how well it predicts, what it was trained on, and how to make it."""
    seconds = card["seconds"]
    took = f"{seconds:.0f} seconds" if seconds < 120 else f"{seconds / 60:.0f} minutes"
    lines = [
        "---",
        f"license: {card['licence'].lower()}",
        "library_name: transformers",
        "---",
        f"# {name}",
        "",
        _WHAT[card["kind"]].format(target=card["target"]),
        "",
        "## How well it predicts",
        "",
        "Share of the target's own greedy tokens that are this drafter's most likely one, given "
        f"everything before them, on {card['held_out_queries']} held-out queries:",
        "",
        "| task | acceptance |",
        "| --- | --- |",
        *(f"| {task} | {share:.3f} |" for task, share in card["acceptance"].items()),
        "",
        *_figures(card.get("figures") or {}),
        "## What it was trained on",
        "",
        f"{card['answer_tokens']:,} tokens that the target wrote in answer to {card['queries']:,} "
        f"queries ({', '.join(card['tasks'])}).",
        *_positions(card.get("positions")),
        "",
        "## How it was made",
        "",
        f"    {card['command']}",
        "",
        f"{card['parameters']:,} trained parameters, {took} on "
        f"{_machine(card['provenance']['hardware'])}.",
    ]
    if card["start"]:
        lines += [f"It went on from `{card['start']}`."]
    if card["recipe"]:
        recipe = ", ".join(f"{key} {value}" for key, value in card["recipe"].items())
        lines += [f"Recipe: {recipe}."]
    if card.get("int8"):
        lines += ["Its matrices are kept in int8; the figures above are of bfloat16."]
    versions = card["provenance"]["versions"]
    lines += [f"torch {versions['torch']}, transformers {versions['transformers']}."]
    return "\n".join(lines) + "\n"


def _figures(figures: dict[str, dict[str, float]]) -> list[str]:
    """What is known of a recurrent drafter: more tokens in a row, and temperature 1."""
    names = list(dict.fromkeys(name for one in figures.values() for name in one))
    if not names:
        return []
    lines = [
        "Tokens in a row that are the target's most likely (`first`, `two`, `three`), and the "
        "share of the next that would be accepted at temperature 1 (`overlap`; `overlap_drawn` in "
        "answers drawn at a temperature):",
        "",
        "| task | " + " | ".join(names) + " |",
        "| --- |" + " --- |" * len(names),
    ]
    for task, one in figures.items():
        shares = (f"{one[name]:.3f}" if name in one else "" for name in names)
        lines.append(f"| {task} | " + " | ".join(shares) + " |")
    return [*lines, ""]


def _positions(positions: int | None) -> list[str]:
    if positions is None:
        return []
    return [
        f"Every position counted, those of prompts too: {positions:,} in all, repeats included."
    ]


def _machine(hardware: dict[str, Any]) -> str:
    gpus = hardware.get("gpus") or []
    return ", ".join(map(str, gpus)) or f"{hardware['cores']} cores of {hardware['cpu']}"


def finish(folder: Path, name: str, card: dict[str, Any], save: Callable[[Path], None]) -> None:
    """Write a drafter's folder: what `save` puts there, its hashes in `card.json`, a README.md. It
    is filled next to its place, and what is there is renamed away before it is deleted."""
    scratch = folder.with_name(f".{folder.name}")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    save(scratch)
    files = {p.name: sha256_of(p) for p in sorted(scratch.iterdir())}
    whole = {**card, "files": files}
    (scratch / "card.json").write_text(json.dumps(whole, indent=1), encoding="utf-8")
    (scratch / "README.md").write_text(render(name, whole), encoding="utf-8")
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.replace(folder, old)
    os.replace(scratch, folder)
    shutil.rmtree(old, ignore_errors=True)


def facts(
    program: str,
    started: float,
    start: Path | None,
    recipe: Recipe | None,
    texts: Iterable[str] = (),
) -> dict[str, Any]:
    """Entries of every drafter's card about its run.

    started: by `time.time`.
    texts: names of the queries that were trained on (`text_name`), as far as they are known.
    """
    went_on_from = None if start is None else start.name
    if start is not None and start.name == "model":  # of a run, which is called as its folder
        went_on_from = start.resolve().parent.name
    return {
        "trained_on": sorted(set(texts)),
        "licence": "Apache-2.0",
        "start": went_on_from,
        "recipe": asdict(recipe) if recipe else None,
        "seconds": round(time.time() - started),
        "command": command(program),
        "provenance": {k: v for k, v in provenance().items() if k != "argv"},
    }


def command(program: str) -> str:
    """How this process was called, each path cut to its name: a card travels, folders do not."""
    return " ".join(
        [program, *(Path(a).name if "/" in a else a for a in masked_arguments(sys.argv[1:]))]
    )
