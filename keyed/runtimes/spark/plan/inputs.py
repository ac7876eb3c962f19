"""Inputs of the first stage: the columns of the source, its keys and event time, and the ticks.

All checks of the source are made here, before the first row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from keyed.base.schemas import Schema, checked_schema, of_spark, quoted
from keyed.codec.key_hash import spark_hash_expression
from keyed.errors import DefinitionError, EncodingError
from keyed.job.graph import Keys, Source, Stage
from keyed.runtimes.spark.checkpoint.ticks import STARTS_RUN
from keyed.runtimes.spark.worker.wire import TaskMark, encode_payload, group_ids

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Column types of event time; integers are milliseconds since the epoch.
_TIMES = ("timestamp", "bigint", "int")


def schema_of_frame(frame: DataFrame) -> Schema:
    """Return the columns of a source.

    Raises:
        DefinitionError: There are no columns, or a name occurs twice or is reserved.
    """
    columns = tuple((field.name, of_spark(field.dataType)) for field in frame.schema.fields)
    return checked_schema(columns, "the source DataFrame", DefinitionError)


def check_read_once(sources: Iterable[Source]) -> None:
    """Check that no streaming DataFrame occurs twice in a query, if this program can look.

    Spark has one source for it then and two lines in its offset log, so that nothing says which lines are whose, and
    the lines are positions in a changelog.

    Raises:
        DefinitionError: One occurs twice.
    """
    seen: list[Any] = []
    for frame in (source.data for source in sources):
        # Spark Connect has none.
        inner: Any = getattr(frame, "_jdf", None)
        if inner is None or not frame.isStreaming:
            continue
        leaves = inner.queryExecution().analyzed().collectLeaves()
        for leaf in (leaves.apply(place) for place in range(leaves.size())):
            if any(leaf.equals(other) for other in seen):
                raise DefinitionError(
                    "a query with a changelog or tables= reads one streaming DataFrame twice, so that Spark's "
                    "checkpoint does not show which position is whose; give one keyed.stream to all operators that "
                    "read it, or make the DataFrame twice, each with readStream"
                )
            if leaf.isStreaming():
                seen.append(leaf)


def key_columns(keys: Keys, schema: Schema, operator: str) -> tuple[str, ...]:
    """Return the key columns of a stage.

    Raises:
        DefinitionError: The keys are a function, or a column is unknown.
    """
    if callable(keys):
        raise DefinitionError(
            f"operator {operator!r}: key_by takes column names on Spark, not a function; add a column with the key "
            "and name it"
        )
    for key in keys:
        if key not in schema.names:
            raise DefinitionError(
                f"operator {operator!r}: key column {key!r} is not in the input: {', '.join(schema.names)}"
            )
    return keys


def hash_expression(keys: tuple[str, ...], schema: Schema, operator: str, bad: str | None) -> str:
    """Return the SQL expression of the key's hash; null if a part of the key is null, and for bad rows.

    Args:
        keys: The key columns; the hash of rows without a key is 0.
        schema: All columns.
        operator: Name of the operator, for messages.
        bad: SQL condition of rows that are bad for another reason.

    Raises:
        DefinitionError: A key column has a type that a key cannot have.
    """
    types, hashed = dict(schema.columns), "CAST(0 AS BIGINT)"
    try:
        if keys:
            hashed = spark_hash_expression([(key, types[key]) for key in keys])
    except EncodingError as error:
        raise DefinitionError(f"operator {operator!r}: {error}") from None
    null = " OR ".join([*(f"{quoted(key)} IS NULL" for key in keys), *([bad] if bad is not None else [])])
    return f"CASE WHEN {null or 'false'} THEN CAST(NULL AS BIGINT) ELSE {hashed} END"


def time_column(source: Source, schema: Schema) -> str | None:
    """Return the column with the event time, a timestamp or milliseconds; ``None`` if rows have none.

    Raises:
        DefinitionError: The column is unknown or cannot be used.
    """
    name = source.time
    if name is None:
        return None
    if not isinstance(name, str):
        raise DefinitionError(f"timestamp={name!r} must be a column name on Spark; add a column with the event time")
    type_ = dict(schema.columns).get(name)
    if type_ is None:
        raise DefinitionError(f"timestamp column {name!r} is not in the source: {', '.join(schema.names)}")
    if type_ not in _TIMES:
        if type_ == "timestamp_ntz":
            remedy = f"it has no time zone: convert it with to_utc_timestamp or CAST({quoted(name)} AS TIMESTAMP)"
        else:
            remedy = "give a timestamp, or a bigint in milliseconds since the epoch"
        raise DefinitionError(f"timestamp column {name!r} has type {type_}; {remedy}")
    return name


def too_far_ahead(source: Source, schema: Schema) -> str | None:
    """Return the SQL condition of rows whose timestamp is too far ahead of the clock; ``None`` for none."""
    name = source.timestamp
    if not isinstance(name, str) or source.max_ahead_ms is None:
        return None
    time = f"CAST({quoted(name)} AS BIGINT)"
    if dict(schema.columns)[name] == "timestamp":
        time = f"unix_millis({quoted(name)})"
    # Spark writes numbers into its generated code, which would be compiled again for each batch, but not the elements
    # of an array. The index of the only element depends on the row, because it would otherwise be folded to a number.
    now = f"element_at(array(unix_millis(current_timestamp())), CAST(pmod({time}, 1) AS INT) + 1)"
    return f"{time} > {now} + {source.max_ahead_ms}"


def packed_ticks(
    last: Stage, parallelism: int, *, end: bool, needed: bool = False, files: DataFrame | None = None
) -> DataFrame | None:
    """Return a packed row for every key group at each tick, which runs the groups without rows and can end the input.

    Args:
        last: The last stage of the chain.
        parallelism: Number of key groups.
        end: True if the input ends with the next batch.
        needed: True if they are needed even for a stream without ticks.
        files: The ticks as files that are written when something is due; ``None`` for a tick at every trigger.

    Returns:
        The rows, ``None`` if the stream has no ticks.

    Raises:
        DefinitionError: The input has to end, and the stream has no ticks.
    """
    frame: DataFrame = last.source.data
    session: Any = frame.sparkSession
    if not frame.isStreaming:
        tick = session.range(0, 1, 1, 1)
    elif last.ticks and files is not None:
        tick = files
    elif last.ticks or needed:
        # The only source of Spark with a row for every batch that still lets availableNow end.
        reader = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).option("numPartitions", 1)
        tick = reader.load()
    elif end:
        raise DefinitionError("drain needs the tick to end the input; leave out ticks=False in keyed.stream")
    else:
        return None
    mark = TaskMark(None, end, {})
    payload = f"X'{encode_payload(mark).hex()}'"
    if tick is files:
        first = encode_payload(msgspec.structs.replace(mark, starts_run=True))
        payload = f"CASE WHEN value = '{STARTS_RUN}' THEN X'{first.hex()}' ELSE {payload} END"
    groups = json.dumps(group_ids(parallelism))
    ticks: DataFrame = tick.selectExpr(
        f"explode(from_json('{groups}', 'array<int>')) AS keygroup", f"{payload} AS payload"
    )
    return ticks
