"""Entries of a state, from the bytes of a changelog or a local store to typed values, without their classes.

Plain data comes back as it was written. A class is replaced by a frozen `msgspec.Struct` with its name and fields;
fields with a default are ``None`` if they were not stored. An enum is replaced by the values of its members.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, reduce
from keyword import iskeyword
from operator import or_
from struct import Struct
from typing import Any

import msgspec
from msgspec.msgpack import Ext

from keyed.codec.arrow_streams import read_schema
from keyed.codec.fingerprints import LEAVES, class_fields, describe_type, why_incompatible
from keyed.codec.keys import decode_key, decode_key_at, encode_key
from keyed.codec.map_keys import map_key_codec
from keyed.codec.state_schema import MAPS, StateSchema
from keyed.codec.tagged import decode_tagged
from keyed.codec.values import WIDE, unpack_any, value_codec
from keyed.content.addresses import NULL, decode_place, decode_version_sub, place_sub, version_sub
from keyed.content.table_entries import value_converters
from keyed.errors import CorruptionError, EncodingError, StateSchemaChanged

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
        return _compile_reader(msgspec.json.encode(fingerprint))
    except _NoStandIn:
        return _decode_plain
    except (EncodingError, AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise CorruptionError(f"the description of a type is malformed ({error!r}): {fingerprint!r:.200}") from error


@lru_cache(maxsize=256)
def _compile_reader(fingerprint: bytes) -> Callable[[bytes], Any]:
    """Return the function that decodes the values of a type, once for each: its classes are made for it."""
    return value_codec(_stand_in(msgspec.json.decode(fingerprint))).decode


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


_HEAD = Struct(">BH")
#: Encoders and decoders for the subs of states with several entries per key.
_SUBS: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "list": (lambda place: place_sub(*place), decode_place),
    "map": (encode_key, decode_key),
    "broadcast": (encode_key, decode_key),
    "table": (encode_key, decode_key),
    "versioned": (version_sub, decode_version_sub),
}
_decode_row = msgspec.msgpack.Decoder(dict[str, Any]).decode


class EntryDecoder:
    """Decodes the entries of one state.

    By default plain values have their types, and a class is replaced by a `msgspec.Struct` with its fields;
    `use_value_type` and `use_key_type` set others.

    Args:
        described: The state's description with its id, from a commit (`GroupMeta.states`).

    Attributes:
        schema: The state's name, kind and types.
        has_entries: True if a key and namespace may have several entries, distinguished by their subs.

    Raises:
        CorruptionError: The description is malformed.
    """

    def __init__(self, described: dict[str, Any]) -> None:
        self.schema = schema = StateSchema.from_json(described["schema"])
        self.has_entries = schema.kind in _SUBS
        self._encode_sub, self._decode_sub = _SUBS.get(schema.kind, (encode_key, decode_key))
        if schema.kind == "table":
            self.has_entries = len(schema.key) > schema.value["stream_keys"]
            self._decode: Callable[[bytes], Any] = self._row_decoder()
        else:
            self._decode = value_reader(schema.value)

    def use_value_type(self, type_: Any, option: str) -> None:
        """Decode values, elements, map values or accumulators as a type.

        Args:
            type_: The type.
            option: The parameter and its value, for the message.

        Raises:
            StateSchemaChanged: It is not compatible with the stored entries.
        """
        stored = None if self.schema.kind == "table" else self.schema.value
        self._check(stored, type_, option, as_key=False)
        self._decode = value_codec(type_).decode

    def use_key_type(self, type_: Any, option: str) -> None:
        """Decode the keys of a map as a type. See `use_value_type`."""
        stored = self.schema.key if self.schema.kind in MAPS else None
        self._check(stored, type_, option, as_key=True)
        codec = map_key_codec(type_)
        self._encode_sub, self._decode_sub = codec.encode, codec.decode

    def _check(self, stored: Any, type_: Any, option: str, *, as_key: bool) -> None:
        if stored is None:
            reason: str | None = "it has no such type"
        else:
            reason = why_incompatible(stored, describe_type(type_), as_key=as_key)
        if reason is not None:
            raise StateSchemaChanged(f"{option} does not fit the {self.schema}: {reason}")

    def _row_decoder(self) -> Callable[[bytes], Any]:
        """Return the decoder of the value columns of a table, and set the decoder of its other key columns."""
        value = self.schema.value
        columns = read_schema(value["arrow"])
        names = self.schema.key[value["stream_keys"] :]
        read, write = value_converters(columns), value_converters(columns, back=True)

        def converted(parts: tuple[Any, ...], convert: dict[str, Callable[[Any], Any]]) -> tuple[Any, ...]:
            return tuple(
                convert[name](part) if name in convert else part for name, part in zip(names, parts, strict=True)
            )

        if read.keys() & set(names):
            self._decode_sub = lambda sub: converted(decode_key(sub), read)
            self._encode_sub = lambda parts: encode_key(converted(parts, write))

        def decode(stored: bytes) -> dict[str, Any]:
            return {name: read[name](part) if name in read else part for name, part in _decode_row(stored).items()}

        return decode

    def place(self, prefix: bytes) -> tuple[Any, Any]:
        """Decode the key and the namespace in a prefix.

        Raises:
            CorruptionError: It is not a prefix of a state.
        """
        key, offset = decode_key_at(prefix, _HEAD.size)
        return key, decode_key_at(prefix, offset)[0]

    def decode_sub(self, sub: bytes) -> Any:
        """Decode the sub of an entry; ``None`` if the state has only one entry.

        Raises:
            CorruptionError: It is not a sub of this state.
        """
        if self.has_entries:
            return self._decode_sub(sub)
        if sub:
            raise CorruptionError(f"a state with one entry has another one at {sub!r:.50}")
        return None

    def decode(self, value: bytes) -> Any:
        """Decode a stored value without its due time.

        Raises:
            CorruptionError: It is not a value of this state.
        """
        return None if value == NULL else self._decode(value)
