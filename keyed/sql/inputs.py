"""What is given for the streams and tables of a script, as tables of their declared columns, merged by time.

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
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keyed.errors import DefinitionError, SourceError
from keyed.formats.conversion import BadValue, by_folded_name, column
from keyed.formats.sql_types import TIMESTAMP, SqlType
from keyed.shown import nearest, shown, type_of
from keyed.sql.catalog import STREAM, SqlSource

_log = logging.getLogger(__name__)
#: Rows that are converted at a time.
_ROWS = 10_000
#: Milliseconds of the years 1970 to 9999: others are no times of a stream.
_LATEST = 253_402_300_800_000
TIME, GONE, SOURCE, PLACE = "#time", "#gone", "#source", "#place"
_FILES = (".jsonl", ".json", ".csv", ".parquet")
_decode = msgspec.json.Decoder().decode
_decode_exactly = msgspec.json.Decoder(float_hook=Decimal).decode

#: Rows that were skipped: how many, by source and reason.
Skipped = dict[str, Counter[str]]


def skip(skipped: Skipped, source: str, reason: str, count: int, first: str) -> None:
    """Count rows that are skipped, and log the first ones."""
    if count:
        counts = skipped.setdefault(source, Counter())
        if not counts[reason]:
            _log.warning("%s skips a row, as it will others: %s: %s", source, reason, first)
        counts[reason] += count


UNREADABLE = "the format cannot read them"
NO_TIME = "no usable timestamp"


class Input:
    """The rows that are given for a stream or table.

    Args:
        source: The stream or table.
        given: The rows.
        skipped: Counts the bad ones.
        is_strict: A row without a usable timestamp is an error.
        waits: A last line without a newline is not read yet.
        is_topic: The rows are records of a topic.
        places: Where each record stands among those of all inputs; without them inputs are merged by time.
    """

    def __init__(
        self,
        source: SqlSource,
        given: Any,
        skipped: Skipped,
        *,
        is_strict: bool = False,
        waits: bool = False,
        is_topic: bool = False,
        places: Sequence[int] | None = None,
    ) -> None:
        self.source = source
        self._is_topic = is_topic
        self._skipped = skipped
        self._is_strict = is_strict
        self._waits = waits
        self._given = given
        self._places = None if places is None else iter(places)
        self._check()
        fields = [(name, type_.arrow) for name, type_ in source.columns]
        self.schema = pa.schema([*fields, (TIME, pa.int64()), (GONE, pa.bool_())])

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
                f"the rows of {source.name} are {type_of(given)}; give a list of dictionaries, a table, or the path of a "
                "file"
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
            yield self._of_rows(part, [None] * len(part))

    # Columns.

    def _of_tables(self, batches: Iterable[pa.RecordBatch], what: str) -> Iterator[pa.Table]:
        names: dict[str, str] | None = None
        for batch in batches:
            if names is None:
                names = self._names(batch.schema.names, what)
            cells = {name: batch.column(at) for name, at in names.items()}
            yield self._table(cells, batch.num_rows, lambda place: f"row {place}")

    def _names(self, given: Sequence[str], what: str) -> dict[str, str]:
        """Return the names that the declared columns, and the time, have in data.

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
        for name, _ in self._stored:
            if name.lower() not in folded:
                raise DefinitionError(
                    f"{what} has no column {name!r}{nearest(name, given)}; declare the columns that it has"
                )
            found[name] = folded[name.lower()]
        if "rowtime" in folded:
            found["ROWTIME"] = folded["rowtime"]
        return found

    @property
    def _stored(self) -> list[tuple[str, SqlType]]:
        headers = {name for name, _ in self.source.headers}
        return [each for each in self.source.columns if each[0] not in headers]

    def _of_parquet(self, path: Path) -> Iterator[pa.Table]:
        import pyarrow.parquet as pq

        with pq.ParquetFile(path) as file:
            names = self._names(file.schema_arrow.names, str(path))
            batches = file.iter_batches(_ROWS, columns=list(names.values()))
            yield from self._of_tables(batches, str(path))

    # Lines.

    def _lines(self, path: Path) -> Iterator[list[tuple[int, bytes]]]:
        part: list[tuple[int, bytes]] = []
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if self._waits and not line.endswith(b"\n"):
                    break
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                if line.strip():
                    part.append((number, line))
                if len(part) >= _ROWS:
                    yield part
                    part = []
        if part:
            yield part

    def _of_lines(self, path: Path) -> Iterator[pa.Table]:
        exact = any(_has_decimal(type_) for _, type_ in self._stored)
        decode = _decode_exactly if exact else _decode
        seen: set[str] = set()
        total = 0
        for part in self._lines(path):
            rows: list[Any] = []
            for number, line in part:
                try:
                    rows.append(decode(line))
                except (ValueError, RecursionError) as error:
                    rows.append(BadValue(f"{path}, line {number}: no JSON: {error}"))
            places = [f"{path}, line {number}" for number, _ in part]
            for row in rows:
                if isinstance(row, dict):
                    seen.update(row)
            total += len(rows)
            yield self._of_rows(rows, places)
        folded = {each.lower() for each in seen}
        for name, _ in self._stored:
            if total and name.lower() not in folded:
                _log.warning("%s: no row of %s has the column %s; it is null", self.source.name, path, name)
                skip(self._skipped, self.source.name, f"no row has the column {name}", total, str(path))

    def _of_csv(self, path: Path) -> Iterator[pa.Table]:
        limit = csv.field_size_limit(2**31 - 1)
        try:
            with path.open("rb") as binary:
                yield from self._csv_tables(path, binary)
        finally:
            csv.field_size_limit(limit)

    def _csv_tables(self, path: Path, binary: Any) -> Iterator[pa.Table]:
        lines = _text_lines(binary, waits=self._waits)
        reader = csv.reader(lines)
        head = next(reader, None)
        if head is None:
            return
        names = self._names([each.strip() for each in head], str(path))
        at = {name: [each.strip() for each in head].index(given) for name, given in names.items()}
        rows: list[list[str]] = []
        places: list[str] = []
        for cells in reader:
            if not cells:
                continue
            rows.append(cells)
            places.append(f"{path}, line {reader.line_num}")
            if len(rows) >= _ROWS:
                yield self._csv_table(rows, at, len(head), places)
                rows, places = [], []
        if rows:
            yield self._csv_table(rows, at, len(head), places)

    def _csv_table(self, rows: list[list[str]], at: Mapping[str, int], width: int, places: list[str]) -> pa.Table:
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
        return self._table(cells, len(rows), lambda place: places[place], bad)

    # Rows.

    def _of_rows(self, rows: list[Any], places: Sequence[str | None]) -> pa.Table:
        bad: dict[int, str] = {}
        names = [(name, name.lower()) for name, _ in self._stored] + [("ROWTIME", "rowtime")]
        cells: dict[str, list[Any]] = {name: [] for name, _ in names}
        whole = {name for name, _ in names[:-1]}
        is_given = places[0] is None if places else False
        for place, row in enumerate(rows):
            found: Mapping[str, Any] = {}
            if isinstance(row, BadValue):
                bad[place] = str(row)
            elif isinstance(row, Mapping):
                found = row
            elif is_given:
                raise DefinitionError(
                    f"the rows of {self.source.name}: a row is a dictionary, and this one is {shown(row)}"
                )
            else:
                bad[place] = f"expected an object, got {type(row).__name__}"
            if found.keys() >= whole and "ROWTIME" in found:
                for name, _ in names:
                    cells[name].append(found[name])
                continue
            try:
                folded = by_folded_name(found)
            except BadValue as error:
                bad[place] = str(error)
                folded = {}
            if is_given:
                unknown = [each for each in folded if each not in {lower for _, lower in names}]
                if unknown:
                    raise DefinitionError(
                        f"{self.source.name} has no column {unknown[0]!r}{nearest(unknown[0], whole)}; the row is "
                        f"{shown(dict(found))}"
                    )
            for name, lower in names:
                cells[name].append(folded.get(lower))
        return self._table(cells, len(rows), lambda place: places[place] or f"row {place}", bad)

    def _of_records(self, records: list[Any]) -> pa.Table:
        """Return records of a topic: key, value, time, and perhaps partition, offset, headers and window."""
        source = self.source
        bad: dict[int, str] = {}
        cells: dict[str, list[Any]] = {name: [] for name, _ in self._stored}
        cells["ROWTIME"] = []
        gone: list[bool] = []
        for place, record in enumerate(records):
            if not isinstance(record, tuple | list) or not 2 <= len(record) <= 7:
                raise DefinitionError(
                    f"topics={{{source.topic!r}: ...}}: a record is (key, value, timestamp), and this one is "
                    f"{shown(record)}"
                )
            key, value, time = (*record, None, None)[:3] if len(record) < 3 else record[:3]
            if not isinstance(time, int | None) or isinstance(time, bool):
                raise DefinitionError(
                    f"topics={{{source.topic!r}: ...}}: a timestamp is a number of milliseconds, and that of "
                    f"{shown(record)} is none"
                )
            found: dict[str, Any] = {}
            try:
                found |= _part(key, source.keys, source.key_format, wrapped=len(source.keys) > 1)
                if value is not None:
                    found |= _part(
                        value, source.stored, source.value_format, wrapped=source.is_wrapped, delimiter=source.delimiter
                    )
            except (BadValue, ValueError, RecursionError) as error:
                bad[place] = str(error)
            if value is None and not source.is_table:
                bad.setdefault(place, "the record has no value")
            for name, _ in self._stored:
                cells[name].append(found.get(name))
            cells["ROWTIME"].append(time)
            gone.append(value is None)
        return self._table(cells, len(records), lambda place: f"topic {source.topic}, record {place}", bad, gone)

    def _table(
        self,
        cells: Mapping[str, Any],
        count: int,
        where: Callable[[int], str],
        bad: Mapping[int, str] | None = None,
        gone: Sequence[bool] | None = None,
    ) -> pa.Table:
        """Return converted columns without the bad rows."""
        bad = dict(bad or {})
        columns: list[Any] = []
        for name, type_ in self.source.columns:
            if name not in cells:
                columns.append(pa.nulls(count, type_.arrow))
                continue
            made, wrong = column(cells[name], type_)
            columns.append(made)
            for place, reason in wrong.items():
                bad.setdefault(place, f"column {name}: {reason}")
        if self.source.is_table:
            for name, _ in self.source.keys:
                made = columns[[each for each, _ in self.source.columns].index(name)]
                for place in pc.indices_nonzero(made.is_null()).to_pylist():
                    bad.setdefault(place, f"the key {name} is null")
        times, no_time = self._times(cells, columns, count)
        no_time = {place: each for place, each in no_time.items() if place not in bad}
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
        table = pa.table([*columns, times, flags], schema=self.schema)
        if self._places is not None:
            table = table.append_column(PLACE, pa.array(itertools.islice(self._places, count), pa.int64()))
        if bad or no_time:
            kept = np.ones(count, dtype=bool)
            kept[[*bad, *no_time]] = False
            table = table.filter(pa.array(kept))
        return table

    def _times(self, cells: Mapping[str, Any], columns: list[Any], count: int) -> tuple[Any, dict[int, str]]:
        source = self.source
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
            found = pc.divide(made.cast(pa.int64()), 1000)
            if wrong:
                return pc.fill_null(found, 0), {place: reason for place, reason in wrong.items()}
            found = pc.fill_null(found, 0)
        else:
            return pa.array(np.zeros(count, dtype=np.int64)), {}
        is_out = pc.fill_null(pc.or_(pc.less(found, 0), pc.greater_equal(found, _LATEST)), True)
        bad = dict.fromkeys(pc.indices_nonzero(is_out).to_pylist(), "it is null, below 1970 or beyond the year 9999")
        return pc.fill_null(found, 0).cast(pa.int64()), bad


