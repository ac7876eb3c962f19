"""The position of a Spark query, and the start of a query on a checkpoint: empty, at its state, or with changelogs.

The record ``keyed-begin`` in the checkpoint of a query of `run` or `start` is JSON of the fields of `Begin`. It is
written before the first batch; for a restored query it is written again once the checkpoint is complete.

The first batch of a restored query has only ticks as its source: the key groups, which have no state yet, load their
state (`keyed.recovery.loading`). Then the line of each source is written to ``offsets/0``, as if the batch had read the
rows of the earlier query, and batch 1 continues from there. Without a position in the changelog, the key groups load
their state in the first ordinary batch.

The position in the sources is logged in the query's changelogs. Key groups export a batch in the next one. Before that,
its position is logged to each changelog of the query under the batch's sequence. It is a frame (`keyed.codec.frames`)
of kind ``KSPK``, version 1, whose payload is msgpack of the fields of `SparkPosition` as a map.

Spark's file source keeps the names of all files that it has read in the checkpoint, in ``sources/<i>``, one log file
for each of its batches. Every tenth log file, with the ending ``.compact``, also holds the content of all earlier ones:

    v1
    {"path": "file:///...", "timestamp": <milliseconds>, "batchId": <number of the file source's batch>}
    ...

A position in a changelog has the number of the source's last batch (``{"logOffset": 11}``). The entries up to it are
stored beside the positions (`keyed.changelog.model.Changelog.keep`) under the names ``files-<i>-<from>-<to>-<part>``,
for the batches ``from`` to ``to``: JSON ``[number of parts, [entry, ...]]``, compressed by zlib. Eight of about the
same size are folded into one, so their number stays small. An entry may occur more than once.
"""

from __future__ import annotations

import json
import logging
import math
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from copy import copy
from itertools import takewhile
from typing import Any

import attrs
import msgspec

from keyed.base.ids import random_id
from keyed.changelog.model import Changelog, all_positions, batch_id, export_interval, put_positions
from keyed.codec.frames import RecordFormat, refusal_of_version
from keyed.codec.state_schema import StateSchema, check_compatible
from keyed.engine.bound import Scope
from keyed.engine.group_log import MOST_COMMITS
from keyed.engine.registry import Registry
from keyed.errors import ChangelogFenced, CheckpointError, CorruptionError, HistoryCompacted
from keyed.job.graph import Stage
from keyed.job.restoring import RestorePoint
from keyed.recovery.cut import Cut, lineage
from keyed.runtimes.spark.checkpoint.folder import CheckpointFolder
from keyed.stores import MemoryStore
from keyed.stores.commit_store import COMMITS_FOLDER

_log = logging.getLogger(__name__)
_NAME, _VERSION = "keyed-begin", 1
#: Entries in one part.
_PART = 2_000
#: Number of records of about the same size that are folded into one.
_FOLDED = 8
_OFFSET = re.compile(r'\{"logOffset":\s*(\d+)\}')
_FILES_NAME = re.compile(r"files-(\d+)-(\d+)-(\d+)-(\d+)")
_FILES_VERSION = "v1"
_Entry = dict[str, Any]
_Range = tuple[int, int]
_decode = msgspec.json.Decoder(tuple[int, list[_Entry]]).decode


class KeptFiles:
    """Stores the logs of a query's file sources in a changelog.

    Args:
        folder: The query's checkpoint.
        changelog: The changelog.

    Raises:
        CorruptionError: The stored data is damaged.
    """

    def __init__(self, folder: CheckpointFolder, changelog: Changelog) -> None:
        self._folder = folder
        self._changelog = changelog
        self._names: dict[int, dict[_Range, list[str]]] = defaultdict(dict)
        for source, ranges in _stored_entries(changelog).items():
            for range_, entries in ranges.items():
                self._names[source][range_] = _names(source, range_, len(_parts(entries)))

    def keep(self, lines: list[str]) -> None:
        """Store the entries up to a position.

        Args:
            lines: The lines of the sources in the position.

        Raises:
            ChangelogError: It cannot be written.
            CheckpointError: The checkpoint lacks a part of a log.
        """
        for source, line in enumerate(lines):
            last = file_batch(line)
            first = 0
            for range_ in sorted(self._names[source]):
                if range_[0] <= first:
                    first = max(first, range_[1] + 1)
            if last is None or last < first:
                continue
            self._keep(source, (first, last))
            while len(some := self._newest(source)) >= _FOLDED:
                self._keep(source, (some[-1][0], last))
                self._changelog.forget([name for range_ in some for name in self._names[source].pop(range_)])

    def _newest(self, source: int) -> list[_Range]:
        """Return the newest record, and the preceding ones that are not larger."""
        ranges = sorted(self._names[source], reverse=True)
        return list(takewhile(lambda range_: _tier(range_) <= _tier(ranges[0]), ranges))

    def _keep(self, source: int, range_: _Range) -> None:
        """Store the entries of some batches."""
        parts = _parts(logged(self._folder, source, *range_))
        names = _names(source, range_, len(parts))
        for name, part in zip(names, parts, strict=True):
            self._changelog.keep(name, zlib.compress(json.dumps([len(parts), part]).encode()))
        self._names[source][range_] = names


