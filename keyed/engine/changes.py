"""Collects the changes of a batch: leaves out those that change nothing, and counts what is live after them.

Where the operator has a changelog, `HashedChanges` also says how the hash of the live entries changes
(`keyed.content.entry_hash`); without one nothing is hashed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyed.content.addresses import TIMER_PROCESSING, decode_time
from keyed.content.blocks import Change
from keyed.content.entry_hash import MODULUS, hash_sum
from keyed.content.local_store import ReadStore

if TYPE_CHECKING:
    from keyed.tables.chunks import TableDelta
    from keyed.tables.overlay import NetChange

OVERHEAD = 8
"""What an entry counts beside its bytes."""


class Changes:
    """The changes of one batch against the committed entries.

    Attributes:
        changes: Changes in the order in which they were written; one per address.
        tables: Changes of table states.
        entries: Change of the number of live state entries.
        timers: Change of the number of pending timers.
        bytes: Change of the bytes of live entries.
        expired: Entries removed because their time to live has passed.
        versions_dropped: Versions that were too old to be put.
        spells_out: Whether ranges that are removed from tables are to be given as keys.
    """

    __slots__ = (
        "_get",
        "_store",
        "_timed",
        "bytes",
        "changes",
        "entries",
        "expired",
        "tables",
        "timers",
        "versions_dropped",
    )

    spells_out = False

    def __init__(self, store: ReadStore) -> None:
        self._store = store
        self._get = store.get
        self._timed: set[tuple[bytes, bytes]] = set()
        self.changes: list[Change] = []
        self.tables: list[TableDelta] = []
        self.entries = 0
        self.timers = 0
        self.bytes = 0
        self.expired = 0
        self.versions_dropped = 0

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
        self.changes.append((prefix, sub, value))

    def write_timed(self, prefix: bytes, sub: bytes, value: bytes | None, clock: int) -> None:
        """Write an entry with a time to live; one that is due by ``clock`` already is not kept."""
        self._timed.add((prefix, sub))
        if value is not None and decode_time(value[:8]) <= clock:
            value = None
            self.expired += 1
        self.write(prefix, sub, value)

    def write_table(self, net: NetChange) -> None:
        """Take the net change of a table."""
        if net.delta is not None:
            self.tables.append(net.delta)
            self.entries += net.entries
            self.bytes += net.bytes

    def expire(self, kind: int, clock: int) -> None:
        """Remove the entries of a kind that are due by ``clock`` and that this batch did not write."""
        for _, prefix, sub in self._store.due(kind, clock):
            if (prefix, sub) not in self._timed:
                self.expired += 1
                self.write(prefix, sub, None)


class HashedChanges(Changes):
    """Changes that remember what they replace, for the hash of the live entries."""

    __slots__ = ("_old", "_replaced", "_table_hash")

    spells_out = True

    def __init__(self, store: ReadStore) -> None:
        super().__init__(store)
        self._old: bytes | None = None
        self._replaced: list[bytes | None] = []
        self._table_hash = 0
        get = store.get

        def remember(prefix: bytes, sub: bytes) -> bytes | None:
            self._old = old = get(prefix, sub)
            return old

        self._get = remember

    def write(self, prefix: bytes, sub: bytes, value: bytes | None) -> None:
        count = len(self.changes)
        super().write(prefix, sub, value)
        if len(self.changes) != count:
            self._replaced.append(self._old)

    def write_table(self, net: NetChange) -> None:
        super().write_table(net)
        if net.delta is not None:
            from keyed.tables.row_hash import rows_hash

            state_id = net.delta.state_id
            self._table_hash += rows_hash(net.new, state_id) - rows_hash(net.old, state_id)

    def hash(self, before: int) -> int:
        """The hash of the live entries after the changes.

        Args:
            before: Their hash before.
        """
        replaced = ((prefix, sub, old) for (prefix, sub, _), old in zip(self.changes, self._replaced, strict=True))
        return (hash_sum(self.changes, before) - hash_sum(replaced) + self._table_hash) % MODULUS