def _part(
    data: Any, columns: Sequence[tuple[str, SqlType]], format_: str, *, wrapped: bool, delimiter: str = ","
) -> dict[str, Any]:
    """Return the columns of a record's key or value.

    Raises:
        BadValue: It does not have the format.
    """
    if not columns or data is None:
        return {}
    if format_ == "DELIMITED":
        text = data.decode() if isinstance(data, bytes) else str(data)
        cells = next(iter(csv.reader([text], delimiter=delimiter)), [""])
        if len(cells) != len(columns):
            raise BadValue(f"expected {len(columns)} cells, got {len(cells)}")
        return {name: cell or None for (name, _), cell in zip(columns, cells, strict=True)}
    if format_ != "KAFKA" and (isinstance(data, bytes) or (isinstance(data, str) and wrapped)):
        exact = any(_has_decimal(type_) for _, type_ in columns)
        data = (_decode_exactly if exact else _decode)(data)
    if not wrapped:
        return {columns[0][0]: data}
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise BadValue(f"expected an object, got {type(data).__name__}")
    folded = by_folded_name(data)
    return {name: folded.get(name.lower()) for name, _ in columns}


def _text_lines(binary: Any, *, waits: bool) -> Iterator[str]:
    for number, line in enumerate(binary):
        if waits and not line.endswith(b"\n"):
            return
        text = line.decode("utf-8", "surrogateescape")
        yield text.removeprefix("\ufeff") if number == 0 else text


