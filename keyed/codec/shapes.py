"""Shapes: the checks and conversions of a declared type's values, and the parts that shapes are built from.

The checks of flat containers, the usual states, run in C: ``{int, str}.issuperset(map(type, values))``.
"""

from __future__ import annotations

import datetime as dt
import enum
import operator
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from functools import partial
from typing import Any, get_origin
from uuid import UUID

import attrs
from msgspec import inspect

from keyed.base.arguments import shown
from keyed.codec.fingerprints import CONSTRAINTS
from keyed.codec.refusals import remedy, type_name
from keyed.codec.tagged import encode_tagged, offset_is_whole_minutes
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


def enum_shape(node: inspect.EnumType, _: ShapeBuilder) -> Shape:
    """Build the shape of an enum, which is stored by value."""
    cls = node.cls
    if issubclass(cls, enum.Flag):
        raise EncodingError(
            f"the flags {type_name(cls)} cannot be encoded, because combinations have no name; declare int and store "
            "their value"
        )
    return Shape(cls.__qualname__, lambda value: type(value) is cls, _value_of, frozenset({cls}))


def literal_shape(node: inspect.LiteralType, _: ShapeBuilder) -> Shape:
    """Build the shape of a literal."""
    allowed = {(type(value), value) for value in node.values}

    def check(value: Any) -> bool:
        return type(value) in classes and (type(value), value) in allowed

    classes = frozenset(cls for cls, _ in allowed)
    return Shape(f"Literal[{', '.join(map(repr, node.values))}]", check)


def union_shape(node: inspect.UnionType, build: ShapeBuilder) -> Shape:
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


def class_shape(node: ClassNode, build: ShapeBuilder) -> Shape:
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


COLLECTIONS: dict[type[inspect.Type], type[Iterable[Any]]] = {
    inspect.FrozenSetType: frozenset,
    inspect.ListType: list,
    inspect.SetType: set,
    inspect.VarTupleType: tuple,
}

#: Classes whose values have an order of their own.
_COMPARABLE = [frozenset({cls}) for cls in (bytes, int, str)]
_Collection = inspect.ListType | inspect.SetType | inspect.FrozenSetType | inspect.VarTupleType


def collection_shape(node: _Collection, build: ShapeBuilder) -> Shape:
    """Build the shape of a list, set, frozenset or tuple of any length."""
    cls = COLLECTIONS[type(node)]
    item = build(node.item_type)
    items_match, item_tree = all_items(item), item.tree
    immutable = cls in {tuple, frozenset}
    # The order of a set differs between processes. Without a type its tagged form has an order.
    is_ordered = issubclass(cls, list | tuple) or not item.typed
    key = None if item.classes in _COMPARABLE else encode_tagged

    def check(value: Any) -> bool:
        return type(value) is cls and items_match(value)

    def tree(value: Any) -> Any:
        # Trees of a set's items may not be hashable; msgspec converts between all kinds of collections.
        items = map(item_tree, value) if item_tree else value
        # Those of tuples and frozen sets may be keys.
        return (tuple if immutable else list)(items if is_ordered else sorted(items, key=key))

    def parts(value: Any) -> Iterator[tuple[str, Shape, Any]]:
        if type(value) is cls:
            yield from ((f"[{index}]", item, part) for index, part in enumerate(value))

    inside = f"{item.name}, ..." if cls is tuple else item.name
    shape = Shape(f"{cls.__name__}[{inside}]", check, tree if item_tree or not is_ordered else None, parts=parts)
    shape.direct, shape.immutable, shape.exact = is_ordered, immutable, exact_items(item)
    return compound(shape, [item])


def tuple_shape(node: inspect.TupleType, build: ShapeBuilder) -> Shape:
    """Build the shape of a tuple of fixed length."""
    shapes = [build(item) for item in node.item_types]
    fields_match = all_fields(shapes)

    def check(value: Any) -> bool:
        return type(value) is tuple and fields_match(value)

    def parts(value: Any) -> Iterator[tuple[str, Shape, Any]]:
        if type(value) is tuple and len(value) == len(shapes):
            yield from ((f"[{i}]", shape, part) for i, (shape, part) in enumerate(zip(shapes, value, strict=True)))

    name = f"tuple[{', '.join(shape.name for shape in shapes) or '()'}]"
    return compound(Shape(name, check, fields_tree(shapes), parts=parts, exact=exact_fields(shapes)), shapes)


