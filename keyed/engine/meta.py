"""The meta record of a key group: the position of its log, its clocks and its counters.

A frame (`keyed.codec.frames`) of kind ``KMET``, version 1, whose payload is msgpack of the fields of `GroupMeta` as a
map. Fields added later need a default.
"""

from __future__ import annotations

from typing import Any

import attrs

from keyed.changelog.model import Channel
from keyed.codec.frames import RecordFormat
from keyed.durations import MIN_TIMESTAMP


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
        key_columns: Columns of the key, none if it is a function of the element; ``None`` if they were not recorded.
        key_type: Type of the keys (`keyed.codec.keys.key_type`); empty before the first key, or if it was not recorded.
        channels: The sources and partitions that the operator reads, if there are several.
        skipped: Number of sequence numbers that the last commit left out, of batches that reached no key group.
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
    key_columns: list[str] | None = None
    key_type: str = ""
    channels: list[Channel] = attrs.field(factory=list)
    skipped: int = 0

    def follows(self, sequence: int, attempt: str) -> bool:
        """Return true if the last commit follows a commit directly, or after an empty one in place of a skipped one."""
        return attempt == self.previous and self.commit - 1 - self.skipped <= sequence < self.commit

    @property
    def live(self) -> int:
        """Number of live entries, of states, tables and timers."""
        return self.counters.get("live_entries", 0) + self.counters.get("timers_pending", 0)


_RECORD: RecordFormat[GroupMeta] = RecordFormat(b"KMET", 1, GroupMeta)
encode_meta = _RECORD.encode
decode_meta = _RECORD.decode