def put_files(folder: CheckpointFolder, changelog: Changelog, lines: list[str]) -> list[str]:
    """Write the logs of file sources to a new checkpoint, each as one batch with all files.

    Args:
        folder: The checkpoint.
        changelog: The changelog that has the position.
        lines: The lines of the sources in the position.

    Returns:
        The lines for the new checkpoint.

    Raises:
        CorruptionError: The changelog lacks a part of a log.
        CheckpointError: The checkpoint cannot be written.
    """
    lasts = {source: last for source, line in enumerate(lines) if (last := file_batch(line)) is not None}
    if not lasts:
        return lines
    kept = _stored_entries(changelog)
    result = [*lines]
    for source, last in lasts.items():
        entries: dict[str, _Entry] = {}
        missing = set(range(last + 1))
        for (first, end), some in kept[source].items():
            missing -= set(range(first, end + 1))
            entries |= {entry["path"]: entry for entry in some if entry["batchId"] <= last}
        if missing:
            raise CorruptionError(
                f"the changelog has a position at batch {last} of file source {source}, and lacks the files of its "
                f"batch {min(missing)}",
                where=str(changelog),
            )
        rows = [_FILES_VERSION, *(json.dumps(entry | {"batchId": 0}) for entry in entries.values())]
        folder.write(f"sources/{source}/0", "\n".join(rows).encode())
        result[source] = json.dumps({"logOffset": 0})
    return result


def file_batch(line: str) -> int | None:
    """Return the number of a file source's last batch, from its line in the offset log; ``None`` for other sources."""
    match = _OFFSET.fullmatch(line.strip())
    return None if match is None else int(match[1])


def logged(folder: CheckpointFolder, source: int, first: int, last: int) -> list[_Entry]:
    """Return the entries of some batches in the log of a file source."""
    names = folder.names(f"sources/{source}")
    batches = set(range(first, last + 1))
    alone = {batch for batch in batches if str(batch) in names}
    files = [str(batch) for batch in sorted(alone)]
    if alone != batches:
        compacted = sorted(int(name.removesuffix(".compact")) for name in names if name.endswith(".compact"))
        covering = [batch for batch in compacted if batch >= max(batches - alone)]
        if not covering:
            raise CheckpointError(
                f"the checkpoint {folder.path} lacks batch {max(batches - alone)} of file source {source}"
            )
        files.append(f"{covering[0]}.compact")
    entries: dict[tuple[int, str], _Entry] = {}
    for name in files:
        content = (folder.read(f"sources/{source}/{name}") or b"").decode().split("\n")
        if content[0] != _FILES_VERSION:
            raise CheckpointError(
                f"sources/{source}/{name} of the checkpoint {folder.path} has version {content[0]!r}, not "
                f"{_FILES_VERSION!r}: this version of Spark has another format of the logs of file sources"
            )
        for entry in map(json.loads, filter(None, content[1:])):
            if entry["batchId"] in batches:
                entries[entry["batchId"], entry["path"]] = entry
    return [entries[key] for key in sorted(entries)]


