"""The type of a function's main output from its annotations: ``def process_element(...) -> Iterator[Count]``."""

from __future__ import annotations

import types
import typing
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from typing import Any

from keyed.base.schemas import Schema, schema_of
from keyed.errors import OutputDefinitionError
from keyed.job.functions import Function, KeyedProcessFunction, VectorizedFunction, input_methods

_ITERABLES = (Collection, Generator, Iterable, Iterator, Sequence, list, set)
#: A method whose annotation is that it yields nothing, and one without such an annotation.
_NOTHING, _UNANNOTATED = object(), object()


def inferred_output(function: Function) -> Schema | None:
    """Return the columns that the annotations of ``process_element`` and ``on_timer`` name, if they name any.

    The annotation has to name an attrs class, a dataclass or a named tuple. Bare tuples, ``Any`` and unresolved names
    are ignored.

    Raises:
        OutputDefinitionError: The methods name different types.
    """
    if isinstance(function, VectorizedFunction):
        return None
    cls = type(function)
    yielded = _yielded_by(function)
    schemas = {name: _schema(hint) for name, hint in yielded.items() if hint is not _NOTHING}
    if not schemas or None in schemas.values():
        return None
    first = next(iter(schemas))
    for name, schema in schemas.items():
        if schema != schemas[first]:
            raise OutputDefinitionError(
                f"{cls.__name__}: {first} is annotated to yield {_name(yielded[first])} and {name} "
                f"{_name(yielded[name])}; an output has one type, so let them agree, or give output=... for both"
            )
    return schemas[first]


def inferred_result(function: Any, *, many: bool) -> Schema | None:
    """Return the columns that the annotation of a function's result names, if it names any.

    Args:
        function: A function, or an object with ``__call__``.
        many: True if the function returns or yields any number of rows.
    """
    method = function if hasattr(function, "__annotations__") else type(function).__call__
    hint = _yielded(method) if many else _return_type(method)
    return _schema(hint)


def unannotated(function: Function) -> str:
    """Return the remedy for an output without a type if only some of the methods are annotated."""
    if isinstance(function, VectorizedFunction):
        return ""
    yielded = _yielded_by(function)
    missing = [name for name, hint in yielded.items() if hint is _UNANNOTATED]
    if not missing or len(missing) == len(yielded):
        return ""
    name = type(function).__name__
    return f"; {' and '.join(f'{name}.{each}' for each in missing)} has no annotation of its outputs: -> Iterator[...]"


def _yielded_by(function: Any) -> dict[str, Any]:
    cls = type(function)
    methods = [*input_methods(function), *(["on_timer"] if cls.on_timer is not KeyedProcessFunction.on_timer else [])]
    return {name: _yielded(getattr(cls, name)) for name in methods}


def _yielded(method: Any) -> Any:
    """Return the type that a method yields by its annotation."""
    resolved = _return_type(method)
    if resolved is _UNANNOTATED or resolved is _NOTHING:
        return resolved
    arguments = typing.get_args(resolved)
    return arguments[0] if typing.get_origin(resolved) in _ITERABLES and arguments else _UNANNOTATED


def _return_type(method: Any) -> Any:
    """Return the type that a method returns by its annotation."""
    hint = getattr(method, "__annotations__", {}).get("return", _UNANNOTATED)
    if hint is _UNANNOTATED:
        return _UNANNOTATED
    holder = types.SimpleNamespace(__annotations__={"return": hint})
    try:
        resolved = typing.get_type_hints(holder, globalns=getattr(method, "__globals__", {}))["return"]
    except (NameError, AttributeError, TypeError, SyntaxError):
        return _UNANNOTATED
    if typing.get_origin(resolved) in (typing.Union, types.UnionType):
        rest = [part for part in typing.get_args(resolved) if part is not type(None)]
        resolved = rest[0] if len(rest) == 1 else Any
    return _NOTHING if resolved is type(None) else resolved


def _schema(yielded: Any) -> Schema | None:
    if not isinstance(yielded, type):
        return None
    try:
        return schema_of(yielded)
    except OutputDefinitionError:
        return None


def _name(yielded: Any) -> str:
    return getattr(yielded, "__name__", str(yielded))
