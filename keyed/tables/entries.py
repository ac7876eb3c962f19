"""Entries of a state as typed values, and keys as the addresses that hold them."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is a class
from typing import Any

import attrs

from keyed.base.arguments import type_of
from keyed.codec.fingerprints import format_type
from keyed.codec.keys import decode_key_at, encode_key
from keyed.codec.state_schema import MAPS
from keyed.content.addresses import KIND_OF_CLOCK, NULL, expiry
from keyed.content.entry_decoder import EntryDecoder
from keyed.errors import CorruptionError, EncodingError, StateSchemaChanged
from keyed.job.state import AggregatingState, MapState, State

_HEAD = Struct(">BH")


@attrs.frozen
class Entry:
    """One entry of a state.

    Attributes:
        key: One value, or a tuple of several; ``None`` in a broadcast state.
        namespace: Beside the key; ``None`` is the state itself.
        entry: The map key, (batch, index) of a list element, the timestamp of a version, the other key columns of a
            table as a tuple, start and end of a window as datetimes (milliseconds beyond the years 1 to 9999);
            ``None`` if there is only one.
        value: The value, element, accumulator or result; of a table a dict of the other columns; ``None`` for a deleted
            version.
        expires: With a time to live, its end, in milliseconds of the state's clock.
    """

    key: Any
    namespace: Any
    entry: Any
    value: Any
    expires: int | None = None


class EntryReader(EntryDecoder):
    """Locates the entries of one state in a local store, and decodes them.

    Args:
        described: The state's description with its id, as commits have it (`GroupMeta.states`).
        type_: Type of its values, or its declaration, or the `keyed.AggregateFunction` whose results replace
            accumulators. By default plain values have their types, and a class is replaced by a `msgspec.Struct` with
            its fields.

    Attributes:
        range: The first address of its entries, and the address after the last.

    Raises:
        StateSchemaChanged: ``type_`` does not fit the stored entries.
    """

    def __init__(self, described: dict[str, Any], type_: Any = None) -> None:
        super().__init__(described)
        schema = self.schema
        self.clock = schema.ttl["time_domain"] if schema.ttl else None
        kind, number = KIND_OF_CLOCK[self.clock], int(described["id"])
        self.range = _HEAD.pack(kind, number), _HEAD.pack(kind, number + 1)
        self._result: Callable[[Any], Any] | None = None
        if schema.kind == "table":
            if type_ is not None:
                raise StateSchemaChanged(f"types: the {schema} has columns with types of their own")
        elif type_ is not None:
            self._take(type_)

    def _take(self, type_: Any) -> None:
        """Read values, and keys of a map, in the user's types."""
        schema = self.schema
        # The descriptor of a broadcast state is a map.
        is_broadcast = schema.kind == "broadcast" and isinstance(type_, MapState)
        if isinstance(type_, State) and type_.kind != schema.kind and not is_broadcast:
            raise StateSchemaChanged(f"types: {type_.kind} state {type_.name!r} is not the {schema}")
        if isinstance(type_, MapState):
            self.use_key_type(type_.key_type, f"types: {type_.key_type!r}")
            type_ = type_.value_type
        elif isinstance(type_, AggregatingState):
            self._result, type_ = type_.aggregate.get_result, type_.accumulator_type
        elif isinstance(type_, State):
            type_ = type_.type  # type: ignore[attr-defined]
        elif callable(getattr(type_, "get_result", None)) and not isinstance(type_, type):
            self._result = type_.get_result
            return
        self.use_value_type(type_, f"types: {type_!r}")

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
        """Return the common prefix of the addresses of a key's entries, in all namespaces."""
        return self.range[0] + encode_key(key)

    def prefix_maker(self, namespace: Any) -> Callable[[Any], bytes]:
        """Return a function from keys to their prefixes."""
        head, tail = self.range[0], encode_key(namespace)
        return lambda key: head + encode_key(key) + tail

    def bounds(self, prefix: Any, from_: Any, to: Any) -> tuple[bytes, bytes]:
        """Return the first address of the entries of a range of keys, and the address after the last.

        Args:
            prefix: Prefix of the keys: text, bytes, or the first parts of keys that are tuples.
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
        """Return the range of addresses of a key's windows that start in a range of times.

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
        if self.schema.kind == "table" and not isinstance(entry, tuple):
            entry = (entry,)
        try:
            return self._encode_sub(entry)
        except (TypeError, StructError) as error:
            raise EncodingError(f"entry={entry!r:.100} is not an entry of the {self.schema}: {error}") from error

    def head_of(self, address: bytes) -> bytes:
        """Return the common prefix of the addresses of an address's key; a partial address is returned unchanged."""
        try:
            return address[: decode_key_at(address, _HEAD.size)[1]]
        except CorruptionError:
            return address

    def entry(self, prefix: bytes, sub: bytes, value: bytes | None) -> Entry:
        """Decode an entry; a removed one has no value."""
        key, namespace = self.place(prefix)
        if value is None:
            return Entry(key, namespace, self.decode_sub(sub), None)
        return Entry(key, namespace, self.decode_sub(sub), self.value(value), self.expires(value))

    def expires(self, value: bytes) -> int | None:
        """Return the end of a stored value's time to live, if it has one."""
        return None if self.clock is None else expiry(value)

    def values(self, values: list[bytes | None]) -> list[Any]:
        """Decode stored values; ``None`` if there is none."""
        decode = self._decode if self.clock is None and self._result is None else self.value
        return [None if value is None or value == NULL else decode(value) for value in values]

    def value(self, value: bytes) -> Any:
        """Decode a stored value."""
        decoded = self.decode(value if self.clock is None else value[8:])
        return decoded if self._result is None or decoded is None else self._result(decoded)


def key_prefix(prefix: Any) -> bytes:
    """Return the common prefix of the encodings of all keys that begin with ``prefix``.

    Args:
        prefix: Text, bytes, or the first parts of keys that are tuples, of which the last may be incomplete.

    Raises:
        EncodingError: No key begins with it.
    """
    if isinstance(prefix, str | bytes | tuple):
        # The encoding ends with a terminator byte, which longer text and tuples do not have there.
        return encode_key(prefix)[:-1]
    raise EncodingError(
        f"prefix={prefix!r} is {type_of(prefix)}; give text, bytes, or a tuple of the first parts of keys that "
        "are tuples; for other keys use from_= and to="
    )


def _bound(key: Any) -> bytes:
    """Return the encoding of a key, or of its first parts."""
    encoded = encode_key(key)
    # A tuple sorts before all tuples that it begins, with and without its terminator, which is the least byte.
    return encoded[:-1] if isinstance(key, tuple) else encoded
