"""Gives a key group that has no state yet the entries of others: of a changelog, or of another number of groups."""

from __future__ import annotations

from collections.abc import Callable

from keyed.content.addresses import TIMER_PROCESSING
from keyed.content.blocks import TableBlock, TableChange
from keyed.content.contents import contents, delta_of_block, table_keys
from keyed.content.delta import Delta
from keyed.content.entry_hash import MODULUS, hash_sum, hash_text
from keyed.content.local_store import LocalStore
from keyed.engine.changes import OVERHEAD
from keyed.engine.group_log import GroupLog
from keyed.engine.meta import GroupMeta, encode_meta
from keyed.engine.replica import position_of
from keyed.engine.segment import encode_rows

#: So many entries and rows, or so many deltas of them, are given to the store at a time.
_RECORDS, _DELTAS = 20_000, 16


class Loader:
    """Loads one key group: first its local store, in which later changes of an entry win, and from it the log.

    Args:
        log: The group's log, without a meta record.
        store: The group's local store.
        meta: The meta record that the group is to have. What depends on the entries is filled in.
    """

    def __init__(self, log: GroupLog, store: LocalStore, meta: GroupMeta) -> None:
        self.meta = meta
        self._log = log
        self._store = store
        self._waiting = Delta()
        self._records = self._deltas = self._parts = 0
        if store.position() is not None:
            store.reset()

    def add(self, delta: Delta) -> None:
        """Write entries and rows, and remove those that are ``None``: about a megabyte at most."""
        self._waiting.entries.extend(delta.entries)
        self._waiting.tables.extend(delta.tables)
        records = delta.records
        self._records += records
        self._deltas += records > 0
        if self._records >= _RECORDS or self._deltas >= _DELTAS:
            self._apply()

    def write_log(self, written: Callable[[], object] = lambda: None) -> GroupMeta:
        """Write the log. It is of no account before `write_meta`.

        Args:
            written: Called after each part of the log, which may be committed by itself.

        Returns:
            The meta record.
        """
        self._apply()
        meta, keys = self.meta, table_keys(self.meta.states)
        entries = timers = size = total = 0
        for block in contents(self._store, meta.states):
            if isinstance(block, TableBlock):
                from keyed.tables.layout import row_bytes
                from keyed.tables.row_hash import rows_hash

                rows = delta_of_block(block, keys, "a restored table").upserts
                assert rows is not None
                total += rows_hash(rows, block.state_id)
                entries += rows.num_rows
                size += row_bytes(rows)
                change = TableChange(keys[block.state_id], (), block)
                records = encode_rows(meta.commit, [], [], meta.attempt, meta.head, tables=[change])
            else:
                total = hash_sum(block, total)
                due = sum(prefix[0] >= TIMER_PROCESSING for prefix, _, _ in block)
                timers += due
                entries += len(block) - due
                size += sum(len(prefix) + len(sub) + len(value or b"") + OVERHEAD for prefix, sub, value in block)
                records = encode_rows(meta.commit, [], block, meta.attempt, meta.head)
            for record in records:
                meta.head = meta.attempt
                meta.last_row += 1
                meta.log_bytes += len(record)
                self._log.append(meta.last_row, record)
            written()
        meta.hash = hash_text(total % MODULUS)
        meta.counters |= {
            "live_entries": entries,
            "live_bytes": size,
            "timers_pending": timers,
            "log_bytes": meta.log_bytes,
            "log_rows": meta.last_row,
        }
        self._store.apply(position_of(meta.log_id, meta.head), meta.last_row, ())
        return meta

    def write_meta(self) -> None:
        """Write the meta record, with which the group has its state. To be committed with those of all groups."""
        self._log.write_meta(encode_meta(self.meta))

    def _apply(self) -> None:
        # A position that no log has: if the load is not finished, the store counts as another log's.
        self._parts += 1
        self._store.apply(f"loading {self.meta.log_id}", self._parts, self._waiting.entries, self._waiting.tables)
        self._waiting = Delta()
        self._records = self._deltas = 0
