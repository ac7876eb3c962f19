"""The changes of a batch, without those that have no effect, and the counts of live entries after them."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import TYPE_CHECKING

from keyed.content.addresses import TIMER_PROCESSING, decode_time
from keyed.content.blocks import TableDelta
from keyed.content.delta import OVERHEAD, Delta
from keyed.content.local_store import ReadStore

if TYPE_CHECKING:
    import pyarrow as pa


class Changes:
    """The changes of one batch against the committed entries.

    Args:
        store: The committed entries.
        spells_out: Convert removed ranges of tables to keys.

    Attributes:
        delta: The changes of entries in the order in which they were written, one per address, and those of tables.
        replaced: The table rows that they remove or overwrite, by state id.
        entries: Change of the number of live state entries.
        timers: Change of the number of pending timers.
        bytes: Change of the bytes of live entries.
        expired: Number of entries that were removed because their time to live has passed.
        versions_dropped: Number of versions that were too old to be put.
    """

    __slots__ = (
        "_add",
        "_get",
        "_store",
        "_timed",
        "bytes",
        "delta",
        "entries",
        "expired",
        "replaced",
        "spells_out",
        "timers",
        "versions_dropped",
    )

    def __init__(self, store: ReadStore, *, spells_out: bool) -> None:
        self._store = store
        self._get = store.get
        self._timed: set[tuple[bytes, bytes]] = set()
        self.spells_out = spells_out
        self.delta = Delta()
        self._add = self.delta.entries.append
        self.replaced: dict[int, pa.Table] = {}
        self.entries = self.timers = self.bytes = self.expired = self.versions_dropped = 0

    def write(self, prefix: bytes, sub: bytes, value: bytes | None) -> None:
        """Write an entry, or remove it with ``None``."""
        old = self._get(prefix, sub)
        if value is None:
            if old is None:
                return
            step = -1
            self.bytes -= len(prefix) + len(sub) + len(old) + OVERHEAD
        elif old is None:
            step = 1
            self.bytes += len(prefix) + len(sub) + len(value) + OVERHEAD
        else:
            if value == old:
                return
            step = 0
            self.bytes += len(value) - len(old)
        if step:
            if prefix[0] >= TIMER_PROCESSING:
                self.timers += step
            else:
                self.entries += step
        self._add((prefix, sub, value))

    def remove_all(self, prefix: bytes, entries: Iterable[tuple[bytes, bytes]], kept: Container[bytes] = ()) -> None:
        """Remove entries of a state.

        Args:
            prefix: Their prefix.
            entries: The entries with their stored values.
            kept: Subs of entries that are not removed.
        """
        add, size, count = self._add, len(prefix) + OVERHEAD, 0
        for sub, old in entries:
            if sub not in kept:
                add((prefix, sub, None))
                self.bytes -= size + len(sub) + len(old)
                count += 1
        self.entries -= count

    def write_timed(self, prefix: bytes, sub: bytes, value: bytes | None, clock: int) -> None:
        """Write an entry with a time to live; an entry that is due by ``clock`` is removed."""
        self._timed.add((prefix, sub))
        if value is not None and decode_time(value[:8]) <= clock:
            value = None
            self.expired += 1
        self.write(prefix, sub, value)

    def write_table(self, delta: TableDelta, replaced: pa.Table) -> None:
        """Record the change of a table, with the rows that it removes or overwrites."""
        from keyed.content.row_hash import row_bytes

        self.delta.tables.append(delta)
        self.replaced[delta.state_id] = replaced
        for sign, rows in ((1, delta.upserts), (-1, replaced)):
            if rows is not None:
                self.entries += sign * rows.num_rows
                self.bytes += sign * row_bytes(rows)

    def follow(self, earlier: Changes) -> None:
        """Add the changes that were made before these, which replace those of the same addresses."""
        written = {(prefix, sub) for prefix, sub, _ in self.delta.entries}
        self.delta.entries[:0] = [change for change in earlier.delta.entries if (change[0], change[1]) not in written]
        self.delta.tables[:0] = earlier.delta.tables
        self.entries += earlier.entries
        self.timers += earlier.timers
        self.bytes += earlier.bytes

    def expire(self, kind: int, clock: int) -> None:
        """Remove the entries of a kind that are due by ``clock`` and that this batch did not write."""
        for _, prefix, sub in self._store.due(kind, clock):
            if (prefix, sub) not in self._timed:
                self.expired += 1
                self.write(prefix, sub, None)
