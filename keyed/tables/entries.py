"""Entries of a state as typed values, and keys as the addresses that hold them."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterator
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is a class
from typing import Any

import attrs
import msgspec

from keyed.codec.fingerprints import describe_type, format_type, why_incompatible
from keyed.codec.keys import decode_key, decode_key_at, encode_key
from keyed.codec.map_keys import map_key_codec
from keyed.codec.stand_ins import value_reader
from keyed.codec.state_schema import MAPS, StateSchema
from keyed.codec.values import value_codec
from keyed.content.addresses import (
    NULL,
    PLAIN,
    TTL_EVENT,
    TTL_PROCESSING,
    decode_place,
    decode_version_sub,
    expiry,
    place_sub,
    version_sub,
)
from keyed.content.table_entries import value_converters
from keyed.errors import CorruptionError, EncodingError, StateSchemaChanged
from keyed.state import AggregatingState, MapState, State

_HEAD = Struct(">BH")
_KINDS = {None: PLAIN, "processing_time": TTL_PROCESSING, "event_time": TTL_EVENT}
#: How the subs of states with several entries a key are encoded and decoded.
_SUBS: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "list": (lambda place: place_sub(*place), decode_place),
    "map": (encode_key, decode_key),
    "broadcast": (encode_key, decode_key),
    "table": (encode_key, decode_key),
    "versioned": (version_sub, decode_version_sub),
}
_decode_row = msgspec.msgpack.Decoder(dict[str, Any]).decode


@attrs.frozen
class Entry:
    """One entry of a state.

    Attributes:
        key: The key of ``key_by``: one value, or a tuple of several; ``None`` in a broadcast state.
        namespace: The namespace beside the key; ``None`` is the state itself.
        entry: The entry within the state: the map key of a map, (batch, index) of a list element, the timestamp of a
            version, the other key columns of a table as a tuple, start and end of a window as datetimes (milliseconds
            beyond the years 1 to 9999), the first column of rows as a tuple; ``None`` if there is only one.
        value: The value, element, map value, accumulator or aggregate's result; of a table and of rows a dict of the
            other columns; ``None`` for a version that is a deletion.
        expires: With a time to live, its end, in milliseconds of the state's clock.
    """

    key: Any
    namespace: Any
    entry: Any
    value: Any
    expires: int | None = None


class EntryReader:
    """Locates and decodes the entries of one state.

    Args:
        described: The state's description with its id, as commits have it (`GroupMeta.states`).
        type_: Type of its values, or its declaration, or the `keyed.AggregateFunction` whose results replace
            accumulators. By default plain values have their types, and a class is replaced by a `msgspec.Struct` with
            its fields.

    Attributes:
        schema: The state's name, kind and types.
        range: The first address of its entries, and the one behind the last.

    Raises:
        StateSchemaChanged: ``type_`` does not fit the stored entries.
    """

    def __init__(self, described: dict[str, Any], type_: Any = None) -> None:
        self.schema = schema = StateSchema.from_json(described["schema"])
        self.clock = schema.ttl["time_domain"] if schema.ttl else None
        self._id, self._kind = int(described["id"]), _KINDS[self.clock]
        self.range = _HEAD.pack(self._kind, self._id), _HEAD.pack(self._kind, self._id + 1)
        self.has_entries = schema.rows is not None or (
            schema.kind in _SUBS and (schema.kind != "table" or len(schema.key) > schema.value["stream_keys"])
        )
        self._encode_sub, self._decode_sub = _SUBS.get(schema.kind, (encode_key, decode_key))
        self._result: Callable[[Any], Any] | None = None
        if schema.kind == "table":
            self._decode: Callable[[bytes], Any] = self._row_decoder()
            if type_ is not None:
                raise StateSchemaChanged(f"types: the {schema} has columns, which have their types")
        elif schema.rows is not None:
            names, read = [name for name, _ in schema.rows[1:]], value_reader(schema.value)
            self._decode = lambda stored: dict(zip(names, read(stored), strict=True))
            self._decode_list, self._encode_row = read, value_codec(list).encode
        elif type_ is None:
            self._decode = value_reader(schema.value)
        else:
            self._take(type_)

    def _row_decoder(self) -> Callable[[bytes], Any]:
        """Return what decodes the columns of a table that are not its key; takes care of those of the key beside it."""
        import pyarrow as pa

        value = self.schema.value
        columns = pa.ipc.read_schema(pa.py_buffer(b64decode(value["arrow"])))
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

    def _take(self, type_: Any) -> None:
        """Read values, and keys of a map, in the user's types."""
        schema = self.schema
        # Its descriptor is a map.
        is_broadcast = schema.kind == "broadcast" and isinstance(type_, MapState)
        if isinstance(type_, State) and type_.kind != schema.kind and not is_broadcast:
            raise StateSchemaChanged(f"types: {type_.kind} state {type_.name!r} is not the {schema}")
        if isinstance(type_, MapState):
            self._check(schema.key, type_.key_type, as_key=True)
            codec = map_key_codec(type_.key_type)
            self._encode_sub, self._decode_sub = codec.encode, codec.decode
            type_ = type_.value_type
        elif isinstance(type_, AggregatingState):
            self._result, type_ = type_.aggregate.get_result, type_.accumulator_type
        elif isinstance(type_, State):
            type_ = type_.type  # type: ignore[attr-defined]
        elif callable(getattr(type_, "get_result", None)) and not isinstance(type_, type):
            self._result, self._decode = type_.get_result, value_reader(schema.value)
            return
        self._check(schema.value, type_, as_key=False)
        self._decode = value_codec(type_).decode

    def _check(self, stored: Any, type_: Any, *, as_key: bool) -> None:
        reason = why_incompatible(stored, describe_type(type_), as_key=as_key)
        if reason is not None:
            raise StateSchemaChanged(f"types: {type_!r} does not fit the {self.schema}: {reason}")

    @property
    def types(self) -> str:
        """The types of the state as text."""
        value = format_type(self.schema.value)
        return f"{format_type(self.schema.key)} -> {value}" if self.schema.kind in MAPS else value

    def prefix(self, key: Any, namespace: Any) -> bytes:
        """Return the prefix of the entries of a key.

        Raises:
            EncodingError: The key or namespace cannot be one.
        """
        return self.prefix_maker(namespace)(key)

    def key_head(self, key: Any) -> bytes:
        """Return what the addresses of all entries of a key begin with, whatever the namespace."""
        return self.range[0] + encode_key(key)

    def prefix_maker(self, namespace: Any) -> Callable[[Any], bytes]:
        """Return what makes the prefixes of many keys."""
        head, tail = self.range[0], encode_key(namespace)
        return lambda key: head + encode_key(key) + tail

    def bounds(self, prefix: Any, from_: Any, to: Any) -> tuple[bytes, bytes]:
        """Return the first address of the entries of a range of keys, and the one behind the last.

        Args:
            prefix: What the keys begin with: text, bytes, or the first parts of keys that are tuples.
            from_: The least key, or its first parts.
            to: The key, or its first parts, before which the range ends.
        """
        first, end = self.range
        if prefix is not None:
            head = self.range[0] + key_prefix(prefix)
            first, end = head, head + b"\xff" * 9
        if from_ is not None:
            first = max(first, self.range[0] + _bound(from_))
        if to is not None:
            end = min(end, self.range[0] + _bound(to))
        return first, end

    def window_bounds(self, example: Entry, from_: int, to: int) -> tuple[bytes, bytes]:
        """Return the addresses between which a key's windows are that start at a time or later, and before another one.

        Args:
            example: An entry of the key.
            from_: The least start, in milliseconds.
            to: The start before which the range ends.
        """
        head = self.key_head(example.key)
        window = example.namespace
        if window is None:
            head, window = head + encode_key(None), example.entry
        if isinstance(window, tuple) and window and type(window[0]) is int:
            return head + _bound((from_,)), head + _bound((to,))
        if type(window) is int:
            return head + encode_key(from_), head + encode_key(to)
        return self.range

    def sub(self, entry: Any) -> bytes:
        """Return the sub of an entry.

        Raises:
            EncodingError: It cannot be an entry of this state.
        """
        if (self.schema.kind == "table" or self.schema.rows is not None) and not isinstance(entry, tuple):
            entry = (entry,)
        try:
            return self._encode_sub(entry)
        except (TypeError, StructError) as error:
            raise EncodingError(f"entry={entry!r:.100} is no entry of the {self.schema}: {error}") from error

    def rows(self, value: bytes | None) -> dict[bytes, bytes]:
        """Return the rows that a stored list holds as the values of entries, by their subs and in the order of these.

        Raises:
            EncodingError: It holds something else.
        """
        if value is None:
            return {}
        assert self.schema.rows is not None
        width, due = len(self.schema.rows), b"" if self.clock is None else value[:8]
        items = self._decode_list(value[len(due) :])
        if len(items) % width:
            raise EncodingError(f"the {self.schema} holds a list of {len(items)} items, which is no number of rows")
        found = {
            encode_key((items[at],)): due + self._encode_row(items[at + 1 : at + width])
            for at in range(0, len(items), width)
        }
        return dict(sorted(found.items()))

    def head_of(self, address: bytes) -> bytes:
        """Return what the addresses of all entries of an address's key begin with; of a beginning of a key itself."""
        try:
            return address[: decode_key_at(address, _HEAD.size)[1]]
        except CorruptionError:
            return address

    def list_of(self, address: bytes) -> bytes:
        """Return the address of the list that holds the row of an address; of a beginning of one the beginning."""
        try:
            return address[: decode_key_at(address, decode_key_at(address, _HEAD.size)[1])[1]]
        except CorruptionError:
            return address

    def entry(self, prefix: bytes, sub: bytes, value: bytes | None) -> Entry:
        """Decode an entry; one that is gone has no value."""
        key, offset = decode_key_at(prefix, _HEAD.size)
        namespace, _ = decode_key_at(prefix, offset)
        if value is None:
            return Entry(key, namespace, self.decode_sub(sub), None)
        return Entry(key, namespace, self.decode_sub(sub), self.value(value), self.expires(value))

    def entries(self, prefix: bytes, sub: bytes, value: bytes) -> Iterator[Entry]:
        """Decode what is stored at an address: an entry, or the rows of a list."""
        rows = {sub: value} if self.schema.rows is None else self.rows(value)
        return (self.entry(prefix, row, stored) for row, stored in rows.items())

    def decode_sub(self, sub: bytes) -> Any:
        """Tell which entry of the state a sub is."""
        return self._decode_sub(sub) if self.has_entries else None

    def expires(self, value: bytes) -> int | None:
        """Tell when a stored value's time to live ends, if it has one."""
        return None if self.clock is None else expiry(value)

    def values(self, values: list[bytes | None]) -> list[Any]:
        """Decode stored values; ``None`` if there is none."""
        decode = self._decode if self.clock is None and self._result is None else self.value
        return [None if value is None or value == NULL else decode(value) for value in values]

    def value(self, value: bytes) -> Any:
        """Decode a stored value."""
        value = value if self.clock is None else value[8:]
        if value == NULL:
            return None
        decoded = self._decode(value)
        return decoded if self._result is None else self._result(decoded)


def key_prefix(prefix: Any) -> bytes:
    """Return what the encodings of all keys begin with that begin with ``prefix``.

    Args:
        prefix: Text, bytes, or the first parts of keys that are tuples, of which the last may be cut off as well.

    Raises:
        EncodingError: Nothing begins with it.
    """
    if isinstance(prefix, str | bytes):
        # The encoding ends with one byte, which no longer text has there.
        return encode_key(prefix)[:-1]
    if isinstance(prefix, tuple):
        return encode_key(prefix)[:-1]
    raise EncodingError(
        f"prefix={prefix!r} is a {type(prefix).__name__}; give text, bytes, or a tuple of the first parts of keys that "
        "are tuples; for other keys from_= and to="
    )


def _bound(key: Any) -> bytes:
    """Return the encoding of a key, or of the first parts of one."""
    encoded = encode_key(key)
    # Without its end a tuple comes before all that it begins, and so it does with it: the end is the least byte.
    return encoded[:-1] if isinstance(key, tuple) else encoded
