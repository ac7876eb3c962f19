"""Shapes of lists, sets, tuples and dicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import inspect

from keyed.codec.shapes.shape import (
    Build,
    Shape,
    all_fields,
    all_items,
    anything,
    as_it_is,
    compound,
    exact_fields,
    exact_items,
    fields_tree,
)
from keyed.codec.tagged import encode_tagged

COLLECTIONS: dict[type[inspect.Type], type[Iterable[Any]]] = {
    inspect.FrozenSetType: frozenset,
    inspect.ListType: list,
    inspect.SetType: set,
    inspect.VarTupleType: tuple,
}

#: Classes whose values have an order of their own.
_COMPARABLE = [frozenset({cls}) for cls in (bytes, int, str)]
_Collection = inspect.ListType | inspect.SetType | inspect.FrozenSetType | inspect.VarTupleType


def collection_shape(node: _Collection, build: Build) -> Shape:
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


def tuple_shape(node: inspect.TupleType, build: Build) -> Shape:
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


def dict_shape(node: inspect.DictType, build: Build) -> Shape:
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


def typed_dict_shape(node: inspect.TypedDictType, build: Build) -> Shape:
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