def _arrow(given: Any) -> pa.Table | None:
    """Return a pandas, polars or Arrow table as an Arrow table; ``None`` for anything else."""
    if isinstance(given, pa.Table | pa.RecordBatch):
        return pa.table(given)
    module = type(given).__module__.partition(".")[0]
    if module == "polars" and hasattr(given, "to_arrow"):
        return given.to_arrow()
    if module == "pandas" and hasattr(given, "columns"):
        return pa.Table.from_pandas(given, preserve_index=False)
    return None


def _has_decimal(type_: SqlType) -> bool:
    return type_.base == "DECIMAL" or any(map(_has_decimal, (*type_.parts, *(each for _, each in type_.fields))))


def merged(inputs: Sequence[Input]) -> pa.RecordBatchReader:
    """Return the rows of inputs as one stream in the order of their times.

    Each input keeps its own order: a row waits for those before it. At equal times the inputs come in their order. The
    columns of an input have its number before their names.
    """
    fields = [pa.field(SOURCE, pa.int32()), pa.field(TIME, pa.int64()), pa.field(STREAM, pa.int64())]
    for number, each in enumerate(inputs):
        fields += [pa.field(f"{number}.{field.name}", field.type) for field in each.schema if field.name != TIME]
    schema = pa.schema(fields)
    return pa.RecordBatchReader.from_batches(schema, _merged(inputs, schema))


