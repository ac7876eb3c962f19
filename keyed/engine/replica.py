"""A key group's local store, which follows the committed log; loading of both from a changelog or other groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain

import attrs

from keyed.content.addresses import broadcast_prefixes, state_id_of
from keyed.content.blocks import Block, LogBlock, records_of
from keyed.content.contents import LiveHash, contents, contents_hash, hash_text
from keyed.content.delta import Applying, Delta, apply_blocks, deltas, exported
from keyed.content.local_store import LocalStore, ReadStore, SharedStore, shared_store
from keyed.engine.group_log import GroupLog, GroupMeta, LogRow, decode_row, encode_meta, encode_rows
from keyed.engine.held_rows import HELD_ROWS
from keyed.errors import CorruptionError, LocalStoreError


def position_of(log_id: str, head: str) -> str:
    """Return a local store's position besides the row number: its log, and the attempt that wrote the row."""
    return f"{log_id}/{head}"


def checked_hash(store: ReadStore, meta: GroupMeta) -> str:
    """Return the hash of the content of a store, as text.

    Raises:
        LocalStoreError: The content is not that of the last commit, which ``meta`` describes.
    """
    live = contents_hash(store, meta.states)
    digest = hash_text(live.value)
    if live.live != meta.live or meta.hash not in ("", digest):
        raise LocalStoreError(
            f"a local store of {meta.operator!r} is damaged: its {live.live} entries are not those of the log"
        )
    return digest


def _is_whole(store: SharedStore, meta: GroupMeta | None) -> bool:
    """Return true if the content of a store is that of the last commit."""
    try:
        checked_hash(store, GroupMeta("", "", 0, 1) if meta is None else meta)
        store.check()
    except LocalStoreError:
        return False
    return True


@attrs.frozen
class Pending:
    """Log rows that this process appended, and that may be uncommitted.

    Attributes:
        attempt: Identity of the attempt.
        before: The previous position of the store, in the form of `position_of`.
        rows_before: Last log row before.
        delta: The changes of the batch.
        blocks: The same, in the form of the log.
    """

    attempt: str
    before: str
    rows_before: int
    delta: Delta
    blocks: list[LogBlock]


class Replica:
    """A local store that only ever applies committed segments.

    The changes of the last batch are kept in memory: if the next batch's meta record shows that exactly this attempt
    was committed, they are applied directly; otherwise the missing rows are read from the log. A store that processes
    share has the log rows of the last batch, so that no other process needs the log for them.

    Attributes:
        entries_replayed: Number of changes that the last `catch_up` read from the log and applied.
        stores_opened: Number of opened stores that are not counted yet.
        copies: Number of processes of this machine that have a store of the key group, each with a copy of the state.
    """

    def __init__(self, store: LocalStore) -> None:
        self.store = store
        self._pending: Pending | None = None
        self._committed: Pending | None = None
        self.entries_replayed = 0
        self.stores_opened = 1
        self.copies = 1

    def expect(self, pending: Pending, rows: dict[int, bytes]) -> None:
        """Record the appended rows for the next `catch_up`.

        Args:
            pending: The changes.
            rows: The log rows, by number.
        """
        self._pending = pending
        if rows and (shared := shared_store(self.store)) is not None:
            # Without them, the next process reads the log.
            with suppress(LocalStoreError):
                shared.keep_rows(pending.attempt, rows)

    def catch_up(self, log: GroupLog, meta: GroupMeta | None, where: str) -> tuple[int, bool]:
        """Bring the store up to date with the log. Rebuild it if damage is found.

        Returns:
            The number of rows that were read from the log, and true if the store was rebuilt.

        Raises:
            CorruptionError: A log row is missing or fails its checks.
            LocalStoreError: The store cannot be read or written.
        """
        replayed, rebuilt = self._follow(log, meta, where)
        store = shared_store(self.store)
        if store is None or not store.is_doubtful() or _is_whole(store, meta):
            return replayed, rebuilt
        store.reset()
        replayed, _ = self._follow(log, meta, where)
        return replayed, True

    def _follow(self, log: GroupLog, meta: GroupMeta | None, where: str) -> tuple[int, bool]:
        pending, self._pending = self._pending, None
        if pending is not None:
            # Kept until it is used: the store may be brought up to date more than once between two batches.
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
        reached = position if position is not None else (position_of(meta.log_id, ""), 0)
        if pending is not None and pending.attempt == meta.attempt and (pending.before, pending.rows_before) == reached:
            if meta.last_row != pending.rows_before:
                store.apply(head, meta.last_row, pending.delta.entries, pending.delta.tables)
            return 0, False
        # The store can continue if the log has the rows directly after its position. It cannot if such rows were
        # cleaned, because their tombstones were removed with them, or if the checkpoint was set back.
        if reached[1] >= meta.first_row - 1:
            if self._take_kept(meta, reached, where):
                return 0, False
            rows = self._rows(log, meta, reached[1] + 1, where)
            first = next(rows, None)
            if first is not None and position_of(meta.log_id, first.before) == reached[0]:
                self._replay(chain([first], rows), meta, where)
                return meta.last_row - reached[1], position is None
        if position is not None:
            store.reset()
        self._replay(self._rows(log, meta, meta.first_row, where), meta, where)
        count = meta.last_row - meta.first_row + 1
        return count, count > 0

    def take_committed(self, meta: GroupMeta) -> list[Block] | None:
        """Return the changes of the last commit, if this process made it and they were not used yet."""
        committed, self._committed = self._committed, None
        if committed is None or committed.attempt != meta.attempt:
            return None
        return list(map(exported, committed.blocks))

    def _take_kept(self, meta: GroupMeta, reached: tuple[str, int], where: str) -> bool:
        """Apply the log rows that the store itself keeps, if these are all missing rows."""
        store = self.store
        shared = shared_store(store)
        kept = shared.kept_rows(meta.head) if shared is not None else None
        if kept is None or kept.keys() != set(range(reached[1] + 1, meta.last_row + 1)):
            return False
        try:
            rows = [decode_row(kept[number], f"{where}, kept row {number}") for number in sorted(kept)]
        except CorruptionError:
            # The log has these rows too.
            return False
        if not rows or position_of(meta.log_id, rows[0].before) != reached[0]:
            return False
        # Reappended content is in the store already. The rest is applied atomically, in case the process is killed.
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
                raise CorruptionError(f"row {expected} is missing or belongs to another branch of the log", where=place)
            yield row
            expected, attempt = number + 1, row.attempt
        if expected <= meta.last_row or (first <= meta.last_row and attempt != meta.head):
            raise CorruptionError(
                f"row {expected} of {meta.last_row} is missing, or the last row is not the one in the meta record",
                where=f"{where}, log",
            )

    def close(self) -> None:
        """Close the store."""
        self.store.close()


