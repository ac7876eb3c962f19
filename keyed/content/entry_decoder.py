"""Entries of a state, from the bytes of a changelog or a local store to typed values."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

import msgspec

from keyed.codec.arrow_streams import read_schema
from keyed.codec.fingerprints import describe_type, why_incompatible
from keyed.codec.keys import decode_key, decode_key_at, encode_key
from keyed.codec.map_keys import map_key_codec
from keyed.codec.stand_ins import value_reader
from keyed.codec.state_schema import MAPS, StateSchema
from keyed.codec.values import value_codec
from keyed.content.addresses import NULL, decode_place, decode_version_sub, place_sub, version_sub
from keyed.content.table_entries import value_converters
from keyed.errors import CorruptionError, StateSchemaChanged

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
