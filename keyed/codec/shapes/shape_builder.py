"""Builds the shape of a type."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import attrs
from msgspec import inspect

from keyed.codec.fingerprints import CONSTRAINTS
from keyed.codec.refusals import remedy, type_name
from keyed.codec.shapes.classes import class_shape
from keyed.codec.shapes.containers import COLLECTIONS, collection_shape, dict_shape, tuple_shape, typed_dict_shape
from keyed.codec.shapes.plain import LEAVES, enum_shape, literal_shape, union_shape
from keyed.codec.shapes.shape import Build, Shape
from keyed.errors import EncodingError


def shape_of(node: inspect.Type) -> Shape:
    """Return the shape of a type.

    Args:
        node: The type, as `keyed.codec.fingerprints.inspect_type` returns it.

    Raises:
        EncodingError: A part of it cannot be encoded.
    """
    return _Builder({})(node)


@attrs.frozen
class _Builder:
    """Builds shapes inside of the classes ``outer``, given by the identity of their nodes."""

    outer: dict[int, Shape]

    def __call__(self, node: inspect.Type) -> Shape:
        if isinstance(node, inspect.CustomType) and node.cls is object:
            node = inspect.AnyType()
        if id(node) in self.outer:
            return _reference(self.outer[id(node)])
        if type(node) in LEAVES:
            shape = LEAVES[type(node)]()
        elif type(node) in _BUILDERS:
            shape = _BUILDERS[type(node)](node, self)
        else:
            cls = getattr(node, "cls", type(node))
            raise EncodingError(f"the type {type_name(cls)} cannot be encoded; {remedy(cls, role='value')}")
        if any(getattr(node, name, None) is not None for name in CONSTRAINTS):
            shape.verify = True
        return shape

    def inside(self, node: inspect.Type, unfinished: Shape) -> Build:
        return _Builder({**self.outer, id(node): unfinished})


def _reference(shape: Shape) -> Shape:
    """Return a reference to the shape of a class that is still being built."""

    def check(value: Any) -> bool:
        return shape.check(value)

    def tree(value: Any) -> Any:
        return shape.tree(value) if shape.tree else value

    def parts(value: Any) -> Iterable[tuple[str, Shape, Any]]:
        return shape.parts(value) if shape.parts else ()

    def exact(value: Any) -> bool:
        return shape.exact is None or shape.exact(value)

    return Shape(shape.name, check, tree, parts=parts, exact=exact)


_BUILDERS: dict[type[inspect.Type], Callable[[Any, Build], Shape]] = {
    inspect.EnumType: enum_shape,
    inspect.LiteralType: literal_shape,
    inspect.UnionType: union_shape,
    **dict.fromkeys(COLLECTIONS, collection_shape),
    inspect.TupleType: tuple_shape,
    inspect.DictType: dict_shape,
    inspect.DataclassType: class_shape,
    inspect.NamedTupleType: class_shape,
    inspect.StructType: class_shape,
    inspect.TypedDictType: typed_dict_shape,
}
