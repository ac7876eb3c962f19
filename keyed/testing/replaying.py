"""Replay: the differences between a job's function and a changed one, over batches that the job has run.

A changelog holds states and clocks, and no rows. Rows come from the job's recording (``record=``) or from its source. A
source is read from its start again, or resumes from the positions that the changelog has for each batch.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from keyed.arrow.read import table_rows
from keyed.base.arguments import Shown, time_text
from keyed.base.sources import PAUSE, IngestionTime, SeekableSource
from keyed.changelog.model import Changelog, all_positions, batch_id, sequence_of
from keyed.changelog.objects.object_changelog import changelog_at
from keyed.codec.tagged import decode_tagged
from keyed.destinations.parquet import batch_of
from keyed.errors import ChangelogError, CorruptionError, DefinitionError
from keyed.job.functions import Function, Order
from keyed.job.state import MapState
from keyed.job.watermarks import WatermarkStrategy
from keyed.kafka.kafka_source import KafkaSource
from keyed.recovery.cut import header_of, newest_sequence
from keyed.runtimes.local.local_position import LocalPosition, decode_position
from keyed.runtimes.local.local_rows import time_getter
from keyed.runtimes.recording import ELEMENT_COLUMN, METADATA
from keyed.runtimes.spark.checkpoint.begin import SparkPosition
from keyed.runtimes.spark.checkpoint.begin import decode_position as decode_spark
from keyed.testing.function_options import Key, Record, SecondRecord
from keyed.testing.harness import KeyedTestHarness
from keyed.testing.scripts import Rows
from keyed.vectorized import TIMESTAMP_COLUMN


class Recording(Shown):
    """The folder in which a job has recorded the rows of its batches.

    Only batches in the job's changelog were committed; for a later one the folder may have an attempt.

    Args:
        path: The folder of ``record=``.

    Attributes:
        operator: Name of the operator whose rows they are.

    Raises:
        DefinitionError: No job has recorded rows there.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._files: dict[int, list[Path]] = {}
        for file in sorted(self._path.glob("part-*.parquet")):
            number = batch_of(file.name)
            if number is not None:
                self._files.setdefault(number, []).append(file)
        if not self._files:
            raise DefinitionError(f"no job has recorded rows in {str(path)!r}: give the folder of record=")
        self.operator: str = self._about(next(iter(self._files.values()))[0])["operator"]

    def __repr__(self) -> str:
        return f"Recording({str(self._path)!r}, batches {min(self._files)} to {max(self._files)})"

    def batch(self, number: int) -> list[Record]:
        """Return the rows of a batch in order of arrival; those of a second side are `keyed.testing.SecondRecord`.

        Args:
            number: Id of the batch, as sinks get it.
        """
        return [row for file in self._files.get(number, ()) for row in self._read(file)]

    def between(self, after: int, last: int) -> list[Record]:
        """Return the rows of the batches after one, up to another one."""
        return [row for number in self._files if after < number <= last for row in self.batch(number)]

    def _about(self, file: Path) -> dict[str, Any]:
        try:
            metadata = (pq.read_schema(file).metadata or {}).get(METADATA)
        except (OSError, pa.ArrowException) as error:
            raise CorruptionError(f"a record of rows cannot be read: {error}", where=str(file)) from error
        if metadata is None:
            raise DefinitionError(f"{str(file)!r} is not a record of rows: give the folder of record=")
        about: dict[str, Any] = json.loads(metadata)
        return about

    def _read(self, file: Path) -> list[Record]:
        kind = SecondRecord if self._about(file)["side"] else Record
        try:
            table = pq.read_table(file, partitioning=None)
        except (OSError, pa.ArrowException) as error:
            raise CorruptionError(f"a record of rows cannot be read: {error}", where=str(file)) from error
        times = table[TIMESTAMP_COLUMN].to_pylist()
        if ELEMENT_COLUMN in table.column_names:
            values = [decode_tagged(each or b"") for each in table[ELEMENT_COLUMN].to_pylist()]
        else:
            values = list(table_rows(table.drop_columns([TIMESTAMP_COLUMN])))
        return list(map(kind, values, times))


_Position = LocalPosition | SparkPosition
_NOTHING = object()


@attrs.frozen
class Replayed:
    """Result of a replay.

    Attributes:
        first: Id of the first batch.
        last: Id of the last batch.
        rows: Number of their rows.
        lines: The differences as a diff, ``-`` of the job's function, ``+`` of the changed one: outputs, side
            outputs, states by key, timers.
    """

    first: int
    last: int
    rows: int
    lines: tuple[str, ...]


