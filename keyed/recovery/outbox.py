"""The rows of a batch that the local runtime commits with its state, and writes to a sink afterwards.

They are the rows of sinks that cannot replace a batch: of Kafka topics, and of Delta and Iceberg tables. The record
``outbox`` of the checkpoint has them until all sinks have the batch, so the next run of the job writes them if this one
ends before. It is a frame (`keyed.codec.frames`) of kind ``KOUT``, version 1.
"""

from __future__ import annotations

from collections.abc import Collection

import attrs

from keyed.codec.frames import RecordFormat
from keyed.stores.commit_store import BufferedCommits

OUTBOX = "outbox"
"""The record."""


@attrs.frozen
class Outbox:
    """The rows of the last committed batch for sinks that get them after the commit.

    Attributes:
        batch: Its id.
        records: The rows by the id of their writer.
    """

    batch: int
    records: dict[str, list[tuple[bytes | None, bytes]]]


_OUTBOX: RecordFormat[Outbox] = RecordFormat(b"KOUT", 1, Outbox)
encode_outbox = _OUTBOX.encode


def waiting(commits: BufferedCommits, where: str) -> Outbox | None:
    """Return the rows that some sink may lack; ``None`` if all sinks have them.

    Args:
        commits: The committed state.
        where: The checkpoint, for a message.

    Raises:
        CorruptionError: The record is damaged.
    """
    record = commits.read(OUTBOX)
    return None if record is None else _OUTBOX.decode(record, f"{where}, record {OUTBOX!r}")


def without(outbox: Outbox, ids: Collection[str]) -> list[str]:
    """Return the ids of the sinks for which rows wait, and that are not among these."""
    return [name for name, records in outbox.records.items() if records and name not in ids]
