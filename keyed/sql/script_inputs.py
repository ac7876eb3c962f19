"""The rows that are given for the streams and tables of a script, as tables of their declared columns.

An input is a list of dictionaries, a table, the path of a file, or records of a topic. Its tables have the declared
columns, converted strictly; the columns of time, whether the row was deleted, and why it is bad. Bad rows keep their
places until they are passed: then they are counted.
"""

from __future__ import annotations

import itertools
import logging
import os
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from keyed.base.arguments import nearest, shown, type_of
from keyed.base.extras import arrow_table
from keyed.errors import DefinitionError, SourceError
from keyed.formats.declared_formats import Registry
from keyed.formats.file_rows import FILES, ROWS, RowsPart, cells_of, column_part, file_parts
from keyed.formats.sql_types import TIMESTAMP
from keyed.formats.typed_columns import column, columns_of
from keyed.sql.catalog import PLACE, SqlSource
from keyed.sql.name_scope import PSEUDO
from keyed.windows.vectorized.row_groups import pc

_log = logging.getLogger(__name__)
#: Milliseconds of the years 1970 to 9999: others are no times of a stream.
LATEST = 253_402_300_800_000
TIME, GONE, SOURCE, WINDOW, BAD = "#time", "#gone", "#source", "#window", "#bad"
PARTITION, OFFSET = (PSEUDO[name][0] for name in ("ROWPARTITION", "ROWOFFSET"))
UNREADABLE = "the format cannot read them"
NO_TIME = "no usable timestamp"
_AHEAD = "it is further ahead of the processing time than max_ahead= allows; the unit is milliseconds"

#: Rows that were skipped: how many, by source and reason.
Skipped = dict[str, Counter[str]]


def skip(skipped: Skipped, source: str, reason: str, count: int, first: str) -> None:
    """Count rows that are skipped, and log the first ones."""
    if count:
        counts = skipped.setdefault(source, Counter())
        if not counts[reason]:
            _log.warning("%s skips a row, as it will others: %s: %s", source, reason, first)
        counts[reason] += count


def _is_time(cell: Any) -> bool:
    return isinstance(cell, int | None) and not isinstance(cell, bool)


def _is_window(cell: Any) -> bool:
    return cell is None or (isinstance(cell, tuple | list) and [*map(type, cell)] == [int, int])


#: The parts of given records that are checked: their places, usual types, what they have to be, and the rules.
_CHECKED = (
    (2, {int, type(None)}, _is_time, "a timestamp is a number of milliseconds, and none is that of"),
    (6, {type(None)}, _is_window, "a window is (start, end) in milliseconds, and none is that of"),
)


