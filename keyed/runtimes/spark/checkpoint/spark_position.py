"""Position of a Spark query in its sources, and its log in the query's changelogs.

Key groups export a batch in the next one. Before that, its position is logged to each changelog of the query under the
batch's sequence. It is a frame (`keyed.codec.frames`) of kind ``KSPK``, version 1, whose payload is msgpack of the
fields of `SparkPosition` as a map.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping

import attrs

from keyed.changelog.model import Changelog, all_positions, batch_id, export_interval, put_positions
from keyed.codec.frames import RecordFormat
from keyed.engine.group_log import MOST_COMMITS
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


_RECORD: RecordFormat[SparkPosition] = RecordFormat(_KIND, 1, SparkPosition)
encode_position = _RECORD.encode


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
    # The last logged batch of each changelog.
    _logged: dict[str, int] = attrs.field(factory=dict, init=False)
    # The last logged position of each changelog, and its sequence.
    _last: dict[str, tuple[int, SparkPosition]] = attrs.field(factory=dict, init=False)
    _files: dict[str, KeptFiles] = attrs.field(factory=dict, init=False)

    def log(self, batch: int, operators: Container[str] | None = None) -> None:
        """Log the position after a committed batch of Spark, unless it is logged already.

        Args:
            batch: The batch.
            operators: The operators whose changelogs get it; all if ``None``.

        Raises:
            ChangelogError: It cannot be written, or a changelog has another one.
            CheckpointError: The batch is no longer in the checkpoint.
        """
        due = {
            operator: changelog
            for operator, changelog in self._changelogs.items()
            if batch > self._logged.get(operator, -1) and (operators is None or operator in operators)
        }
        if not due:
            return
        lines = self._folder.offsets(batch)
        if lines is None:
            raise CheckpointError(f"the checkpoint {self._folder.path} has no offsets of batch {batch}")
        position = SparkPosition(self._first_batch + batch, lines[:-1] if self._ticks else lines, self._queries)
        sequences = self._sequences(batch)
        for operator, changelog in due.items():
            sequence = sequences[operator]
            logged = self._at(operator, changelog, sequence)
            if logged is not None and logged.batch < position.batch:
                # The key groups committed nothing in this batch: they got no rows, or their input has ended.
                continue
            if logged == position:
                # Logged by an earlier run.
                continue
            positions = [*self._earlier(operator, changelog, sequence), (sequence, position)]
            if not export_interval(changelog):
                for each in positions[:-1]:
                    self._put(operator, changelog, [each])
                positions = positions[-1:]
            try:
                self._put(operator, changelog, positions)
            except ChangelogFenced:
                # A manual flush has logged one since this program opened the log of positions.
                self._put(operator, changelog, positions)
            self._last[operator] = sequence, position
        self._logged |= dict.fromkeys(due, batch)

    def _earlier(self, operator: str, changelog: Changelog, sequence: int) -> Iterator[tuple[int, SparkPosition]]:
        """Yield the positions after earlier batches: those that wait, or reached no key group and get empty commits."""
        if operator in self._last:
            before = self._last[operator][0]
        else:
            sequences = [
                number for number, _ in changelog.positions(max(sequence - 1 - MOST_COMMITS, 0)) if number < sequence
            ]
            before = max(sequences, default=sequence)
        if sequence - before > MOST_COMMITS:
            return
        for number in range(before + 1, sequence):
            batch = batch_id(number)
            lines = self._folder.offsets(batch - self._first_batch)
            if lines is not None:
                sources = lines[:-1] if self._ticks else lines
                yield number, SparkPosition(batch, sources, self._queries)

    def _put(self, operator: str, changelog: Changelog, positions: list[tuple[int, SparkPosition]]) -> None:
        if operator not in self._files:
            self._files[operator] = KeptFiles(self._folder, changelog)
        # The last one has the files of those before it.
        self._files[operator].keep(positions[-1][1].sources)
        put_positions(changelog, [(sequence, encode_position(position)) for sequence, position in positions])

    def _at(self, operator: str, changelog: Changelog, sequence: int) -> SparkPosition | None:
        """Return the changelog's position for a sequence."""
        if operator in self._last:
            number, position = self._last[operator]
            return position if number == sequence else None
        number, record = next(all_positions(changelog, sequence - 1), (0, b""))
        return decode_position(record) if number == sequence else None
