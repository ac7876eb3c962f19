"""A key group's log played from its beginning, with the hash of what is live after each commit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from keyed.changelog.model import Blocks, Commit
from keyed.content.blocks import Change, TableBlock
from keyed.content.contents import delta_of_block, table_keys
from keyed.content.entry_hash import MODULUS
from keyed.engine.changes import HashedChanges
from keyed.stores import MemoryStore

if TYPE_CHECKING:
    import pyarrow as pa

    from keyed.tables.chunks import TableDelta

__all__ = ["Replay"]


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
        keys = table_keys(commit.states)
        where = f"commit {commit.sequence} of key group {commit.group}"
        for block in blocks:
            if isinstance(block, TableBlock):
                delta = delta_of_block(block, keys, where)
                self._change_rows(delta)
            else:
                self._change_entries(block)

    def _change_entries(self, block: Iterable[Change]) -> None:
        changes = HashedChanges(self.store)
        for (prefix, sub), value in {(prefix, sub): value for prefix, sub, value in block}.items():
            changes.write(prefix, sub, value)
        self.hash = changes.hash(self.hash)
        self.entries += changes.entries + changes.timers
        self.store.apply("replay", 1, changes.changes)

    def _change_rows(self, delta: TableDelta) -> None:
        from keyed.tables.chunks import TableDelta
        from keyed.tables.row_hash import rows_hash

        for removed, written in ((delta.removed, None), (None, delta.upserts)):
            rows = removed if removed is not None else written
            if rows is None:
                continue
            old = self._rows(delta, rows)
            if old is not None:
                self.hash -= rows_hash(old, delta.state_id)
                self.entries -= old.num_rows
            if written is not None:
                self.hash += rows_hash(written, delta.state_id)
                self.entries += written.num_rows
            part = TableDelta(delta.state_id, delta.keys, removed=removed, upserts=written)
            self.store.apply("replay", 1, (), [part])
        self.hash %= MODULUS

    def _rows(self, delta: TableDelta, rows: pa.Table) -> pa.Table | None:
        """The rows that are there under the keys of ``rows``."""
        from keyed.tables.chunks import in_hash_order

        table = self.store.table(delta.state_id)
        if table is None:
            return None
        found = table.find(in_hash_order(rows.select(list(delta.keys)), delta.keys))
        return table.at(found[found >= 0])
