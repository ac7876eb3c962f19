"""The rows that are given for the streams and tables of a script, as tables of their declared columns, merged by time.

An input is a list of dictionaries, a table, the path of a file, or records of a topic. Its tables have the declared
columns, converted strictly; the columns of time, and whether the row was deleted; bad rows are skipped and counted.
"""

from __future__ import annotations

import csv
import itertools
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from keyed.errors import DefinitionError, SourceError
from keyed.formats.plain_rows import cells_of, has_decimal, json_values
from keyed.formats.sql_types import BIGINT, INT, TIMESTAMP, SqlType
from keyed.formats.typed_columns import column
from keyed.shown import nearest, shown, type_of
from keyed.sql.catalog import SqlSource
from keyed.sql.name_scope import BOUNDS, PSEUDO
from keyed.topics import Registry
from keyed.windows.vectorized.row_groups import pc

_log = logging.getLogger(__name__)
#: Rows that are converted at a time.
_ROWS = 10_000
#: Milliseconds of the years 1970 to 9999: others are no times of a stream.
LATEST = 253_402_300_800_000
TIME, GONE, SOURCE, PLACE, WINDOW = "#time", "#gone", "#source", "#place", "#window"
PARTITION, OFFSET = (PSEUDO[name][0] for name in ("ROWPARTITION", "ROWOFFSET"))
_FILES = (".jsonl", ".json", ".csv", ".parquet")

#: Rows that were skipped: how many, by source and reason.
Skipped = dict[str, Counter[str]]


def skip(skipped: Skipped, source: str, reason: str, count: int, first: str) -> None:
    """Count rows that are skipped, and log the first ones."""
    if count:
        counts = skipped.setdefault(source, Counter())
        if not counts[reason]:
            _log.warning("%s skips a row, as it will others: %s: %s", source, reason, first)
        counts[reason] += count


def further_columns(source: SqlSource, *, has_places: bool) -> tuple[tuple[str, SqlType], ...]:
    """Return the columns of a source's tables that are not declared: its rows' places, the bounds of their windows."""
    found = [(PARTITION, INT), (OFFSET, BIGINT)] if has_places else []
    bounds = [(name, BIGINT) for name, _ in BOUNDS.values()] if source.window is not None else []
    return (*found, *bounds)


UNREADABLE = "the format cannot read them"
NO_TIME = "no usable timestamp"