@attrs.define(eq=False, slots=False)
class ScriptInput:
    """The rows that are given for a stream or table.

    Attributes:
        source: The stream or table.
        rows: The rows.
        skipped: Counts the bad ones.
        is_strict: A row without a usable timestamp is an error.
        latest: Returns the highest usable timestamp.
        waits: A last line without a newline is not read yet.
        is_topic: The rows are records of a topic.
        places: Where each record stands among those of all inputs; without them inputs are merged by time.
        registry: The schema registry of topics.
        missing: Takes the columns that no row of a file has, with the number of rows.
    """

    source: SqlSource
    rows: Any
    skipped: Skipped
    is_strict: bool = attrs.field(default=False, kw_only=True)
    latest: Callable[[], int] = attrs.field(default=lambda: LATEST, kw_only=True)
    waits: bool = attrs.field(default=False, kw_only=True)
    is_topic: bool = attrs.field(default=False, kw_only=True)
    places: Iterator[int] | None = attrs.field(default=None, kw_only=True)
    registry: Registry | None = attrs.field(default=None, kw_only=True)
    missing: dict[str, dict[str, int]] = attrs.field(factory=dict, kw_only=True)
    _count: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        where, rows = f"the rows of {self.source.name}", self.rows
        if isinstance(rows, str | os.PathLike):
            path = Path(rows)
            if path.suffix.lower() not in FILES:
                raise DefinitionError(f"{where}: {str(path)!r} must be a file of {', '.join(FILES)}")
            if not path.is_file():
                raise DefinitionError(f"{where}: there is no file {str(path)!r}")
        elif isinstance(rows, Mapping | bytes) or not (isinstance(rows, Iterable) or arrow_table(rows) is not None):
            remedy = "give a list of dictionaries, a table, or the path of a file"
            raise DefinitionError(f"{where} are {type_of(rows)}; {remedy}")

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the tables."""
        own, further = ([(n, of.arrow) for n, of in each] for each in (self.source.columns, self.source.further))
        return pa.schema([*own, (TIME, pa.int64()), (BAD, pa.string()), (GONE, pa.bool_()), *further])

    @cached_property
    def _readers(self) -> list[Any]:
        return [each.reader(self.registry) for each in self.source.parts]

    def tables(self) -> Iterator[pa.Table]:
        """Yield the rows as tables."""
        rows, source = self.rows, self.source
        is_file = isinstance(rows, str | os.PathLike)
        table = None if is_file or self.is_topic else arrow_table(rows)
        if is_file:
            yield from self._of_file(Path(rows))
        elif table is not None:
            names = names_in_data(source, table.column_names, f"the table of {source.name}")
            for batch in table.to_batches(ROWS):
                yield self._table(column_part(batch, names, "row", self._count))
        else:
            make = self._of_records if self.is_topic else self._of_rows
            yield from map(make, self._parts(iter(rows)))

    def _parts(self, rows: Iterator[Any]) -> Iterator[list[Any]]:
        while True:
            part: list[Any] = []
            try:
                part.extend(itertools.islice(rows, ROWS))
            except Exception as error:
                what = f"the rows of {self.source.name} failed after {self._count + len(part)} rows"
                raise SourceError(f"{what}: {type(error).__name__}: {error}") from error
            if not part:
                return
            yield part

    def _of_file(self, path: Path) -> Iterator[pa.Table]:
        source = self.source
        columns = {**dict(source.without_headers), "ROWTIME": TIMESTAMP}
        seen: set[str] = set()
        parts = file_parts(path, columns, lambda names: names_in_data(source, names, str(path)), waits=self.waits)
        rows = 0
        for part in parts:
            rows += part.count
            seen.update(str(each).lower() for each in part.seen)
            yield self._table(part)
        if path.suffix.lower() in (".json", ".jsonl"):
            for name in [each for each, _ in source.without_headers if each.lower() not in seen] if rows else ():
                _log.warning("%s: no row of %s has the column %s; it is null", source.name, path, name)
                self.missing.setdefault(source.name, {})[name] = rows

    def _of_rows(self, rows: list[Any]) -> pa.Table:
        where = f"the rows of {self.source.name}: a row is a dictionary, and this one is"
        names = [*(name for name, _ in self.source.without_headers), "ROWTIME"]
        wrong = [] if set(map(type, rows)) <= {dict} else [each for each in rows if not isinstance(each, Mapping)]
        if wrong:
            raise DefinitionError(f"{where} {shown(wrong[0])}")
        cells, bad, seen = cells_of(rows, names)
        known = {each.lower() for each in names}
        for each in seen:
            if str(each).lower() not in known:
                row = next(row for row in rows if each in row)
                near = nearest(str(each), names[:-1])
                raise DefinitionError(f"{self.source.name} has no column {each!r}{near}; the row is {shown(dict(row))}")
        first = self._count
        return self._table(RowsPart(cells, len(rows), lambda place: f"row {first + place}", bad))

    def _of_records(self, records: list[Any]) -> pa.Table:
        """Return given records: key, value, time, and perhaps partition, offset, headers and window."""
        topic = self.source.topic
        for record in records:
            if not isinstance(record, tuple | list) or not 2 <= len(record) <= 7:
                what = "a record is (key, value, timestamp), and this one is"
                raise DefinitionError(f"topics={{{topic!r}: ...}}: {what} {shown(record)}")
        columns = [*zip(*([*each, *[None] * (7 - len(each))] for each in records), strict=True)]
        for number, usual, fits, what in _CHECKED:
            if not set(map(type, columns[number])) <= usual:
                wrong = [each for cell, each in zip(columns[number], records, strict=True) if not fits(cell)]
                if wrong:
                    raise DefinitionError(f"topics={{{topic!r}: ...}}: {what} {shown(wrong[0])}")
        first = self._count
        return self.decoded(columns, lambda place: f"topic {topic}, record {first + place}")

    def of_messages(self, messages: Sequence[Any]) -> pa.Table:
        """Return records of a partition of a Kafka topic."""
        rows = ((each.key(), each.value(), each.timestamp()[1], each.partition(), each.offset()) for each in messages)
        parts, nothing = [*zip(*rows, strict=True)], [None] * len(messages)
        headers = [each.headers() for each in messages] if self.source.headers else nothing
        where = f"topic {self.source.topic}, partition {parts[3][0]}, offset"
        return self.decoded([*parts, headers, nothing], lambda place: f"{where} {parts[4][place]}")

    def decoded(self, columns: Sequence[Sequence[Any]], where: Callable[[int], str]) -> pa.Table:
        """Return records as a table.

        Args:
            columns: Keys, values, times, partitions, offsets, headers and windows.
            where: Returns the place of a record, for messages.
        """
        source, (keys, values, times, partitions, offsets, headers, windows) = self.source, columns
        bad: dict[int, str] = {}
        if source.window is not None:
            keys, windows = self._split(keys, windows, bad)
        cells: dict[str, Any] = {"ROWTIME": [*times], PARTITION: partitions, OFFSET: offsets, WINDOW: windows}
        for read, data, of in zip(self._readers, (keys, values), (source.keys, source.stored), strict=True):
            arrays, wrong = read(data)
            cells |= {name: array for (name, _), array in zip(of, arrays, strict=True)}
            bad |= wrong
        removed = [each is None for each in values]
        if not source.is_table:
            bad = {place: "the record has no value" for place, is_gone in enumerate(removed) if is_gone} | bad
        for name, header in source.headers:
            cells[name] = [_header(each, header) for each in headers]
        return self._table(RowsPart(cells, len(keys), where, bad), removed)

    def _split(
        self, keys: Sequence[Any], windows: Sequence[Any], bad: dict[int, str]
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return the keys of a windowed source without the bounds that Kafka Streams writes at their end, and these."""
        width = 16 if self.source.window == "SESSION" else 8
        short_keys, bounds = [*keys], [*windows]
        for place, key in enumerate(keys):
            if not isinstance(key, bytes) or bounds[place] is not None:
                continue
            short_keys[place] = key[:-width]
            if len(key) < width:
                bad[place], short_keys[place] = "the key has no window", None
                continue
            *ends, start = struct.unpack(f">{width // 8}q", key[-width:])
            bounds[place] = (start, ends[0] if ends else start + (self.source.window_ms or 0))
        return short_keys, bounds

    def _table(self, part: RowsPart, removed: Sequence[bool] | None = None) -> pa.Table:
        """Return converted columns."""
        count, name = part.count, self.source.name
        columns, times, wrong = typed(self.source, part.cells, count, part.bad)
        for place in pc.indices_nonzero(pc.greater(times, self.latest())).to_pylist():
            wrong.setdefault(place, (NO_TIME, _AHEAD))
        untimed = next((place for place, (kind, _) in wrong.items() if kind == NO_TIME), None)
        if untimed is not None and self.is_strict:
            raise SourceError(
                f"{name}: {part.where(untimed)} has no usable timestamp: {wrong[untimed][1]}; without "
                "'ksql.timestamp.throw.on.invalid' it would be skipped and counted"
            )
        texts = {place: f"{kind}: {part.where(place)}: {reason}" for place, (kind, reason) in wrong.items()}
        reasons = pa.array(map(texts.get, range(count)), pa.string()) if texts else pa.nulls(count, pa.string())
        flags = pa.array(removed) if removed is not None else pa.repeat(False, count)
        further = self._further(part.cells, times, count)
        table = pa.table([*columns, times, reasons, flags, *further], schema=self.schema)
        self._count += count
        if self.places is not None:
            table = table.append_column(PLACE, pa.array(itertools.islice(self.places, count), pa.int64()))
        return table

    def without_bad(self, table: pa.Table) -> pa.Table:
        """Return the rows of a table that are not bad, and count the others."""
        reasons: Any = table.column(BAD)
        for text in reasons.drop_null().to_pylist():
            kind, _, first = text.partition(": ")
            skip(self.skipped, self.source.name, kind, 1, first)
        return table.filter(reasons.is_null())

    def _further(self, cells: Mapping[str, Any], times: Any, count: int) -> list[Any]:
        """Return the columns that are not declared: the place of a row in its topic, and the bounds of its window."""
        columns: list[Any] = []
        nothing = [None] * count
        if self.source.has_places:
            columns.append(pa.array([each or 0 for each in cells.get(PARTITION) or nothing], pa.int32()))
            numbers = enumerate(cells.get(OFFSET) or nothing, self._count)
            columns.append(pa.array([number if offset is None else offset for number, offset in numbers], pa.int64()))
        if self.source.window is not None:
            size = self.source.window_ms or 0
            pairs = zip(cells.get(WINDOW) or nothing, times.to_pylist(), strict=True)
            windows = [each or (at, at + size) for each, at in pairs]
            columns += [pa.array([each[side] for each in windows], pa.int64()) for side in (0, 1)]
        return columns


