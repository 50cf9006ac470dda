"""Rounded matrices, kept on disk by the content that they were rounded from.

To round a model takes longer than all else in loading it. A matrix is looked up by the SHA-256 of
what it would be rounded from, so that a changed model never gets the old one's; what was kept is
compared with its own SHA-256 whenever it is read.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from . import blocked, int4, int8
from .packed import Rounded, Rounding, kind_of, rounded


class RoundedStore:
    """One model's, on a CPU.

    folder, name: where the file lies, and how its name begins; the name goes on with what else the
        values depend on (PyTorch, the processor's instructions, the code that rounds).
    say: called with one line if the file is damaged or cannot be written.
    in_blocks: as `blocked` in packed.kind_of.
    """

    def __init__(
        self, folder: Path, name: str, say: Callable[[str], None], in_blocks: bool = False
    ) -> None:
        name = f"{name}-blocks" if in_blocks else name
        self.path = folder / f"{name}-{_key(in_blocks)}.safetensors"
        self._say, self._blocked, self._changed = say, in_blocks, False
        self._tensors: dict[str, Tensor] = {}  # all that this loading has used
        self._digests: dict[str, str] = {}  # of the two tensors of each matrix
        self._kept: dict[str, str] = {}  # likewise, of the file's
        if self.path.exists():
            try:
                with safe_open(self.path, framework="pt") as file:
                    self._kept = file.metadata() or {}
            except (SafetensorError, OSError):
                self._discard()

    def rounded(self, rounding: Rounding, dense: Tensor) -> Rounded:
        """Round weights, or recall them where they are kept."""
        kind = kind_of(rounding, dense.shape, self._blocked)
        name = f"{kind.__name__}-{_digest(dense)}-{'x'.join(map(str, dense.shape))}"
        parts = self._recalled(name) if name in self._kept else None
        if parts is None:
            made = rounded(rounding, dense, self._blocked)
            parts, self._changed = made.stored, True
        self._digests[name] = _digest(*parts)
        self._tensors |= {f"{name}.{at}": part for at, part in enumerate(parts)}
        return kind(*parts)

    def save(self) -> None:
        """Write what was used, if any of it was not kept yet."""
        if not self._changed:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.path.parent) as aside:
                whole = os.path.join(aside, self.path.name)
                save_file(self._tensors, whole, metadata=self._digests)
                os.chmod(whole, 0o644)  # as other files of the cache
                os.replace(whole, self.path)
        except (SafetensorError, OSError) as error:
            self._say(f"the rounded weights could not be kept for the next start: {error}")

    def _recalled(self, name: str) -> tuple[Tensor, Tensor] | None:
        """None where the file is damaged. Copies: what is mapped lies at any address, and kernels
        want theirs aligned."""
        try:
            with safe_open(self.path, framework="pt") as file:
                values, grid = (file.get_tensor(f"{name}.{at}").clone() for at in (0, 1))
            if _digest(values, grid) == self._kept[name]:
                return values, grid
        except (SafetensorError, OSError):
            pass
        self._discard()
        return None

    def _discard(self) -> None:
        self._kept = {}
        self._say(f"{self.path} is damaged; rounding the weights again")


def _digest(*tensors: Tensor) -> str:
    """SHA-256 of their bytes."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _key(in_blocks: bool) -> str:
    rounding = (int4, int8, blocked) if in_blocks else (int4, int8)
    code = [inspect.getsource(module) for module in rounding]
    where = (torch.__version__, torch.backends.cpu.get_cpu_capability())
    return hashlib.sha256(repr((code, where)).encode()).hexdigest()[:16]
