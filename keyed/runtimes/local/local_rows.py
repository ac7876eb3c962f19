"""The rows of the local runtime: good rows from a source, emitted rows, and their writing to sinks.

Bad rows are diverted if the stream has `on_bad_row`, and refused otherwise. The same rows are bad as on Spark
(`keyed.stream`). Python elements can have two more kinds of keys that cannot be stored: a datetime without a
zone, and a text with a lone surrogate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import attrs

from keyed.arrow.read import UNREADABLE, column_values, raw_rows, unreadable_column, unreadable_rows
from keyed.arrow.write import raw_table_of, table_of
from keyed.base.arguments import MAX_TIMESTAMP, MIN_TIMESTAMP, instant_ms, shown, time_text
from keyed.base.schemas import Schema
from keyed.base.sources import BadElement
from keyed.codec.keys import encode_key, is_null, null_key
from keyed.codec.refusals import BAD_ROW_REMEDY
from keyed.codec.snapshots import UNCHANGING, snapshot
from keyed.destinations.sink import Record, SinkBatch, SinkWriter, failed
from keyed.engine.batch import ChannelId, Chunk, Emitted, EmittedTables
from keyed.engine.emitted_values import OutputCopies
from keyed.errors import DefinitionError, EncodingError, KeyedError, OutputDefinitionError, RowError, TimestampError
from keyed.job.functions import TIMESTAMP_COLUMN, VectorizedFunction, unannotated
from keyed.job.graph import BoundOutput, Input, Keys, Port, Source, Stage, Transform, keeps_tables
from keyed.kafka.kafka_source import KafkaSource
from keyed.rows import Row, fields_of, names_of_class, row_class
from keyed.runtimes.run_reports import unit_warning

if TYPE_CHECKING:
    import pyarrow as pa

    from keyed.runtimes.transforming import TransformedRows


#: Returns the highest timestamp that a row may have now.
Limit = Callable[[], int]

#: Number of values that are converted together, small enough for the processor's cache.
_PIECE = 4096
_CONTAINERS = frozenset({list, dict, set, bytearray})
_all_unchanging = UNCHANGING.issuperset
_all_text = frozenset({str}).issuperset
_ANY_VALUE = frozenset({int, bool, bytes, float, date, UUID})
#: Types of keys; `_bad_keys` finds keys of these types that cannot be stored.
_OF_KEYS = _ANY_VALUE | {str, datetime, Decimal}


@attrs.define(eq=False)
class SourceRows:
    """A batch from the source.

    Attributes:
        chunks: The rows, as in `keyed.engine.batch.Batch`.
        table: The same as an Arrow table, for a vectorized operator, in arrival order and with
            `keyed.vectorized.TIMESTAMP_COLUMN`; ``None`` if it has to be created from ``chunks``.
        read: Number of rows read from the source, bad ones included.
        highest: Highest timestamp, ``None`` if there is none.
        ordered: True if the rows are in the order in which the operator runs them; otherwise they are in order of
            arrival.
        waits: True if the source has no rows for now, so that no batch is needed.
        held: True if it was not read, although it may have rows.
        key_type: Type of the keys (`keyed.codec.keys.key_type`), if the source's columns have types.
        bad: Bad rows, if the stream diverts them.
        left_out: Number of bad rows that transformations have left out.
        reasons: The reason of the first bad row of each kind.
        by_partition: Highest timestamp by partition, if the strategy distinguishes partitions.
    """

    chunks: Callable[[], Iterable[Chunk]] = tuple
    table: Callable[[], Any] | None = None
    read: int = 0
    highest: int | None = None
    ordered: bool = True
    waits: bool = False
    held: bool = False
    key_type: str = ""
    bad: list[Any] = attrs.field(factory=list)
    left_out: int = 0
    reasons: dict[str, str] = attrs.field(factory=dict)
    by_partition: dict[str, int] | None = None

    def without(self, reasons: Mapping[int, str]) -> SourceRows:
        """Return the rows without some rows of its one chunk, which are added to the bad rows.

        Args:
            reasons: The reason why a row is bad, by its position.
        """
        if not reasons:
            return self
        ((keys, timestamps, elements, _),) = self.chunks()
        values = list(elements)
        good = [index for index in range(len(values)) if index not in reasons]
        rows = SourceRows.of(
            [keys[index] for index in good],
            None if timestamps is None else [timestamps[index] for index in good],
            [values[index] for index in good],
            self.read,
        )
        rows.bad = [*self.bad, *(values[index] for index in sorted(reasons))]
        rows.left_out = self.left_out
        rows.reasons = {**self.reasons}
        for index in sorted(reasons):
            rows.reasons.setdefault(reasons[index].partition(":")[0], f"{reasons[index]}, in {_shown(values[index])}")
        return rows

    @classmethod
    def of(cls, keys: list[Any], timestamps: list[int | None] | None, values: list[Any], read: int = 0) -> SourceRows:
        """Create rows from lists, in arrival order."""
        highest = None
        if timestamps:
            highest = max((t for t in timestamps if t is not None), default=None)
        return cls(lambda: ((keys, timestamps, values, None),), read=read, highest=highest, ordered=False)


def channels_of(inputs: Iterable[SourceRows]) -> dict[ChannelId, int]:
    """Return the highest timestamp of each channel that had rows, as `keyed.engine.batch.advance` has them."""
    highest_times: dict[ChannelId, int] = {}
    for index, rows in enumerate(inputs):
        if rows.held:
            highest_times[index, ""] = MIN_TIMESTAMP
        elif rows.by_partition is not None:
            highest_times |= {(index, name): highest for name, highest in rows.by_partition.items()}
        elif rows.highest is not None:
            highest_times[index, ""] = rows.highest
    return highest_times


def checked(stage: Stage, values: list[Any], timestamps: list[int | None] | None, limit: Limit | None) -> SourceRows:
    """Return elements of a source as the rows of a batch, without bad rows.

    Args:
        stage: The first stage.
        values: The elements.
        timestamps: Their timestamps, if they are known.
        limit: The limit of timestamps.

    Raises:
        RowError: There are bad rows, and the stream refuses them.
    """
    if stage.inputs[0].steps:
        return _transformed(stage, values, timestamps, limit)
    from keyed.runtimes.transforming import results_of

    source = stage.source
    if source.on_bad_row is not None:
        return _sorted_out(stage, values, timestamps, limit)
    if isinstance(source.data, KafkaSource):
        for value in values:
            if type(value) is BadElement:
                raise RowError(f"operator {stage.name!r}: {value.place}: {value.reason}; {BAD_ROW_REMEDY}")
    if source.time is not None and timestamps is None:
        timestamps = results_of(time_getter(source.time, stage.name), values, f"operator {stage.name!r}, timestamp")
    keys = results_of(key_getter(stage.keys, stage.name), values, f"operator {stage.name!r}, key")
    bad = {*_bad_keys(keys), *(_bad_times(timestamps, limit) if timestamps is not None else ())}
    if bad:
        first = min(bad)
        _refuse(source, stage.name, values[first], keys[first], None if timestamps is None else timestamps[first])
    return partitioned(source, SourceRows.of(keys, timestamps, values, len(values)))


def _transformed(
    stage: Stage, values: list[Any], timestamps: list[int | None] | None, limit: Limit | None
) -> SourceRows:
    """Return the rows of a batch after the transformations of a source's rows, keyed.

    The source's rows are checked before them, and have the timestamps of the results and the progress of the watermark.
    """
    source, read = stage.source, stage.inputs[0]
    plain = attrs.evolve(stage, inputs=(attrs.evolve(read, keys=lambda _: 0, steps=()),))
    before = checked(plain, values, timestamps, limit)
    chunks = [(times, list(elements)) for _, times, elements, _ in before.chunks()]
    times = None if source.time is None else [time for each, _ in chunks for time in each or ()]
    vectorized = isinstance(stage.function, VectorizedFunction)
    values_read = [value for _, each in chunks for value in each]
    after = after_steps(values_read, times, read.steps, read.before_steps, stage.name)
    rows = transformed_rows(read, after, stage.name, vectorized=vectorized)
    # There are none if the result is a table.
    ((keys, _, elements, _),) = tuple(rows.chunks()) or (((), None, (), None),)
    if not read.is_broadcast and (bad := _bad_keys(keys)):
        first = bad[0]
        if source.on_bad_row is None or not all(step.kind == "filter" for step in read.steps):
            _refuse(source, stage.name, list(elements)[first], keys[first], 0)
        rows = rows.without(
            {index: f"key: {'is null' if is_null(keys[index]) else _reason(keys[index])}" for index in bad}
        )
    rows.read, rows.highest, rows.by_partition = len(values), before.highest, before.by_partition
    rows.bad, rows.reasons = [*before.bad, *rows.bad], {**before.reasons, **rows.reasons}
    return rows


def transformed_rows(read: Input, result: TransformedRows, operator: str, *, vectorized: bool) -> SourceRows:
    """Return the rows that transformations have made, keyed and in order of arrival.

    Args:
        read: The input.
        result: The rows.
        operator: Name of the operator that reads them.
        vectorized: It reads tables, which have their keys in columns.
    """
    rows = SourceRows()
    if not (vectorized and result.is_table):
        if result.is_table and not callable(read.keys):
            from keyed.table_state.batches import check_key_types

            check_key_types(result.table(operator), read.keys, operator)
        values = result.values()
        times = None if result.times is None else result.times.to_pylist()
        rows = SourceRows.of(list(map(key_getter(read.keys, operator), values)), times, values)
    elif result.count:
        table = result.table(f"operator {operator!r}")
        if result.times is not None:
            table = table.append_column(TIMESTAMP_COLUMN, result.times)
        rows.table = lambda: table
    rows.left_out, rows.reasons = result.bad, {"value": result.reason} if result.bad else {}
    return rows


def output_after_steps(
    emitted: Emitted | EmittedTables, output: Port, steps: Sequence[Transform], operator: str, *, timed: bool
) -> TransformedRows:
    """Return the rows of an output after transformations; tables stay tables, if all functions read them.

    Args:
        emitted: The emitted rows.
        output: The output, without transformations.
        steps: The transformations.
        operator: Name of the operator that reads or made the rows.
        timed: The functions get the event times, and the result has them.
    """
    if not (isinstance(emitted, EmittedTables) and emitted.tables and keeps_tables(steps)):
        times = emitted.timestamps() if timed else None
        return after_steps(emitted_rows(emitted, output), times, steps, output.schema, operator)
    import pyarrow as pa

    from keyed.runtimes.transforming import TransformedRows, transformed
    from keyed.table_state.batches import timestamped

    table = pa.concat_tables([timestamped(each) for each in emitted.tables], promote_options="default")
    column = table.column(TIMESTAMP_COLUMN).combine_chunks() if timed else None
    rows = TransformedRows(column, output.schema, None, table.drop_columns([TIMESTAMP_COLUMN]))
    return transformed(rows, steps, operator)


def emitted_rows(emitted: Emitted | EmittedTables, output: Port) -> list[Any]:
    """Return copies of emitted values as rows of their output: a sink or another stage may use them too."""
    rows = typed_rows(emitted.values, output)
    # Rows with declared types are immutable, or new.
    is_own = output.schema is not None and all(issubclass(kind, Row) for kind in set(map(type, rows)))
    return rows if is_own else list(map(OutputCopies(output.schema).freeze, rows))


def after_steps(
    values: list[Any], times: list[int | None] | None, steps: Sequence[Transform], schema: Schema | None, operator: str
) -> TransformedRows:
    """Return values and their timestamps after transformations.

    Args:
        values: The values.
        times: Their timestamps, if they have any.
        steps: The transformations.
        schema: The declared columns of the values, if there are any.
        operator: Name of their operator, for messages.
    """
    import pyarrow as pa

    from keyed.runtimes.transforming import TransformedRows, transformed

    column = None if times is None else pa.array(times, pa.int64())
    return transformed(TransformedRows(column, schema, values), steps, operator, element_of)


def _sorted_out(
    stage: Stage, values: list[Any], timestamps: list[int | None] | None, limit: Limit | None
) -> SourceRows:
    """Return the rows of a batch, with bad rows separated: a bad element does not end the query."""
    source = stage.source
    reasons: dict[int, str] = {}
    if isinstance(source.data, KafkaSource):
        reasons = {i: f"value: {value.reason}" for i, value in enumerate(values) if type(value) is BadElement}
        values = [value.row if index in reasons else value for index, value in enumerate(values)] if reasons else values
    keys = _each(key_getter(stage.keys, stage.name), values, "key", reasons)
    if source.time is not None and timestamps is None:
        timestamps = _each(time_getter(source.time, stage.name), values, "timestamp", reasons)
    # Methods are attributes too, so an attribute with the name of a key may be anything.
    of_bad_keys = _bad_keys(keys) if set(map(type, keys)) <= _OF_KEYS else range(len(keys))
    for index in of_bad_keys:
        if (reason := "is null" if is_null(keys[index]) else _reason(keys[index])) is not None:
            reasons.setdefault(index, f"key: {reason}")
    for index in () if timestamps is None else _bad_times(timestamps, limit):
        reasons.setdefault(index, "timestamp: it is missing, of another type, or too far ahead")
    if not _is_text(values):
        for index, value in enumerate(values):
            if not _is_text(value):
                # Without `on_bad_row`, such a text is refused when it is stored or written.
                reasons.setdefault(index, "value: text that cannot be encoded, or containers nested too deep")
    if source.watermark.partition_by is not None:
        _each(_field_getter(source.watermark.partition_by, "partition column"), values, "partition", reasons)
    rows = SourceRows.of(keys, timestamps, values, len(values)).without(reasons)
    return partitioned(source, rows)


#: Exceptions of reading a field of an element that differs from the others. Other exceptions are errors of the program.
_OF_ELEMENTS = (ArithmeticError, AttributeError, KeyedError, LookupError, RecursionError, TypeError, ValueError)


def _each(get: Callable[[Any], Any], values: Sequence[Any], what: str, reasons: dict[int, str]) -> list[Any]:
    """Return the value read from each element; ``None`` if it cannot be read, with the reason added."""
    try:
        return list(map(get, values))
    except _OF_ELEMENTS:
        results = []
    for index, value in enumerate(values):
        try:
            results.append(get(value))
        except _OF_ELEMENTS as error:
            results.append(None)
            reasons.setdefault(index, f"{what}: it cannot be read ({type(error).__name__})")
    return results


def time_getter(time: Any, operator: str | None = None) -> Callable[[Any], int | None]:
    """Return a function from an element to its timestamp, for a column or a function of the element."""
    get = time if callable(time) else _field_getter(str(time), "timestamp column", operator)
    return lambda value: timestamp_of(get(value))


def check_column(name: str, columns: Sequence[str], operator: str) -> None:
    """Check that a source of an operator has a column.

    Raises:
        DefinitionError: The column is missing.
    """
    if name not in columns:
        raise DefinitionError(
            f"operator {operator!r}: column {name!r} is not in the source: {', '.join(columns) or 'it has none'}"
        )


def partitioned(source: Source, rows: SourceRows) -> SourceRows:
    """Return rows with the highest timestamp of each partition, if the watermark follows partitions."""
    name = source.watermark.partition_by
    if name is not None:
        partition_of = _field_getter(name, "partition column")
        rows.by_partition = {}
        for _, timestamps, values, _ in rows.chunks():
            for timestamp, value in zip(timestamps or (), values, strict=False):
                partition = partition_of(value)
                if type(partition) is not str:
                    # Which characters a container shows as they are depends on the Python.
                    partition = str(partition).encode("ascii", "backslashreplace").decode()
                if timestamp is not None:
                    rows.by_partition[partition] = max(timestamp, rows.by_partition.get(partition, timestamp))
    return rows


def without_unreadable(source: Source, operator: str, table: Any) -> tuple[Any, list[Any]]:
    """Return a table without the rows with values that Python cannot represent, and those rows.

    Raises:
        RowError: There are such rows, and the stream refuses them.
    """
    unreadable = unreadable_rows(table)
    if not unreadable:
        return table, []
    import numpy as np
    import pyarrow as pa

    bad = table.take(pa.array(unreadable))
    elements = raw_rows(bad)
    if source.on_bad_row is None:
        column = unreadable_column(bad.slice(0, 1))
        raise RowError(
            f"operator {operator!r}: column {column!r} {UNREADABLE} in {shown(elements[0])}; {BAD_ROW_REMEDY}"
        )
    good: Any = np.ones(table.num_rows, dtype="bool")
    good[unreadable] = False
    return table.filter(pa.array(good)), elements


def key_getter(keys: Keys, operator: str | None = None) -> Callable[[Any], Any]:
    """Return a function from an element of an operator to its key: a scalar, or a tuple of several columns."""
    if callable(keys):
        return keys
    getters = [_field_getter(name, "key column", operator) for name in keys]
    if len(getters) == 1:
        return getters[0]
    return lambda element: tuple([get(element) for get in getters])


def timestamp_of(value: Any) -> int | None:
    """Return a timestamp in milliseconds, or ``None`` if it is not usable."""
    if type(value) is int:
        return value if MIN_TIMESTAMP <= value <= MAX_TIMESTAMP else None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return None
        return instant_ms(value)
    return None


def element_of(element: Any) -> Any:
    """Return an element in the form for functions: a row for a dictionary, as on Spark.

    Plain containers are copied with their content, because a source may reuse one. Objects of classes are not copied.
    """
    cls = type(element)
    if cls is tuple:
        return element if _all_unchanging(map(type, element)) else _copy_element(element)
    if cls is dict and element and _all_text(map(type, element)):
        element = row_class(tuple(element))(element.values())
        return element if _all_unchanging(map(type, element)) else _copy_element(element)
    return _copy_element(element) if cls in _CONTAINERS else element


def own_element(element: Any) -> Any:
    """Return a copy of an element that another operator also reads; the element itself if it cannot be copied."""
    return element if type(element) in UNCHANGING else _copy_element(element)


def _copy_element(element: Any) -> Any:
    """Return a copy of a container's current content; the container itself if it cannot be copied."""
    try:
        return snapshot(element)
    except (EncodingError, RecursionError):
        return element


