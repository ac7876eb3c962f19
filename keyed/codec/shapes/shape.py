"""`Shape`: the checks and conversions of a declared type's values, and the parts that shapes are built from.

The checks of flat containers, the usual states, run in C: ``{int, str}.issuperset(map(type, values))``.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, Protocol
from uuid import UUID

import attrs
from msgspec import inspect

from keyed.base.shown import shown
from keyed.codec.refusals import remedy, type_name
from keyed.errors import EncodingError

Check = Callable[[Any], bool]
Tree = Callable[[Any], Any]
Parts = Callable[[Any], Iterable[tuple[str, "Shape", Any]]]

_PLAIN_CLASSES = frozenset(
    {type(None), bool, int, float, str, bytes, list, tuple, dict, set, frozenset, Decimal, UUID}
    | {dt.datetime, dt.date, dt.time, dt.timedelta}
)


@attrs.define(eq=False)
class Shape:
    """The properties of a type that its encoding needs.

    Attributes:
        name: The type as a user writes it, for messages.
        check: Returns true if a value is of the type, in all its parts.
        tree: Converts a value to plain data that ``msgspec.convert`` can convert back: classes to dicts, enums to their
            values. None if the value is plain data already.
        classes: Exact classes whose instances are all of the type, so that their parts need no check.
        typed: True if all parts have a type. If not, the value is written with tags.
        direct: True if msgspec's encoder writes every value correctly. If not, its tree is written instead.
        immutable: True if a value never changes.
        verify: True if values can fail to decode in spite of ``check``, by a constraint, a validator or a
            ``__post_init__``.
        parts: Returns the parts of a value with their places and shapes, to find the one that does not match.
        exact: Returns true if a value of the type comes back identical, not only equal: an int declared as float comes
            back as a float, a datetime of another zone in UTC. It may return false when unsure. None if all values come
            back identical.
    """

    name: str
    check: Check
    tree: Tree | None = None
    classes: frozenset[type] | None = None
    typed: bool = True
    direct: bool = True
    immutable: bool = True
    verify: bool = False
    parts: Parts | None = None
    exact: Check | None = None

    def refusal(self, value: Any) -> EncodingError:
        """Return the error for a value that does not pass ``check``. It names the part that does not match."""
        shape, place, refusal = self, "", True
        while refusal and shape.parts is not None:
            refusal = False
            for where, part, item in shape.parts(value):
                if not part.check(item):
                    shape, place, value, refusal = part, place + where, item, True
                    break
        cls = type(value)
        hint = "" if cls in _PLAIN_CLASSES else f"; {remedy(cls, role='value')}"
        at = f", at value{place}," if place else ""
        return EncodingError(
            f"{shown(value)} of type {type_name(cls)}{at} does not match the declared type {shape.name}{hint}"
        )


class Build(Protocol):
    """Builds the shapes of the parts of a type."""

    def __call__(self, node: inspect.Type) -> Shape:
        """Build the shape of a part."""

    def inside(self, node: inspect.Type, unfinished: Shape) -> Build:
        """Return the same for the fields of a class; references to the class use its unfinished shape."""


def compound(shape: Shape, parts: list[Shape]) -> Shape:
    """Return a shape with the properties of its parts too. Its ``exact`` is used if some of them have one."""
    return attrs.evolve(
        shape,
        typed=all(part.typed for part in parts),
        direct=shape.direct and all(part.direct for part in parts),
        immutable=shape.immutable and all(part.immutable for part in parts),
        verify=shape.verify or any(part.verify for part in parts),
        exact=shape.exact if any(part.exact for part in parts) else None,
    )


def all_items(item: Shape) -> Callable[[Iterable[Any]], bool]:
    """Return a check that all values of a collection are of a shape."""
    check, classes = item.check, item.classes
    if check is anything:
        return anything
    if classes is None:
        return lambda values: all(map(check, values))
    return lambda values: classes.issuperset(map(type, values)) or all(map(check, values))


def all_fields(shapes: list[Shape]) -> Callable[[tuple[Any, ...]], bool]:
    """Return a check that the values of a tuple are of the shapes at the same positions."""
    checks = [shape.check for shape in shapes]
    exact = [tuple(shape.classes or ()) for shape in shapes]
    expected = tuple(cls for classes in exact for cls in classes)

    def check_each(values: tuple[Any, ...]) -> bool:
        return len(values) == len(checks) and all(check(value) for check, value in zip(checks, values, strict=True))

    def check_classes(values: tuple[Any, ...]) -> bool:
        return tuple(map(type, values)) == expected or check_each(values)

    return check_classes if all(len(classes) == 1 for classes in exact) else check_each


def exact_items(item: Shape) -> Check:
    """Return a check that all values of a collection come back identical."""
    exact = item.exact or anything
    return lambda values: all(map(exact, values))


def exact_fields(shapes: list[Shape]) -> Check:
    """Return a check that all values of a tuple come back identical."""
    inexact = [(place, shape.exact) for place, shape in enumerate(shapes) if shape.exact is not None]
    return lambda values: all(exact(values[place]) for place, exact in inexact)


def fields_tree(shapes: list[Shape]) -> Callable[[Iterable[Any]], tuple[Any, ...]] | None:
    """Return a function that converts the values of fields to their trees; None if they are plain data already."""
    if not any(shape.tree for shape in shapes):
        return None
    trees = [shape.tree or as_it_is for shape in shapes]
    return lambda values: tuple(tree(value) for tree, value in zip(trees, values, strict=True))


def anything(_: Any) -> bool:
    """Return the check that everything passes."""
    return True


def as_it_is(value: Any) -> Any:
    """Return the tree of plain data."""
    return value
