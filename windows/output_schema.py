"""The output columns of a windowed stream, as far as they follow from its input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keyed import DefinitionError, KeyedStream, OutputDefinitionError
from windows.definition import Definition
from windows.window import GlobalWindow

__all__ = ["input_columns", "is_spark", "key_names", "output_ddl", "row_timestamps", "upstream_delay"]

#: Column types of Arrow types that have no parameters.
_ARROW_TYPES = {
    "bool": "boolean",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float": "float",
    "double": "double",
    "string": "string",
    "large_string": "string",
    "binary": "binary",
    "large_binary": "binary",
    "date32[day]": "date",
}


def input_columns(stream: KeyedStream) -> dict[str, Any] | None:
    """Names and types of the stream's columns; ``None`` where they are not known before it runs."""
    output = getattr(stream.upstream, "output", None)
    if output is not None:
        return dict(output.columns)
    data = getattr(stream.upstream, "data", None)
    if data is None:
        return None
    if is_spark(stream):
        return {field.name: field.dataType.simpleString() for field in data.schema.fields}
    if type(data).__module__.startswith("pyarrow") and hasattr(data, "schema"):
        return _arrow_columns(data.schema)
    return None


def _arrow_columns(schema: Any) -> dict[str, str | None]:
    """The columns of an Arrow table; the type is ``None`` where windows make nothing of it."""
    import pyarrow as pa

    columns: dict[str, str | None] = {}
    for field in schema:
        type_, text = field.type, str(field.type)
        if pa.types.is_timestamp(type_):
            columns[field.name] = "timestamp" if type_.tz else "timestamp_ntz"
        elif pa.types.is_decimal(type_) and type_.precision <= 38:
            columns[field.name] = f"decimal({type_.precision},{type_.scale})"
        else:
            columns[field.name] = _ARROW_TYPES.get(text)
    return columns


def is_spark(stream: KeyedStream) -> bool:
    """Whether the stream starts at a Spark DataFrame."""
    upstream: Any = stream.upstream
    source = upstream if hasattr(upstream, "data") else upstream.source
    return any(cls.__module__.startswith("pyspark.sql") for cls in type(source.data).__mro__)


def key_names(stream: KeyedStream) -> tuple[str, ...]:
    """Names of the key's columns; ``("key",)`` for a stream keyed by a function."""
    return ("key",) if callable(stream.keys) else stream.keys


def upstream_delay(stream: KeyedStream) -> int:
    """How far out of order elements may be, milliseconds; 0 where another operator sets the watermark."""
    watermark = getattr(stream.upstream, "watermark", None)
    return 0 if watermark is None else int(watermark.delay_ms)


def output_ddl(definition: Definition, columns: Mapping[str, str] | None, *, strict: bool) -> str | None:
    """The columns of the rows of named aggregates as DDL; ``None`` where they are not known.

    Args:
        definition: The operator.
        columns: The input's columns.
        strict: Whether not to know them is an error.

    Raises:
        OutputDefinitionError: The input lacks a column, or a type does not follow from the input.
    """
    if definition.names is None or definition.process is not None or columns is None:
        return None
    types: list[tuple[str, str | None]] = [(name, columns.get(name)) for name in definition.key_names]
    if definition.assigner.window_type is not GlobalWindow:
        kind = "timestamp" if definition.timestamps else "bigint"
        types += [("window_start", kind), ("window_end", kind)]
    pairs = zip(definition.names, definition.aggregates, strict=True)
    types += [(name, aggregate.output_type(columns)) for name, aggregate in pairs]
    for name, type_ in types:
        if type_ is None:
            if strict:
                raise OutputDefinitionError(
                    f"the type of output column {name!r} does not follow from the input; give it as type=... to the "
                    "aggregate, or all columns as output=..."
                )
            return None
    return ", ".join(f"`{name.replace('`', '``')}` {type_}" for name, type_ in types)


def row_timestamps(output: Any) -> bool:
    """Whether the output's window bounds are timestamps.

    Raises:
        DefinitionError: ``window_start`` and ``window_end`` are of different kinds.
    """
    kinds = {type_.startswith("timestamp") for name, type_ in output.columns if name in ("window_start", "window_end")}
    if len(kinds) > 1:
        raise DefinitionError("window_start and window_end must both be timestamp or both bigint")
    return kinds == {True}