def replay(
    changelog: Changelog | str,
    function: Function,
    changed: Function,
    rows: Recording | SeekableSource | Iterable[Any],
    *,
    key: Key,
    key2: Key = None,
    timestamp: str | Callable[[Any], int] | IngestionTime | None = None,
    watermark: WatermarkStrategy | None = None,
    order: Order = "event_time",
    broadcast: Sequence[MapState[Any, Any]] = (),
    first: int = 0,
    last: int | None = None,
) -> Replayed:
    """Run the batches of a job again, with its function and with a changed one.

    Args:
        changelog: The changelog of the job's first operator, or the URL of one in an object store. It is only read.
        function: The job's function.
        changed: The changed function.
        rows: The job's `Recording`, or its source: the rows from its start, for a local job; a source with positions;
            a `keyed.KafkaSource`.
        key: Key of a row, as in the job.
        key2: Key of a row of the second side.
        timestamp: As in the job; not needed with a recording.
        watermark: As in the job.
        order: As in the job.
        broadcast: Descriptors of its broadcast states.
        first: Id of the first batch; the state before it is taken from the changelog.
        last: Id of the last one; the newest by default.

    Raises:
        DefinitionError: There are no such batches, or the rows are not those of the job.
        ChangelogError: The changelog has no positions to assign rows to batches, or does not match the rows.
        HistoryCompacted: The changelog does not go back that far.
    """
    log: Changelog = changelog_at(changelog)
    header = header_of(log)
    newest = batch_id(newest_sequence(log.reader(group) for group in range(header.parallelism)))
    last = newest if last is None else last
    if not 0 <= first <= last <= newest:
        raise DefinitionError(f"batches {first} to {last}: the changelog has batches 0 to {newest}")
    if isinstance(rows, Recording) and rows.operator != header.operator:
        raise DefinitionError(
            f"{rows!r} has the rows of operator {rows.operator!r}, and the changelog is that of {header.operator!r}: "
            "give the changelog of the first operator, whose input was recorded"
        )
    positions = _positions(log, first, last)
    log_commits = log.reader(0).commits(sequence_of(first) - 1, sequence_of(last))
    commits = {commit.batch: commit for commit, _ in log_commits}
    batches = _batches(log, rows, positions, range(first, last + 1), timestamp)
    options: dict[str, Any] = {"key": key, "key2": key2, "watermark": watermark or WatermarkStrategy(0)}
    options |= {"order": order, "broadcast": broadcast, "ingestion_time": isinstance(timestamp, IngestionTime)}
    runs = []
    for each in (function, changed):
        with _begin(log, each, first - 1, options) as harness:
            for number, batch in zip(range(first, last + 1), batches, strict=True):
                harness.advance_processing_time(commits[number].processing_time)
                if batch:
                    Rows(batch).do(harness, each)
                if commits[number].ended:
                    harness.end_of_input()
            runs.append(_read_results(harness))
    with _begin(log, function, last, options) as harness:
        for (what, left), (_, logged) in zip(runs[0].items(), _read_results(harness).items(), strict=True):
            name = next(_differences(left, logged), None)
            if what in ("state", "timer") and name is not None:
                raise DefinitionError(
                    f"rows: with these rows, {type(function).__name__} has another {name} than "
                    f"the changelog after batch {last}; give the rows, key, timestamp, watermark and order of the job"
                )
    return Replayed(first, last, sum(map(len, batches)), tuple(_diff(*runs)))


def _read_results(harness: KeyedTestHarness) -> dict[str, dict[str, Any]]:
    """Return the observable content of a harness: outputs and timers with their counts, and states."""
    outputs = Counter(f"output {record!r}" for record in harness.take_output())
    for tag in harness.side_outputs:
        outputs.update(f"side output {tag!r} {record!r}" for record in harness.take_side_output(tag))
    states: dict[str, Any] = {}
    for name in harness.state_names:
        for namespace in (None, *harness.namespaces(name)):
            where = "" if namespace is None else f" in namespace {namespace!r}"
            for key, value in harness.state(name, namespace).items():
                states[f"state {name}[{key!r}]{where}"] = value
    timers = Counter(
        f"timer {'' if timer.name is None else f'{timer.name!r} '}of {timer.key!r} at {time_text(timer.timestamp)}, "
        f"{timer.domain.value}"
        for timer in harness.pending_timers()
    )
    return {"output": outputs, "state": states, "timer": timers}


def _differences(one: dict[str, Any], other: dict[str, Any]) -> Iterator[str]:
    """Return the differences."""
    for what in sorted({*one, *other}):
        left, right = one.get(what, _NOTHING), other.get(what, _NOTHING)
        # A NaN is not equal to itself, but has an equal representation.
        if left != right and repr(left) != repr(right):
            yield what


def _positions(changelog: Changelog, first: int, last: int) -> dict[int, _Position]:
    """Return the job's position after each batch, and before the first one.

    Raises:
        ChangelogError: It has no position for a batch.
    """
    positions: dict[int, _Position] = {}
    for sequence, record in all_positions(changelog, max(sequence_of(first) - 2, 0)):
        batch = batch_id(sequence)
        if batch <= last:
            where = f"position of batch {batch} in {changelog}"
            positions[batch] = decode_spark(record) or decode_position(record, where)
    missing = [batch for batch in range(max(first - 1, 0), last + 1) if batch not in positions]
    if missing:
        raise ChangelogError(
            f"{changelog} has no position for batch {missing[0]}, so its rows are unknown; begin later"
        )
    return positions


