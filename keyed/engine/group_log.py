"""The log of a key group: the truth from which its local store can always be rebuilt.

Spark's state store, the local runtime's commit store and the test harness implement `GroupLog`. The changes that
`KeyGroup` makes to it in one batch become durable atomically with the batch.

The **meta record** has the position of the log, its clocks and its counters: a frame (`keyed.codec.frames`) of kind
``KMET``, version 1, whose payload is msgpack of the fields of `GroupMeta` as a map.

A **segment** is what one commit appends: one or more rows of at most about a megabyte. A row is a frame of kind
``KSEG``, version 1, whose payload is msgpack::

    [commit: int, last: bool, attempt: str, before: str, blocks: [[kind: int, body], ...]]

``commit`` numbers the group's commits from 1 and ``last`` marks the last row of the segment. ``attempt`` is the
identity of the attempt that wrote the row, and ``before`` that of the row before it (empty for the first row of a log):
they distinguish a store of another branch of the log, after a checkpoint was set back, from one that is merely behind.
Blocks are those of `keyed.content.blocks` for the log of a key group.

**Cleaning** keeps the log below about twice the bytes of the live entries: each batch moves the live entries of the
oldest rows to the end and drops those rows, in proportion to what it appends, so there are no pauses (as in a
log-structured file system, or Kafka's log cleaner, in small steps).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

import attrs
import msgspec

from keyed.base.arguments import MIN_TIMESTAMP
from keyed.changelog.model import Channel
from keyed.codec.frames import RecordFormat
from keyed.content.blocks import BLOCK_BYTES, LogBlock, decode_log_block, encode_log_block
from keyed.content.contents import StillLive
from keyed.content.delta import Delta
from keyed.content.local_store import ReadStore

#: Counters that only grow; the operator's figure is the sum over its key groups. ``rows_bad`` counts the bad rows that
#: ``on_bad_row`` diverts. ``rows_late`` counts rows at or below the watermark at the start of their batch, which the
#: function still gets. ``rows_dropped`` counts rows that it dropped with ``ctx.drop()``, as windows do with late
#: elements without a side output.
COUNTERS = (
    "batches",
    "rows_in",
    "rows_out",
    "rows_late",
    "rows_side_output",
    "rows_bad",
    "rows_dropped",
    "timers_registered",
    "timers_fired",
    "entries_expired",
    "versions_dropped",
    "segments_replayed",
    "entries_replayed",
    "stores_rebuilt",
    "stores_opened",
    "records_restored",
    "records_exported",
    "busy_microseconds",
)

#: Maximal number of commits that are exported together, and of consecutive batches without key groups that are exported
#: as separate commits. Spark keeps the positions of a hundred batches.
MOST_COMMITS = 64


@attrs.frozen(kw_only=True)
class WaitingCommit:
    """A commit before the last one that the changelog may lack, because commits are exported together.

    Attributes:
        sequence: Its number.
        attempt: Identity of the attempt that made it.
        previous: Identity of the attempt of the commit before it.
        skipped: As `GroupMeta.skipped`.
        rows: Number of log rows that it appended; they exist until it is exported.
        records: Number of its changes and table rows.
        entries: Number of live entries after it.
        hash: Hash of the live entries after it.
        watermark: Milliseconds.
        processing_time: Milliseconds.
        counters: Values of the counters (`COUNTERS`), in their order.
        states: Descriptions of the states; ``None`` if the next commit has the same.
        key_type: Type of the keys.
        channels: As `GroupMeta.channels`.
    """

    sequence: int
    attempt: str
    previous: str
    skipped: int
    rows: int
    records: int
    entries: int
    hash: str
    watermark: int
    processing_time: int
    counters: list[int]
    states: dict[str, Any] | None
    key_type: str
    channels: list[Channel] = attrs.field(factory=list)

    def follows(self, sequence: int, attempt: str) -> bool:
        """Return true if it follows a commit directly, or after an empty one in place of a skipped one."""
        return attempt == self.previous and self.sequence - 1 - self.skipped <= sequence < self.sequence


@attrs.define
class GroupMeta:
    """The meta record of a commit, beside its log rows.

    Attributes:
        log_id: Identity of the log, created with its first commit.
        operator: Name of the operator.
        group: Index of the key group.
        parallelism: Number of key groups.
        commit: Number of the last commit; 0 before the first.
        attempt: Identity of the attempt that made the last commit.
        first_row: First existing log row.
        last_row: Last log row.
        head: Identity of the attempt that wrote the last row; empty while there is none.
        log_bytes: Bytes of the existing rows.
        watermark: Milliseconds.
        processing_time: Milliseconds.
        ended: True if the input has ended (drain).
        states: Descriptions of the states by name, with their ids.
        counters: Cumulative counters and current values by name, see `COUNTERS`.
        previous: Identity of the attempt of the commit before the last one.
        commit_rows: Number of log rows that the last commit appended, for the export to a changelog.
        hash: Hash of the live entries as text (`keyed.content.contents`) with a changelog; otherwise empty.
        key_columns: Columns of the key, none if it is a function of the element.
        key_type: Type of the keys (`keyed.codec.keys.key_type`); empty before the first key.
        channels: The sources and partitions that the operator reads, if there are several.
        skipped: Number of sequence numbers that the last commit left out, of batches that reached no key group.
        commit_records: Number of changes and table rows of the last commit.
        exported: Number of the newest commit that the changelog had before the last batch; 0 if it had none.
        waiting: The commits after it, without the last one.
        last_state_id: The highest id that a state has had.
    """

    log_id: str
    operator: str
    group: int
    parallelism: int
    commit: int = 0
    attempt: str = ""
    first_row: int = 1
    last_row: int = 0
    head: str = ""
    log_bytes: int = 0
    watermark: int = MIN_TIMESTAMP
    processing_time: int = 0
    ended: bool = False
    states: dict[str, Any] = attrs.field(factory=dict)
    counters: dict[str, int] = attrs.field(factory=dict)
    previous: str = ""
    commit_rows: int = 0
    hash: str = ""
    key_columns: list[str] = attrs.field(factory=list)
    key_type: str = ""
    channels: list[Channel] = attrs.field(factory=list)
    skipped: int = 0
    commit_records: int = 0
    exported: int = 0
    waiting: list[WaitingCommit] = attrs.field(factory=list)
    last_state_id: int = 0

    def last_commit(self) -> WaitingCommit:
        """Return the last commit, which the changelog may lack like those that wait."""
        return WaitingCommit(
            sequence=self.commit,
            attempt=self.attempt,
            previous=self.previous,
            skipped=self.skipped,
            rows=self.commit_rows,
            records=self.commit_records,
            entries=self.live,
            hash=self.hash,
            watermark=self.watermark,
            processing_time=self.processing_time,
            counters=[self.counters.get(name, 0) for name in COUNTERS],
            states=self.states,
            key_type=self.key_type,
            channels=self.channels,
        )

    def unexported(self) -> list[WaitingCommit]:
        """Return the commits that the changelog may lack, in order; the last commit is one of them."""
        return [*self.waiting, self.last_commit()]

    def follows(self, sequence: int, attempt: str) -> bool:
        """Return true if one of the commits that the changelog may lack follows a commit directly."""
        return any(commit.follows(sequence, attempt) for commit in self.unexported())

    def export_at(self, interval: int) -> int:
        """Return the processing time from which a batch exports the commits.

        Args:
            interval: The export interval of the changelog, milliseconds.
        """
        if not interval or not self.exported or len(self.waiting) + 1 >= MOST_COMMITS or self.ended:
            return self.processing_time
        oldest = self.waiting[0].processing_time if self.waiting else self.processing_time
        return oldest + interval

    @property
    def live(self) -> int:
        """Number of live entries, of states, tables and timers."""
        return self.counters.get("live_entries", 0) + self.counters.get("timers_pending", 0)


_META: RecordFormat[GroupMeta] = RecordFormat(b"KMET", 1, GroupMeta)
encode_meta = _META.encode
decode_meta = _META.decode


# A body is decoded by its kind, so that a later kind may have another form.
_ROW: RecordFormat[Any] = RecordFormat(b"KSEG", 1, tuple[int, bool, str, str, list[tuple[int, msgspec.Raw]]])


@attrs.frozen
class LogRow:
    """A decoded log row.

    Attributes:
        commit: Number of the commit that it belongs to.
        last: True if it is the last row of its segment.
        attempt: Identity of the attempt that wrote it.
        before: Identity of the attempt that wrote the row before it.
        reappended: Live content of cleaned rows, which applies before the changes.
        changed: Changes of the batch.
    """

    commit: int
    last: bool
    attempt: str
    before: str
    reappended: list[LogBlock]
    changed: list[LogBlock]


def encode_rows(
    commit: int,
    reappended: Iterable[tuple[int, LogBlock]],
    changed: Iterable[tuple[int, LogBlock]],
    attempt: str = "",
    before: str = "",
) -> list[bytes]:
    """Return the log rows of a segment.

    Args:
        commit: Number of the commit.
        reappended: Live content of cleaned rows, from `Delta.log_blocks`.
        changed: The batch's changes, in the same form.
        attempt: Identity of the attempt that writes them.
        before: Identity of the attempt that wrote the last existing row.
    """
    rows: list[list[object]] = [[]]
    room = BLOCK_BYTES
    for blocks, is_reappended in ((reappended, True), (changed, False)):
        for size, block in blocks:
            if size > room and rows[-1]:
                rows.append([])
                room = BLOCK_BYTES
            rows[-1].append(encode_log_block(block, reappended=is_reappended))
            room -= size
    last = len(rows) - 1
    return [_ROW.encode((commit, i == last, attempt, attempt if i else before, row)) for i, row in enumerate(rows)]


def decode_row(record: bytes, where: str) -> LogRow:
    """Decode a log row.

    Raises:
        CorruptionError: Bad checksum, unknown version or block kind, or a malformed body.
    """
    commit, last, attempt, before, blocks = _ROW.decode(record, where)
    row = LogRow(commit, last, attempt, before, [], [])
    for kind, body in blocks:
        block, is_reappended = decode_log_block(kind, body, where)
        (row.reappended if is_reappended else row.changed).append(block)
    return row


class GroupLog(ABC):
    """Rows of bytes numbered from 1, and one meta record.

    Attributes:
        keeps: True if rows are kept. If not, a batch writes and encodes none.
    """

    keeps = True
    _decoded: tuple[bytes, GroupMeta] | None = None

    def meta(self, where: str) -> GroupMeta | None:
        """Return the decoded meta record, ``None`` before the first commit; the same object for the same record.

        Raises:
            CorruptionError: It is damaged.
        """
        record = self.read_meta()
        if record is None:
            return None
        if self._decoded is None or self._decoded[0] != record:
            self._decoded = record, decode_meta(record, f"{where}, meta record")
        return self._decoded[1]

    @abstractmethod
    def read_meta(self) -> bytes | None:
        """Return the meta record, or ``None`` before the first commit."""

    @abstractmethod
    def read(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """Yield the rows from ``first`` to ``last``, both included, in order; missing rows are left out."""

    @abstractmethod
    def append(self, row: int, record: bytes) -> None:
        """Write a row."""

    @abstractmethod
    def drop(self, row: int) -> None:
        """Remove a row."""

    @abstractmethod
    def write_meta(self, meta: bytes) -> None:
        """Replace the meta record."""


class UnreadLog(GroupLog):
    """The log of a group whose rows are never read, because its run persists nothing: only the meta record."""

    keeps = False

    def __init__(self) -> None:
        self._meta: bytes | None = None

    def read_meta(self) -> bytes | None:
        return self._meta

    def read(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        return iter(())

    def append(self, row: int, record: bytes) -> None:
        pass

    def drop(self, row: int) -> None:
        pass

    def write_meta(self, meta: bytes) -> None:
        self._meta = meta


#: A log up to this size is not cleaned.
_SLACK_BYTES = 1 << 18
#: Bytes read and dropped for each appended byte; 2 would just keep the bound, more also reaches it after growth.
_EFFORT = 4


def clean(log: GroupLog, meta: GroupMeta, store: ReadStore, changed: Delta, new_bytes: int, where: str) -> Delta:
    """Drop the oldest rows of the log if it has grown beyond its bound.

    Args:
        log: The log.
        meta: Its meta record for the commit in progress; first row and bytes are updated.
        store: The committed entries, up to date with the log.
        changed: The changes of the commit, whose earlier values need not be appended.
        new_bytes: Bytes that the commit appends.
        where: For messages.

    Returns:
        The live entries of the dropped rows, to be appended before the commit's own changes.
    """
    still_live = StillLive(store, changed)
    cleaned = []
    live = max(meta.counters.get("live_bytes", 0), 0)
    budget = _EFFORT * new_bytes + _SLACK_BYTES // 4
    size = meta.log_bytes + new_bytes
    # The rows of commits that wait for their export are read again.
    last = meta.last_row - sum(commit.rows for commit in meta.waiting)
    while size > 2 * live + _SLACK_BYTES and budget > 0 and meta.first_row <= last:
        row = meta.first_row
        cleaned.append(row)
        for _, record in log.read(row, row):
            place = f"{where}, log row {row}"
            decoded = decode_row(record, place)
            size += sum(still_live.add(block, place) for block in (*decoded.reappended, *decoded.changed))
            size -= len(record)
            meta.log_bytes -= len(record)
            budget -= len(record)
        meta.first_row += 1
    reappended = still_live.delta()
    # Only after all reads: if the local store fails, the batch runs again from the same log.
    for row in cleaned:
        log.drop(row)
    return reappended
