"""Versioned state over a key group's entries.

A version is an entry of its own under its timestamp, the newest one first, so the newest is read without the others. It
has a time to live: the newest never expires; another one expires when no time of its validity is within the history any
more. The same holds for a deletion, which only ends the previous version.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice
from typing import Any

from keyed.base.arguments import MAX_TIMESTAMP, MIN_TIMESTAMP
from keyed.codec.values import value_codec
from keyed.content.addresses import TTL_EVENT, decode_version_sub, version_sub
from keyed.engine.bound import Cell, CellState, Scope, isolation_of
from keyed.engine.changes import Changes
from keyed.errors import TimestampError
from keyed.job.state import NOT_PUT, VersionedRecord, VersionedState


class _VersionCell(Cell):
    """The versions of one key: the newest ones, which were read, and the written ones.

    Attributes:
        ages: Their negated timestamps in order: the newest version comes first.
        items: Held value (``None`` for a deletion) and due time by timestamp.
        written: Timestamps of the versions that this batch wrote.
        read: Number of entries of the store that were read.
        read_to: All stored versions from this time on were read.
    """

    __slots__ = ("ages", "items", "read", "read_to", "written")

    def __init__(self, prefix: bytes, retained: None) -> None:
        super().__init__(prefix, retained)
        self.read = 0
        self.read_to = MAX_TIMESTAMP + 1
        self.ages: list[int] = []
        self.items: dict[int, tuple[Any, int]] = {}
        self.written: set[int] = set()

    def clear(self) -> None:
        self.cleared, self.read_to = True, MIN_TIMESTAMP
        self.ages, self.items, self.written = [], {}, set()


class BoundVersionedState(CellState[_VersionCell], VersionedState[Any]):
    """`VersionedState` in a key group."""

    cell_type = _VersionCell

    def __init__(self, declaration: VersionedState[Any], scope: Scope, state_id: int) -> None:
        self.bind(declaration, scope, state_id)
        self.hold(isolation_of(value_codec(declaration.type)))
        self.history_ms = declaration.history_ms

    def activate(self) -> None:
        super().activate()
        self._dropped = 0

    def _find(self, cell: _VersionCell, timestamp: int) -> int:
        """Return the index in ``cell.ages`` of the newest version that is not after a time, or its insertion point."""
        while cell.read_to > timestamp:
            self._read(cell)
        return bisect_left(cell.ages, -timestamp)

    def _read(self, cell: _VersionCell) -> None:
        """Read more versions from the store, twice as many each time, because most calls need only the newest one."""
        end = cell.read + 1
        entries = list(islice(self._scope.store.scan(cell.prefix), cell.read, cell.read + end))
        cell.read += len(entries)
        for sub, raw in entries:
            cell.read_to = timestamp = decode_version_sub(sub)
            if timestamp not in cell.items:
                cell.items[timestamp] = self.unwrap(raw, self.decode)
                cell.ages.insert(bisect_left(cell.ages, -timestamp), -timestamp)
        if len(entries) < end:
            cell.read_to = MIN_TIMESTAMP

    def _older(self, timestamp: int) -> bool:
        """Return true if a time is older than the history."""
        return timestamp + self.history_ms <= self._scope.clock(TTL_EVENT)

    def _time(self, value: Any, parameter: str, default: int | None = None) -> int:
        """Return a given time, or its default.

        Raises:
            TimestampError: It is not a time.
        """
        if value is None and default is not None:
            return default
        if type(value) is not int or not MIN_TIMESTAMP < value <= MAX_TIMESTAMP:
            raise TimestampError(
                f"versioned state {self.name!r}: {parameter}={value!r}; give int milliseconds within 64 bits"
            )
        return value

    def _drops(self, timestamp: int) -> bool:
        """Return true if a put at a time has to be dropped, and count it."""
        older = self._older(self._time(timestamp, "timestamp"))
        self._dropped += older
        return older

    def _due(self, held: Any, timestamp: int, valid_to: int | None) -> int:
        """Return when a version is due: its last time of validity. A deletion is due with the version it ended."""
        if held is None:
            valid_to = timestamp
        elif valid_to is None:
            return MAX_TIMESTAMP
        return min(valid_to - 1 + self.history_ms, MAX_TIMESTAMP - 1)

    def _record(self, cell: _VersionCell, index: int) -> VersionedRecord[Any] | None:
        """Return the version at an index, ``None`` if it is a deletion."""
        timestamp = -cell.ages[index]
        held = cell.items[timestamp][0]
        if held is None:
            return None
        return VersionedRecord(self.thaw(held), timestamp, -cell.ages[index - 1] if index else None)

    def put(self, value: Any, timestamp: int) -> int | None:
        return NOT_PUT if self._drops(timestamp) else self._put(value, timestamp)

    def _put(self, value: Any, timestamp: int) -> int | None:
        held = None if value is None else self.freeze(value)
        cell = self._cell()
        ages, items = cell.ages, cell.items
        index = self._find(cell, timestamp)
        valid_to = -ages[index - 1] if index else None
        if timestamp not in items:
            if index < len(ages):
                before = -ages[index]
                ended = items[before][0]
                items[before] = ended, self._due(ended, before, timestamp)
                cell.written.add(before)
            ages.insert(index, -timestamp)
        items[timestamp] = held, self._due(held, timestamp, valid_to)
        cell.written.add(timestamp)
        return valid_to

    def get(self, as_of: int | None = None) -> VersionedRecord[Any] | None:
        cell = self._cell()
        index = self._find(cell, self._time(as_of, "as_of", MAX_TIMESTAMP))
        if index == len(cell.ages) or (index and as_of is not None and self._older(as_of)):
            return None
        return self._record(cell, index)

    def get_range(self, from_: int | None = None, to: int | None = None) -> list[VersionedRecord[Any]]:
        least, last = self._time(from_, "from_", MIN_TIMESTAMP), self._time(to, "to", MAX_TIMESTAMP)
        cell = self._cell()
        first = self._find(cell, last)
        if first and self._older(last):
            return []
        end = min(self._find(cell, least) + 1, len(cell.ages))
        clock = self._scope.clock(TTL_EVENT)
        live = (index for index in range(first, end) if cell.items[-cell.ages[index]][1] > clock)
        records = [record for index in live if (record := self._record(cell, index)) is not None]
        return records[::-1]

    def delete(self, timestamp: int) -> VersionedRecord[Any] | None:
        if self._drops(timestamp):
            return None
        before = self.get(timestamp)
        self._put(None, timestamp)
        return before

    def clear(self) -> None:
        self._cell().clear()

    def _flush(self, changes: Changes) -> None:
        changes.versions_dropped += self._dropped
        for key, cell in self._cells.items():
            if cell.cleared:
                for sub, _ in self._scope.store.scan(cell.prefix):
                    if decode_version_sub(sub) not in cell.written:
                        self.write(changes, cell.prefix, sub, None)
            for timestamp in sorted(cell.written):
                item = cell.items[timestamp]
                self.write(changes, cell.prefix, version_sub(timestamp), self.wrap(item, self.encode, key))
