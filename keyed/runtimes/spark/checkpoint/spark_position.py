"""Position of a Spark query in its sources, and its log in the query's changelogs.

Key groups export a batch in the next one. Before that, its position is logged to each changelog of the query under the
batch's sequence. It is a frame (`keyed.codec.frames`) of kind ``KSPK``, version 2, whose payload is msgpack of the
fields of `SparkPosition` as a map. Version 1 has no ``queries``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from keyed.changelog.model import Changelog, batch_id
from keyed.codec.frames import RecordFormat
from keyed.engine.export import MOST_EMPTY
from keyed.errors import ChangelogFenced, CheckpointError
from keyed.runtimes.spark.checkpoint.folder import CheckpointFolder
from keyed.runtimes.spark.checkpoint.source_files import KeptFiles

_KIND = b"KSPK"


@attrs.frozen
class SparkPosition:
    """Position of a query after a batch.

    Attributes:
        batch: Id of the batch for sinks.
        sources: The line of each source in Spark's offset log, without that of the ticks.
        queries: Id of the query, after those of the queries that it was restored from.
    """

    batch: int
    sources: list[str]
    queries: list[str] = attrs.field(factory=list)


_RECORD: RecordFormat[SparkPosition] = RecordFormat(_KIND, 2, SparkPosition)


def encode_position(position: SparkPosition) -> bytes:
    """Return the record of a position."""
    return _RECORD.encode(position)


def decode_position(record: bytes) -> SparkPosition | None:
    """Decode a record; ``None`` if it is the position of another runtime.

    Raises:
        CorruptionError: It is damaged.
    """
    if record[: len(_KIND)] != _KIND:
        return None
    return _RECORD.decode(record, "position in a changelog")


@attrs.define(eq=False, repr=False)
class PositionLog:
    """Logs the positions of one query.

    Args:
        folder: The query's checkpoint.
        changelogs: Its changelogs, by operator.
        ticks: True if the last of its sources are the ticks.
        first_batch: Id of Spark's batch 0 for sinks.
        sequences: Returns the sequence of Spark's batch, by operator.
    """

    _folder: CheckpointFolder
    _changelogs: Mapping[str, Changelog]
    _ticks: bool
    _first_batch: int
    _queries: list[str]
    _sequences: Callable[[int], Mapping[str, int]]
    _logged: int = attrs.field(default=-1, init=False)
    # The last logged position of each changelog, and its sequence.
    _last: dict[str, tuple[int, SparkPosition]] = attrs.field(factory=dict, init=False)
    _files: dict[str, KeptFiles] = attrs.field(factory=dict, init=False)

    def log(self, batch: int) -> None:
        """Log the position after a committed batch of Spark, unless it is logged already.

        Raises:
            ChangelogError: It cannot be written, or a changelog has another one.
            CheckpointError: The batch is no longer in the checkpoint.
        """
        if batch <= self._logged:
            return
        lines = self._folder.offsets(batch)
        if lines is None:
            raise CheckpointError(f"the checkpoint {self._folder.path} has no offsets of batch {batch}")
        position = SparkPosition(self._first_batch + batch, lines[:-1] if self._ticks else lines, self._queries)
        sequences = self._sequences(batch)
        for operator, changelog in self._changelogs.items():
            sequence = sequences[operator]
            there = self._at(operator, changelog, sequence)
            if there is not None and there.batch < position.batch:
                # The key groups committed nothing in this batch: they got no rows, or their input has ended.
                continue
            if there is not None and (there.batch, there.sources) == (position.batch, position.sources):
                # Logged by an earlier run, which may have used another version of keyed.
                continue
            self._log_skipped(operator, changelog, sequence)
            try:
                self._put(operator, changelog, sequence, position)
            except ChangelogFenced:
                # A manual flush has logged one since this program opened the log of positions.
                self._put(operator, changelog, sequence, position)
            self._last[operator] = sequence, position
        self._logged = batch

    def _log_skipped(self, operator: str, changelog: Changelog, sequence: int) -> None:
        """Log the positions after earlier batches that reached no key group; these get commits without changes."""
        if operator in self._last:
            before = self._last[operator][0]
        else:
            found = [
                number for number, _ in changelog.positions(max(sequence - 1 - MOST_EMPTY, 0)) if number < sequence
            ]
            before = max(found, default=sequence)
        if sequence - before > MOST_EMPTY:
            return
        for number in range(before + 1, sequence):
            batch = batch_id(number)
            lines = self._folder.offsets(batch - self._first_batch)
            if lines is not None:
                sources = lines[:-1] if self._ticks else lines
                self._put(operator, changelog, number, SparkPosition(batch, sources, self._queries))

    def _put(self, operator: str, changelog: Changelog, sequence: int, position: SparkPosition) -> None:
        if operator not in self._files:
            self._files[operator] = KeptFiles(self._folder, changelog)
        self._files[operator].keep(position.sources)
        changelog.put_position(sequence, encode_position(position))

    def _at(self, operator: str, changelog: Changelog, sequence: int) -> SparkPosition | None:
        """Return the changelog's position for a sequence."""
        if operator in self._last:
            number, position = self._last[operator]
            return position if number == sequence else None
        number, record = next(changelog.positions(sequence - 1), (0, b""))
        return decode_position(record) if number == sequence else None
