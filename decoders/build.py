"""From a recipe to moving parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from . import targets
from .arms import ArmRecipe, LengthRecipe
from .backends.base import Backend
from .backends.early_exit import ADAPTER, Adapter
from .backends.llama import LlamaBackend
from .draft_vocab import DraftVocab
from .drafters import Drafter, EarlyExitDrafter, MaxGramDrafter, NeuralDrafter, NullDrafter
from .drafters.max_gram import TABLE, load_table
from .errors import DraftpickError
from .lengths import AdaptiveLength, DraftLength, FixedLength
from .loop import Method
from .verify import VERIFIERS
from .zoo.catalogue import shipped_folders, verify_files


def build_method(recipe: ArmRecipe, target: Backend, tokenizer: Any) -> Method:
    """Load what the recipe names. Raises DraftpickError where it does not fit the target."""
    return Method(
        recipe.name,
        _drafter(recipe, target, tokenizer),
        VERIFIERS[recipe.verifier](),
        _length(recipe),
    )


def opens_exit(recipe: ArmRecipe, target: Backend) -> None:
    """Tell the target that an early-exit arm will want its hidden states. A target that cannot have
    one is left alone: the arm says so when it is asked for, the others work."""
    if recipe.kind == "early_exit" and isinstance(target, LlamaBackend):
        config = json.loads((_folder(recipe) / "config.json").read_text())
        if config["exit_layer"] < target.shape.layers:
            target.open_exit(config["exit_layer"])


def _length(recipe: ArmRecipe) -> DraftLength:
    if recipe.kind == "autoregressive":
        return FixedLength(0)
    length: LengthRecipe = recipe.length
    if length.kind == "adaptive":
        return AdaptiveLength(length.k, length.min_confidence)
    return FixedLength(length.k, length.min_confidence)


def _drafter(recipe: ArmRecipe, target: Backend, tokenizer: Any) -> Drafter:
    if recipe.kind == "autoregressive":
        return NullDrafter(target.device)
    if recipe.kind == "max_gram":
        table = None
        if recipe.drafter is not None:
            table = load_table(_folder(recipe), target.vocab_size)
        return MaxGramDrafter(
            target.device, table, recipe.shortest, recipe.longest, recipe.earliest
        )
    folder = _folder(recipe)
    vocab = _draft_vocab(recipe, folder, target)
    if recipe.kind == "early_exit":
        native = _native(recipe, target)
        try:
            return EarlyExitDrafter(native, Adapter.load(folder, native), vocab)
        except ValueError as error:
            raise DraftpickError(f"arm {recipe.name!r}: {error}") from error
    backend = targets.load_backend(folder, target.device, target.dtype)
    if vocab is None:
        _same_tokenizer(recipe, folder, backend, target, tokenizer)
        if backend.vocab_size != target.vocab_size:  # one tokenizer, heads padded differently
            common = list(range(min(backend.vocab_size, target.vocab_size)))
            vocab = DraftVocab(common, target.vocab_size).to(target.device)
            vocab.from_target.clamp_(max=backend.vocab_size - 1)  # no row of its own for "other"
    return NeuralDrafter(backend, vocab)


def _folder(recipe: ArmRecipe) -> Path:
    assert recipe.drafter is not None
    shipped = shipped_folders()
    if recipe.drafter in shipped:
        verify_files(shipped[recipe.drafter])
        return shipped[recipe.drafter]
    local = Path(recipe.drafter).expanduser()
    needed = {"max_gram": TABLE, "early_exit": ADAPTER, "neural": "config.json"}[recipe.kind]
    if local.is_dir():
        if not (local / needed).is_file():
            raise DraftpickError(
                f"arm {recipe.name!r}: {local} holds no {needed}; a {recipe.kind} arm wants the "
                "model/ folder that `draftpick align` wrote for that kind"
            )
        if (local / "card.json").is_file():
            verify_files(local)
        return local
    try:
        return targets.resolve(recipe.drafter)
    except DraftpickError as error:
        raise DraftpickError(f"arm {recipe.name!r}: {error}") from error


def _draft_vocab(recipe: ArmRecipe, folder: Path, target: Backend) -> DraftVocab | None:
    vocab = DraftVocab.load(folder)
    if vocab is None:
        return None
    if vocab.target_vocab != target.vocab_size:
        raise DraftpickError(
            f"arm {recipe.name!r}: its drafter was made for a target vocabulary of "
            f"{vocab.target_vocab}, this target has {target.vocab_size}; align one with "
            "`draftpick align --target ...`"
        )
    return vocab.to(target.device)


def _same_tokenizer(
    recipe: ArmRecipe, folder: Path, drafter: Backend, target: Backend, tokenizer: Any
) -> None:
    """A whole-vocabulary drafter must mean the same by every id."""
    if (folder / "tokenizer.json").is_file() and tokenizer is not None:
        same = targets.load_tokenizer(folder).get_vocab() == tokenizer.get_vocab()
    else:
        same = drafter.vocab_size == target.vocab_size
    if not same:
        raise DraftpickError(
            f"arm {recipe.name!r}: {folder.name} has another tokenizer than the target; draft "
            "tokens would mean other words. Use a drafter of the target's family, or align one "
            "with `draftpick align`"
        )


def _native(recipe: ArmRecipe, target: Backend) -> LlamaBackend:
    if not isinstance(target, LlamaBackend):
        raise DraftpickError(
            f"arm {recipe.name!r}: an early exit needs the native backend, which this target does "
            "not fit or --backend hf has switched off; choose another arm"
        )
    return target
