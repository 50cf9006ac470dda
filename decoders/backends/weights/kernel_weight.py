"""The base of all weights with products of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor


class KernelWeight(ABC):
    """A matrix [out, in] that is kept in another form than a tensor.

    precision: in which.
    narrow: rows up to which they are multiplied by as they are, where there is `wide`.
    wide: the same values in bfloat16, packed; None where these serve any number of rows.
    """

    precision: ClassVar[str]
    narrow: ClassVar[int]
    values: Tensor
    wide: Tensor | None

    @property
    @abstractmethod
    def stored(self) -> tuple[Tensor, Tensor]:
        """The two tensors that it is made of."""

    def numel(self) -> int:
        return self.values.numel()

    @abstractmethod
    def dequantised(self) -> Tensor:
        """The values that are multiplied by, as bfloat16 [out, in]."""

    @abstractmethod
    def products(self, rows: Tensor) -> Tensor:
        """rows [n, in], contiguous as kernels presume -> [n, out]."""

    def times(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x [..., in] -> [..., out]."""
        made = self.products(x.reshape(-1, x.shape[-1]).contiguous())
        return (made if bias is None else made + bias).reshape(*x.shape[:-1], made.shape[-1])