def column_times(source: Source, table: Any) -> list[int | None] | None:
    """Return the timestamps of a table, if they are a column."""
    name = source.timestamp
    if not isinstance(name, str):
        return None
    from keyed.arrow.event_times import event_times

    return column_values(event_times(table.column(name), name))


def typed_rows(values: list[Any], output: Port, *, raw: bool = False) -> list[Any]:
    """Return the values of an output as rows of its declared types, which they have to fit as on Spark.

    Objects of classes stay as they are, and a value that is not a row is converted.

    Args:
        values: The values.
        output: The output.
        raw: Leave the values in the columns as they are.

    Raises:
        OutputDefinitionError: A value does not fit.
    """
    if output.schema is None:
        return values
    from keyed.arrow.write import arrow_schema, converted_columns

    what = "main output" if output.tag is None else f"side output {output.tag.name!r}"
    types, names = arrow_schema(output.schema), output.schema.names
    make = row_class(names)

    def row_of(value: Any, cells: tuple[Any, ...]) -> Any:
        kind = type(value)
        if kind is tuple or kind is dict or fields_of(kind) is not None:
            return make(cells)
        return value if names_of_class(kind) else cells[0]

    rows: list[Any] = []
    for start in range(0, len(values), _PIECE):
        piece = values[start : start + _PIECE]
        columns, is_same = converted_columns(piece, types, f"operator {output.stage.name!r}, {what}", raw=raw)
        classes = set(map(type, piece))
        if is_same and classes == {tuple}:
            rows += map(make, piece)
        elif is_same and all(fields_of(each) == names for each in classes):
            rows += piece
        else:
            rows += map(row_of, piece, zip(*columns, strict=True))
    return rows


