"""Shapes of classes: attrs classes, dataclasses, named tuples and msgspec Structs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, get_origin

from msgspec import inspect

from keyed.codec.shapes.shape import Build, Shape, all_fields, anything, as_it_is, compound, exact_fields, fields_tree

ClassNode = inspect.DataclassType | inspect.NamedTupleType | inspect.StructType


def class_of(node: ClassNode) -> Any:
    """Return the class of a node, without its type arguments."""
    return get_origin(node.cls) or node.cls


def is_frozen(cls: Any) -> bool:
    """Return true if the fields of instances of a class cannot be set."""
    if issubclass(cls, tuple):
        return True
    if hasattr(cls, "__attrs_props__"):
        return bool(cls.__attrs_props__.is_frozen)
    settings = getattr(cls, "__dataclass_params__", None) or getattr(cls, "__struct_config__", None)
    return bool(getattr(settings, "frozen", False))


def class_shape(node: ClassNode, build: Build) -> Shape:
    """Build the shape of a class with fields: exactly this class, each field of its type."""
    cls: Any = class_of(node)
    unfinished = Shape(cls.__qualname__, anything, as_it_is)
    build = build.inside(node, unfinished)
    shapes = [build(field.type) for field in node.fields]
    names = [field.name for field in node.fields]
    fields_match, field_trees = all_fields(shapes), fields_tree(shapes) or tuple
    values_of, exact = values_getter(cls, names), exact_fields(shapes)
    encode_names = [field.encode_name for field in node.fields]
    tag = getattr(node, "tag", None)
    by_position = isinstance(node, inspect.NamedTupleType) or getattr(node, "array_like", False)

    def check(value: Any) -> bool:
        if type(value) is not cls:
            return False
        try:
            return fields_match(values_of(value))
        except AttributeError:
            return False

    def tree(value: Any) -> Any:
        values = field_trees(values_of(value))
        if by_position:
            return values if tag is None else (tag, *values)
        named = dict(zip(encode_names, values, strict=True))
        return named if tag is None else {node.tag_field: tag, **named}  # type: ignore[union-attr]

    def parts(value: Any) -> Iterator[tuple[str, Shape, Any]]:
        if type(value) is cls:
            missing = object()
            yield from (
                (f".{name}", shape, getattr(value, name, missing)) for name, shape in zip(names, shapes, strict=True)
            )

    whole = Shape(cls.__qualname__, check, tree, parts=parts, exact=lambda value: exact(values_of(value)))
    whole.direct, whole.immutable, whole.verify = _is_direct(cls, names), is_frozen(cls), _has_hooks(cls)
    shape = compound(whole, shapes)
    # References to the class from its own fields use this entry.
    unfinished.check, unfinished.tree, unfinished.parts, unfinished.exact = check, tree, parts, shape.exact
    return shape


def values_getter(cls: Any, names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns the values of all fields of an instance, as a tuple."""
    if issubclass(cls, tuple):
        return tuple
    if len(names) < 2:
        return lambda value: tuple(getattr(value, name) for name in names)
    return operator.attrgetter(*names)


def _is_direct(cls: Any, names: list[str]) -> bool:
    """Return true if msgspec writes exactly the fields.

    For an attrs class it writes the content of the slots and the instance's dict, including cached properties, but
    omits names that start with an underscore.
    """
    if not hasattr(cls, "__attrs_attrs__"):
        return True
    slots = {slot for base in cls.__mro__ for slot in vars(base).get("__slots__", ())}
    return not cls.__dictoffset__ and {slot for slot in slots if not slot.startswith("_")} == set(names)


def _has_hooks(cls: Any) -> bool:
    hooks = ("__post_init__", "__attrs_post_init__", "__attrs_pre_init__")
    fields = getattr(cls, "__attrs_attrs__", ())
    return any(hasattr(cls, hook) for hook in hooks) or any(field.validator is not None for field in fields)
