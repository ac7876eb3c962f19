"""Stand-ins for the types of stored values, built from their fingerprints alone.

Plain data comes back as it was written. A class is replaced by a frozen `msgspec.Struct` with its name and fields;
fields with a default are ``None`` if they were not stored. An enum is replaced by the values of its members.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from keyword import iskeyword
from operator import or_
from typing import Any

import msgspec
from msgspec.msgpack import Ext

from keyed.codec.fingerprints import LEAVES, class_fields
from keyed.codec.tagged import decode_tagged
from keyed.codec.values import WIDE, unpack_any, value_codec
from keyed.errors import CorruptionError, EncodingError

_COLLECTIONS: dict[str, Any] = {"list": list, "set": set, "frozenset": frozenset, "tuple": tuple, "dict": dict}


class _NoStandIn(Exception):
    """Marker for a class that contains itself, which a stand-in cannot."""


def value_reader(fingerprint: Any) -> Callable[[bytes], Any]:
    """Return a function that decodes the values of a type.

    Args:
        fingerprint: The type, see `keyed.codec.fingerprints`. Values of a type that contains itself come back as plain
            data: classes as dicts or lists, and types that MessagePack lacks in stored form, for example decimals as
            text.

    Returns:
        ``(bytes) -> value``, which raises `CorruptionError` if the bytes are not such a value.

    Raises:
        CorruptionError: It is not a fingerprint.
    """
    try:
        return value_codec(_stand_in(fingerprint)).decode
    except _NoStandIn:
        return _decode_plain
    except (EncodingError, AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise CorruptionError(f"the description of a type is malformed ({error!r}): {fingerprint!r:.200}") from error


def _stand_in(fingerprint: Any) -> Any:
    if isinstance(fingerprint, str):
        return LEAVES[fingerprint]
    match fingerprint["kind"]:
        case "list" | "set" | "frozenset" as kind:
            return _COLLECTIONS[kind][_stand_in(fingerprint["items"])]
        case "variadic":
            return _COLLECTIONS["tuple"][_stand_in(fingerprint["items"]), ...]
        case "tuple":
            return _COLLECTIONS["tuple"][tuple(map(_stand_in, fingerprint["items"]))]
        case "dict" as kind:
            return _COLLECTIONS[kind][_stand_in(fingerprint["keys"]), _stand_in(fingerprint["values"])]
        case "union":
            return reduce(or_, map(_stand_in, fingerprint["types"]))
        case "enum" | "literal":
            return reduce(or_, {type(value) for value in fingerprint["values"]})
        case "constrained":
            return _stand_in(fingerprint["type"])
        case "fields" | "array" as kind:
            return _struct(fingerprint, array_like=kind == "array")
        case "recursive":
            raise _NoStandIn
        case kind:
            raise ValueError(f"unknown kind {kind!r}")


def _struct(fingerprint: Any, *, array_like: bool) -> Any:
    tag_field, tag = fingerprint.get("tag", (None, None))
    stored = {}
    defined: list[Any] = []
    for number, (name, type_, required) in enumerate(class_fields(fingerprint)):
        attribute = name if _is_name(name) else f"field_{number}"
        stored[attribute] = name
        inner = _stand_in(type_)
        defined.append((attribute, inner) if required else (attribute, inner | None, None))
    class_name = fingerprint["name"].rpartition(".")[2]
    return msgspec.defstruct(
        class_name if _is_name(class_name) else "Stored",
        defined,
        frozen=True,
        kw_only=not array_like,
        array_like=array_like,
        rename=stored,
        tag_field=tag_field,
        tag=tag,
    )


def _is_name(text: str) -> bool:
    return text.isidentifier() and not iskeyword(text)


def _decode_plain(data: bytes) -> Any:
    try:
        value = unpack_any(data)
    except Exception as error:
        raise CorruptionError(f"an encoded value is malformed ({error})") from error
    if isinstance(value, Ext) and value.code == WIDE:
        return decode_tagged(bytes(value.data))
    return decode_tagged(data)
