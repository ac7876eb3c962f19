"""Position of a query of the local runtime in its sources.

The position is committed with each batch, and logged to the changelogs of the query before the batch is exported, so
that a restored query resumes where the batch ended. It is a frame (`keyed.codec.frames`) of kind ``KRUN``, version 1,
whose payload is msgpack of the fields of `LocalPosition` as a map.

With ingestion time the rows and the time of a batch are committed before it runs, as a frame of kind ``KBEG``, version
1, with the fields of `BegunBatch`, so that a rerun of the batch has the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from keyed.base.ids import random_id
from keyed.changelog.model import batch_id
from keyed.codec.frames import RecordFormat
from keyed.engine.loader import Loader
from keyed.job.results import Restored
from keyed.recovery.cut import Cut
from keyed.runtimes.lineage import lineage
from keyed.runtimes.local.consumed import Consumed
from keyed.stores.commit_store import BufferedCommits

_KIND = b"KRUN"


@attrs.define
class SourcePosition:
    """Position of a query in one of its sources. The attributes are those of `LocalPosition`."""

    rows: int = 0
    digests: Consumed | None = None
    source: Any = None


@attrs.define
class LocalPosition:
    """The runner's own record.

    Attributes:
        operators: Names of the operators in order.
        batches: Batches committed so far; the next batch has this id.
        rows: Rows of the source consumed so far.
        ended: True if the input has ended.
        queries: Id of the query, after those of the queries that it was restored from.
        digests: Digests of the first and last consumed rows; ``None`` if the source has positions.
        source: The position of a `keyed.SeekableSource`.
        beside: The positions in its other sources, in their order.
        restored: Number of batches of the earlier query from whose changelogs this one was restored.
        sizes: Numbers of chained operators, in order (`keyed.job.chaining.lines`).
    """

    operators: list[str]
    batches: int = 0
    rows: int = 0
    ended: bool = False
    queries: list[str] = attrs.field(factory=list)
    restored: int = 0
    digests: Consumed | None = None
    source: Any = None
    beside: list[SourcePosition] = attrs.field(factory=list)
    sizes: list[int] = attrs.field(factory=list)


@attrs.frozen
class BegunBatch:
    """A batch that was begun, and may have been committed since.

    Attributes:
        batch: Its id.
        rows: Number of its rows from the source.
        processing_time: Its time, milliseconds.
    """

    batch: int
    rows: int
    processing_time: int


_BEGUN: RecordFormat[BegunBatch] = RecordFormat(b"KBEG", 1, BegunBatch)
encode_begun = _BEGUN.encode
decode_begun = _BEGUN.decode
_RECORD: RecordFormat[LocalPosition] = RecordFormat(_KIND, 1, LocalPosition)
encode_position = _RECORD.encode
decode_position = _RECORD.decode


def commit_restored(
    commits: BufferedCommits, operators: list[str], sizes: list[int], cut: Cut, loaders: Iterable[Loader]
) -> tuple[LocalPosition, Restored]:
    """Commit the loaded state of a restored query with its position, together: a partially restored one is not valid.

    Args:
        commits: The store of commits.
        operators: Names of its operators in order.
        sizes: Numbers of chained operators, as in `LocalPosition`.
        cut: The cut of the restore.
        loaders: The loaders of all key groups.

    Returns:
        The position, and whether the changelogs have one of this runtime.

    Raises:
        CorruptionError: The position is damaged.
    """
    position, batch = LocalPosition(operators), batch_id(cut.sequence)
    with_position = cut.position is not None and cut.position.startswith(_KIND)
    if cut.position is not None and with_position:
        position = decode_position(cut.position, f"position of batch {batch} in a changelog")
    position.operators, position.sizes, position.queries = operators, sizes, [*lineage(cut), random_id()]
    position.batches = position.restored = cut.sequence
    for loader in loaders:
        loader.write_meta()
    commits.write("run", encode_position(position))
    commits.commit()
    return position, Restored(batch, with_position=with_position)
