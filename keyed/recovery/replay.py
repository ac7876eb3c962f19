"""A key group's log played from its beginning, with the hash of what is live after each commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyed.changelog.model import Blocks, Commit
from keyed.content.delta import deltas
from keyed.engine.changes import HashedChanges
from keyed.stores import MemoryStore

if TYPE_CHECKING:
    from keyed.tables.chunks import ChunkedTable, TableDelta
    from keyed.tables.overlay import NetChange


class Replay:
    """The state after the commits that were applied, in memory.

    Attributes:
        store: The entries and tables.
        hash: Their hash.
        entries: Their number.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.store = MemoryStore()
        self.hash = 0
        self.entries = 0

    def apply(self, commit: Commit, blocks: Blocks) -> None:
        """Apply the next commit.

        Raises:
            CorruptionError: Rows of a table cannot be read.
        """
        if commit.snapshot:
            self._clear()
        where = f"commit {commit.sequence} of key group {commit.group}"
        for delta in deltas(blocks, commit.states, where):
            changes = HashedChanges(self.store)
            for (prefix, sub), value in {(prefix, sub): value for prefix, sub, value in delta.entries}.items():
                changes.write(prefix, sub, value)
            for table in delta.tables:
                changes.write_table(_net(self.store.table(table.state_id), table))
            self.hash = changes.hash(self.hash)
            self.entries += changes.entries + changes.timers
            self.store.apply("replay", 1, changes.changes, changes.tables)


def _net(stored: ChunkedTable | None, delta: TableDelta) -> NetChange:
    """The net change of a table, whose rows are found by their keys."""
    import numpy as np
    import pyarrow as pa

    from keyed.tables.chunks import in_hash_order
    from keyed.tables.overlay import NetChange

    parts = [rows for rows in (delta.removed, delta.upserts) if rows is not None]
    old = None
    if stored is not None and parts:
        keys = pa.concat_tables([rows.select(list(delta.keys)) for rows in parts], promote_options="default")
        found = stored.find(in_hash_order(keys, delta.keys))
        old = stored.at(np.unique(found[found >= 0]))
    none = parts[0].schema.empty_table() if parts else pa.table({})
    old, new = none if old is None else old, none if delta.upserts is None else delta.upserts
    return NetChange(delta, old, new, new.num_rows - old.num_rows, 0)
