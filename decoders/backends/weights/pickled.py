"""Weights in PyTorch's own files (`pytorch_model.bin` and its shards), for models that have no
safetensors.

Such a file is a pickle, which may hold any code. It is opened by torch's `weights_only` loading
alone, which makes tensors and refuses the rest; transformers then reads it in the same way.
"""

from __future__ import annotations

from pathlib import Path
from zipfile import is_zipfile

import torch

from ...common.errors import DraftpickError
from ...common.tensor_files import indexed
from ...common.wording import in_words

WHOLE = "pytorch_model.bin"
INDEX = f"{WHOLE}.index.json"
SAFE = ("model.safetensors", "model.safetensors.index.json")


def pickled(folder: Path) -> list[Path]:
    """The pickles that transformers loads a folder's weights from.

    Empty where it has safetensors, which come first, or no weights.
    """
    if any((folder / name).is_file() for name in SAFE):
        return []
    if (folder / WHOLE).is_file():
        return [folder / WHOLE]
    if not (folder / INDEX).is_file():
        return []
    return indexed(folder / INDEX)


def numbers_in(part: Path) -> int:
    """How many numbers a file's tensors have, tied ones counted once.

    Raises DraftpickError where it is not there, is cut short, or holds more than tensors.
    """
    try:
        tensors = torch.load(part, map_location="cpu", weights_only=True, mmap=is_zipfile(part))
    except Exception as error:  # torch raises many kinds
        raise DraftpickError(
            f"{part} cannot be read as tensors alone ({in_words(error)}), and other pickles "
            "are not opened, as they may run code; fetch it again, or save the model as "
            "safetensors, with transformers' save_pretrained"
        ) from error
    sizes = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() // tensor.itemsize
        for tensor in tensors.values()
        if isinstance(tensor, torch.Tensor)
    }
    return sum(sizes.values())