def _batches(
    changelog: Changelog,
    rows: Any,
    positions: dict[int, _Position],
    numbers: range,
    timestamp: Any,
) -> list[list[Record]]:
    """Return the rows of each batch.

    Raises:
        ChangelogError: The job's source has positions of another kind than ``rows``.
        DefinitionError: There are fewer rows than the job has read.
    """
    ends = [positions.get(number - 1) for number in numbers[:1]] + [positions[number] for number in numbers]
    pairs = list(pairwise(ends))
    if isinstance(rows, Recording):
        return [rows.between(_batch_of(before), _batch_of(after)) for before, after in pairs]
    if isinstance(rows, SeekableSource):
        read: list[Any] = [
            _read(rows, _source_of(before, changelog), _source_of(after, changelog)) for before, after in pairs
        ]
    else:
        counts = [0 if position is None else _rows_of(position, changelog) for position in ends]
        if not isinstance(rows, Iterable):
            raise DefinitionError(
                f"rows={rows!r}: a changelog holds no rows; give Recording(folder) with the folder of record=, or the "
                "job's source"
            )
        batches = list(rows)
        if len(batches) < counts[-1]:
            raise DefinitionError(f"rows: {len(batches)} rows are given, and the job has read {counts[-1]}")
        read = [batches[start:end] for start, end in pairwise(counts)]
    has_time = timestamp is not None and not isinstance(timestamp, IngestionTime)
    time_of = time_getter(timestamp) if has_time else lambda _: None
    return [[Record(row, time_of(row)) for row in each] for each in read]


def _batch_of(position: _Position | None) -> int:
    """Return the id of the batch that ended at a position."""
    if position is None:
        return -1
    return position.batch if isinstance(position, SparkPosition) else position.batches - 1


def _rows_of(position: _Position, changelog: Changelog) -> int:
    """Return the number of rows that a job had read from a source without positions.

    Raises:
        ChangelogError: The source has positions.
    """
    if isinstance(position, SparkPosition):
        raise ChangelogError(
            f"{changelog} belongs to a query on Spark, whose sources are not lists of rows: run it with record=folder "
            "and give Recording(folder), or give a KafkaSource of its topic"
        )
    if position.source is not None:
        raise ChangelogError(
            f"{changelog}: the job's source resumes from positions such as {position.source!r}: give that source as "
            "rows, or run the job with record=folder and give Recording(folder)"
        )
    _check_single(position, changelog)
    return position.rows


def _check_single(position: LocalPosition, changelog: Changelog) -> None:
    if position.beside:
        raise ChangelogError(
            f"{changelog}: the job reads {1 + len(position.beside)} sources: run it with record=folder and give "
            "Recording(folder)"
        )


def _source_of(position: _Position | None, changelog: Changelog) -> Any:
    """Return the position of a source with positions; for a query on Spark, that of its Kafka source.

    Raises:
        ChangelogError: The job's source has no such positions.
    """
    if position is None:
        return None
    if isinstance(position, LocalPosition):
        _check_single(position, changelog)
        if position.source is not None:
            return position.source
        raise ChangelogError(f"{changelog}: the job's source is read from its start: give its rows from the start")
    try:
        (topics,) = map(json.loads, position.sources)
        offsets = [each for topic in topics.values() for each in topic.items()]
        if all(part.isdigit() and type(at) is int for part, at in offsets):
            return topics
    except (ValueError, AttributeError):
        pass
    raise ChangelogError(
        f"{changelog}: the query on Spark does not read Kafka topics as its only source; its position is "
        f"{position.sources!r:.200}: run it with record=folder and give Recording(folder)"
    )


def _read(source: SeekableSource, before: Any, after: Any) -> list[Any]:
    """Read a source from one position to another.

    Raises:
        DefinitionError: It does not reach the second position.
    """
    if isinstance(source, KafkaSource):
        return list(source.between(before, after))
    if before is not None:
        source.seek(before)
    elements: list[Any] = []
    if before == after:
        return elements
    pauses = 0
    for element in source:
        pauses = pauses + 1 if element is PAUSE else 0
        if element is not PAUSE:
            elements.append(element)
        if source.position() == after:
            return elements
        if pauses > 1:
            break
    raise DefinitionError(
        f"rows: {source!r} does not reach {after!r}, the position of the job's source; give that source"
    )


def _begin(changelog: Changelog, function: Function, batch: int, options: dict[str, Any]) -> KeyedTestHarness:
    if batch < 0:
        return KeyedTestHarness(function, **options)
    return KeyedTestHarness.from_changelog(changelog, function, as_of=batch, **options)


def _diff(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> Iterator[str]:
    for kind in ("output", "timer"):
        for sign, one, other in (("-", before[kind], after[kind]), ("+", after[kind], before[kind])):
            yield from (f"{sign} {text}" for text in sorted((Counter(one) - Counter(other)).elements()))
        old, new = before["state"], after["state"]
        for what in _differences(old, new) if kind == "output" else ():
            yield from (f"{sign} {what} = {of[what]!r}" for sign, of in (("-", old), ("+", new)) if what in of)