def _field_getter(name: str, what: str, operator: str | None = None) -> Callable[[Any], Any]:
    def get(element: Any) -> Any:
        try:
            return getattr(element, name)
        except AttributeError:
            try:
                return element[name]
            except (TypeError, KeyError, IndexError, KeyedError):
                where = "" if operator is None else f"operator {operator!r}: "
                raise DefinitionError(f"{where}{what} {name!r} is not in element {element!r}") from None

    return get


def _bad_keys(keys: Sequence[Any]) -> list[int]:
    """Find keys that are null, in part or whole, or that are of a type for keys and cannot be encoded."""
    return [] if _are_good(keys) else [i for i, key in enumerate(keys) if _is_bad(key)]


def _bad_times(timestamps: Sequence[int | None], limit: Limit | None) -> list[int]:
    """Return the positions of timestamps that are missing or beyond the limit."""
    if limit is None:
        return [i for i, timestamp in enumerate(timestamps) if timestamp is None]
    highest = limit()
    return [i for i, timestamp in enumerate(timestamps) if timestamp is None or timestamp > highest]


def _refuse(source: Source, operator: str, element: Any, key: Any, timestamp: int | None) -> None:
    """Raise the error for a bad row."""
    if is_null(key):
        raise null_key(operator, key, element, of_source=True)
    if _is_bad(key):
        raise RowError(
            f"operator {operator!r}: key {shown(key)} of {shown(element)} cannot be stored: {_reason(key)}; "
            f"{BAD_ROW_REMEDY}"
        )
    if timestamp is None:
        raise TimestampError(
            f"operator {operator!r}: {shown(element)} has no usable timestamp in {source.timestamp!r}, which is int "
            f"milliseconds or a datetime with a time zone; {_conversion(source, element)}{BAD_ROW_REMEDY}"
        )
    raise TimestampError(
        f"operator {operator!r}: timestamp {time_text(timestamp)} of {shown(element)} is more than "
        f"{source.max_ahead_ms} ms ahead of the processing time{unit_warning(timestamp)}; "
        f"{BAD_ROW_REMEDY}, or give another max_ahead="
    )


