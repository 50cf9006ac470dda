"""The training loop: AdamW and Muon, warm-up and cosine, and checkpoints to resume from."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from decoders.common.errors import DraftpickError
from decoders.sampling.draft_vocab import DraftVocab

from . import checkpoint
from .calibration import Batch, Example, batches
from .learners import Learner, agreement
from .schedule import CHECKPOINT, schedule

SAVE_EVERY_S = 120.0


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a training run, written beside its result.

    minutes: train for this time, with the schedule to match; None trains `epochs`.
    lr: for embeddings and vectors (AdamW).
    matrix_lr: for matrices (Muon).
    """

    epochs: int = 4
    minutes: float | None = None
    batch_tokens: int = 4096
    lr: float = 3e-3
    matrix_lr: float = 2e-2
    weight_decay: float = 0.05
    warmup: float = 0.03
    seed: int = 0


def optimizers(module: nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside layers, AdamW for the rest (embeddings, head, norms)."""
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, parameter in module.named_parameters():
        outer = any(part in name for part in ("embed", "shared", "head", "bias"))
        inner = parameter.ndim == 2 and not outer
        (matrices if inner else rest).append(parameter)
    made: list[torch.optim.Optimizer] = []
    if matrices:
        made.append(
            torch.optim.Muon(matrices, lr=recipe.matrix_lr, weight_decay=recipe.weight_decay)
        )
    made.append(
        torch.optim.AdamW(rest, lr=recipe.lr, betas=(0.9, 0.95), weight_decay=recipe.weight_decay)
    )
    return made


def train(
    learner: Learner,
    vocab: DraftVocab,
    examples: Sequence[Example],
    recipe: Recipe,
    folder: Path,
    device: torch.device,
    report: Callable[[dict[str, float]], None],
) -> dict[str, float]:
    """Train until the recipe is done; held-out agreement per task.

    report: called each 20 steps with step, progress (0 to 1), loss and tokens_per_s. Every two
    minutes the state is written to `folder/training.pt`, from which the same call resumes.
    """
    kept = [e for e in examples if not e.held_out]
    held_out = [e for e in examples if e.held_out]
    rules = optimizers(learner.module, recipe)
    peaks = [rule.param_groups[0]["lr"] for rule in rules]
    steps_per_epoch = len(batches(kept, recipe.batch_tokens, random.Random(recipe.seed)))
    total = steps_per_epoch * recipe.epochs
    step, spent = _resume(folder, recipe, learner.module, rules)
    smooth, seen, mark = 0.0, 0, time.monotonic()
    saved = mark
    while True:
        epoch = step // steps_per_epoch
        order = batches(kept, recipe.batch_tokens, random.Random(recipe.seed + epoch))
        for batch in order[step % steps_per_epoch :]:
            progress = step / total
            if recipe.minutes is not None:
                progress = (spent + time.monotonic() - saved) / (60 * recipe.minutes)
            if progress >= 1:
                _save(folder, recipe, learner.module, rules, step, spent + time.monotonic() - saved)
                return evaluate(learner, vocab, held_out, device)
            rate = schedule(progress, recipe.warmup)
            for rule, peak in zip(rules, peaks, strict=True):
                rule.param_groups[0]["lr"] = peak * rate
            value = _step(learner, batch, rules, device)
            smooth = value if smooth == 0 else 0.98 * smooth + 0.02 * value
            seen += batch.ids.size
            step += 1
            if step % 20 == 0:
                now = time.monotonic()
                report(
                    {
                        "step": step,
                        "progress": progress,
                        "loss": smooth,
                        "tokens_per_s": seen / (now - mark),
                    }
                )
                seen, mark = 0, now
            if time.monotonic() - saved > SAVE_EVERY_S:
                spent += time.monotonic() - saved
                saved = time.monotonic()
                _save(folder, recipe, learner.module, rules, step, spent)


def _step(
    learner: Learner,
    batch: Batch,
    rules: list[torch.optim.Optimizer],
    device: torch.device,
) -> float:
    with torch.autocast(device.type, dtype=torch.bfloat16):
        value = learner.loss(*tensors(batch, device))
    value.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(learner.module.parameters(), 1.0)
    for rule in rules:
        rule.step()
        rule.zero_grad(set_to_none=True)
    return value.item()


def tensors(batch: Batch, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Its ids and labels, [B, T] each."""
    return torch.from_numpy(batch.ids).to(device), torch.from_numpy(batch.labels).to(device)


def evaluate(
    learner: Learner, vocab: DraftVocab, examples: Sequence[Example], device: torch.device
) -> dict[str, float]:
    """Share of answer tokens whose draft argmax is the target's token, per task and `overall`.

    An answer's first token is left out: the target's own prefill gives it.
    """
    right: dict[str, int] = {}
    total: dict[str, int] = {}
    for batch in batches(examples, 8192, random.Random(0)):
        ids, labels = tensors(batch, device)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            hits = agreement(learner, vocab, ids, labels).cpu().numpy()
        for task, hit, label in zip(batch.tasks, hits, batch.labels, strict=True):
            answer = np.flatnonzero(label >= 0)[1:]
            right[task] = right.get(task, 0) + int(hit[answer].sum())
            total[task] = total.get(task, 0) + len(answer)
    shares = {task: right[task] / max(1, total[task]) for task in sorted(right)}
    shares["overall"] = sum(right.values()) / max(1, sum(total.values()))
    return shares


def _save(
    folder: Path,
    recipe: Recipe,
    module: nn.Module,
    rules: list[torch.optim.Optimizer],
    step: int,
    spent: float,
) -> None:
    state = {
        "recipe": json.dumps(asdict(recipe)),
        "module": module.state_dict(),
        "rules": [rule.state_dict() for rule in rules],
        "step": step,
        "spent": spent,
    }
    checkpoint.keep(folder / CHECKPOINT, state)


def _resume(
    folder: Path, recipe: Recipe, module: nn.Module, rules: list[torch.optim.Optimizer]
) -> tuple[int, float]:
    path = folder / CHECKPOINT
    state = checkpoint.kept(path, next(module.parameters()).device)
    if state is None:
        return 0, 0.0
    if state["recipe"] != json.dumps(asdict(recipe)):
        raise DraftpickError(
            f"{folder} holds a run with another recipe ({state['recipe']}); name another --out, or "
            f"delete {path} to start over"
        )
    module.load_state_dict(state["module"])
    for rule, saved in zip(rules, state["rules"], strict=True):
        rule.load_state_dict(saved)
    return int(state["step"]), float(state["spent"])
