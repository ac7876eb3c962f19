"""Fingerprints: declared types as JSON, to be stored beside the values and compared when a query restarts.

A fingerprint contains everything that the encoding of a type depends on. It also has the names of classes, for messages
only: renaming or moving a class changes nothing. One form per kind of type::

    "int", "str", "datetime", ..., "object"                                   a leaf; "object" is any plain data
    {"kind": "list" | "set" | "frozenset" | "variadic", "items": X}           variadic is tuple[X, ...]
    {"kind": "tuple", "items": [X, ...]}
    {"kind": "dict", "keys": X, "values": X}
    {"kind": "union", "types": [X, ...]}
    {"kind": "enum", "name": "Color", "values": [...]}
    {"kind": "literal", "values": [...]}
    {"kind": "fields", "name": "Departure", "fields": {"carrier": {"type": X, "required": true}}}   attrs class,
                                                    dataclass, TypedDict, Struct: stored by name
    {"kind": "array", "name": "Departure", "fields": [["carrier", X, true], ...]}   NamedTuple, array-like Struct:
                                                    stored by position
    {"kind": "recursive", "up": 1}                                            the class that many classes further out
    {"kind": "constrained", "type": X, "where": {"ge": 0}}                    Annotated[X, msgspec.Meta(ge=0)]

The two kinds of classes also have ``"tag": [field, value]`` if they are tagged Structs.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache, wraps
from typing import Any, TypeVar
from uuid import UUID

from msgspec import inspect

from keyed.codec.refusals import remedy, type_name
from keyed.errors import EncodingError
from keyed.rows import Row

R = TypeVar("R")

CONSTRAINTS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "tz")
"""The constraints of `msgspec.Meta`."""

_CLASSES = (bool, bytearray, bytes, dt.datetime, dt.date, Decimal, float, int, str, dt.timedelta, dt.time, UUID)
LEAVES: dict[str, Any] = {"object": object, "None": type(None), **{cls.__name__: cls for cls in _CLASSES}}
"""The types without parts, by their fingerprints."""

_LEAVES = {type(inspect.type_info(Any if leaf is object else leaf)): name for name, leaf in LEAVES.items()}
_COLLECTIONS: dict[type[inspect.Type], str] = {
    inspect.FrozenSetType: "frozenset",
    inspect.ListType: "list",
    inspect.SetType: "set",
    inspect.VarTupleType: "variadic",
}


def cached_by_type(make: Callable[[Any], R]) -> Callable[[Any], R]:
    """Cache the result of ``make`` per type, because states are bound again for each batch and key group."""
    cached = lru_cache(maxsize=1024)(make)

    @wraps(make)
    def build(type_: Any) -> R:
        try:
            hash(type_)
        except TypeError:
            # For example Annotated[int, []].
            return make(type_)
        return cached(type_)

    return build


def inspect_type(type_: Any) -> inspect.Type:
    """Return the structure of a type, as msgspec sees it; `object` and `Row` count as any plain data.

    Raises:
        EncodingError: The argument is not a type, or has parts that cannot be encoded.
    """
    if type_ is object or (isinstance(type_, type) and issubclass(type_, Row)):
        return inspect.AnyType()
    try:
        return inspect.type_info(type_)
    except Exception as error:
        # msgspec raises TypeError for unsupported types, and lets NameError (an undefined name in an annotation),
        # KeyError (an attrs field without one) and others through.
        raise EncodingError(
            f"the type {type_name(type_)} cannot be encoded: {type(error).__name__}: {error}. Annotate all fields with "
            "types that are defined where the class is; declare `object` for any plain data"
        ) from error


@cached_by_type
def describe_type(type_: Any) -> Any:
    """Return the fingerprint of a type: a structure of str, bool, int, list and dict that is the same in every process.

    Raises:
        EncodingError: The type cannot be encoded.
    """
    return _describe(inspect_type(type_), ())


def _describe(node: inspect.Type, outer: tuple[int, ...]) -> Any:
    described = _describe_bare(node, outer)
    where = {name: value for name in CONSTRAINTS if (value := getattr(node, name, None)) is not None}
    return {"kind": "constrained", "type": described, "where": where} if where else described


def _describe_bare(node: inspect.Type, outer: tuple[int, ...]) -> Any:
    kind = type(node)
    if kind in _LEAVES:
        return _LEAVES[kind]
    if kind in _COLLECTIONS:
        return {"kind": _COLLECTIONS[kind], "items": _describe(node.item_type, outer)}  # type: ignore[attr-defined]
    if isinstance(node, inspect.TupleType):
        return {"kind": "tuple", "items": [_describe(item, outer) for item in node.item_types]}
    if isinstance(node, inspect.DictType):
        return {"kind": "dict", "keys": _describe(node.key_type, outer), "values": _describe(node.value_type, outer)}
    if isinstance(node, inspect.UnionType):
        return _describe_union(node, outer)
    if isinstance(node, inspect.EnumType):
        return {"kind": "enum", "name": node.cls.__qualname__, "values": [member.value for member in node.cls]}
    if isinstance(node, inspect.LiteralType):
        return {"kind": "literal", "values": sorted(node.values, key=lambda value: (type(value).__name__, str(value)))}
    if isinstance(node, (inspect.DataclassType, inspect.NamedTupleType, inspect.StructType, inspect.TypedDictType)):
        return _describe_class(node, outer)
    if isinstance(node, inspect.CustomType):
        if node.cls is object:
            return "object"
        raise EncodingError(f"the type {type_name(node.cls)} cannot be encoded; {remedy(node.cls, role='value')}")
    name = type(node).__name__.removesuffix("Type").lower()
    raise EncodingError(f"the type {name} cannot be encoded; declare bytes, or `object` for any plain data")


def _describe_union(node: inspect.UnionType, outer: tuple[int, ...]) -> Any:
    types = [_describe(member, outer) for member in node.types]
    if "object" in types:
        return "object"
    return {"kind": "union", "types": sorted(types, key=lambda type_: json.dumps(type_, sort_keys=True))}


def _describe_class(
    node: inspect.DataclassType | inspect.NamedTupleType | inspect.StructType | inspect.TypedDictType,
    outer: tuple[int, ...],
) -> Any:
    if id(node) in outer:
        return {"kind": "recursive", "up": outer[::-1].index(id(node)) + 1}
    outer = (*outer, id(node))
    fields = [(field.encode_name, _describe(field.type, outer), field.required) for field in node.fields]
    by_position = isinstance(node, inspect.NamedTupleType) or getattr(node, "array_like", False)
    name = getattr(node.cls, "__qualname__", None) or str(node.cls)
    described: dict[str, Any] = {"kind": "array" if by_position else "fields", "name": name}
    if getattr(node, "tag", None) is not None:
        described["tag"] = [node.tag_field, node.tag]  # type: ignore[union-attr]
    if by_position:
        described["fields"] = [list(field) for field in fields]
    else:
        described["fields"] = {name: {"type": type_, "required": required} for name, type_, required in fields}
    return described


def format_type(fingerprint: Any) -> str:
    """Return a type as a user would write it: ``tuple[int, Departure(carrier: str, delay: int = ...)]``."""
    if isinstance(fingerprint, str):
        return fingerprint
    match fingerprint["kind"]:
        case "list" | "set" | "frozenset" as kind:
            return f"{kind}[{format_type(fingerprint['items'])}]"
        case "variadic":
            return f"tuple[{format_type(fingerprint['items'])}, ...]"
        case "tuple":
            return f"tuple[{', '.join(map(format_type, fingerprint['items'])) or '()'}]"
        case "dict":
            return f"dict[{format_type(fingerprint['keys'])}, {format_type(fingerprint['values'])}]"
        case "union":
            return " | ".join(map(format_type, fingerprint["types"]))
        case "enum":
            return f"{fingerprint['name']}({', '.join(map(repr, fingerprint['values']))})"
        case "literal":
            return f"Literal[{', '.join(map(repr, fingerprint['values']))}]"
        case "recursive":
            return "<the same class>" if fingerprint["up"] == 1 else f"<the class {fingerprint['up']} further out>"
        case "constrained":
            where = ", ".join(f"{name}={value!r}" for name, value in fingerprint["where"].items())
            return f"Annotated[{format_type(fingerprint['type'])}, {where}]"
        case _:
            fields = ", ".join(
                f"{name}: {format_type(type_)}{'' if required else ' = ...'}"
                for name, type_, required in class_fields(fingerprint)
            )
            return f"{fingerprint['name']}({fields})"


def why_incompatible(old: Any, new: Any, *, as_key: bool = False) -> str | None:
    """Return the reason why values encoded as ``old`` cannot be read as ``new``.

    Args:
        old: Fingerprint of the type that the values were written with.
        new: Fingerprint of the type that they are to be read with.
        as_key: True for map keys, which must be readable and also encode to the same bytes.

    Returns:
        The first reason, or None if they can be read. They can if the types are the same, and if in ``new`` a union,
        an enum or a literal has more members, a class has more fields with defaults (at the end, where they are stored
        by position), or a constraint is gone.
    """
    if old == new:
        return None
    if not isinstance(new, str) and new["kind"] == "union":
        return _why_union(old, new, as_key)
    if not isinstance(old, str) and old["kind"] == "constrained":
        inner, where = (new["type"], new["where"]) if _kind(new) == "constrained" else (new, {})
        if where.items() <= old["where"].items():
            return why_incompatible(old["type"], inner, as_key=as_key)
    if isinstance(old, str) or isinstance(new, str) or old["kind"] != new["kind"]:
        return f"{format_type(old)} became {format_type(new)}"
    match old["kind"]:
        case "list" | "set" | "frozenset" | "variadic":
            return why_incompatible(old["items"], new["items"], as_key=as_key)
        case "tuple" if len(old["items"]) == len(new["items"]):
            return _first(zip(old["items"], new["items"], strict=True), as_key)
        case "dict":
            return _first([(old["keys"], new["keys"]), (old["values"], new["values"])], as_key)
        case "enum" | "literal":
            missing = [value for value in old["values"] if value not in new["values"]]
            return f"{', '.join(map(repr, missing))} is no longer in {format_type(new)}" if missing else None
        case "fields" | "array":
            return _why_class(old, new, as_key)
        case _:
            return f"{format_type(old)} became {format_type(new)}"


def _why_union(old: Any, new: Any, as_key: bool) -> str | None:
    members = old["types"] if _kind(old) == "union" else [old]
    for member in members:
        if all(why_incompatible(member, candidate, as_key=as_key) for candidate in new["types"]):
            return f"{format_type(member)} is no longer in {format_type(new)}"
    return None


def _why_class(old: Any, new: Any, as_key: bool) -> str | None:
    if old.get("tag") != new.get("tag"):
        return f"the tag of {new['name']} changed from {old.get('tag')} to {new.get('tag')}"
    before, after = class_fields(old), class_fields(new)
    declared = {name: (type_, required) for name, type_, required in after}
    known = {name for name, _, _ in before}
    if (old["kind"] == "array" or as_key) and [field[0] for field in after][: len(before)] != [f[0] for f in before]:
        return (
            f"{new['name']} is stored by position and its first fields are no longer {', '.join(f[0] for f in before)}"
        )
    for name, type_, required in before:
        if name not in declared:
            return f"{new['name']} no longer has the field {name}"
        if reason := why_incompatible(type_, declared[name][0], as_key=as_key):
            return f"in the field {name} of {new['name']}: {reason}"
        if declared[name][1] and not required:
            return f"the field {name} of {new['name']} lost its default, and may be missing in stored values"
    for name, _, required in after:
        if name not in known and (required or as_key):
            why = "a part of map keys" if as_key else "without a default"
            return f"{new['name']} has the new field {name}, {why}"
    return None


def _first(pairs: Any, as_key: bool) -> str | None:
    return next((reason for old, new in pairs if (reason := why_incompatible(old, new, as_key=as_key))), None)


def field_names(fingerprint: Any) -> list[str]:
    """Return the names of the fields of a class; none for other types."""
    is_class = isinstance(fingerprint, dict) and fingerprint["kind"] in ("fields", "array")
    return [name for name, _, _ in class_fields(fingerprint)] if is_class else []


def _kind(fingerprint: Any) -> str:
    return fingerprint if isinstance(fingerprint, str) else str(fingerprint["kind"])


def class_fields(fingerprint: Any) -> list[tuple[str, Any, bool]]:
    """Return the fields of a class: the name and type of each, and whether it is required."""
    fields = fingerprint["fields"]
    if isinstance(fields, list):
        return [(name, type_, required) for name, type_, required in fields]
    return [(name, field["type"], field["required"]) for name, field in fields.items()]