def _conversion(source: Source, element: Any) -> str:
    """Return the conversion of a timestamp that has a form which people often give; empty if there is none."""
    get = source.time if callable(source.time) else _field_getter(str(source.time), "timestamp column")
    value = get(element)
    if isinstance(value, str):
        return "convert text, as in datetime.fromisoformat(text); "
    if isinstance(value, float):
        return "convert seconds, as in int(seconds * 1000); "
    if isinstance(value, datetime):
        return "give a datetime its zone, as in time.replace(tzinfo=UTC); "
    return ""


def _shown(value: Any) -> str:
    try:
        return shown(value)
    except Exception:  # noqa: BLE001 - whatever its repr raises, it is of a class of the user's, or nested too deep
        return f"an object of type {type(value).__name__}"


def _is_text(value: Any) -> bool:
    """Return true if all texts in plain data can be encoded, and it does not contain itself."""
    try:
        return _has_text(value)
    except RecursionError:
        return False


def _has_text(value: Any) -> bool:
    if type(value) is str:
        try:
            return value.isascii() or bool(value.encode())
        except UnicodeEncodeError:
            return False
    if isinstance(value, tuple | list | set | frozenset):
        return all(map(_has_text, value))
    return type(value) is not dict or (all(map(_has_text, value)) and all(map(_has_text, value.values())))


