"""Streams and tables of a script that are read from Spark DataFrames, streams and outputs of the Python API."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import keyed
from keyed.errors import DefinitionError
from keyed.formats.record_formats import WireFormats
from keyed.rows import Row
from keyed.shown import nearest, shown
from keyed.sql.catalog import SqlSource
from keyed.sql.given_rows import converted, inserting, time_of
from keyed.sql.packed_changes import PACKED, pack
from keyed.sql.row_changes import Change
from keyed.sql.script_source import Extractor, decoder_of, extractor_of

if TYPE_CHECKING:
    import pyarrow as pa

_TIME = "sql_time"
#: The value of a text that is not UTF-8.
_UNREADABLE = object()
#: Nothing reads it: bad rows are counted.
_BAD = keyed.OutputTag("unreadable")
#: The columns of Spark's Kafka source that a record needs.
_RECORD = {"key": "binary", "value": "binary", "partition": "int", "offset": "bigint", "timestamp": "timestamp"}


def is_frame(given: Any) -> bool:
    """Return whether a value is a Spark DataFrame, without importing pyspark."""
    return any(
        each.__module__.startswith("pyspark.sql") and each.__name__ == "DataFrame" for each in type(given).__mro__
    )


def is_topic(given: Any) -> bool:
    """Return whether a value is a DataFrame of Spark's Kafka source, with the records as they are in the topic."""
    return is_frame(given) and _RECORD.items() <= dict(given.dtypes).items()


def is_stream(given: Any) -> bool:
    """Return whether a value is a stream or an output of the Python API."""
    return isinstance(given, keyed.Stream | keyed.Output)


def runs_on_spark(given: Any) -> bool:
    """Return whether what is bound to a name runs on Spark."""
    if not is_stream(given):
        return is_frame(given)
    origins = [getattr(each, "stage", None) or getattr(each, "origin", each) for each in given.origins]
    return any(is_frame(each.source.data if hasattr(each, "source") else each.data) for each in origins)


def element_changes(
    source: SqlSource, decode: Callable[[Any], Iterable[Change]], moment_of: Callable[[Any, Any, int], int | None]
) -> Callable[[Any], Iterable[Change]]:
    """Return the function from an element with the columns of a source to its changes; none without a timestamp.

    Args:
        source: The stream or table.
        decode: Returns the changes of a record.
        moment_of: Returns the timestamp of a record by its key, value and the column ``ROWTIME``, 0 without one.
    """
    insert = inserting(source)
    columns = [*source.keys, *source.stored]
    makes = [(name, name.upper(), converted(type_)) for name, type_ in columns]

    def changes(element: Any) -> Iterable[Change]:
        fields = _fields(source, element)
        given = {**{str(name).upper(): cell for name, cell in fields.items()}, **fields}
        cells = {}
        for name, upper, make in makes:
            if name not in given and upper not in given:
                raise DefinitionError(
                    f"the stream of {source.name} has no column {name!r}{nearest(name, map(str, fields))}; its element "
                    f"is {shown(element)}"
                )
            cells[name] = make(given.get(name, given.get(upper)))
        topic, key, value, time, *rest = insert(cells, time_of(given.get("ROWTIME")))
        moment = moment_of(key, value, time)
        if moment is None or moment < 0:
            return ()
        return decode((topic, key, value, moment, rest[0], 0, *rest[2:], 0))

    return changes


def _fields(source: SqlSource, element: Any) -> Mapping[str, Any]:
    if isinstance(element, Row):
        return dict(zip(element._fields, element, strict=True))
    if isinstance(element, Mapping):
        return element
    names = getattr(element, "_fields", None) or getattr(element, "__match_args__", None)
    if not names:
        raise DefinitionError(
            f"the stream of {source.name}: an element has named fields, and this one is {shown(element)}; yield "
            "dictionaries or rows of a class, or name the columns: process(..., output='title string, price int')"
        )
    return {name: getattr(element, name) for name in names}


