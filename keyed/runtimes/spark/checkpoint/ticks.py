"""Ticks: files that wake a query which has something to do though no row comes.

They are text files of one line in the folder ``keyed-ticks`` of the checkpoint, which Spark's file source reads beside
the query's own. Each is taken once, and costs a batch; while there is none nothing runs. Who runs the query writes
them: one before it starts, and the others when something is due (`keyed.runtimes.spark.query.ticker`).

A file source keeps the names of all files that it has taken (`source_files.py`), and each tenth file of that log holds
all before it as well. That of the ticks is cut down where this program reaches the checkpoint, for names of files that
are gone help nobody. Elsewhere Spark deletes the files, and the log grows by a line a tick.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from keyed.errors import CheckpointError
from keyed.ids import random_id
from keyed.runtimes.spark.checkpoint.folder import CheckpointFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FOLDER = "keyed-ticks"
#: What stands in the tick with which a query starts; the others are empty.
STARTS_RUN = "starts"
#: How Spark logs where its source `rate-micro-batch` stands: before there were ticks in files, it was the last one.
_AT_EACH_TRIGGER = re.compile(r'\{"offset":\d+,"timestamp":-?\d+\}')
_FILE_OFFSET = re.compile(r"logOffset\D+(\d+)")
_PATTERN = re.compile(r"[*?\[\]{}\\]")


def ticks_of(session: SparkSession, checkpoint: str, folder: CheckpointFolder | None) -> Ticks | None:
    """Return the ticks of a checkpoint; ``None`` for one of a query that has a tick at each trigger.

    Args:
        session: The session.
        checkpoint: The checkpoint.
        folder: Its files, if this program reaches them.
    """
    last = _last_source(session, checkpoint) if folder is None else _last_source_here(folder)
    return None if _AT_EACH_TRIGGER.fullmatch(last) else Ticks(session, checkpoint, folder)


class Ticks:
    """The ticks of one checkpoint.

    Args:
        session: The session.
        checkpoint: The checkpoint.
        folder: Its files, if this program reaches them.

    Raises:
        CheckpointError: Spark would take the path for a pattern.
    """

    def __init__(self, session: SparkSession, checkpoint: str, folder: CheckpointFolder | None) -> None:
        if found := _PATTERN.search(checkpoint):
            raise CheckpointError(
                f"the checkpoint {checkpoint!r} has {found[0]!r} in its path, which Spark takes for a pattern of paths "
                "when it looks for ticks; give it a path without"
            )
        self._session = session
        self._path = f"{checkpoint.rstrip('/')}/{_FOLDER}"
        self._folder = folder

    def frame(self) -> DataFrame:
        """Return the ticks as a stream, once one was written."""
        # Names of ticks are forgotten after a day, and with them files that are older than that.
        reader = self._session.readStream.format("text").option("maxFileAge", "1d")
        if self._folder is None:
            reader = reader.option("cleanSource", "delete")
        return reader.load(self._path)

    def begin(self) -> None:
        """Write the tick with which a query starts."""
        committed = None if self._folder is None else self._folder.last_commit()
        if self._folder is not None and committed is not None and (sources := self._folder.offsets(committed)):
            self.taken(len(sources) - 1, sources[-1])
        self.write(STARTS_RUN)

    def write(self, text: str = "") -> None:
        """Let a tick come with the next trigger.

        Raises:
            CheckpointError: The checkpoint cannot be written.
        """
        if self._folder is not None:
            self._folder.write(f"{_FOLDER}/{random_id()}", f"{text}\n".encode())
        else:
            self._session.range(0, 1, 1, 1).selectExpr(f"'{text}' AS value").write.mode("append").text(self._path)

    def share(self, batch: int) -> None:
        """Let a query of plain ``writeStream`` go on from a batch that begins.

        It has a tick at each trigger, from Spark's source `rate-micro-batch`. This and a file source each read their
        own fields of where a source stands.
        """
        record = None if self._folder is None else self._folder.read(f"offsets/{batch}")
        if self._folder is not None and record is not None:
            lines, _, last = record.decode().rpartition("\n")
            if match := _FILE_OFFSET.search(last):
                shared = {"logOffset": int(match[1]), "offset": int(match[1]) + 1, "timestamp": 0}
                self._folder.write(f"offsets/{batch}", f"{lines}\n{json.dumps(shared)}".encode())

    def taken(self, source: int, offset: str) -> None:
        """Clear away the ticks that Spark has taken.

        Args:
            source: Index of the ticks among the query's sources.
            offset: Where they stand, as Spark logs it.
        """
        match = _FILE_OFFSET.search(offset)
        if self._folder is None or match is None:
            return
        batch = int(match[1])
        for name in (f"sources/{source}/{batch}", f"sources/{source}/{batch}.compact"):
            version, *lines = (self._folder.read(name) or b"").decode().split("\n")
            entries = [line for line in lines if line and json.loads(line)["batchId"] == batch]
            for entry in entries:
                self._folder.delete(f"{_FOLDER}/{json.loads(entry)['path'].rpartition('/')[2]}")
            if len(entries) < len(lines):
                self._folder.write(name, "\n".join([version, *entries]).encode())


def _last_source_here(folder: CheckpointFolder) -> str:
    """Tell where the last source stands after the last batch, done or not; empty before the first."""
    batches = [int(name) for name in folder.names("offsets") if name.isdigit()]
    sources = folder.offsets(max(batches)) if batches else None
    return sources[-1] if sources else ""


def _last_source(session: SparkSession, checkpoint: str) -> str:
    """Tell where the last source of some batch stands, if only Spark reaches the checkpoint; empty before any."""
    from pyspark.errors import PySparkException

    try:
        found = session.read.option("wholetext", "true").text(f"{checkpoint.rstrip('/')}/offsets").first()
    except PySparkException:
        # There is no other way to ask a file system that only Spark knows whether a folder is there.
        return ""
    return "" if found is None else str(found[0]).rpartition("\n")[2]