class _Head:
    """The rows of an input that were read and not passed on, with the place of each: the highest time up to it."""

    def __init__(self, tables: Iterator[pa.Table]) -> None:
        self._tables = tables
        self._highest = 0
        self.rows: pa.Table | None = None
        self.keys: Any = np.empty(0, dtype=np.int64)
        self.is_ended = False

    def fill(self) -> None:
        """Read more rows."""
        for table in self._tables:
            if table.num_rows:
                times = np.maximum.accumulate(np.maximum(table.column(TIME).to_numpy(), self._highest))
                self._highest = int(times[-1])
                keys = table.column(PLACE).to_numpy() if PLACE in table.column_names else times
                table = table.append_column(STREAM, pa.array(times))
                self.rows = table if self.rows is None else pa.concat_tables([self.rows, table])
                self.keys = np.concatenate([self.keys, keys])
                return
        self.is_ended = True

    def take(self, count: int) -> pa.Table | None:
        """Take the first rows."""
        if not count or self.rows is None:
            return None
        found = self.rows.slice(0, count)
        self.rows, self.keys = self.rows.slice(count), self.keys[count:]
        return found


def _merged(inputs: Sequence[Input], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    heads = [_Head(each.tables()) for each in inputs]
    while True:
        for head in heads:
            if not len(head.keys) and not head.is_ended:
                head.fill()
        live = [each for each in heads if not each.is_ended]
        bound = min((int(each.keys[-1]) for each in live), default=None)
        parts: list[pa.Table] = []
        keys: list[Any] = []
        ranks: list[Any] = []
        blocked = False
        for number, head in enumerate(heads):
            if not len(head.keys):
                continue
            # At the bound itself an input before this one may have more rows.
            side = "left" if blocked else "right"
            count = len(head.keys) if bound is None else int(np.searchsorted(head.keys, bound, side=side))
            if not head.is_ended and int(head.keys[-1]) == bound:
                blocked = True
            keys.append(head.keys[:count])
            taken = head.take(count)
            if taken is not None:
                parts.append(_placed(taken, number, schema))
                ranks.append(np.full(count, number))
        if parts:
            table = parts[0]
            if len(parts) > 1:
                order = np.lexsort((np.concatenate(ranks), np.concatenate([each for each in keys if len(each)])))
                table = pa.concat_tables(parts).take(order)
            yield from table.combine_chunks().to_batches()
        if all(each.is_ended and not len(each.keys) for each in heads):
            return
        if not parts:
            for head in live:
                if int(head.keys[-1]) == bound:
                    head.fill()


def _placed(table: pa.Table, number: int, schema: pa.Schema) -> pa.Table:
    count = table.num_rows
    columns = []
    for field in schema:
        own = field.name if field.name in (TIME, STREAM) else field.name.removeprefix(f"{number}.")
        if field.name == SOURCE:
            columns.append(pa.array(np.full(count, number, dtype=np.int32)))
        elif own in table.column_names and (own != field.name or own in (TIME, STREAM)):
            columns.append(table.column(own))
        else:
            columns.append(pa.nulls(count, field.type))
    return pa.table(columns, schema=schema)