def packed_stream(
    frame: Any, source: SqlSource, decode: Callable[[Any], Iterable[Change]], *, filters: bool
) -> keyed.Stream:
    """Return the changes of a DataFrame with the columns of a source, as rows.

    Rows without a timestamp, and those that cannot be read, are bad rows, which are left out and counted.

    Args:
        frame: The DataFrame, batch or streaming.
        source: The stream or table.
        decode: Returns the changes of a record.
        filters: Spark leaves out the rows that no query needs, whose timestamps do not matter then.

    Raises:
        DefinitionError: A column is missing, or the timestamp cannot be read on Spark.
    """
    given = {name.upper(): (name, kind) for name, kind in frame.dtypes}
    columns = [*source.keys, *source.stored]
    missing = [name for name, _ in columns if name.upper() not in given]
    if missing:
        raise DefinitionError(
            f"the DataFrame of {source.name} has no column {missing[0]!r}; it has {', '.join(frame.columns)}"
        )
    selected = []
    for number, (name, type_) in enumerate(columns):
        quoted = f"`{given[name.upper()][0]}`"
        is_nested = type_.base in ("ARRAY", "MAP", "STRUCT") and given[name.upper()][1] != "string"
        selected.append(f"{f'to_json({quoted})' if is_nested else quoted} AS column_{number}")
    time = _time(source, given)
    computed = [] if source.computed is None else source.computed.expressions
    names = [f"computed_{number}" for number in range(len(computed))]
    selected += [f"{text} AS {name}" for text, name in zip(computed, names, strict=True)]
    frame = frame.selectExpr(*selected, f"CASE WHEN {time} >= 0 THEN {time} END AS {_TIME}")
    conditions = source.computed.conditions if source.computed is not None and filters else ()
    if conditions:
        # Bad rows are counted.
        frame = frame.where(" OR ".join([f"{_TIME} IS NULL", *(names[place] for place in conditions)]))
    return _packed(frame, FrameReader(source, decode))


def packed_topic(frame: Any, source: SqlSource, formats: WireFormats, *, is_strict: bool) -> keyed.Stream:
    """Return the changes of the records of a DataFrame of Spark's Kafka source, as rows.

    Records without a timestamp, and those that cannot be read, are bad rows, which are left out and counted.

    Args:
        frame: The DataFrame, batch or streaming.
        source: The stream or table.
        formats: The formats of the topic.
        is_strict: A record without a usable timestamp fails the query.
    """
    headers = [each for each in frame.columns if each == "headers"]
    columns = [each for each in _RECORD if each != "timestamp"]
    frame = frame.selectExpr(*columns, f"unix_millis(timestamp) AS {_TIME}", *headers)
    return _packed(frame, RecordReader(source, formats, is_strict=is_strict))


def _packed(frame: Any, reader: _Reader) -> keyed.Stream:
    made = frame.mapInArrow(reader, f"{PACKED}, {_TIME} bigint")
    return keyed.stream(made, timestamp=_TIME, max_ahead=None, on_bad_row=_BAD)