def names_in_data(source: SqlSource, names: Sequence[str], what: str) -> dict[str, str]:
    """Return the names that the declared columns of a source, and the time, have in data.

    Raises:
        DefinitionError: A column is not there, or two names differ only in case.
    """
    folded: dict[str, str] = {}
    for name in names:
        if name.lower() in folded:
            both = f"{folded[name.lower()]!r} and {name!r}"
            raise DefinitionError(f"{what} has the columns {both}, which differ only in case; rename one")
        folded[name.lower()] = name
    own_names = {}
    for name, _ in source.without_headers:
        if name.lower() not in folded:
            near = nearest(name, names)
            raise DefinitionError(f"{what} has no column {name!r}{near}; declare the columns that it has")
        own_names[name] = folded[name.lower()]
    if "rowtime" in folded:
        own_names["ROWTIME"] = folded["rowtime"]
    return own_names


def typed(
    source: SqlSource,
    cells: Mapping[str, Any],
    count: int,
    bad: Mapping[int, str],
    own_times: pa.Array[Any] | None = None,
) -> tuple[list[Any], Any, dict[int, tuple[str, str]]]:
    """Return the columns of a source, the times of its rows, and the reasons of unusable rows by place, with the kind.

    Args:
        source: The source.
        cells: The given columns by declared name, and perhaps ``ROWTIME``.
        count: Number of rows.
        bad: Rows that are known to be bad.
        own_times: Times of rows without a declared one.
    """
    bad = dict(bad)
    columns = columns_of(cells, source.columns, count, bad)
    if source.is_table:
        for name, _ in source.keys:
            of_key = columns[[each for each, _ in source.columns].index(name)]
            for place in pc.indices_nonzero(of_key.is_null()).to_pylist():
                bad.setdefault(place, f"the key {name} is null")
    times, no_time = _times(source, cells, columns, count, own_times)
    of_times = {place: (NO_TIME, each) for place, each in no_time.items()}
    return columns, times, of_times | {place: (UNREADABLE, each) for place, each in bad.items()}