class Loader:
    """Loads one key group: first its local store, in which later changes of an entry win, and then the log from it.

    Args:
        log: The group's log, without a meta record.
        store: The group's local store.
        meta: The meta record of the group. The fields that depend on the entries are filled in.

    Attributes:
        broadcast: The number and hash of the entries of broadcast states, once the log is written.
    """

    def __init__(self, log: GroupLog, store: LocalStore, meta: GroupMeta) -> None:
        self.meta = meta
        self.broadcast = LiveHash()
        self._log = log
        self._store = store
        if store.position() is not None:
            store.reset()
        self._applying = Applying(store, meta.log_id, 0)

    def add(self, delta: Delta) -> None:
        """Write entries and rows, and remove entries that are ``None``: at most about a megabyte per call."""
        self._applying.add(delta)

    def write_log(self, written: Callable[[], object] = lambda: None) -> GroupMeta:
        """Write the log, which has no effect before `write_meta`.

        Args:
            written: Called after each part of the log, which may be committed separately.

        Returns:
            The meta record.
        """
        self._applying.flush()
        meta, live = self.meta, LiveHash()
        timers = size = held = 0
        broadcast = broadcast_prefixes(meta.states)
        held_rows = meta.states.get(HELD_ROWS, {}).get("id")
        for delta in contents(self._store, meta.states):
            live.add(delta)
            if broadcast:
                self.broadcast.add(Delta([entry for entry in delta.entries if entry[0] in broadcast]))
            if held_rows is not None:
                held += sum(state_id_of(prefix) == held_rows for prefix, _, _ in delta.entries)
            timers += delta.timers
            size += delta.size
            records = encode_rows(meta.commit, (), delta.log_blocks(), meta.attempt, meta.head)
            for record in records:
                meta.head = meta.attempt
                meta.last_row += 1
                meta.log_bytes += len(record)
                self._log.append(meta.last_row, record)
            written()
        meta.hash = hash_text(live.value)
        meta.counters |= {
            "live_entries": live.live - timers,
            "live_bytes": size,
            "timers_pending": timers,
            **({"rows_held": held} if held_rows is not None else {}),
            "log_bytes": meta.log_bytes,
            "log_rows": meta.last_row,
        }
        self._store.apply(position_of(meta.log_id, meta.head), meta.last_row, ())
        return meta

    def write_meta(self) -> None:
        """Write the meta record, which makes the state effective. Commit it together with those of all groups."""
        self._log.write_meta(encode_meta(self.meta))
