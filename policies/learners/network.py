"""A stack of linear layers with tanh between, for REINFORCE, exact, regression and logistic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base import BasePolicy, as_rows, from_rewards, softmax
from ..errors import PolicyError
from ..products import product
from ..records import Float32, Float64, Origin


@dataclass(frozen=True, eq=False)
class Layer:
    """A linear layer as torch has it: y = weight @ x + bias.

    weight: [out, in] float32.
    bias: [out] float32.
    """

    weight: Float32
    bias: Float32


class NetworkPolicy(BasePolicy):
    """Standardise, then linear layers with tanh between them, then a head.

    head "softmax": the outputs are logits and the scores are probabilities. head "reward": the
    outputs predict rewards; the policy puts all mass on the best one, or is softmax(rewards /
    temperature) where temperature (in units of the reward) is above 0.

    The forward pass is numpy: for one query it is two matrix-vector products, where torch's own
    call overhead would be the larger part.
    """

    kind = "network"

    def __init__(
        self,
        origin: Origin,
        layers: Sequence[Layer],
        mean: Float32,
        std: Float32,
        head: str = "softmax",
        temperature: float = 0.0,
    ) -> None:
        super().__init__(origin)
        if head not in ("softmax", "reward"):
            raise PolicyError(f"a network's head is 'softmax' or 'reward', not {head!r}")
        if temperature < 0:
            raise PolicyError(f"temperature must be 0 or more, not {temperature}")
        _check_shapes(origin, layers, mean, std)
        self._layers = [
            Layer(np.ascontiguousarray(a.weight, np.float32), np.asarray(a.bias, np.float32))
            for a in layers
        ]
        self._mean, self._std = np.asarray(mean, np.float32), np.asarray(std, np.float32)
        self._head, self._temperature = head, float(temperature)

    def outputs(self, x: Any) -> Float64:
        """[n, A], before the head."""
        h: Any = (as_rows(x, self.origin.width) - self._mean) / self._std
        for i, layer in enumerate(self._layers):
            h = product(np.tanh(h) if i else h, layer.weight.T) + layer.bias
        return np.asarray(h, dtype=np.float64)

    def scores(self, x: Any) -> Float64:
        outputs = self.outputs(x)
        return softmax(outputs) if self._head == "softmax" else outputs

    def probabilities(self, scores: Float64) -> Float64:
        return scores if self._head == "softmax" else from_rewards(scores, self._temperature)

    def arrays(self) -> dict[str, NDArray[Any]]:
        named: dict[str, NDArray[Any]] = {"mean": self._mean, "std": self._std}
        for i, layer in enumerate(self._layers):
            named |= {f"layers.{i}.weight": layer.weight, f"layers.{i}.bias": layer.bias}
        return named

    def settings(self) -> dict[str, Any]:
        return {"layers": len(self._layers), "head": self._head, "temperature": self._temperature}

    @classmethod
    def rebuild(
        cls, origin: Origin, settings: dict[str, Any], arrays: dict[str, NDArray[Any]]
    ) -> NetworkPolicy:
        layers = [
            Layer(arrays[f"layers.{i}.weight"], arrays[f"layers.{i}.bias"])
            for i in range(settings["layers"])
        ]
        head, temperature = settings["head"], settings["temperature"]
        return cls(origin, layers, arrays["mean"], arrays["std"], head, temperature)


def _check_shapes(origin: Origin, layers: Sequence[Layer], mean: Float32, std: Float32) -> None:
    width = origin.width
    if not layers or mean.shape != (width,) or std.shape != (width,):
        raise PolicyError("a network policy needs layers, and a mean and a std for each input")
    for layer in layers:
        if layer.weight.ndim != 2 or layer.weight.shape[1] != width:
            raise PolicyError(
                f"a layer of shape {layer.weight.shape} cannot follow a width of {width}"
            )
        width = layer.weight.shape[0]
        if layer.bias.shape != (width,):
            raise PolicyError(f"a bias of shape {layer.bias.shape} does not fit {width} outputs")
    if width != len(origin.arms):
        raise PolicyError(f"the network has {width} outputs for {len(origin.arms)} arms")