def _are_good(keys: Sequence[Any]) -> bool:
    """Return true if all keys are known to be good without a check of each."""
    types = set(map(type, keys))
    if types <= _ANY_VALUE:
        return True
    if types == {str}:
        try:
            "".join(keys).encode()
        except UnicodeEncodeError:
            return False
        return True
    if types == {Decimal}:
        return not any(map(Decimal.is_nan, keys))
    if types == {datetime}:
        return all(key.tzinfo is UTC for key in keys)
    return types == {tuple} and all(
        type(parts[0]) is not tuple and _are_good(parts) for parts in zip(*keys, strict=False)
    )


def _is_bad(key: Any) -> bool:
    return is_null(key) or (isinstance(key, str | datetime | Decimal | tuple) and _reason(key) is not None)


def _reason(key: Any) -> str | None:
    """Return the reason why a key cannot be stored, ``None`` if it can."""
    try:
        encode_key(key)
    except EncodingError as error:
        return str(error)
    except RecursionError:
        return "tuples nested too deep"
    return None


@attrs.frozen
class LocalBatch(SinkBatch):
    """The rows of a batch. See `SinkBatch`."""

    bound: BoundOutput
    emitted: Emitted | EmittedTables

    @property
    def is_bad_rows(self) -> bool:  # type: ignore[override]
        """See `SinkBatch`."""
        output = self.bound.output
        return output.tag is not None and not output.steps and output.tag.name in output.stage.bad_row_outputs

    @property
    def rows(self) -> list[Any]:
        """The values as rows with the declared types; bad rows stay as they came."""
        return typed_rows(self.emitted.values, self.bound.output, raw=self.is_bad_rows)

    @property
    def table(self) -> pa.Table | None:
        """See `SinkBatch`."""
        if isinstance(self.emitted, EmittedTables):
            return self._concatenate(self.emitted)
        output, values = self.bound.output, self.emitted.values
        if not values:
            return None
        if output.schema is None and fields_of(type(values[0])) is None:
            annotate = "" if output.tag else unannotated(output.stage.function)
            raise OutputDefinitionError(
                f"{self.bound.sink.title.removeprefix('the ')}: values like {values[0]!r} have no columns; give "
                f"process(..., output=...) or OutputTag(name, type){annotate}"
            )
        return (raw_table_of if self.is_bad_rows else table_of)(values, output.schema)

    def _concatenate(self, emitted: EmittedTables) -> pa.Table | None:
        """Return the emitted tables as one without their timestamps, ``None`` if there are none."""
        import pyarrow as pa

        from keyed.table_state.batches import shaped

        if not emitted.tables:
            return None
        table = pa.concat_tables(emitted.tables, promote_options="default")
        if TIMESTAMP_COLUMN in table.column_names:
            table = table.drop_columns([TIMESTAMP_COLUMN])
        output = self.bound.output
        return shaped(table, output.schema, f"operator {output.stage.name!r}, output to {self.bound.sink!r}")


def packed(
    bound: BoundOutput, writer: SinkWriter, emitted: Emitted | EmittedTables, batch_id: int
) -> list[Record] | None:
    """Return the outputs of a batch as they are committed with its state, or write them to a sink that replaces them.

    Args:
        bound: The output with its sink.
        writer: The writer of the sink.
        emitted: The outputs of the batch.
        batch_id: Its id.

    Raises:
        OutputDefinitionError: A value does not fit the columns of the output.
        SinkError: The target has other columns.
        QueryFailed: The sink raised.
    """
    batch = LocalBatch(bound, emitted)
    try:
        records = writer.pack(batch)
        if records is None:
            writer.write(batch, batch_id)
    except KeyedError:
        raise
    except Exception as error:
        raise failed(bound.sink, batch_id, error) from error
    return records
