"""Commands whose parameters are records made of options."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

T = TypeVar("T")


def with_records(**makers: Callable[..., Any]) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Let a command take records that are made of options.

    makers: parameter -> the function that makes its record. The maker's own parameters replace the
        parameter in the signature, so that they are options like any others. A maker may take
        records itself.
    """

    def decorate(function: Callable[..., T]) -> Callable[..., T]:
        own = inspect.signature(function, eval_str=True)
        parts = {
            name: inspect.signature(maker, eval_str=True).parameters
            for name, maker in makers.items()
        }
        parameters = [
            part.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for name, parameter in own.parameters.items()
            for part in (parts[name].values() if name in parts else [parameter])
        ]

        @wraps(function)
        def taking(**given: Any) -> T:
            records = {
                name: maker(**{part: given.pop(part) for part in parts[name] if part in given})
                for name, maker in makers.items()
            }
            return function(**given, **records)

        taking.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        taking.__annotations__ = {each.name: each.annotation for each in parameters}
        return taking

    return decorate
