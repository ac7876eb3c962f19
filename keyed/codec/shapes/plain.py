"""Shapes of types without parts: leaves, enums and literals; and of unions."""

from __future__ import annotations

import datetime as dt
import enum
import operator
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

import attrs
from msgspec import inspect

from keyed.codec.refusals import type_name
from keyed.codec.shapes.shape import Build, Shape, Tree, anything, compound
from keyed.codec.tagged import offset_is_whole_minutes
from keyed.errors import EncodingError

_value_of = operator.attrgetter("value")


def _leaf(cls: type, name: str = "", *, immutable: bool = True, tree: Tree | None = None) -> Shape:
    """Return the shape of a class whose values come back unchanged."""

    def check(value: Any) -> bool:
        return type(value) is cls

    return Shape(name or cls.__name__, check, tree, frozenset({cls}), immutable=immutable)


def _is_float(value: Any) -> bool:
    # An int is accepted as a float if it comes back equal.
    if type(value) is not int:
        return type(value) is float
    try:
        return float(value) == value
    except OverflowError:
        return False


def _is_time(value: Any) -> bool:
    return type(value) is dt.time and offset_is_whole_minutes(value)


def _is_datetime(value: Any) -> bool:
    return type(value) is dt.datetime and (value.tzinfo is None or value.utcoffset() is not None)


def _is_exact_datetime(value: Any) -> bool:
    return type(value) is dt.datetime and (value.tzinfo is dt.UTC or value.tzinfo is None) and not value.fold


def enum_shape(node: inspect.EnumType, _: Build) -> Shape:
    """Build the shape of an enum, which is stored by value."""
    cls = node.cls
    if issubclass(cls, enum.Flag):
        raise EncodingError(
            f"the flags {type_name(cls)} cannot be encoded, because combinations have no name; declare int and store "
            "their value"
        )
    return Shape(cls.__qualname__, lambda value: type(value) is cls, _value_of, frozenset({cls}))


def literal_shape(node: inspect.LiteralType, _: Build) -> Shape:
    """Build the shape of a literal."""
    allowed = {(type(value), value) for value in node.values}

    def check(value: Any) -> bool:
        return type(value) in classes and (type(value), value) in allowed

    classes = frozenset(cls for cls, _ in allowed)
    return Shape(f"Literal[{', '.join(map(repr, node.values))}]", check)


def union_shape(node: inspect.UnionType, build: Build) -> Shape:
    """Build the shape of a union: untyped if one of its members is, and strict about floats if ints are allowed."""
    shapes = [build(member) for member in node.types]
    untyped = next((shape for shape in shapes if shape.check is anything), None)
    if untyped is not None:
        return untyped
    if any(isinstance(member, inspect.IntType) for member in node.types):
        # An int stays an int where both are allowed.
        strict = _leaf(float).check
        shapes = [
            attrs.evolve(shape, check=strict, tree=None, exact=None) if shape.check is _is_float else shape
            for shape in shapes
        ]
    classes = frozenset(cls for shape in shapes for cls in shape.classes or ())
    checks = [shape.check for shape in shapes if shape.classes is None or shape.check is _is_float]
    inexact = [shape for shape in shapes if shape.exact]
    always_exact = frozenset(cls for shape in shapes if not shape.exact for cls in shape.classes or ())

    def check(value: Any) -> bool:
        return type(value) in classes or any(check(value) for check in checks)

    def exact(value: Any) -> bool:
        return type(value) in always_exact or any(s.check(value) and s.exact(value) for s in inexact)  # type: ignore[misc]

    def tree(value: Any) -> Any:
        shape = next(shape for shape in shapes if shape.check(value))
        return shape.tree(value) if shape.tree else value

    def parts(value: Any) -> Iterator[tuple[str, Shape, Any]]:
        # Names the part of a container that does not match, if only one member is such a container.
        same = [shape for shape in shapes if shape.parts and shape.name.startswith(type(value).__name__)]
        return iter(same[0].parts(value) if len(same) == 1 and same[0].parts else ())

    shape = Shape(" | ".join(shape.name for shape in shapes), check, parts=parts, exact=exact)
    shape.tree = tree if any(shape.tree for shape in shapes) else None
    shape.classes = classes if all(shape.classes for shape in shapes) else None
    return compound(shape, shapes)


#: Classes whose values come back unchanged.
_UNCHANGED = (bool, bytes, dt.date, Decimal, int, str, dt.timedelta, UUID)
LEAVES: dict[type[inspect.Type], Callable[[], Shape]] = {
    **{type(inspect.type_info(cls)): partial(_leaf, cls) for cls in _UNCHANGED},
    inspect.AnyType: lambda: Shape("object", anything, typed=False, immutable=False),
    inspect.ByteArrayType: lambda: _leaf(bytearray, immutable=False, tree=bytes),
    inspect.DateTimeType: lambda: Shape("datetime", _is_datetime, exact=_is_exact_datetime),
    inspect.FloatType: lambda: Shape("float", _is_float, float, frozenset({float}), exact=lambda it: type(it) is float),
    inspect.NoneType: lambda: _leaf(type(None), "None"),
    inspect.TimeType: lambda: Shape(
        "time without a time zone or with a fixed number of minutes",
        _is_time,
        exact=lambda value: type(value) is dt.time and value.tzinfo is None and not value.fold,
    ),
}
