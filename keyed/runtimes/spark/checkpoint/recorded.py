"""What an existing checkpoint says about the query that may be started on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyed.errors import ParallelismChanged
from keyed.sinks import local_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def checked_parallelism(session: SparkSession, checkpoint: str, asked: int | None, *, here: bool) -> int | None:
    """The number of key groups that a query on this checkpoint has.

    Args:
        session: The session.
        checkpoint: Folder of the checkpoint; it need not exist.
        asked: The number that the query asks for, if it does.
        here: Whether paths without a scheme are folders of this machine.

    Returns:
        The number of the checkpoint, or ``asked`` if it has none yet.

    Raises:
        ParallelismChanged: The checkpoint has another number than the query asks for.
    """
    found = _recorded(session, checkpoint, here=here)
    if found is not None and asked is not None and asked != found:
        raise ParallelismChanged(
            f"the checkpoint {checkpoint} has {found} key groups, and the query asks for {asked}: the number is "
            f"fixed by a query's first batch; set parallelism={found}, or restore the state into a new checkpoint"
        )
    return found if found is not None else asked


def _recorded(session: SparkSession, checkpoint: str, *, here: bool) -> int | None:
    """The number of state partitions that a checkpoint was written with, ``None`` for a new one."""
    folder = local_folder(checkpoint) if here else None
    if folder is not None and not (folder / "commits").is_dir():
        return None
    try:
        rows = session.read.format("state-metadata").load(checkpoint).select("numPartitions").distinct().collect()
    except Exception as error:
        from pyspark.errors import PySparkException

        # There is no other way to ask a file system that only Spark knows whether a checkpoint is there.
        if isinstance(error, PySparkException):
            return None
        raise
    return max((row[0] for row in rows), default=None)
