"""How much memory the tensors take that an object holds."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from torch import Tensor

from .backends.kv import KVCache

Storages = dict[tuple[str, int], int]  # device and address -> bytes

_ELSEWHERE = (type, ModuleType, FrameType, CodeType, BuiltinFunctionType)  # never an object's own


def storages(thing: Any, beside: Iterable[Any] = ()) -> Storages:
    """The storages of all tensors that can be reached from `thing` and not from `beside`.

    Views of one storage count once. A cache of keys and values counts where it takes memory when it
    is made, which on a CPU it does not.
    """
    seen = set[int]()
    others = {key for each in beside for key in _walk(each, seen)}
    return {key: size for key, size in _walk(thing, seen).items() if key not in others}


def _walk(root: Any, seen: set[int]) -> Storages:
    found, todo = Storages(), [root]
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, _ELSEWHERE):
            continue
        seen.add(id(thing))
        if isinstance(thing, Tensor):
            key, size = _storage(thing)
            found[key] = size
        elif isinstance(thing, FunctionType):
            todo += [cell.cell_contents for cell in thing.__closure__ or () if _filled(cell)]
        elif not (isinstance(thing, KVCache) and thing.all.device.type == "cpu"):
            todo += [each for each in gc.get_referents(thing) if _may_hold(each)]
    return found


def _storage(tensor: Tensor) -> tuple[tuple[str, int], int]:
    if tensor.is_mkldnn:  # opaque: its storage cannot be asked
        return (str(tensor.device), id(tensor)), tensor.numel() * tensor.element_size()
    held = tensor.untyped_storage()
    return (str(tensor.device), held.data_ptr()), held.nbytes()


def _may_hold(thing: Any) -> bool:
    return isinstance(thing, Tensor) or gc.is_tracked(thing)


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # a name that was never bound
        return False
