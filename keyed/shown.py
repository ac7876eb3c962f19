"""Short representations: they say what a thing is, and show neither data nor addresses."""

from __future__ import annotations

import html
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
_LONGEST = 200


class Shown:
    """Lets a notebook show what ``repr`` says."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(repr(self))}</code>"


def named(thing: Any) -> str:
    """Return a class or function by its name, another object without a ``repr`` of its own by its class."""
    if inspect.isclass(thing) or inspect.isroutine(thing):
        return thing.__name__
    has_repr: Any = type(thing).__repr__
    return type(thing).__name__ if has_repr is object.__repr__ else repr(thing)


def shown(value: Any) -> str:
    """Return the value's representation, cut to what fits into a message."""
    try:
        text = repr(value)
    except RecursionError:
        return f"<{type(value).__name__}, nested too deep to be shown>"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def shows_options(kind: Any, **defaults: Any) -> Callable[[F], F]:
    """Let the signature of a function that takes options name them, for ``help`` and notebooks.

    Type checkers and editors read them from ``Unpack``; what looks at the function itself would see ``**options``.

    Args:
        kind: The `TypedDict` that the function unpacks.
        defaults: What the options are by default, where it is not ``None``.
    """
    options = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name), annotation=hint.__forward_arg__
        )
        for name, hint in kind.__annotations__.items()
    ]

    def shown(function: F) -> F:
        signature = inspect.signature(function)
        *others, _ = signature.parameters.values()
        vars(function)["__signature__"] = signature.replace(parameters=[*others, *options])
        return function

    return shown
