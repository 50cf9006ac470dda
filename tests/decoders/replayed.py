"""A recorder for any device: the operations of one run, on the same tensors, done again.

It stands in for CUDA graphs on a CPU. What a graph on a GPU could not record, a tensor read on the
host, is refused here too.
"""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from decoders.backends.cuda.recorded import Run
from decoders.device_rounds import BEFORE, WIDEST, DeviceSequence
from decoders.sampling import race

ON_THE_HOST = {torch.ops.aten._local_scalar_dense, torch.ops.aten.equal, torch.ops.aten.nonzero}
READERS = {  # in inference mode the first of these operations is seen by its callers alone
    getattr(Tensor, name)
    for name in ("tolist", "numpy", "item", "__bool__", "__int__", "__float__", "__index__")
}


@dataclass(frozen=True)
class Earlier:
    """Stands in an operation's arguments for the result with that number."""

    number: int


class OnTheDevice(TorchFunctionMode):
    """Refuses what reads a tensor's numbers without an operation."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in READERS:
            raise RuntimeError(f"{func} reads a tensor on the host")
        return func(*args, **(kwargs or {}))


class Recording(TorchDispatchMode):
    """Each operation with its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self._steps: list[tuple[Any, list[Any], dict[str, Any]]] = []
        self._results: list[Any] = []
        self._numbers: dict[int, int] = {}  # of results by their ids, which are kept alive

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.overloadpacket in ON_THE_HOST:
            raise RuntimeError(f"{func} reads a tensor on the host")
        made, named = func(*args, **(kwargs or {})), kwargs or {}
        numbered = {name: self.number(one) for name, one in named.items()}
        self._steps.append((func, self.number(list(args)), numbered))
        for one in results_of(made):
            self._numbers[id(one)] = len(self._results)
            self._results.append(one)
        return made

    def number(self, one: Any) -> Any:
        if isinstance(one, list):
            return [self.number(each) for each in one]
        known = isinstance(one, Tensor) and id(one) in self._numbers
        return Earlier(self._numbers[id(one)]) if known else one

    def again(self, wanted: Any) -> Tensor:
        """What `wanted` is, after every operation was done again."""
        results = list[Any]()

        def now(one: Any) -> Any:
            if isinstance(one, Earlier):
                return results[one.number]
            return [now(each) for each in one] if isinstance(one, list) else one

        for func, args, kwargs in self._steps:
            named = {name: now(one) for name, one in kwargs.items()}
            results += results_of(func(*now(args), **named))
        found: Tensor = now(wanted)
        return found

    def forget(self) -> None:
        """The first results, which nothing needs any more."""
        self._results.clear()


def results_of(made: Any) -> list[Any]:
    return list(made) if isinstance(made, (tuple, list)) else [made]


def traced(run: Run) -> Run:
    """The result lies where the last one did, as a graph's does. Tokens are picked as on a device
    without kernels."""
    with OnTheDevice(), Recording() as recording, pytest.MonkeyPatch.context() as patch:
        patch.setattr(race, "_among_few", race._among_all)
        wanted = recording.number(run())
    made = recording.again(wanted)
    recording.forget()
    return lambda: made.copy_(recording.again(wanted))


def placed(line: list[int], room: int = 64, device: str | torch.device = "cpu") -> DeviceSequence:
    """A sequence as a round on a device sees it, with rejected tokens behind it."""
    padded = torch.full((BEFORE + room + WIDEST,), 7)
    padded[:BEFORE] = -1
    padded[BEFORE : BEFORE + len(line)] = torch.tensor(line)
    state = torch.tensor([len(line), line[-1], len(line) - 1])
    return DeviceSequence(padded.to(device), state.to(device), room, 0)
