"""A recorder for any device: the operations of one run, on the same tensors, done again.

It stands in for CUDA graphs on a CPU. What a graph on a GPU could not record, a tensor read on the
host, is refused here too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from decoders.backends.cuda.recorded import Run

ON_THE_HOST = {torch.ops.aten._local_scalar_dense, torch.ops.aten.equal, torch.ops.aten.nonzero}


class Recording(TorchDispatchMode):
    """Each operation with its arguments, in which earlier results stand by their number."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Any, list[Any], list[tuple[int, int]], TreeSpec]] = []
        self.results: list[Any] = []
        self._place: dict[int, int] = {}  # of a tensor's id in the results, which keep it alive

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.overloadpacket in ON_THE_HOST:
            raise RuntimeError(f"{func} reads a tensor on the host")
        made = func(*args, **(kwargs or {}))
        leaves, spec = tree_flatten((args, kwargs or {}))
        earlier = [(at, place) for at, one in enumerate(leaves) if (place := self.place(one)) >= 0]
        for at, _ in earlier:
            leaves[at] = None
        self.steps.append((func, leaves, earlier, spec))
        for one in tree_flatten(made)[0]:
            if isinstance(one, Tensor):
                self._place[id(one)] = len(self.results)
            self.results.append(one)
        return made

    def place(self, one: Any) -> int:
        return self._place.get(id(one), -1) if isinstance(one, Tensor) else -1

    def again(self, place: int) -> Tensor:
        """The result with that number, after every operation was done again."""
        results = list[Any]()
        for func, leaves, earlier, spec in self.steps:
            given = list(leaves)
            for at, number in earlier:
                given[at] = results[number]
            args, kwargs = tree_unflatten(given, spec)
            results += tree_flatten(func(*args, **kwargs))[0]
        found: Tensor = results[place]
        return found


def traced(run: Run) -> Run:
    """The result lies where the last one did, as a graph's does."""
    with Recording() as recording:
        place = recording.place(run())
    made = recording.again(place)
    recording.results.clear()
    return lambda: made.copy_(recording.again(place))
