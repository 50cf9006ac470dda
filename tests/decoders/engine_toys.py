"""Engines over tiny models, and answers that are written together."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from decoder_toys import Tiny, native, random_cell, save_cell
from torch import Tensor

from decoders import Engine
from decoders.arms import recipe
from decoders.backends.exit_adapter import Adapter
from decoders.backends.llama.exit_head import AdapterConfig
from decoders.backends.native import LlamaBackend
from decoders.continuous_batching import ContinuousBatch
from decoders.costs.pass_costs import PassCosts
from decoders.costs.passes import assume
from decoders.records import DecodeResult, Prefilled, Request
from decoders.sampling.draft_vocab import DraftVocab
from decoders.testing.tokenizers import word_tokenizer

PROMPT = [7, 11, 7, 11, 7]
PROMPTS = [PROMPT, [3, 1, 4, 1, 5, 9, 2], [2, 2, 2], [14, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3], [1]]
WORDS = [f"w{i}" for i in range(15)]


def tokenizer(words: list[str]) -> Any:
    return word_tokenizer([*words, "<end>"], "<end>", eos_token="<end>", pad_token="<end>")


def arms(bodies: dict[str, dict[str, Any]] | None = None, **more: dict[str, Any]) -> Any:
    """Recipes by name, plain decoding's first."""
    every = {"autoregressive": {"kind": "autoregressive"}, **(bodies or {}), **more}
    return {name: recipe(name=name, **body) for name, body in every.items()}


def with_tokenizer(model: Path, place: Path, words: list[str] | None) -> Path:
    """A copy of a model folder, with a tokenizer of its own."""
    shutil.copytree(model, place, dirs_exist_ok=True)
    if words is not None:
        tokenizer(words).save_pretrained(place)
    return place


def adapter_folder(tiny: Tiny, place: Path, layer: int = 1) -> Path:
    target = native(tiny())
    Adapter.begin(target, AdapterConfig(layer)).save(place)
    return place


def reading(engine: Engine, prompt: list[int], monkeypatch: pytest.MonkeyPatch) -> int:
    """How many tokens the target runs to read a prompt that may share its beginning."""
    read, real = [], engine.target._hidden  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setattr(engine.target, "_hidden", lambda ids: read.append(len(ids)) or real(ids))
        engine.prefill(prompt, reuse=True)
    return sum(read)


def places_in(folder: Path, tiny: Tiny) -> dict[str, Path]:
    """Saves what drafts for a target that `tiny` makes."""
    places = {name: folder / name for name in ("exit", "cell")}
    for place in places.values():
        place.mkdir()
    adapter_folder(tiny, places["exit"])
    save_cell(places["cell"], random_cell(32, 1), DraftVocab([*range(1, 15)], 16))
    return places | {"small": tiny(seed=5, num_hidden_layers=2)}


def engine_over(target: LlamaBackend, places: dict[str, Path]) -> Engine:
    """Arms of every way to use the target: chains, trees, exits, states, cascades."""
    small = {"kind": "neural", "drafter": str(places["small"])}
    cell = {"kind": "recurrent", "drafter": str(places["cell"])}
    made = arms(
        small={"length": {"k": 3}, **small},
        cell={"length": {"k": 4}, **cell},
        branches={"length": {"k": 3}, "branch": [2, 2], **cell},
        exit={"kind": "early_exit", "drafter": str(places["exit"]), "length": {"k": 3}},
        copy={"kind": "max_gram", "length": {"k": 5}, "shortest": 1},
        both={"kind": "hybrid", "model": cell},
        tree={**small, "kind": "tree", "branch": [3, 2]},
        calm={"kind": "calm", "threshold": 0.4},
        cascade={"kind": "token_cascade", "drafter": small, "alpha": 0.4},
    )
    assume(target, PassCosts((1.0, 1.1, 1.2, 1.3, 1.6, 2.0)))
    return Engine(target, made, name="tiny", tokenizer=tokenizer(WORDS))


def lossless(engine: Engine) -> list[str]:
    return [name for name in engine.arm_names if engine.arm(name).lossless]


class Gone(Exception):
    """Whoever asked has left."""


class Asked:
    """A question, what is written of its answer, and that once it has come.

    leaves: raise Gone after so many tokens.
    """

    def __init__(self, arm: str, prompt: list[int], request: Request, leaves: int = 999) -> None:
        self.arm, self.prompt, self.request, self.leaves = arm, prompt, request, leaves
        self.written: list[int] = []
        self.result: DecodeResult | None = None

    def answer(self, engine: Engine) -> None:
        prefilled = engine.prefill(self.prompt)
        self.result = engine.decode(self.arm, self.prompt, self.request, prefilled, self)

    def put(self, value: Tensor) -> None: ...

    def put_round(self, ids: list[int], accepted: int, drafted: int) -> None:
        self.written += ids
        if len(self.written) >= self.leaves:
            raise Gone

    def end(self) -> None: ...

    def alone(self, engine: Engine) -> list[int]:
        return engine.decode(self.arm, self.prompt, self.request).ids


def together(batch: ContinuousBatch, asked: Sequence[Asked] = ()) -> None:
    """Until these are answered, and all that was begun."""
    waiting = list(asked)
    while waiting or batch.running:
        while waiting and (slot := batch.free()) is not None:
            batch.begin(slot, waiting.pop(0).answer)
        batch.step()


class Leaving(Asked):
    """As Asked, with reuse. reads: leave when so much of the prompt was read."""

    def __init__(self, *given: Any, user: str | None, reads: int = 999, **named: Any) -> None:
        super().__init__(*given, **named)
        self.user, self.reads = user, reads
        self.prefilled: Prefilled | None = None

    def put_read(self, read: int, total: int) -> None:
        if read >= self.reads:
            raise Gone

    def answer(self, engine: Engine) -> None:
        try:
            self.prefilled = engine.prefill(self.prompt, True, self.user, self.put_read)
            self.result = engine.decode(self.arm, self.prompt, self.request, self.prefilled, self)
        except Gone:
            pass
