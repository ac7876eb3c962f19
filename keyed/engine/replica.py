"""A key group's local store, kept level with what its log has committed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain

import attrs

from keyed.content.blocks import Block, LogBlock, records_of
from keyed.content.delta import Delta, apply_blocks, deltas, exported
from keyed.content.local_store import LocalStore, SharedStore
from keyed.engine.group_log import GroupLog
from keyed.engine.meta import GroupMeta
from keyed.engine.segment import LogRow, decode_row
from keyed.errors import CorruptionError, LocalStoreError


def position_of(log_id: str, head: str) -> str:
    """Return what a local store remembers beside a row number: its log, and the attempt that wrote the row."""
    return f"{log_id}/{head}"


@attrs.frozen
class Pending:
    """Log rows that this process appended and that may not be committed.

    Attributes:
        attempt: Identity of the attempt, which no other one shares.
        before: Where the store stood, as `position_of` has it.
        rows_before: Last log row before.
        delta: The changes of the batch.
        blocks: The same, as they are in the log.
    """

    attempt: str
    before: str
    rows_before: int
    delta: Delta
    blocks: list[LogBlock]


class Replica:
    """A local store that only ever applies committed segments.

    The changes of the last batch stay in memory: if the next batch's meta record shows that just this attempt was
    committed they are applied as they are; otherwise what is missing is read from the log. A store that processes share
    has the log rows of the last batch, so that no other process needs the log for them.

    Attributes:
        entries_replayed: Changes that the last `catch_up` read from the log and applied.
        stores_opened: How many stores were opened for it and not counted yet.
    """

    def __init__(self, store: LocalStore) -> None:
        self.store = store
        self._pending: Pending | None = None
        self._committed: Pending | None = None
        self.entries_replayed = 0
        self.stores_opened = 1

    def expect(self, pending: Pending, rows: dict[int, bytes]) -> None:
        """Remember what was appended, for the next `catch_up`.

        Args:
            pending: The changes.
            rows: The log rows, by number.
        """
        self._pending = pending
        if rows and isinstance(self.store, SharedStore):
            # Without them the next process reads the log.
            with suppress(LocalStoreError):
                self.store.keep_rows(pending.attempt, rows)

    def catch_up(self, log: GroupLog, meta: GroupMeta | None, where: str) -> tuple[int, bool]:
        """Bring the store level with the log.

        Returns:
            How many rows were read from the log, and whether the store was rebuilt from nothing.

        Raises:
            CorruptionError: A log row is missing or fails its checks.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            # Kept until it is taken: the store may be brought level more than once between two batches.
            self._committed = pending
        self.entries_replayed = 0
        store = self.store
        position = store.position()
        if meta is None:
            if position is not None:
                store.reset()
            return 0, False
        head = position_of(meta.log_id, meta.head)
        if position == (head, meta.last_row):
            return 0, False
        stands = position if position is not None else (position_of(meta.log_id, ""), 0)
        if pending is not None and pending.attempt == meta.attempt and (pending.before, pending.rows_before) == stands:
            if meta.last_row != pending.rows_before:
                store.apply(head, meta.last_row, pending.delta.entries, pending.delta.tables)
            return 0, False
        # The store can go on if the log goes on from just where it stands. It cannot if rows after its own were
        # cleaned away, because their tombstones went with them, or if the checkpoint was set back since.
        if stands[1] >= meta.first_row - 1:
            if self._take_kept(meta, stands, where):
                return 0, False
            rows = self._rows(log, meta, stands[1] + 1, where)
            first = next(rows, None)
            if first is not None and position_of(meta.log_id, first.before) == stands[0]:
                self._replay(chain([first], rows), meta, where)
                return meta.last_row - stands[1], position is None
        if position is not None:
            store.reset()
        self._replay(self._rows(log, meta, meta.first_row, where), meta, where)
        count = meta.last_row - meta.first_row + 1
        return count, count > 0

    def take_committed(self, meta: GroupMeta) -> list[Block] | None:
        """Return the changes of the last commit, if this process made it and they were not taken yet."""
        committed, self._committed = self._committed, None
        if committed is None or committed.attempt != meta.attempt:
            return None
        return list(map(exported, committed.blocks))

    def _take_kept(self, meta: GroupMeta, stands: tuple[str, int], where: str) -> bool:
        """Apply the log rows that the store has itself, if they are all that it lacks."""
        store = self.store
        kept = store.kept_rows(meta.head) if isinstance(store, SharedStore) else None
        if kept is None or kept.keys() != set(range(stands[1] + 1, meta.last_row + 1)):
            return False
        try:
            rows = [decode_row(kept[number], f"{where}, kept row {number}") for number in sorted(kept)]
        except CorruptionError:
            # The log has them too.
            return False
        if not rows or position_of(meta.log_id, rows[0].before) != stands[0]:
            return False
        # Reappended content is in the store. The rest is applied at once: a killed process leaves all of it or nothing.
        blocks = (block for row in rows for block in row.changed)
        delta = Delta()
        for part in deltas(blocks, {}, f"{where}, kept rows"):
            delta.entries.extend(part.entries)
            delta.tables.extend(part.tables)
        store.apply(position_of(meta.log_id, meta.head), meta.last_row, delta.entries, delta.tables)
        return True

    def _replay(self, rows: Iterator[LogRow], meta: GroupMeta, where: str) -> None:
        blocks = (self._counted(block) for row in rows for block in (*row.reappended, *row.changed))
        apply_blocks(self.store, position_of(meta.log_id, meta.head), meta.last_row, blocks, {}, f"{where}, log")

    def _counted(self, block: LogBlock) -> LogBlock:
        self.entries_replayed += records_of(exported(block))
        return block

    @staticmethod
    def _rows(log: GroupLog, meta: GroupMeta, first: int, where: str) -> Iterator[LogRow]:
        """Yield the rows from ``first`` to the last one.

        Raises:
            CorruptionError: One is missing, or fails its checks.
        """
        expected, attempt = first, ""
        for number, record in log.read(first, meta.last_row):
            place = f"{where}, log row {number}"
            row = decode_row(record, place)
            if number != expected or (number > first and row.before != attempt):
                raise CorruptionError(f"row {expected} is missing or belongs to another course of the log", where=place)
            yield row
            expected, attempt = number + 1, row.attempt
        if expected <= meta.last_row or (first <= meta.last_row and attempt != meta.head):
            raise CorruptionError(
                f"row {expected} of {meta.last_row} is missing, or the last row is not the one that the meta record "
                "names",
                where=f"{where}, log",
            )

    def close(self) -> None:
        """Close the store."""
        self.store.close()
