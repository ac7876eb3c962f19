"""Sources of the local runtime: iterables, pandas DataFrames and Arrow tables, cut into batches of elements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import attrs

from keyed.arrow.read import milliseconds, table_chunks, table_rows
from keyed.durations import MAX_TIMESTAMP, MIN_TIMESTAMP
from keyed.engine.batch import Chunk
from keyed.errors import CheckpointError, DefinitionError, KeyedError, NullKeyError, TimestampError
from keyed.rows import row_class
from keyed.streams import Keys, Source, Stage
from keyed.vectorized import VectorizedFunction

__all__ = ["Rows", "batches", "key_getter", "timestamp_of"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@attrs.define(eq=False)
class Rows:
    """A batch as it comes from the source.

    Attributes:
        chunks: The rows, as `keyed.engine.batch.Batch` has them.
        table: The same as an Arrow table, for a vectorized operator, in arrival order and with
            `keyed.TIMESTAMP_COLUMN`; ``None`` if it is to be made of ``chunks``.
        read: Number of rows read from the source, bad ones included.
        highest: Highest timestamp, ``None`` if there is none.
        ordered: Whether the rows are in the order in which the operator runs them; otherwise as they arrived.
        bad: Elements with a null key or without a timestamp, where the stream diverts them.
    """

    chunks: Callable[[], Iterable[Chunk]] = tuple
    table: Callable[[], Any] | None = None
    read: int = 0
    highest: int | None = None
    ordered: bool = True
    bad: list[Any] = attrs.field(factory=list)

    @classmethod
    def of(cls, keys: list[Any], timestamps: list[int | None] | None, values: list[Any], read: int = 0) -> Rows:
        """Rows out of lists, in arrival order."""
        highest = None
        if timestamps:
            highest = max((t for t in timestamps if t is not None), default=None)
        return cls(lambda: ((keys, timestamps, values),), read=read, highest=highest, ordered=False)


def batches(stage: Stage, position: int, size: int) -> Iterator[Rows]:
    """The source's rows from ``position`` on, in batches.

    Args:
        stage: The first stage of the chain.
        position: Rows to skip: those that earlier runs have consumed.
        size: Rows a batch.

    Raises:
        DefinitionError: A column is missing, or the source cannot be iterated.
        RowError: A bad row, where the stream does not divert them.
    """
    source = stage.source
    table = _arrow(source.data)
    if table is not None:
        yield from _table_batches(stage, table, position, size)
        return
    if isinstance(source.data, str | bytes) or not isinstance(source.data, Iterable):
        raise DefinitionError(
            f"source of type {type(source.data).__name__} is no stream; give a Spark, pandas or Arrow table, or an "
            "iterable of elements"
        )
    elements = iter(source.data)
    _check_length(sum(1 for _ in islice(elements, position)), position)
    element_of = _element_converter()
    while taken := list(islice(elements, size)):
        yield _checked(stage, list(map(element_of, taken)))


def key_getter(keys: Keys) -> Callable[[Any], Any]:
    """A function from an element to its key: a scalar, or a tuple where there are several columns."""
    if callable(keys):
        return keys
    getters = [_field_getter(name, "key column") for name in keys]
    if len(getters) == 1:
        return getters[0]
    return lambda element: tuple([get(element) for get in getters])


def _arrow(data: Any) -> Any:
    """``data`` as an Arrow table, or ``None`` if it is no table."""
    module = type(data).__module__.partition(".")[0]
    if module not in ("pandas", "pyarrow", "polars"):
        return None
    import pyarrow as pa

    if module == "pandas":
        return pa.Table.from_pandas(data, preserve_index=False)
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        return data
    return data.to_arrow() if module == "polars" else None


def _table_batches(stage: Stage, table: Any, position: int, size: int) -> Iterator[Rows]:
    source, keys = stage.source, stage.keys
    needed = () if callable(keys) else keys
    needed += (source.timestamp,) if isinstance(source.timestamp, str) else ()
    for name in needed:
        if name not in table.column_names:
            raise DefinitionError(f"column {name!r} is not in the source: {', '.join(table.column_names)}")
    _check_length(min(table.num_rows, position), position)
    for start in range(position, table.num_rows, size):
        batch = table.slice(start, size)
        if isinstance(stage.function, VectorizedFunction):
            from keyed.runtimes.local.table_rows import source_rows

            yield source_rows(stage, batch, lambda bad: _checked(stage, table_rows(bad), _times(source, bad)))
            continue
        if callable(keys) or callable(source.timestamp) or any(batch.column(name).null_count for name in needed):
            yield _checked(stage, table_rows(batch), _times(source, batch))
        else:
            yield _table_rows(stage, batch, keys, source.timestamp)


def _times(source: Source, table: Any) -> list[int | None] | None:
    """The timestamps of a table, if they are a column."""
    name = source.timestamp
    return milliseconds(table.column(name), name) if isinstance(name, str) else None


def _check_length(there: int, consumed: int) -> None:
    """Check that the rows which earlier runs have consumed are still there.

    Raises:
        CheckpointError: The source is shorter: it is another one, or holds only what is new.
    """
    if there < consumed:
        raise CheckpointError(
            f"the checkpoint has consumed {consumed} rows of the source, which has only {there}; give the same source "
            "from its start, with new rows at its end, or start from a new checkpoint"
        )


def _table_rows(stage: Stage, batch: Any, keys: Sequence[str], timestamp: str | None) -> Rows:
    """Rows of a table without bad ones, in the order in which they run."""
    import numpy as np
    import pyarrow as pa

    times, highest = None, None
    if timestamp is not None:
        times = np.array(milliseconds(batch.column(timestamp), timestamp), dtype="int64")
        highest = int(times.max())
        if stage.order == "event_time" and bool((times[1:] < times[:-1]).any()):
            order = np.argsort(times, kind="stable")
            batch, times = batch.take(pa.array(order)), times[order]
    return Rows(lambda: table_chunks(batch, keys, times), read=batch.num_rows, highest=highest)


def _checked(stage: Stage, values: list[Any], timestamps: list[int | None] | None = None) -> Rows:
    source = stage.source
    if source.timestamp is not None and timestamps is None:
        get = source.timestamp if callable(source.timestamp) else _field_getter(source.timestamp, "timestamp column")
        timestamps = [timestamp_of(get(value)) for value in values]
    return _split(source, stage.name, list(map(key_getter(stage.keys), values)), timestamps, values)


def _split(
    source: Source, operator: str, keys: list[Any], timestamps: list[int | None] | None, values: list[Any]
) -> Rows:
    """Divert or refuse the rows with a null key or without a timestamp."""
    bad = [i for i, key in enumerate(keys) if key is None or (isinstance(key, tuple) and None in key)]
    wrong = [] if timestamps is None else [i for i, t in enumerate(timestamps) if t is None]
    if not bad and not wrong:
        return Rows.of(keys, timestamps, values, len(values))
    if source.on_bad_row is None:
        if bad:
            raise NullKeyError(
                f"operator {operator!r}: key {keys[bad[0]]!r} of {values[bad[0]]!r} is null; filter such rows, or give "
                "keyed.stream(..., on_bad_row=OutputTag(...))"
            )
        raise TimestampError(
            f"operator {operator!r}: {values[wrong[0]]!r} has no usable timestamp in {source.timestamp!r}, which is "
            "int milliseconds or a datetime with a time zone; filter such rows, or give keyed.stream(..., "
            "on_bad_row=OutputTag(...))"
        )
    diverted = {*bad, *wrong}
    good = [i for i in range(len(values)) if i not in diverted]
    rows = Rows.of(
        [keys[i] for i in good],
        None if timestamps is None else [timestamps[i] for i in good],
        [values[i] for i in good],
        len(values),
    )
    rows.bad = [values[i] for i in sorted(diverted)]
    return rows


def timestamp_of(value: Any) -> int | None:
    """A timestamp in milliseconds, or ``None`` if it is not usable."""
    if type(value) is int:
        return value if MIN_TIMESTAMP <= value <= MAX_TIMESTAMP else None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise TimestampError(f"timestamp {value!r} has no time zone; add one, for example .replace(tzinfo=UTC)")
        return (value - _EPOCH) // _MILLISECOND
    return None


def _element_converter() -> Callable[[Any], Any]:
    """Dictionaries become rows, so that the function sees what it sees on Spark."""

    def convert(element: Any) -> Any:
        if element.__class__ is dict and element and all(isinstance(name, str) for name in element):
            return row_class(tuple(element))(element.values())
        return element

    return convert


def _field_getter(name: str, what: str) -> Callable[[Any], Any]:
    def get(element: Any) -> Any:
        try:
            return getattr(element, name)
        except AttributeError:
            try:
                return element[name]
            except (TypeError, KeyError, IndexError, KeyedError):
                raise DefinitionError(f"{what} {name!r} is not in element {element!r}") from None

    return get
