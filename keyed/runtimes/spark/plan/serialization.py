"""Checks that an operator can be sent to Spark's workers, and finds the part that cannot be pickled.

A function is sent to the workers pickled, with its attributes and, if it is defined in the program itself, with the
values that it closes over. A value that cannot be pickled, such as a Spark session or a lock, is reported before the
query starts.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType
from typing import Any

from keyed.errors import DefinitionError

#: Packages whose objects, and objects of derived classes, hold values of users.
_OURS = ("keyed",)


def check_serializable(function: object, operator: str) -> None:
    """Check that a function can be sent to the workers.

    Raises:
        DefinitionError: It cannot; the message names operator, attribute and remedy.
    """
    problem = _pickling_error(function)
    if problem is None:
        return
    path, value, seen = type(function).__name__, function, {id(function)}
    while True:
        bad = next((each for each in _parts(value) if id(each[1]) not in seen and _pickling_error(each[1])), None)
        if bad is None:
            break
        path, value = f"{path}{bad[0]}", bad[1]
        seen.add(id(value))
    if isinstance(value, type) and "__msgspec_cache__" in vars(value):
        # msgspec's cache on a class cannot be pickled, and is created again on demand.
        del value.__msgspec_cache__  # type: ignore[attr-defined]
        check_serializable(function, operator)
        return
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise DefinitionError(
        f"operator {operator!r}: {path} is a {kind}, which cannot be sent to Spark's workers ({problem}); create it in "
        "open(self, context), which runs in the worker"
    )


def _pickling_error(value: object) -> str | None:
    """Return the reason why a value cannot be pickled; ``None`` if it can."""
    from pyspark import cloudpickle

    try:
        cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    except Exception as error:  # noqa: BLE001 - objects raise what they like
        return f"{type(error).__name__}: {error}"
    return None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts that a value is pickled with, if the user has a name for them, with that name for messages."""
    if isinstance(value, MethodType | staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, FunctionType):
        closed = inspect.getclosurevars(value)
        yield from (
            (f", its variable {name!r},", part) for name, part in {**closed.nonlocals, **closed.globals}.items()
        )
        yield from ((", a default of it,", part) for part in value.__defaults__ or ())
    elif isinstance(value, type):
        yield from ((f".{name}", part) for name, part in vars(value).items() if not name.startswith("__"))
        yield from (("", base) for base in value.__bases__)
    elif isinstance(value, Mapping):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{number}]", part) for number, part in enumerate(value))
    elif any(cls.__module__.partition(".")[0] in _OURS for cls in type(value).__mro__):
        slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ()) if hasattr(value, name)]
        attributes = {**{name: getattr(value, name) for name in slots}, **getattr(value, "__dict__", {})}
        yield from ((f".{name}", part) for name, part in attributes.items())
        yield "", type(value)
