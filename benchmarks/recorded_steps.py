"""Training steps as CUDA graphs, for models whose kernels take less time than their launches."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Step = Callable[[Tensor, Tensor], None]  # of a batch's inputs and labels


class Recorded:
    """A step, recorded once for each shape of batch and replayed from then on.

    The step must leave gradients at None, change weights and optimizer state in place, and read
    nothing on the host; learning rates are tensors. The first batch of a shape is not recorded: it
    warms up.
    """

    def __init__(self, step: Step, device: torch.device) -> None:
        self._step, self._device = step, device
        self._pool, self._aside = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
        self._graphs: dict[tuple[int, ...], tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}
        self._warm: set[tuple[int, ...]] = set()

    def __call__(self, inputs: Tensor, labels: Tensor) -> None:
        """Two tensors on the host."""
        key = (*inputs.shape, *labels.shape)
        if key not in self._warm:
            self._warm.add(key)
            self._aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._aside):
                self._step(inputs.to(self._device), labels.to(self._device))
            torch.cuda.current_stream().wait_stream(self._aside)
            return
        if key not in self._graphs:
            here = inputs.to(self._device), labels.to(self._device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                self._step(*here)
            self._graphs[key] = (graph, *here)
        graph, inputs_here, labels_here = self._graphs[key]
        inputs_here.copy_(inputs.pin_memory(), non_blocking=True)
        labels_here.copy_(labels.pin_memory(), non_blocking=True)
        graph.replay()
