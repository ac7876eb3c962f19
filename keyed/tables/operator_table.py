"""The one table of a library's operator: rows computed from its state, under addresses of their own.

A state whose description has ``shown_as`` (`keyed.extending.inner_state`) is shown under the operator's name, by the
class that ``view`` names: `keyed.windows.window_table.WindowTable`. The address of a row is its key without a
namespace, and the encoded tuple of its bounds. Its value is what the class computed from the entries of the row.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from datetime import datetime
from importlib import import_module
from itertools import groupby
from typing import TYPE_CHECKING, Any

import attrs

from keyed.base.arguments import instant_ms, instant_of
from keyed.codec.keys import decode_key, decode_key_at, encode_key
from keyed.codec.state_schema import StateSchema
from keyed.codec.values import value_codec
from keyed.errors import CorruptionError, DefinitionError
from keyed.stores.database import successor
from keyed.tables.entries import Entry, EntryReader
from keyed.tables.stored_entries import ComputedEntries, StoredEntries, differences

if TYPE_CHECKING:
    from keyed.stores.version_store import Extent, VersionedBatch

_NONE, _TUPLE = encode_key(None), encode_key(())[:1]
_Change = tuple[bytes, bytes, bytes | None, bytes | None]
_Stored = tuple[bytes, bytes, bytes]


class OperatorTableReader(EntryReader):
    """Locates and decodes the rows of an operator's table.

    Args:
        operator: Name of the operator, and of the table.
        described: The description of the shown state, with its id.
        function: The operator or its aggregates, if the reader of the tables gave them.

    Attributes:
        inner: Reads the shown state.
        rows_of: The class that computes rows.

    Raises:
        CorruptionError: There is no such class.
    """

    def __init__(self, operator: str, described: dict[str, Any], function: Any = None) -> None:
        super().__init__(described)
        self.inner = EntryReader(described)
        shown_as = described["schema"]["shown_as"]
        if shown_as["view"] != "windows":
            raise CorruptionError(f"operator {operator!r} has a table of an unknown kind, {shown_as['view']!r:.100}")
        codec = value_codec(list)
        make: Any = import_module("keyed.windows.window_table").WindowTable
        try:
            self.rows_of = make(shown_as, self.inner.value, codec.encode, codec.decode, function)
        except (AttributeError, KeyError, TypeError) as error:
            raise CorruptionError(
                f"the table of operator {operator!r} is malformed ({error!r}): {shown_as!r:.200}"
            ) from error
        bounds = zip(self.rows_of.bounds, self.rows_of.are_times, strict=True)
        columns = [*((bound, "timestamp" if is_time else "object") for bound, is_time in bounds), *self.rows_of.columns]
        fields = {column: {"type": type_ or "object", "required": True} for column, type_ in columns}
        value = {"kind": "fields", "name": operator, "fields": fields}
        self.schema = StateSchema(operator, "window", self.rows_of.bounds, value)
        self.has_entries = bool(self.rows_of.bounds)

    @property
    def types(self) -> str:
        """The columns other than the key's, as text."""
        return ", ".join(f"{name}: {field['type']}" for name, field in self.schema.value["fields"].items())

    def sub(self, entry: Any) -> bytes:
        """Return the sub of a window: its start and end, or its start alone, in milliseconds or as datetimes."""
        parts = entry if isinstance(entry, tuple) else (entry,)
        return encode_key(self.rows_of.window_of(tuple(map(_milliseconds, parts))))

    def decode_sub(self, sub: bytes) -> Any:
        """Return the start and end of a window as times; ``None`` if there is one window."""
        if not self.has_entries:
            return None
        parts = zip(decode_key(sub), self.rows_of.are_times, strict=True)
        return tuple(shown_time(part) if is_time else part for part, is_time in parts)

    def value(self, value: bytes) -> Any:
        """Return the results of a row by column."""
        return self.rows_of.results(value)

    def values(self, values: list[bytes | None]) -> list[Any]:
        """Return the results of rows; ``None`` for a missing row."""
        return [None if value is None else self.value(value) for value in values]

    def window_bounds(self, example: Any, from_: int, to: int) -> tuple[bytes, bytes]:
        """Return the range of addresses of a key's windows that start in a range of times."""
        head = self.key_head(example.key) + _NONE
        return head + encode_key((from_,))[:-1], head + encode_key((to,))[:-1]

    def address(self, head: bytes, window: tuple[Any, ...]) -> tuple[bytes, bytes]:
        """Return the prefix and sub of a key's window."""
        return head + _NONE, encode_key(tuple(window)) if self.has_entries else b""

    def rows_by_sub(self, entries: list[_Stored], clocks: tuple[int, int]) -> dict[bytes, bytes]:
        """Return the rows of a key by their subs, in their order, from its stored entries."""
        decode = self.inner.decode_sub

        def stored() -> Iterator[tuple[Any, Any, bytes]]:
            for prefix, sub, value in entries:
                yield decode_key_at(prefix, decode_key_at(prefix, 3)[1])[0], decode(sub), value

        rows = self.rows_of.rows(stored(), clocks)
        return dict(sorted((self.address(b"", window)[1], value) for window, value in rows.items()))

    def rows_of_entries(self, entries: list[_Stored], clocks: tuple[int, int]) -> Iterator[Entry]:
        """Yield the rows of all keys from their stored entries in the order of their addresses."""
        for head, of_key in groupby(entries, lambda entry: self.head_of(entry[0])):
            for sub, value in self.rows_by_sub(list(of_key), clocks).items():
                yield Entry(decode_key_at(head, 3)[0], None, self.decode_sub(sub), self.value(value))

    def range_of(self, head: bytes, first: bytes, end: bytes) -> tuple[bytes, bytes]:
        """Return the range of stored addresses from which the rows of a key within a range are computed."""
        start, stop = (_start_of(address[len(head) + len(_NONE) :]) for address in (first, end))
        where = None if start is None or stop is None else self.rows_of.range_of(start, stop)
        if where is None:
            return head, successor(head)
        in_namespaces, low, high = where
        inside = head if in_namespaces else head + _NONE
        return inside + encode_key((low,))[:-1], inside + encode_key((high,))[:-1]