def _times(
    source: SqlSource, cells: Mapping[str, Any], columns: list[Any], count: int, own: pa.Array[Any] | None
) -> tuple[Any, dict[int, str]]:
    wrong: dict[int, str] = {}
    if source.timestamp is not None:
        name, pattern = source.timestamp
        place = [each for each, _ in source.columns].index(name)
        times = columns[place]
        if pattern is not None:
            times = pc.strptime(times, format=pattern, unit="ms", error_is_null=True).cast(pa.int64())
        elif pa.types.is_timestamp(times.type):
            times = pc.divide(times.cast(pa.int64()), 1000)
    elif "ROWTIME" in cells:
        values = cells["ROWTIME"]
        if isinstance(values, list):
            values = [0 if each is None else each for each in values]
        converted, wrong = column(values, TIMESTAMP)
        times = pc.fill_null(pc.divide(converted.cast(pa.int64()), 1000), 0)
    else:
        return pa.array(np.zeros(count, dtype=np.int64)) if own is None else own, {}
    is_out = pc.fill_null(pc.or_(pc.less(times, 0), pc.greater_equal(times, LATEST)), True)
    bad = dict.fromkeys(pc.indices_nonzero(is_out).to_pylist(), "it is null, below 1970 or beyond the year 9999")
    return pc.fill_null(times, 0).cast(pa.int64()), bad | wrong


def _header(headers: Any, name: str | None) -> Any:
    if name is None:
        return [{"KEY": key, "VALUE": value} for key, value in headers or ()]
    values = [value for key, value in headers or () if key == name]
    return values[-1] if values else None
