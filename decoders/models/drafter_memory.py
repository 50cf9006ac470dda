"""Which arms' models stay loaded: each loads when first used, and where all together take more than
they may, those that were used least recently are given back."""

from __future__ import annotations

import ctypes
import gc
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, Protocol
from weakref import WeakSet

import torch
from safetensors import SafetensorError
from torch import Tensor

from ..backends.llama.kv import KVCache
from ..common.breaker import Breaker
from ..common.errors import ArmDown, DraftpickError
from ..protocols import Backend, RequestScope, Strategy
from .memory import OutOfMemory, explained

FIRST_S, LONGEST_S = 1.0, 300.0  # after which a failed load is tried again, at first and at most

_FAILS = (DraftpickError, OSError, SafetensorError)  # of a model's files or for want of memory


class LoadFailed(ArmDown):
    """An arm whose models could not be loaded; the message is that of what failed.

    load_s: seconds that the attempt took.
    """

    def __init__(self, arm: str, reason: str, pause_s: float, load_s: float = 0.0) -> None:
        super().__init__(arm, reason, pause_s)
        self.args = (reason,)
        self.load_s = load_s


class NoRoom(LoadFailed):
    """One that fits, but not next to the arms at work."""


class Holder(Protocol):
    """An engine: it keeps the moving parts of its arms."""

    target: Backend

    def made(self, arm: str) -> Strategy | None:
        """An arm's moving parts, None where they are not loaded."""
        ...

    def forget(self, arm: str) -> None:
        """Let them go."""
        ...


class DrafterMemory:
    """What the arms of engines over one model hold besides it. Used by one thread.

    limit: bytes that all of them together may take, None for any. An arm at work is never let go.
        To learn what a new one takes it is loaded first, so for that long both are held.
    load_s: seconds spent loading so far, failed attempts included.
    """

    def __init__(self, limit: int | None = None) -> None:
        if limit is not None and limit < 0:
            raise DraftpickError(f"the drafters' memory must be 0 bytes or more, not {limit}")
        self.limit, self.load_s = limit, 0.0
        self._holders: WeakSet[Holder] = WeakSet()
        self._storages: dict[str, Storages] = {}  # by arm, the least recently used first
        self._at_work: Counter[str] = Counter()
        self._breakers: dict[str, Breaker] = {}

    def join(self, holder: Holder) -> None:
        """Count what an engine loads, and let it go where the others need room."""
        self._holders.add(holder)

    # -- what is held -------------------------------------------------------------------------

    @property
    def arms(self) -> list[str]:
        """The arms that are loaded, the least recently used first."""
        return list(self._storages)

    @property
    def bytes(self) -> int:
        """What they take together; weights that several share count once."""
        return _bytes(self._storages.values())

    @property
    def asleep(self) -> Mapping[str, ArmDown]:
        """Why each arm could not be loaded and when it will be tried again."""
        return {
            arm: LoadFailed(arm, breaker.reason, breaker.pause_s)
            for arm, breaker in self._breakers.items()
            if breaker.pause_s > 0
        }

    @contextmanager
    def at_work(self, arm: str) -> Iterator[None]:
        """Meanwhile the arm is not let go."""
        self._at_work[arm] += 1
        try:
            yield
        finally:
            self._at_work[arm] -= 1

    def touch(self, arm: str) -> None:
        """The arm is used now."""
        if arm in self._storages:
            self._storages[arm] = self._storages.pop(arm)

    # -- loading ------------------------------------------------------------------------------

    def load(self, holder: Holder, arm: str, build: Callable[[], Strategy]) -> Strategy:
        """What `build` makes, for this engine to keep; other arms are let go where they leave it no
        room. Raises LoadFailed."""
        started = time.perf_counter()
        breaker = self._breakers.setdefault(arm, Breaker(FIRST_S, LONGEST_S))
        try:
            made = self._built(arm, holder.target, build)
            own = storages(made, beside=[holder.target], apart=self._holders)
            refused = self._make_room(arm, own)
            if refused is not None:
                del made, own
                _give_back()
                raise refused
        except _FAILS as error:
            took = time.perf_counter() - started
            self.load_s += took
            breaker.failed(str(error), LONGEST_S if isinstance(error, _TooLarge) else 0.0)
            kind = NoRoom if isinstance(error, _Full) else LoadFailed
            raise kind(arm, str(error), breaker.pause_s, took) from error
        self.load_s += time.perf_counter() - started
        breaker.succeeded()
        return made

    def _built(self, arm: str, target: Backend, build: Callable[[], Strategy]) -> Strategy:
        """Once more without the arms that are idle, where memory runs out."""

        def attempt() -> Strategy:
            with explained(target.device, f"loading the arm {arm!r}"):
                return build()

        try:
            return attempt()
        except OutOfMemory:
            idle = [other for other in self._storages if not self._at_work[other]]
            if not any(self._storages[other] for other in idle):
                raise
        for other in idle:
            self._let_go(other)
        _give_back()
        return attempt()

    def _make_room(self, arm: str, own: Storages) -> DraftpickError | None:
        """Count an arm that was loaded, and let others go; why it cannot stay, None where it can.

        own: what it holds for the engine that it was loaded for.
        """
        taken = self._storages.pop(arm, {}) | own
        busy = {other: parts for other, parts in self._storages.items() if self._at_work[other]}
        elsewhere = self._at_work[arm] > 1  # in another slot, and cannot be let go there
        if self.limit is not None and not elsewhere and _bytes([taken]):
            if _bytes([taken]) > self.limit:
                self._forget(arm)
                return _TooLarge(f"{self._over(arm, taken)}; allow more with --drafter-memory")
            if _bytes([taken, *busy.values()]) > self.limit:
                self._forget(arm)
                return _Full(f"{self._over(arm, taken)}, with those at work: {', '.join(busy)}")
        self._storages[arm] = taken
        needed = set(taken).union(*busy.values())
        gone = False
        for other, parts in list(self._storages.items()):
            if self.limit is None or self.bytes <= self.limit:
                break
            if set(parts) - needed:  # those of an arm at work are all needed
                self._let_go(other)
                gone = True
        if gone:
            _give_back()
        return None

    def _over(self, arm: str, taken: Storages) -> str:
        assert self.limit is not None
        return (
            f"arm {arm!r}: its models take {_bytes([taken]) / 1e6:.1f} MB, and all drafters may "
            f"take {self.limit / 1e6:.1f} MB"
        )

    def _let_go(self, arm: str) -> None:
        del self._storages[arm]
        self._forget(arm)

    def _forget(self, arm: str) -> None:
        for holder in self._holders:
            holder.forget(arm)


class _TooLarge(DraftpickError):
    """It will never fit."""


class _Full(DraftpickError):
    """There is no room, and it is not yet known how long loading took."""


def _bytes(owned: Iterable[Storages]) -> int:
    together = Storages()
    for parts in owned:
        together |= parts
    return sum(together.values())


def _give_back() -> None:
    """Let the system have what was freed."""
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
    with suppress(OSError, AttributeError):  # not every C library has it
        ctypes.CDLL(None).malloc_trim(0)


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
