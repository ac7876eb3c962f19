"""The meta record of a key group: the position of its log, its clocks and its counters.

A frame (`keyed.codec.frames`) of kind ``KMET``, version 1, whose payload is msgpack of the fields of `GroupMeta` as a
map.
"""

from __future__ import annotations

from typing import Any

import attrs

from keyed.base.durations import MIN_TIMESTAMP
from keyed.changelog.model import Channel
from keyed.codec.frames import RecordFormat
from keyed.engine.counters import COUNTERS

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
        counters: Values of the counters (`keyed.engine.counters`), in their order.
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
        counters: Cumulative counters and current values by name, see `keyed.engine.counters`.
        previous: Identity of the attempt of the commit before the last one.
        commit_rows: Number of log rows that the last commit appended, for the export to a changelog.
        hash: Hash of the live entries as text (`keyed.content.entry_hash`) with a changelog; otherwise empty.
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


_RECORD: RecordFormat[GroupMeta] = RecordFormat(b"KMET", 1, GroupMeta)
encode_meta = _RECORD.encode
decode_meta = _RECORD.decode
