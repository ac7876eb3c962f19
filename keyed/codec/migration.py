"""Adds new fields of a class to its stored values, and converts values to another type.

A class that is stored by name is a map, one that is stored by position an array (`keyed.codec.values`); a field is
added to either without the original class, which need not exist any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isnan
from typing import Any

import msgspec
from msgspec.msgpack import Ext

from keyed.codec.fingerprints import describe_type, format_type
from keyed.codec.tagged import decode_tagged, encode_tagged
from keyed.codec.values import WIDE, pack, unpack_any, value_codec
from keyed.errors import CorruptionError, EncodingError, StateSchemaChanged

_PLAIN = ("None", "bool", "int", "float", "str", "bytes", "datetime", "date", "time", "timedelta", "Decimal", "UUID")


def with_fields(fingerprint: Any, fields: Mapping[str, Any]) -> tuple[Any, Callable[[bytes], bytes]]:
    """Return a type with added fields, and a function that adds them to a value.

    Args:
        fingerprint: Type of the stored values (`keyed.codec.fingerprints`).
        fields: Value by the name of each new field: None, or a bool, int, float, str, bytes, datetime, date, time,
            timedelta, Decimal or UUID. If the class is stored by position, they follow its existing fields.

    Returns:
        The fingerprint with the fields, and a function from encoded value to encoded value, which raises
        `CorruptionError` for other values.

    Raises:
        StateSchemaChanged: The stored values are not of a class, or the class has the field.
        EncodingError: A value cannot be encoded.
    """
    kind = fingerprint["kind"] if isinstance(fingerprint, dict) else fingerprint
    if kind not in ("fields", "array"):
        raise StateSchemaChanged(f"fields can be added to values of a class, and these are {format_type(fingerprint)}")
    present = fingerprint["fields"] if kind == "fields" else [name for name, _, _ in fingerprint["fields"]]
    if known := [name for name in fields if name in present]:
        raise StateSchemaChanged(f"the field {known[0]} exists already: {format_type(fingerprint)}")
    types = {name: describe_type(type(value)) for name, value in fields.items()}
    for name, type_ in types.items():
        if type_ not in _PLAIN:
            raise StateSchemaChanged(f"the field {name} cannot be given {fields[name]!r}: give {', '.join(_PLAIN)}")
    if kind == "fields":
        added = fingerprint["fields"] | {name: {"type": type_, "required": True} for name, type_ in types.items()}
    else:
        added = [*fingerprint["fields"], *([name, type_, True] for name, type_ in types.items())]
    return {**fingerprint, "fields": added}, _converter(fields, tagged=_has_untyped(fingerprint))


def as_type(kind: str, fingerprint: Any, type_: Any) -> tuple[Any, Callable[[bytes], bytes]]:
    """Return the description of another type, and a function that converts a value to it.

    Args:
        kind: Kind of the state.
        fingerprint: Type of the stored values.
        type_: The new type.

    Returns:
        The fingerprint, and a function from encoded value to encoded value, which raises `StateSchemaChanged` for a
        value that would not be equal afterwards.

    Raises:
        StateSchemaChanged: No value of the one type can be one of the other, or the state has no values by themselves.
        EncodingError: The type cannot be encoded.
    """
    codec = value_codec(type_)
    change = f"{format_type(fingerprint)} as {format_type(codec.fingerprint)}"
    if kind == "table":
        raise StateSchemaChanged("the columns of a table cannot be converted; declare a table of another name")
    if _has_untyped(fingerprint) != _has_untyped(codec.fingerprint):
        raise StateSchemaChanged(f"{change}: values with and without a declared type are stored differently")
    both = fingerprint, codec.fingerprint
    if fingerprint != codec.fingerprint and all(each in _PLAIN for each in both if isinstance(each, str)):
        is_number = [each in ("int", "float") for each in both if isinstance(each, str)]
        if len(is_number) == 2 and not all(is_number):
            raise StateSchemaChanged(f"{change}: only int and float are converted; keep the state, and add another")

    def convert(data: bytes) -> bytes:
        value: Any = None
        try:
            if codec.fingerprint == "int" and isinstance(value := unpack_any(data), float) and value.is_integer():
                return codec.encode(int(value))
            converted = codec.encode(codec.decode(data))
            if _has_all(unpack_any(data), unpack_any(converted)):
                return converted
        except (CorruptionError, EncodingError, msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise StateSchemaChanged(f"{change}: {error}") from error
        raise StateSchemaChanged(f"{change}: {unpack_any(data)!r:.200} would change")

    return codec.fingerprint, convert


def _has_all(old: Any, new: Any) -> bool:
    """Return true if a value has all of another one: numbers are compared by value, a class may have more fields."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(name in new and _has_all(value, new[name]) for name, value in old.items())
    if isinstance(old, list) and isinstance(new, list):
        return len(old) <= len(new) and all(map(_has_all, old, new))
    if isinstance(old, Ext) or isinstance(new, Ext):
        return isinstance(old, Ext) and isinstance(new, Ext) and (old.code, old.data) == (new.code, new.data)
    return bool(old == new) or (isinstance(old, float) and isinstance(new, float) and isnan(old) and isnan(new))


def _converter(fields: Mapping[str, Any], *, tagged: bool) -> Callable[[bytes], bytes]:
    """Return ``tagged``: whether the type has untyped parts, and its values are written by `keyed.codec.tagged`."""

    def extended(value: Any) -> Any:
        if isinstance(value, dict):
            return {**value, **fields}
        if isinstance(value, list | tuple):
            return [*value, *fields.values()]
        raise CorruptionError(f"an encoded value is not an instance of a class: {value!r:.200}")

    def convert(data: bytes) -> bytes:
        if tagged:
            return encode_tagged(extended(decode_tagged(data)))
        try:
            value = unpack_any(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise CorruptionError(f"an encoded value is malformed ({error})") from error
        if isinstance(value, Ext) and value.code == WIDE:
            return pack(Ext(WIDE, encode_tagged(extended(decode_tagged(bytes(value.data))))))
        return pack(extended(value))

    return convert


def _has_untyped(fingerprint: Any) -> bool:
    if isinstance(fingerprint, dict):
        return any(map(_has_untyped, fingerprint.values()))
    if isinstance(fingerprint, list):
        return any(map(_has_untyped, fingerprint))
    return bool(fingerprint == "object")