def _stored_entries(changelog: Changelog) -> dict[int, dict[_Range, list[_Entry]]]:
    """Return the stored entries of a changelog by source and batches, of records with all parts."""
    parts: dict[tuple[int, _Range], dict[int, list[_Entry]]] = defaultdict(dict)
    expected: dict[tuple[int, _Range], int] = {}
    for name, data in changelog.kept():
        match = _FILES_NAME.fullmatch(name)
        if match is None:
            continue
        source, first, last, part = map(int, match.groups())
        try:
            count, entries = _decode(zlib.decompress(data))
        except (ValueError, zlib.error) as error:
            raise CorruptionError(f"{name} is malformed: {error}", where=str(changelog)) from error
        if not all(entry.keys() >= {"path", "batchId"} for entry in entries):
            raise CorruptionError(f"{name} is malformed: an entry has no path or batch", where=str(changelog))
        expected[source, (first, last)] = count
        parts[source, (first, last)][part] = entries
    result: dict[int, dict[_Range, list[_Entry]]] = defaultdict(dict)
    for (source, range_), lines in parts.items():
        if len(lines) == expected[source, range_]:
            result[source][range_] = [entry for part in sorted(lines) for entry in lines[part]]
    return result


def _parts(entries: list[_Entry]) -> list[list[_Entry]]:
    return [entries[start : start + _PART] for start in range(0, len(entries), _PART)] or [[]]


def _names(source: int, range_: _Range, parts: int) -> list[str]:
    return [f"files-{source}-{range_[0]}-{range_[1]}-{part}" for part in range(parts)]


def _tier(range_: _Range) -> int:
    """Return the size class of a record: the logarithm of its number of batches, to the base of `_FOLDED`."""
    return int(math.log(range_[1] - range_[0] + 1, _FOLDED) + 1e-9)


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


#: Descriptions of states, by the name of their operator.
Defined = dict[str, list[dict[str, Any]]]


@attrs.frozen
class Begin:
    """The kind of start of a query, and its pending steps.

    Attributes:
        first_batch: Id of Spark's batch 0 for sinks. Ids continue after those of the earlier query, and its outputs
            after the restored batch are replaced.
        sequence: Number of the restored commit in the changelogs, 0 if nothing was restored.
        sources: Lines of the sources that still have to be written to ``offsets/0``.
        with_position: True if the changelogs had a position.
        ticks: True if the last of the query's sources are the ticks.
        queries: Id of the query, after those of the queries that it was restored from.
        states: The states that depend on a definition: see `defined_states`.
        version: Version of the record.
    """

    first_batch: int = 0
    sequence: int = 0
    sources: list[str] | None = None
    with_position: bool = False
    ticks: bool = True
    queries: list[str] = attrs.field(factory=list)
    states: Defined = attrs.field(factory=dict)
    version: int = _VERSION


def defined_states(chain: Sequence[Stage]) -> Defined:
    """Return descriptions of the states that depend on a definition (`StateSchema.meaning`), by operator."""
    schemas = {}
    for stage in chain:
        function: Any = copy(stage.function)
        registry = Registry(stage.spec(stage.parallelism or 1), 0, Scope(MemoryStore()), {})
        registry.bind_declared(function)
        described = [state["schema"] for state in registry.described().values()]
        if defined := [schema for schema in described if schema.get("meaning")]:
            schemas[stage.name] = defined
    return schemas


def begin(
    folder: CheckpointFolder, points: Mapping[str, RestorePoint], *, ticks: bool = True, states: Defined | None = None
) -> Begin | None:
    """Return the record of a query's start, after writing it to the checkpoint.

    Args:
        folder: The checkpoint.
        points: The restore points of operators, by name.
        ticks: True if the query has ticks.
        states: Its states that depend on a definition.

    Returns:
        The record, ``None`` if the key groups have to load their state: see `begin_at`.

    Raises:
        CheckpointError: The checkpoint belongs to the local runtime, or its restore was not completed and is not
            requested again.
        StateSchemaChanged: The definition of a state has changed.
    """
    record = before = read_begin(folder)
    is_new = folder.last_commit() is None
    if is_new and folder.names(COMMITS_FOLDER):
        raise CheckpointError(
            f"the checkpoint {folder.path} was written by the local runtime, and a query on Spark cannot continue it; "
            "give checkpoint= a new folder, and restore_from= the changelog of the local query to take over its state"
        )
    if is_new and points:
        if (record is None or not record.sequence) and folder.names("offsets"):
            raise CheckpointError(
                f"a query without restore_from= has begun its first batch in the checkpoint {folder.path} and has not "
                "finished it: give a new checkpoint"
            )
        return None
    if is_new and record is not None and record.sequence:
        raise CheckpointError(
            f"the checkpoint {folder.path} has to begin after batch {batch_id(record.sequence)} of a changelog, and "
            "has not: give restore_from= again, or a new checkpoint"
        )
    if is_new or record is None:
        # Sinks of a query that `writeStream` has started have Spark's id.
        queries = record.queries if record is not None else [random_id() if is_new else _spark_id(folder)]
        record = Begin(ticks=ticks, queries=queries)
    states = states or {}
    if not is_new:
        _check_defined(record.states, states)
    record = attrs.evolve(record, states=states)
    if record != before:
        _write(folder, record)
    return record


