"""What an alignment run trains on what, and what can be wrong with it before a model is loaded."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from collect.queries import read_queries
from decoders.backends.recurrent.cell import CELL
from decoders.common.errors import DraftpickError, NoSuchName
from decoders.common.files import check_folder
from decoders.common.text import from_json
from decoders.models import targets
from decoders.models.loaders import is_encoder_decoder

from .calibration import paired
from .resuming import require_same_target

KINDS = ("drafter", "exit", "recurrent", "eagle3", "bigram")
ON_STATES = ("recurrent", "eagle3")  # they draft from the target's states


@dataclass(frozen=True)
class AlignConfig:
    """What to train on what.

    start: a drafter folder to go on from, or a JSON file with the sizes of a Llama-shaped model (of
        a T5-shaped one for a target that is); None is `SMALL` or `SMALL_T5`.
    vocab_size: of the draft vocabulary; a drafter of an encoder-decoder has the whole one.
    tasks: only these; None is all.
    blocks: of an exit or of a recurrent drafter, whose gated blocks are `width` wide.
    """

    kind: str
    out: Path
    queries: tuple[Path, ...]
    outputs: tuple[Path, ...]
    target: str
    device: str
    start: Path | None = None
    tasks: tuple[str, ...] | None = None
    vocab_size: int = 8192
    max_prompt: int = 320
    max_answer: int = 256
    exit_layer: int = 4
    blocks: int = 1
    width: int = 1152
    chat_template: str | None = None


def check(config: AlignConfig) -> None:
    """Raises DraftpickError for what is wrong. Loads no model, and reads the files that are given
    before the target's are fetched. OUT keeps which target it is of."""
    if config.kind not in KINDS:
        raise DraftpickError(f"unknown kind {config.kind!r}; use {', '.join(KINDS)}")
    check_folder(config.out, "--out")
    targets.device_of(config.device)
    targets.check_template(config.chat_template)
    if config.kind == "eagle3" and config.start is not None:
        raise DraftpickError("--kind eagle3 begins a new head; leave --start out")
    if config.start is not None:
        _check_start(config.start, config.kind)
    queries = read_queries(list(config.queries))
    known = {query.task for query in queries}
    for task in config.tasks or ():
        if task not in known:
            raise NoSuchName("task", task, [*known])
    if config.outputs and not list(paired(config.outputs, queries)):
        raise DraftpickError(
            f"--outputs: no answer is in {', '.join(map(str, config.outputs))}; name other files"
        )
    folder = targets.resolve(config.target)
    if config.kind in ON_STATES and is_encoder_decoder(folder):
        raise DraftpickError(
            f"--kind {config.kind} needs a decoder-only target, and {folder.name} is an "
            "encoder-decoder; use --kind drafter, exit or bigram"
        )
    layers = targets.layers_of(folder)
    if config.kind == "exit" and layers is not None and not 0 < config.exit_layer < layers:
        raise DraftpickError(
            f"--exit-layer must be 1 to {layers - 1} for this target, not {config.exit_layer}"
        )
    tokenizer = targets.load_tokenizer(folder, config.chat_template)
    require_same_target(config.out, folder, tokenizer)


def _check_start(start: Path, kind: str) -> None:
    """Raises DraftpickError where this is neither a drafter's folder nor a file of sizes."""
    if os.path.isdir(start):
        if kind == "drafter" and not (start / "config.json").is_file():
            raise DraftpickError(f"--start {start} holds no config.json; name a drafter's folder")
        if kind == "recurrent" and not (start / CELL).is_file():
            raise DraftpickError(f"{start} holds no recurrent drafter to go on from")
        return
    if not os.path.isfile(start):
        raise DraftpickError(f"no such drafter folder or sizes file: {start}")
    try:
        sizes = from_json(start.read_bytes())
    except ValueError:
        sizes = None
    if not isinstance(sizes, dict) or not {"hidden_size", "d_model"} & sizes.keys():
        raise DraftpickError(
            f"--start {start} holds no sizes of a model: a JSON object with hidden_size (d_model "
            "of a T5), num_hidden_layers and so on"
        )