def dict_shape(node: inspect.DictType, build: ShapeBuilder) -> Shape:
    """Build the shape of a dict."""
    key, item = build(node.key_type), build(node.value_type)
    keys_match, items_match = all_items(key), all_items(item)
    key_tree, item_tree = key.tree or as_it_is, item.tree or as_it_is

    def check(value: Any) -> bool:
        return type(value) is dict and keys_match(value) and items_match(value.values())

    def tree(value: Any) -> Any:
        try:
            return {key_tree(name): item_tree(part) for name, part in value.items()}
        except TypeError:  # a key is a frozen set of objects, whose trees are dictionaries
            return {name: item_tree(part) for name, part in value.items()}

    def parts(value: Any) -> Iterator[tuple[str, Shape, Any]]:
        if type(value) is dict:
            yield from ((".keys()", key, name) for name in value)
            yield from ((f"[{name!r:.50}]", item, part) for name, part in value.items())

    exact_keys, exact_values = exact_items(key), exact_items(item)

    def exact(value: Any) -> bool:
        return exact_keys(value) and exact_values(value.values())

    has_tree = key.tree or item.tree
    name = f"dict[{key.name}, {item.name}]"
    shape = Shape(name, check, tree if has_tree else None, immutable=False, parts=parts, exact=exact)
    return compound(shape, [key, item])


def typed_dict_shape(node: inspect.TypedDictType, build: ShapeBuilder) -> Shape:
    """Build the shape of a dict with exactly the keys of a `TypedDict`: others would not be read back."""
    name = str(getattr(node.cls, "__qualname__", node.cls))
    unfinished = Shape(name, anything, as_it_is)
    build = build.inside(node, unfinished)
    shapes = {field.name: build(field.type) for field in node.fields}
    required = frozenset(field.name for field in node.fields if field.required)

    def check(value: Any) -> bool:
        return (
            type(value) is dict
            and value.keys() <= shapes.keys()
            and required <= value.keys()
            and all(shapes[key].check(item) for key, item in value.items())
        )

    def tree(value: Any) -> Any:
        return {key: (shapes[key].tree or as_it_is)(item) for key, item in value.items()}

    def parts(value: Any) -> Iterator[tuple[str, Shape, Any]]:
        if type(value) is dict:
            yield from ((f"[{key!r}]", shapes[key], item) for key, item in value.items() if key in shapes)

    has_tree = any(shape.tree for shape in shapes.values())

    def exact(value: Any) -> bool:
        return all(shape.exact is None or shape.exact(item) for _, shape, item in parts(value))

    shape = Shape(name, check, tree if has_tree else None, immutable=False, parts=parts, exact=exact)
    shape = compound(shape, [*shapes.values()])
    unfinished.check, unfinished.tree, unfinished.parts, unfinished.exact = check, tree, parts, shape.exact
    return shape


def shape_of(node: inspect.Type) -> Shape:
    """Return the shape of a type.

    Args:
        node: The type, as `keyed.codec.fingerprints.inspect_type` returns it.

    Raises:
        EncodingError: A part of it cannot be encoded.
    """
    return ShapeBuilder({})(node)


@attrs.frozen
class ShapeBuilder:
    """Builds shapes inside of the classes ``outer``, given by the identity of their nodes."""

    outer: dict[int, Shape]

    def __call__(self, node: inspect.Type) -> Shape:
        """Build the shape of a part."""
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

    def inside(self, node: inspect.Type, unfinished: Shape) -> ShapeBuilder:
        """Return the builder for the fields of a class; references to the class use its unfinished shape."""
        return ShapeBuilder({**self.outer, id(node): unfinished})


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


_BUILDERS: dict[type[inspect.Type], Callable[[Any, ShapeBuilder], Shape]] = {
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