def _check_defined(stored: Defined, declared: Defined) -> None:
    """Check that states have kept their definition; a state that is stored compares whole when a key group opens it."""
    for operator in stored.keys() & declared.keys():
        old, new = (
            {schema["name"]: StateSchema.from_json(schema) for schema in each[operator]} for each in (stored, declared)
        )
        check_compatible(operator, [old[name] for name in old if name in new], new.values())


def begin_at(folder: CheckpointFolder, cut: Cut, *, ticks: bool = True, states: Defined | None = None) -> Begin:
    """Write and return the record of a query whose key groups load the state of changelogs at a cut.

    Args:
        folder: The checkpoint.
        cut: The cut.
        ticks: True if the query has ticks.
        states: Its states that depend on a definition.

    Raises:
        HistoryCompacted: The changelogs were compacted beyond the cut.
    """
    before = read_begin(folder)
    # The folders of its sinks may have its id, if it has begun before.
    own = before.queries[-1:] if before is not None else []
    queries = [*lineage(cut), *(own or [random_id()])]
    position = None if cut.position is None else decode_position(cut.position)
    if position is None:
        _log.warning(
            "batch %d is restored without a position: the state is restored, and the source is read as its options say",
            batch_id(cut.sequence),
        )
        record = Begin(cut.sequence, cut.sequence)
    else:
        # The changelogs of all operators have the position, except new ones.
        changelogs = [restoration.point.changelog for restoration in cut.operators.values()]
        changelog = next((each for each in changelogs if _position_of(each, cut.sequence) == cut.position), None)
        if changelog is None:
            raise HistoryCompacted(f"the changelog no longer has the position of batch {batch_id(cut.sequence)}")
        sources = put_files(folder, changelog, position.sources)
        record = Begin(position.batch + 1, cut.sequence, sources, with_position=True)
    record = attrs.evolve(record, ticks=ticks, queries=queries, states=states or {})
    _write(folder, record)
    return record


def read_begin(folder: CheckpointFolder) -> Begin | None:
    """Return the record of a checkpoint's query; ``None`` if it was not started by `run` or `start`.

    Raises:
        CorruptionError: The record is damaged, or of another version.
    """
    content = folder.read(_NAME)
    if content is None:
        return None
    where = f"{folder.path}/{_NAME}"
    try:
        record = Begin(**json.loads(content))
    except (ValueError, TypeError) as error:
        raise CorruptionError(f"malformed record: {error}", where=where) from error
    if record.version != _VERSION:
        raise CorruptionError(f"the record has {refusal_of_version(record.version, _VERSION)}", where=where)
    return record


def take_position(folder: CheckpointFolder, record: Begin) -> Begin:
    """Make the sources of a restored query resume at the earlier query's position, after its first batch.

    Args:
        folder: The checkpoint.
        record: The record of the query's start.
    """
    assert record.sources is not None
    # The last line belongs to the ticks, of which none was read. This may be repeated after a crash.
    lines = (folder.read("offsets/0") or b"").decode().split("\n")
    after = [*lines[:2], *record.sources, *(["-"] if record.ticks else [])]
    folder.write("offsets/0", "\n".join(after).encode())
    record = attrs.evolve(record, sources=None)
    _write(folder, record)
    return record


def _spark_id(folder: CheckpointFolder) -> str:
    """Return Spark's id of a query that has begun."""
    metadata = folder.read("metadata")
    return random_id() if metadata is None else str(json.loads(metadata)["id"])


def _position_of(changelog: Changelog, sequence: int) -> bytes | None:
    number, record = next(all_positions(changelog, sequence - 1), (0, None))
    return record if number == sequence else None


def _write(folder: CheckpointFolder, record: Begin) -> None:
    folder.write(_NAME, json.dumps(attrs.asdict(record)).encode())