class _Reader:
    """Makes changes, as rows with a timestamp, in the processes of Spark's workers.

    What cannot be read becomes a row without a timestamp.
    """

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the changes of batches of rows."""
        import pyarrow as pa

        types = [pa.string(), pa.binary(), pa.int64()]
        read = self.reader()
        for batch in batches:
            found: list[tuple[Any, Any, Any]] = []
            for changes, moment in read(batch):
                made = [(*pack(change), moment) for change in changes]
                found += made or [(None, None, None)]
            columns = zip(*found, strict=True) if found else ((), (), ())
            arrays = [pa.array(column, type_) for column, type_ in zip(columns, types, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, ["route", "change", _TIME])

    def reader(self) -> Callable[[pa.RecordBatch], Iterator[tuple[Iterable[Change], int | None]]]:
        """Return the function from a batch to the changes of each row, and its timestamp."""
        raise NotImplementedError


class FrameReader(_Reader):
    """Reads rows with the columns of a source.

    Args:
        source: The stream or table.
        decode: Returns the changes of a record.
    """

    def __init__(self, source: SqlSource, decode: Callable[[Any], Iterable[Change]]) -> None:
        self._source = source
        self._decode = decode

    def reader(self) -> Callable[[pa.RecordBatch], Iterator[tuple[Iterable[Change], int | None]]]:
        """Return the function from a batch to the changes of each row, and its timestamp."""
        source, decode = self._source, self._decode
        insert = inserting(source)
        columns = [*source.keys, *source.stored]
        names, makes = [name for name, _ in columns], [converted(type_) for _, type_ in columns]
        width = len(columns)

        def read(batch: pa.RecordBatch) -> Iterator[tuple[Iterable[Change], int | None]]:
            try:
                found, is_odd = [column.to_pylist() for column in batch.columns], False
            except UnicodeDecodeError:
                found, is_odd = [[_value(cell) for cell in column] for column in batch.columns], True
            for *cells, moment in zip(*found, strict=True):
                if moment is None or (is_odd and any(cell is _UNREADABLE for cell in cells)):
                    yield (), None
                    continue
                row = {name: make(cell) for name, make, cell in zip(names, makes, cells, strict=False)}
                record = insert(row, moment)
                yield decode((*record[:5], 0, *record[6:], 0, 0, tuple(cells[width:]))), moment

        return read


def _value(cell: Any) -> Any:
    """Return the value of a cell; `_UNREADABLE` for a text that is not UTF-8."""
    try:
        return cell.as_py()
    except UnicodeDecodeError:
        return _UNREADABLE


class RecordReader(_Reader):
    """Reads the records of a topic.

    Args:
        source: The stream or table.
        formats: The formats of the topic.
        is_strict: A record without a usable timestamp fails the query.
    """

    def __init__(self, source: SqlSource, formats: WireFormats, *, is_strict: bool) -> None:
        self._source = source
        self._formats = formats
        self._is_strict = is_strict

    def reader(self) -> Callable[[pa.RecordBatch], Iterator[tuple[Iterable[Change], int | None]]]:
        """Return the function from a batch to the changes of each row, and its timestamp."""
        source, formats = self._source, self._formats
        # A client of a registry cannot be pickled, so each process makes its own.
        decode = decoder_of(source, None, formats)
        moment_of: Extractor = _own_time
        if source.timestamp is not None and not source.is_query:
            moment_of = extractor_of(source, formats, strict=self._is_strict)

        def read(batch: pa.RecordBatch) -> Iterator[tuple[Iterable[Change], int | None]]:
            cells = batch.to_pydict()
            parts = [cells[name] for name in ("key", "value", "partition", "offset", _TIME)]
            headers = cells.get("headers") or [None] * batch.num_rows
            for key, value, partition, offset, time, given in zip(*parts, headers, strict=True):
                moment = moment_of(key, value, time)
                if moment is None or moment < 0:
                    yield (), None
                    continue
                pairs = [(each["key"], each["value"]) for each in given or ()]
                yield decode((source.topic, key, value, moment, partition, offset, pairs, None, 0)), moment

        return read


def _own_time(_key: Any, _value: Any, time: int) -> int:
    return time


def _time(source: SqlSource, given: dict[str, tuple[str, str]]) -> str:
    """Return the expression of a row's timestamp in milliseconds."""
    column, pattern = source.timestamp or ("ROWTIME", None)
    if column.upper() not in given:
        return "CAST(0 AS BIGINT)"
    if pattern is not None:
        raise DefinitionError(
            f"{source.name}: TIMESTAMP_FORMAT is not read on Spark; give a DataFrame with a column of type timestamp, "
            "and declare it as TIMESTAMP"
        )
    name, kind = given[column.upper()]
    if kind in ("bigint", "int"):
        return f"CAST(`{name}` AS BIGINT)"
    return f"unix_millis(CAST(`{name}` AS TIMESTAMP))"
