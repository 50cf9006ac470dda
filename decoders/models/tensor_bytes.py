"""How much memory the tensors take that an object holds."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor

from ..backends.llama.kv import KVCache
from ..protocols import RequestScope

Storages = dict[tuple[str, int], int]  # device and address -> bytes

# What these refer to is not their own: a method's object, a function's surroundings, what all who
# draft for a target know from before.
_ELSEWHERE = (
    type, ModuleType, FrameType, CodeType, BuiltinFunctionType, FunctionType, MethodType,
    RequestScope,
)  # fmt: skip


def storages(thing: Any, beside: Iterable[Any] = (), apart: Iterable[Any] = ()) -> Storages:
    """The storages of all tensors that `thing` holds, itself or by its parts, and that none of
    `beside` does; the objects `apart` are no parts of it.

    Views of one storage count once. A cache of keys and values counts where it takes memory when it
    is made, which on a CPU it does not.
    """
    seen = {id(each) for each in apart}
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
        elif not (isinstance(thing, KVCache) and thing.all.device.type == "cpu"):
            todo += [each for each in gc.get_referents(thing) if _may_hold(each)]
    return found


def _storage(tensor: Tensor) -> tuple[tuple[str, int], int]:
    if tensor.is_mkldnn:  # opaque: its storage cannot be asked
        return (str(tensor.device), id(tensor)), tensor.numel() * tensor.element_size()
    storage = tensor.untyped_storage()
    return (str(tensor.device), storage.data_ptr()), storage.nbytes()


def _may_hold(thing: Any) -> bool:
    return isinstance(thing, Tensor) or gc.is_tracked(thing)