@attrs.define(eq=False, slots=False)
class OperatorTableEntries(ComputedEntries):
    """The rows of an operator's table as of a commit.

    Args:
        store: The store that holds them.
        commit: The commit.
        reader: The reader of the table.
        source_at: Returns the stored entries of the state as of a commit.
    """

    _reader: OperatorTableReader
    _source_at: Callable[[VersionedBatch], StoredEntries]

    def __attrs_post_init__(self) -> None:
        self._at = self._store.batch(self._commit)
        self._source = self._source_at(self._at)

    def get(self, prefix: bytes, sub: bytes) -> bytes | None:
        """Return the value of a row; without a window's end, of the first window with the start."""
        head = self._reader.head_of(prefix)
        if prefix != head + _NONE:
            return None
        start = _start_of(sub)
        end = prefix if start is None else prefix + encode_key((start + 1,))
        bounds = self._reader.range_of(head, prefix + sub, end)
        rows = self._rows(self._at, list(self._source.scan(*bounds, reverse=False)))
        row = rows.get(sub)
        if row is None and sub:
            return next((value for each, value in rows.items() if each.startswith(sub[:-1])), None)
        return row

    def scan(self, first: bytes, end: bytes, *, reverse: bool) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Yield the (prefix, sub, value) of a range of addresses."""
        low, high = self._reader.head_of(first), self._reader.head_of(end)
        bounds = (low, end if high == end else successor(high))
        if low == high and len(low) < min(len(first), len(end)):
            bounds = self._reader.range_of(low, first, end)
        stored = self._source.scan(*bounds, reverse=reverse)
        one_by_one = ((self._reader.head_of(entry[0]), [entry]) for entry in stored)
        # Stored values with rows of their own are not read ahead.
        for head, entries in one_by_one if self._reader.rows_of.is_apart else self._by_key(stored):
            prefix = head + _NONE
            rows = self._rows(self._at, entries[::-1] if reverse else entries).items()
            for sub, value in reversed(rows) if reverse else rows:
                if first <= prefix + sub < end:
                    yield prefix, sub, value

    def changes(self) -> Iterator[_Change]:
        """Yield the (prefix, sub, value before, value after) of the rows that the commit changed, by address."""
        changed: dict[bytes, list[_Change]] = {}
        for change in self._source.changes():
            changed.setdefault(self._reader.head_of(change[0]), []).append(change)
        before = self._store.batch(self._commit - 1)
        heads: set[bytes] = {*changed}
        if self._reader.rows_of.removes(_clocks(before), _clocks(self._at)):
            heads |= {head for head, _ in self._by_key(self._source.scan(*self._reader.range, reverse=False))}
        for head in sorted(heads):
            after: dict[tuple[bytes, bytes], bytes | None] = {}
            if head not in changed or not self._reader.rows_of.is_apart:
                stored = self._source.scan(head, successor(head), reverse=False)
                after = {(prefix, sub): value for prefix, sub, value in stored}
            older = dict(after)
            for prefix, sub, old, new in changed.get(head, ()):
                older[prefix, sub], after[prefix, sub] = old, new
            was, now = (
                self._rows(at, sorted((*place, value) for place, value in entries.items() if value is not None))
                for at, entries in ((before, older), (self._at, after))
            )
            for sub, old, new in differences(was, now):
                yield head + _NONE, sub, old, new

    def _rows(self, at: VersionedBatch, entries: list[_Stored]) -> dict[bytes, bytes]:
        return self._reader.rows_by_sub(entries, _clocks(at))

    def _by_key(self, stored: Iterator[_Stored]) -> Iterator[tuple[bytes, list[_Stored]]]:
        """Yield the stored entries of each key."""
        groups = groupby(stored, lambda entry: self._reader.head_of(entry[0]))
        return ((head, list(entries)) for head, entries in groups)

    def _as_of(self, commit: int) -> OperatorTableEntries:
        return OperatorTableEntries(self._store, commit, self._reader, self._source_at)

    def _commits_of(self, prefix: bytes, sub: bytes) -> list[int]:
        extent = self._store.extent
        assert extent is not None
        return sorted({max(commit, extent.oldest) for commit in self._changes_of(prefix, sub, extent)}, reverse=True)

    def _changes_of(self, prefix: bytes, sub: bytes, extent: Extent) -> Iterator[int]:
        """Yield the commits that may have changed a row, in no order."""
        head = self._reader.head_of(prefix)
        window = decode_key(sub) if sub else ()
        places = self._reader.rows_of.places(window)
        if places is None:
            is_named = self._reader.inner.schema.named_by is not None
            for commit in range(extent.oldest, extent.newest + 1):
                if commit == extent.oldest or is_named or self._store.changed(commit, head, successor(head)):
                    yield commit
            return
        for namespace, entry in places:
            address = b"" if entry is None else self._reader.inner.sub(entry)
            yield from (number for number, _ in self._source.history(head + encode_key(namespace), address))
        removed_at = self._reader.rows_of.removed_at(window)
        if removed_at is not None:
            yield from self._commits_at(removed_at, extent)

    def _commits_at(self, time: int, extent: Extent) -> Iterator[int]:
        """Yield the first commits at which the clock of the windows has reached a time, in each run of the job."""
        ends = [*(era.commit - 1 for era in extent.eras[1:]), extent.newest]
        for era, high in zip(extent.eras, ends, strict=True):
            low = max(era.commit, extent.oldest)
            if low <= high:
                yield low
                yield low + bisect_left(range(low, high), time, key=self._clock_at)

    def _clock_at(self, commit: int) -> int:
        """Return the clock of the windows after a commit."""
        clock: int = self._reader.rows_of.clock_of(_clocks(self._store.batch(commit)))
        return clock


def _clocks(at: VersionedBatch) -> tuple[int, int]:
    return at.watermark, at.processing_time


def _start_of(encoded: bytes) -> int | None:
    """Return the first number of a complete or partial tuple; ``None`` if there is none."""
    try:
        start = decode_key_at(encoded, 1)[0] if encoded[:1] == _TUPLE else None
    except CorruptionError:
        return None
    return start if type(start) is int else None


def _milliseconds(part: Any) -> Any:
    if isinstance(part, datetime):
        if part.tzinfo is None:
            raise DefinitionError(f"entry={part!r} has no time zone; give an aware datetime, or milliseconds")
        return instant_ms(part)
    return part


def shown_time(milliseconds: Any) -> Any:
    """Return a time as a datetime; a time outside of the range of datetimes is returned as milliseconds."""
    try:
        return instant_of(milliseconds) if type(milliseconds) is int else milliseconds
    except OverflowError:
        return milliseconds
