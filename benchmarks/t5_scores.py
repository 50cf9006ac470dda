"""What a trained T5 family is worth: held-out BLEU and ROUGE, and how far drafts are accepted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from collect import rouge
from decoders import Engine, Request
from decoders.common.provenance import provenance
from decoders.zoo.catalogue import sha256_of
from router.specbench.quality import bleu


def can_score() -> bool:
    """Whether rouge-score is installed."""
    return find_spec("rouge_score") is not None


def quality(task: str, made: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """BLEU of translations (sacrebleu's default, 0 to 100); ROUGE-2 and ROUGE-L F of summaries
    (0 to 1), by stemmed English words, as papers on summaries report them; rewards and benchmarks
    do not stem."""
    if task == "en-de":
        return {"bleu": round(100 * bleu(made, references), 2)}
    kinds = ("rouge2", "rougeL")
    pairs = zip(references, made, strict=True)
    found = [rouge.scores(kinds, *pair, rouge.ASCII_STEMMED) for pair in pairs]
    return {kind: round(sum(f[kind] for f in found) / len(found), 4) for kind in kinds}


def write_arms(out: Path, tasks: Sequence[str]) -> Path:
    """An arms file for the family: no drafting, each task's drafter, copying."""
    length = {"kind": "fixed", "k": 4}
    arms: dict[str, Any] = {"autoregressive": {"kind": "autoregressive"}}
    for task in tasks:
        drafter = str((out / task).resolve())
        arms[f"draft-{task}"] = {"kind": "neural", "drafter": drafter, "length": length}
    arms["max-gram"] = {"kind": "max_gram", "length": length}
    path = out / "arms.yaml"
    path.write_text(yaml.safe_dump({"arms": arms}, sort_keys=False), encoding="utf-8")
    return path


def acceptance(
    out: Path, tasks: Sequence[str], sources: dict[str, list[list[int]]], most: int = 64
) -> dict[str, dict[str, dict[str, float]]]:
    """task -> arm -> figures of greedy answers to `sources` [n][S] in float32.

    equal: share of answers whose ids are the autoregressive arm's; one prefill serves all arms.
    """
    engine = Engine.load(str(out / "target"), write_arms(out, tasks), dtype="float32", device="cpu")
    request = Request(most)
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for task, inputs in sources.items():
        results: dict[str, list[Any]] = {name: [] for name in engine.arm_names}
        for ids in inputs:
            prefilled = engine.prefill(ids)
            for name, made in results.items():
                made.append(engine.decode(name, ids, request, prefilled))
        plain = results["autoregressive"]
        figures[task] = {}
        for name, made in results.items():
            rounds, drafted = sum(r.rounds for r in made), sum(r.drafted for r in made)
            tokens = sum(len(r.ids) for r in made)
            figures[task][name] = {
                "acceptance": round(sum(r.accepted for r in made) / max(1, drafted), 4),
                "tokens_a_round": round((tokens - len(made)) / max(1, rounds), 3),
                "tokens_per_s": round(tokens / sum(r.wall_s for r in made), 1),
                "equal": sum(r.ids == p.ids for r, p in zip(made, plain, strict=True)) / len(made),
            }
    return figures


def write_card(folder: Path, facts: dict[str, Any]) -> None:
    """`card.json` with the hash of every file, and a page that says the same in words."""
    made_by = provenance()
    command = "python " + " ".join(made_by["argv"])
    files = sorted(p for p in folder.iterdir() if p.name not in ("card.json", "README.md"))
    card = {
        **facts,
        "command": command,
        "provenance": made_by,
        "files": {path.name: sha256_of(path) for path in files},
    }
    (folder / "card.json").write_text(json.dumps(card, indent=1), encoding="utf-8")
    trained = facts["training"]
    lines = [
        f"# {folder.name}",
        "",
        f"{facts['what']} A test bed for decoding, not a model to use: it is small, and it was "
        f"trained from nothing for {trained['minutes']:.3g} minutes ({trained['steps']:,} steps).",
        "",
        f"{facts['parameters']:,} parameters. Held out: "
        + "; ".join(f"{task} {scores}" for task, scores in facts["quality"].items())
        + ".",
        "",
        "Trained on "
        + ", ".join(f"{count:,} pairs of {source}" for source, count in facts["data"].items())
        + ". Their owners' terms hold for the weights too.",
        "",
        f"    {command}",
        "",
        f"Seed {facts['seed']}, finished {made_by['time']}.",
    ]
    (folder / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
