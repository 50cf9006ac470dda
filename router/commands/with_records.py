"""Commands whose parameters are records made of options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import wraps
from typing import Any, TypeVar

T = TypeVar("T")


def with_records(command: Callable[..., T]) -> Callable[..., T]:
    """The command with options in place of the records that it takes.

    A parameter is a record where its type is a dataclass, whose fields are options then, or
    `Annotated[Type, maker]` with a function whose parameters are. A dict of those in place of the
    maker makes a dict of records. A dataclass or a maker may take records itself.
    """

    @wraps(command)
    def taking(**given: Any) -> T:
        return made(command, given)

    parameters = options_of(command)
    taking.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    taking.__annotations__ = {each.name: each.annotation for each in parameters}
    return taking


def options_of(maker: Callable[..., Any]) -> list[inspect.Parameter]:
    """The options that it needs, its records' among them, in order."""
    found = []
    for parameter, inner in _parameters(maker):
        if inner is None:
            found.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        for each in inner.values() if isinstance(inner, Mapping) else [inner] if inner else ():
            found += options_of(each)
    return found


def made(maker: Callable[..., T], given: Mapping[str, Any]) -> T:
    """What the maker makes of the options that it knows; the others keep their defaults."""
    own: dict[str, Any] = {}
    for parameter, inner in _parameters(maker):
        if isinstance(inner, Mapping):
            own[parameter.name] = {name: made(each, given) for name, each in inner.items()}
        elif inner is not None:
            own[parameter.name] = made(inner, given)
        elif parameter.name in given:
            own[parameter.name] = given[parameter.name]
    return maker(**own)


def _parameters(maker: Callable[..., Any]) -> list[tuple[inspect.Parameter, Any]]:
    """Each parameter with what makes its record, None where it is an option."""
    return [
        (each, _maker(each.annotation))
        for each in inspect.signature(maker, eval_str=True).parameters.values()
    ]


def _maker(annotation: Any) -> Any:
    for each in getattr(annotation, "__metadata__", ()):
        if inspect.isfunction(each) or isinstance(each, Mapping):
            return each
    return annotation if is_dataclass(annotation) else None