class ScriptInput:
    """The rows that are given for a stream or table.

    Args:
        source: The stream or table.
        given: The rows.
        skipped: Counts the bad ones.
        is_strict: A row without a usable timestamp is an error.
        latest: Returns the highest usable timestamp.
        waits: A last line without a newline is not read yet.
        is_topic: The rows are records of a topic.
        places: Where each record stands among those of all inputs; without them inputs are merged by time.
        has_places: The tables have the partition and offset of each row.
        registry: The schema registry of topics.
    """

    def __init__(
        self,
        source: SqlSource,
        given: Any,
        skipped: Skipped,
        *,
        is_strict: bool = False,
        latest: Callable[[], int] = lambda: LATEST,
        waits: bool = False,
        is_topic: bool = False,
        places: Sequence[int] | None = None,
        has_places: bool = False,
        registry: Registry | None = None,
    ) -> None:
        self.source = source
        self._is_topic = is_topic
        self._skipped = skipped
        self._is_strict = is_strict
        self._latest = latest
        self._waits = waits
        self._given = given
        self._places = None if places is None else iter(places)
        self._check()
        self._has_places = has_places
        self._registry = registry
        self._readers: list[Any] | None = None
        self._seen: set[Any] = set()
        self._count = 0
        fields = [(name, type_.arrow) for name, type_ in source.columns]
        further = [(name, type_.arrow) for name, type_ in further_columns(source, has_places=has_places)]
        self.schema = pa.schema([*fields, (TIME, pa.int64()), (GONE, pa.bool_()), *further])

    def _check(self) -> None:
        source, given = self.source, self._given
        if isinstance(given, str | os.PathLike):
            path = Path(given)
            if path.suffix.lower() not in _FILES:
                raise DefinitionError(f"the rows of {source.name}: {str(path)!r} must be a file of {', '.join(_FILES)}")
            if not path.is_file():
                raise DefinitionError(f"the rows of {source.name}: there is no file {str(path)!r}")
        elif isinstance(given, Mapping | bytes) or not (isinstance(given, Iterable) or _arrow(given) is not None):
            raise DefinitionError(
                f"the rows of {source.name} are {type_of(given)}; give a list of dictionaries, a table, or the path of "
                "a file"
            )

    def tables(self) -> Iterator[pa.Table]:
        """Yield the rows as tables."""
        given = self._given
        if isinstance(given, str | os.PathLike):
            path = Path(given)
            kind = path.suffix.lower()
            if kind == ".parquet":
                yield from self._of_parquet(path)
            elif kind == ".csv":
                yield from self._of_csv(path)
            else:
                yield from self._of_lines(path)
            return
        arrow = _arrow(given)
        if arrow is not None:
            yield from self._of_tables(arrow.to_batches(_ROWS), f"the table of {self.source.name}")
            return
        rows = iter(given)
        if self._is_topic:
            while records := [each for _, each in zip(range(_ROWS), rows, strict=False)]:
                yield self._of_records(records)
            return
        while part := [row for _, row in zip(range(_ROWS), rows, strict=False)]:
            yield self._of_rows(part, lambda place: f"row {place}", is_given=True)

    # Columns.

    def _of_tables(self, batches: Iterable[pa.RecordBatch], what: str) -> Iterator[pa.Table]:
        names: dict[str, str] | None = None
        for batch in batches:
            if names is None:
                names = given_names(self.source, batch.schema.names, what)
            cells = {name: batch.column(at) for name, at in names.items()}
            yield self._table(cells, batch.num_rows, lambda place: f"row {place}")[0]

    @property
    def _stored(self) -> list[tuple[str, SqlType]]:
        return _stored(self.source)

    def _of_parquet(self, path: Path) -> Iterator[pa.Table]:
        import pyarrow.parquet as pq

        with pq.ParquetFile(path) as file:
            names = given_names(self.source, file.schema_arrow.names, str(path))
            batches = file.iter_batches(_ROWS, columns=list(names.values()))
            yield from self._of_tables(batches, str(path))

    # Lines.

    def _lines(self, path: Path) -> Iterator[tuple[list[int], list[bytes]]]:
        """Yield the lines of a file that are not blank, with their numbers."""
        first = 1
        with path.open("rb") as file:
            while lines := list(itertools.islice(file, _ROWS)):
                numbers = list(range(first, first + len(lines)))
                first += len(lines)
                if self._waits and not lines[-1].endswith(b"\n"):
                    lines.pop()
                if numbers[0] == 1 and lines:
                    lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
                found = [line.strip() for line in lines]
                if not all(found):
                    numbers = [number for number, line in zip(numbers, found, strict=False) if line]
                    found = [line for line in found if line]
                yield numbers, found

    def _of_lines(self, path: Path) -> Iterator[pa.Table]:
        exact = any(has_decimal(type_) for _, type_ in self._stored)
        total = 0
        for numbers, lines in self._lines(path):
            rows = json_values(lines, exact=exact)
            total += len(rows)
            yield self._of_rows(rows, lambda place, numbers=numbers: f"{path}, line {numbers[place]}")  # type: ignore[misc]
        folded = {str(each).lower() for each in self._seen}
        for name, _ in self._stored:
            if total and name.lower() not in folded:
                _log.warning("%s: no row of %s has the column %s; it is null", self.source.name, path, name)
                self._skipped.setdefault(self.source.name, Counter())[f"no row has the column {name}"] += total

    def _of_csv(self, path: Path) -> Iterator[pa.Table]:
        with path.open("rb") as binary:
            reader = csv.reader(_text_lines(binary, waits=self._waits))
            head = _next_cells(reader, 1)
            if not head:
                return
            given = [each.strip() for each in head[0][1]]
            at = {name: given.index(each) for name, each in given_names(self.source, given, str(path)).items()}
            while part := _next_cells(reader, _ROWS):
                rows = [cells for _, cells in part]
                yield self._csv_table(rows, at, len(given), lambda n, part=part: f"{path}, line {part[n][0]}")  # type: ignore[misc]

    def _csv_table(
        self, rows: list[list[str]], at: Mapping[str, int], width: int, where: Callable[[int], str]
    ) -> pa.Table:
        bad = {place: f"expected {width} cells, got {len(row)}" for place, row in enumerate(rows) if len(row) != width}
        bad |= {
            place: "the line is not UTF-8"
            for place, row in enumerate(rows)
            if any("\udc80" <= c <= "\udcff" for v in row for c in v if c > "\x7f")
        }
        types = dict(self._stored)
        cells: dict[str, list[Any]] = {}
        for name, place in at.items():
            is_text = name in types and types[name].base == "STRING"
            found = [None if i in bad else row[place] for i, row in enumerate(rows)]
            cells[name] = [None if each is None or (not each and not is_text) else each for each in found]
            if is_text:
                cells[name] = [each or None for each in cells[name]]
        return self._table(cells, len(rows), where, bad)[0]

    # Rows.

    def _of_rows(self, rows: list[Any], where: Callable[[int], str], *, is_given: bool = False) -> pa.Table:
        names = [*(name for name, _ in self._stored), "ROWTIME"]
        wrong = next((each for each in rows if not isinstance(each, Mapping)), None) if is_given else None
        if wrong is not None:
            raise DefinitionError(
                f"the rows of {self.source.name}: a row is a dictionary, and this one is {shown(wrong)}"
            )
        cells, bad, seen = cells_of(rows, names)
        self._seen |= seen
        known = {each.lower() for each in names}
        for each in seen if is_given else ():
            if str(each).lower() not in known:
                row = next(row for row in rows if each in row)
                raise DefinitionError(
                    f"{self.source.name} has no column {each!r}{nearest(str(each), names[:-1])}; the row is "
                    f"{shown(dict(row))}"
                )
        return self._table(cells, len(rows), where, bad)[0]

    def _of_records(self, records: list[Any]) -> pa.Table:
        """Return given records: key, value, time, and perhaps partition, offset, headers and window."""
        topic = self.source.topic

        def refuse(what: str, record: Any) -> None:
            raise DefinitionError(f"topics={{{topic!r}: ...}}: {what} {shown(record)}")

        for each in records if not set(map(type, records)) <= {tuple, list} else ():
            if not isinstance(each, tuple | list):
                refuse("a record is (key, value, timestamp), and this one is", each)
        widths = set(map(len, records))
        if not widths <= {*range(2, 8)}:
            wrong = next(each for each in records if not 2 <= len(each) <= 7)
            refuse("a record is (key, value, timestamp), and this one is", wrong)
        if len(widths) > 1:
            records = [(*each, *[None] * (7 - len(each))) for each in records]
        columns = [*zip(*records, strict=True)]
        columns += [(None,) * len(records)] * (7 - len(columns))
        for place, time in enumerate(columns[2]) if not set(map(type, columns[2])) <= {int, type(None)} else ():
            if not isinstance(time, int | None) or isinstance(time, bool):
                refuse("a timestamp is a number of milliseconds, and none is that of", records[place])
        for place, window in enumerate(columns[6]) if any(columns[6]) else ():
            if window is not None and (not isinstance(window, tuple | list) or [*map(type, window)] != [int, int]):
                refuse("a window is (start, end) in milliseconds, and none is that of", records[place])
        return self.decoded(*columns, where=lambda place: f"topic {topic}, record {place}")[0]

    def of_messages(self, messages: Sequence[Any]) -> tuple[pa.Table, Any]:
        """Return records of a Kafka topic, and the places of those that are not bad."""
        columns = (
            [each.key() for each in messages],
            [each.value() for each in messages],
            [each.timestamp()[1] for each in messages],
            [each.partition() for each in messages],
            [each.offset() for each in messages],
            [each.headers() for each in messages] if self.source.headers else [None] * len(messages),
            [None] * len(messages),
        )
        where = f"topic {self.source.topic}, partition {columns[3][0]}, offset "
        return self.decoded(*columns, where=lambda place: where + str(columns[4][place]))

    def decoded(
        self,
        keys: Sequence[Any],
        values: Sequence[Any],
        times: Sequence[Any],
        partitions: Sequence[Any],
        offsets: Sequence[Any],
        headers: Sequence[Any],
        windows: Sequence[Any],
        *,
        where: Callable[[int], str],
    ) -> tuple[pa.Table, Any]:
        """Return records as a table without the bad ones, and the places of the others."""
        source = self.source
        bad: dict[int, str] = {}
        if source.window is not None:
            keys, windows = self._split(keys, windows, bad)
        if self._readers is None:
            self._readers = [each.reader(self._registry) for each in source.parts]
        cells: dict[str, Any] = {"ROWTIME": [*times], PARTITION: partitions, OFFSET: offsets, WINDOW: windows}
        for read, data, columns in zip(self._readers, (keys, values), (source.keys, source.stored), strict=True):
            arrays, wrong = read(data)
            cells |= {name: array for (name, _), array in zip(columns, arrays, strict=True)}
            bad |= wrong
        gone = [each is None for each in values]
        if not source.is_table and any(gone):
            for place in np.flatnonzero(gone).tolist():
                bad.setdefault(place, "the record has no value")
        for name, header in source.headers:
            cells[name] = [_header(each, header) for each in headers]
        return self._table(cells, len(keys), where, bad, gone)

    def _split(
        self, keys: Sequence[Any], windows: Sequence[Any], bad: dict[int, str]
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return the keys of a windowed source without the bounds that Kafka Streams writes at their end, and these."""
        width = 16 if self.source.window == "SESSION" else 8
        found, bounds = [*keys], [*windows]
        for place, key in enumerate(keys):
            if not isinstance(key, bytes) or bounds[place] is not None:
                continue
            if len(key) < width:
                bad[place] = "the key has no window"
                found[place] = None
                continue
            numbers = [int.from_bytes(key[at : at + 8], signed=True) for at in range(len(key) - width, len(key), 8)]
            start = numbers[-1]
            found[place] = key[:-width]
            bounds[place] = (start, numbers[0] if width == 16 else start + (self.source.window_ms or 0))
        return found, bounds

    def _table(
        self,
        cells: Mapping[str, Any],
        count: int,
        where: Callable[[int], str],
        bad: Mapping[int, str] | None = None,
        gone: Sequence[bool] | None = None,
    ) -> tuple[pa.Table, Any]:
        """Return converted columns without the bad rows, and the places of the others."""
        columns, times, bad, no_time = typed(self.source, cells, count, bad or {})
        reason = "it is further ahead of the processing time than max_ahead= allows; the unit is milliseconds"
        is_ahead = pc.indices_nonzero(pc.greater(times, self._latest())).to_pylist()
        no_time |= {place: reason for place in is_ahead if place not in bad}
        if no_time and self._is_strict:
            place, reason = next(iter(no_time.items()))
            raise SourceError(
                f"{self.source.name}: {where(place)} has no usable timestamp: {reason}; without "
                "'ksql.timestamp.throw.on.invalid' it would be skipped and counted"
            )
        for reasons, what in ((bad, UNREADABLE), (no_time, NO_TIME)):
            if reasons:
                place, reason = next(iter(reasons.items()))
                skip(self._skipped, self.source.name, what, len(reasons), f"{where(place)}: {reason}")
        flags = pa.array(gone) if gone is not None else pa.repeat(False, count)
        table = pa.table([*columns, times, flags, *self._further(cells, times, count)], schema=self.schema)
        if self._places is not None:
            table = table.append_column(PLACE, pa.array(itertools.islice(self._places, count), pa.int64()))
        kept = np.ones(count, dtype=bool)
        if bad or no_time:
            kept[[*bad, *no_time]] = False
            table = table.filter(pa.array(kept))
        return table, np.flatnonzero(kept)

    def _further(self, cells: Mapping[str, Any], times: Any, count: int) -> list[Any]:
        """Return the columns that are not declared: the place of a row in its topic, and the bounds of its window."""
        found: list[Any] = []
        if self._has_places:
            partitions, offsets = cells.get(PARTITION) or [None] * count, cells.get(OFFSET) or [None] * count
            found.append(pa.array([each or 0 for each in partitions], pa.int32()))
            numbers = range(self._count, self._count + count)
            self._count += count
            found.append(pa.array([b if a is None else a for a, b in zip(offsets, numbers, strict=True)], pa.int64()))
        if self.source.window is not None:
            size = self.source.window_ms or 0
            windows = cells.get(WINDOW) or [None] * count
            pairs = [each or (at, at + size) for each, at in zip(windows, times.to_pylist(), strict=True)]
            found += [pa.array([each[side] for each in pairs], pa.int64()) for side in (0, 1)]
        return found


def given_names(source: SqlSource, given: Sequence[str], what: str) -> dict[str, str]:
    """Return the names that the declared columns of a source, and the time, have in data.

    Raises:
        DefinitionError: A column is not there, or two names differ only in case.
    """
    folded: dict[str, str] = {}
    for name in given:
        if name.lower() in folded:
            raise DefinitionError(
                f"{what} has the columns {folded[name.lower()]!r} and {name!r}, which differ only in case; rename one"
            )
        folded[name.lower()] = name
    found = {}
    for name, _ in _stored(source):
        if name.lower() not in folded:
            raise DefinitionError(
                f"{what} has no column {name!r}{nearest(name, given)}; declare the columns that it has"
            )
        found[name] = folded[name.lower()]
    if "rowtime" in folded:
        found["ROWTIME"] = folded["rowtime"]
    return found


def _stored(source: SqlSource) -> list[tuple[str, SqlType]]:
    headers = {name for name, _ in source.headers}
    return [each for each in source.columns if each[0] not in headers]


def typed(
    source: SqlSource,
    cells: Mapping[str, Any],
    count: int,
    bad: Mapping[int, str],
    own_times: pa.Array[Any] | None = None,
) -> tuple[list[Any], Any, dict[int, str], dict[int, str]]:
    """Return the columns of a source, the times of its rows, and the places of bad rows and of rows without a time.

    Args:
        source: The source.
        cells: The given columns by declared name, and perhaps ``ROWTIME``.
        count: Number of rows.
        bad: Rows that are known to be bad.
        own_times: Times of rows without a declared one.
    """
    bad = dict(bad)
    columns: list[Any] = []
    for name, type_ in source.columns:
        if name not in cells:
            columns.append(column([None] * count, type_)[0])
            continue
        made, wrong = column(cells[name], type_)
        columns.append(made)
        for place, reason in wrong.items():
            bad.setdefault(place, f"column {name}: {reason}")
    if source.is_table:
        for name, _ in source.keys:
            made = columns[[each for each, _ in source.columns].index(name)]
            for place in pc.indices_nonzero(made.is_null()).to_pylist():
                bad.setdefault(place, f"the key {name} is null")
    times, no_time = _times(source, cells, columns, count, own_times)
    return columns, times, bad, {place: each for place, each in no_time.items() if place not in bad}


def _times(
    source: SqlSource, cells: Mapping[str, Any], columns: list[Any], count: int, own: pa.Array[Any] | None
) -> tuple[Any, dict[int, str]]:
    wrong: dict[int, str] = {}
    if source.timestamp is not None:
        name, pattern = source.timestamp
        place = [each for each, _ in source.columns].index(name)
        found = columns[place]
        if pattern is not None:
            found = pc.strptime(found, format=pattern, unit="ms", error_is_null=True).cast(pa.int64())
        elif pa.types.is_timestamp(found.type):
            found = pc.divide(found.cast(pa.int64()), 1000)
    elif "ROWTIME" in cells:
        values = cells["ROWTIME"]
        if isinstance(values, list):
            values = [0 if each is None else each for each in values]
        made, wrong = column(values, TIMESTAMP)
        found = pc.fill_null(pc.divide(made.cast(pa.int64()), 1000), 0)
    else:
        return pa.array(np.zeros(count, dtype=np.int64)) if own is None else own, {}
    is_out = pc.fill_null(pc.or_(pc.less(found, 0), pc.greater_equal(found, LATEST)), True)
    bad = dict.fromkeys(pc.indices_nonzero(is_out).to_pylist(), "it is null, below 1970 or beyond the year 9999")
    return pc.fill_null(found, 0).cast(pa.int64()), bad | wrong


def _header(headers: Any, name: str | None) -> Any:
    if name is None:
        return [{"KEY": key, "VALUE": value} for key, value in headers or ()]
    found = [value for key, value in headers or () if key == name]
    return found[-1] if found else None


def _text_lines(binary: Any, *, waits: bool) -> Iterator[str]:
    for number, line in enumerate(binary):
        if waits and not line.endswith(b"\n"):
            return
        text = line.decode("utf-8", "surrogateescape")
        yield text.removeprefix("\ufeff") if number == 0 else text


def _next_cells(reader: Any, most: int) -> list[tuple[int, list[str]]]:
    """Return the next lines of a CSV file that are not empty: their numbers and cells, which may be long."""
    limit = csv.field_size_limit(2**31 - 1)
    try:
        return [(reader.line_num, cells) for cells in itertools.islice(filter(None, reader), most)]
    finally:
        csv.field_size_limit(limit)


def _arrow(given: Any) -> Any:
    """Return a pandas, polars or Arrow table as an Arrow table; ``None`` for anything else."""
    if isinstance(given, pa.Table | pa.RecordBatch):
        return pa.table(given)
    module = type(given).__module__.partition(".")[0]
    if module == "polars" and hasattr(given, "to_arrow"):
        return given.to_arrow()
    if module == "pandas" and hasattr(given, "columns"):
        return pa.Table.from_pandas(given, preserve_index=False)
    return None
