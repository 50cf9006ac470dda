"""The tensors of an EAGLE-3 head's files, by the names that `speculators` gives them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from ...common.errors import Damaged, DraftpickError
from ...common.tensor_files import header_of, require
from ...sampling.draft_vocab import DraftVocab
from ..llama.loading import parts
from ..weights.pickled import numbers_in, pickled
from .config import Eagle3Config

EMBEDDING, TO_TARGET = "embed_tokens.weight", "d2t"


def stored(folder: Path, config: Eagle3Config) -> dict[str, Tensor]:
    """Name -> tensor as the files have it. Raises Damaged where one is missing or has another shape
    than the config asks for, DraftpickError where there are no weights."""
    found = {_name(name): tensor for name, tensor in _tensors(folder)}
    if not found:
        raise DraftpickError(f"{folder} holds no weights; name an EAGLE-3 head's folder")
    shapes = {name: tuple(tensor.shape) for name, tensor in found.items()}
    wanted = config.needed()
    if EMBEDDING in found:
        wanted[EMBEDDING] = (config.shape.vocab, config.shape.hidden)
    if config.draft_vocab != config.shape.vocab:
        wanted[TO_TARGET] = (config.draft_vocab,)
    require(folder, shapes, wanted)
    return {name: found[name] for name in wanted}


class HeadVocab(DraftVocab):
    """The tokens that a head scores, which reads any of the target's: ids go in as they are."""

    def __init__(self, to_target: list[int], target_vocab: int) -> None:
        super().__init__(to_target, target_vocab)
        self.from_target = torch.arange(target_vocab)

    @classmethod
    def of(cls, tensors: dict[str, Tensor], config: Eagle3Config) -> HeadVocab | None:
        """None where it scores every token. Raises Damaged where an id is not the target's."""
        if TO_TARGET not in tensors:
            return None
        ids = (torch.arange(config.draft_vocab) + tensors[TO_TARGET].cpu().long()).tolist()
        if len(set(ids)) < len(ids) or not all(0 <= i < config.shape.vocab for i in ids):
            raise Damaged(f"{TO_TARGET} names tokens twice, or tokens that the target has not")
        return cls(ids, config.shape.vocab)


def _name(name: str) -> str:
    """The authors' own checkpoints call the first layer `midlayer`."""
    return name.removeprefix("model.").replace("midlayer.", "layers.0.")


def _tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    for part in pickled(folder):
        numbers_in(part)  # tensors alone, or it is refused
        yield from torch.load(part, map_location="cpu", weights_only=True).items()
    for part in parts(folder):
        names = header_of(part)  # whole, or it is refused
        with safe_open(part, framework="pt") as file:
            for name in names:
                yield name, file.get_tensor(name)
