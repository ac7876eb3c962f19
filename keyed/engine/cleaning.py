"""Keeps a group's log bounded: each batch moves the live entries of the oldest rows to the end and drops those rows.

The log stays below about twice the bytes of the live entries, and a batch cleans in proportion to what it appends, so
there are no pauses (as in a log-structured file system, or Kafka's log cleaner, in small steps).
"""

from __future__ import annotations

from keyed.content.contents import StillLive
from keyed.content.delta import Delta
from keyed.content.local_store import ReadStore
from keyed.engine.group_log import GroupLog
from keyed.engine.meta import GroupMeta
from keyed.engine.segment import decode_row

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
