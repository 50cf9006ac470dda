"""Matrix products of policies, which are computed beside the model's passes."""

from __future__ import annotations

from functools import cache
from typing import Any

from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController


@cache
def _pools() -> Any:
    return ThreadpoolController().select(user_api="blas")


def product(rows: NDArray[Any], matrix: NDArray[Any]) -> NDArray[Any]:
    """rows [n, d] @ matrix [d, m], by one thread.

    The threads of NumPy's pool go on waiting at full speed after a product, on the cores that the
    model's passes need: a choice of 0.2 ms made the answer after it a fifth slower.
    """
    with _pools().limit(limits=1):
        made: NDArray[Any] = rows @ matrix
    return made
