"""Ticks: files that start a batch of a query that has work without rows.

They are text files of one line in the folder ``keyed-ticks`` of the checkpoint, which a file source of Spark reads
beside the query's own sources. Each is read once, and costs a batch; without ticks no batch runs. The program of the
query writes them: one before it starts, and others when something is due (`keyed.runtimes.spark.query.stream_job`).

A file source keeps the names of all files that it has read (`begin.py`), and every tenth file of that log also
holds all earlier ones: it grows by a line of about 150 bytes per tick. These files and the offsets are Spark's, and are
not changed.
"""

from __future__ import annotations

import json
import logging
import re
from itertools import takewhile
from typing import TYPE_CHECKING

from keyed.base.ids import random_id
from keyed.errors import CheckpointError
from keyed.runtimes.spark.checkpoint.folder import PATTERN_CHARACTERS, CheckpointFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)
_FOLDER = "keyed-ticks"
#: Number of ticks in Spark's log that are reported: 15 MB, which are rewritten at every tenth tick.
_MANY = 100_000
#: Content of the tick with which a query starts; the others are empty.
STARTS_RUN = "starts"
#: Form of the offsets of Spark's source `rate-micro-batch`, the last source of a query that `writeStream` started.
_AT_EACH_TRIGGER = re.compile(r'\{"offset":\d+,"timestamp":-?\d+\}')
_FILE_OFFSET = re.compile(r"logOffset\D+(\d+)")


def ticks_of(session: SparkSession, folder: CheckpointFolder) -> Ticks | None:
    """Return the ticks of a checkpoint; ``None`` for the checkpoint of a query with a tick at each trigger."""
    # That of the last batch, completed or not.
    sources = folder.offsets(max(folder.numbers("offsets"), default=0))
    return None if sources and _AT_EACH_TRIGGER.fullmatch(sources[-1]) else Ticks(session, folder)


class Ticks:
    """The ticks of one checkpoint.

    Args:
        session: The session.
        folder: The checkpoint.

    Raises:
        CheckpointError: Spark would interpret the path as a pattern.
    """

    def __init__(self, session: SparkSession, folder: CheckpointFolder) -> None:
        if match := PATTERN_CHARACTERS.search(folder.path):
            raise CheckpointError(
                f"the checkpoint {folder.path!r} has {match[0]!r} in its path, which Spark interprets as a pattern "
                "when it lists the ticks; give a path without it"
            )
        self._session = session
        self._path = f"{folder.path.rstrip('/')}/{_FOLDER}"
        self._folder = folder
        self._has_warned = False

    def frame(self) -> DataFrame:
        """Return the ticks as a stream, once one was written."""
        # Names of ticks are dropped after a day, together with older files.
        reader = self._session.readStream.format("text").option("maxFileAge", "1d")
        if not self._folder.is_writable:
            reader = reader.option("cleanSource", "delete")
        return reader.load(self._path)

    def begin(self) -> None:
        """Write the tick with which a query starts."""
        committed = self._folder.last_commit() if self._folder.is_writable else None
        if committed is not None and (sources := self._folder.offsets(committed)):
            self.note_offset(len(sources) - 1, sources[-1])
        self.write(STARTS_RUN)

    def write(self, text: str = "") -> None:
        """Write a tick for the next trigger.

        Raises:
            CheckpointError: The checkpoint cannot be written.
        """
        if self._folder.is_writable:
            self._folder.write(f"{_FOLDER}/{random_id()}", f"{text}\n".encode())
        else:
            self._session.range(0, 1, 1, 1).selectExpr(f"'{text}' AS value").write.mode("append").text(self._path)

    def note_offset(self, source: int, offset: str) -> None:
        """Delete the ticks that Spark has read, and log once that their log is long.

        Args:
            source: Index of the ticks among the query's sources.
            offset: Their offset in Spark's log.
        """
        match = _FILE_OFFSET.search(offset)
        if match is None or not self._folder.is_writable:
            return
        batch = int(match[1])
        for name in (f"sources/{source}/{batch}", f"sources/{source}/{batch}.compact"):
            _, *lines = (self._folder.read(name) or b"").split(b"\n")
            # The newest entries are at the end of a file that may be long.
            newest = takewhile(lambda line: not line or json.loads(line)["batchId"] == batch, reversed(lines))
            entries = [line for line in newest if line][::-1]
            for entry in entries:
                self._folder.delete(f"{_FOLDER}/{json.loads(entry)['path'].rpartition('/')[2]}")
            if len(lines) > _MANY and not self._has_warned:
                self._has_warned = True
                _log.warning(
                    "%s/sources/%d/%s lists %d ticks, and Spark writes it again at every tenth tick; go on in a new "
                    "checkpoint, restored from the changelog (restore_from=), or with ticks=False",
                    self._folder.path,
                    source,
                    name.rpartition("/")[2],
                    len(lines),
                )
