"""Decoding of the values of Spark's Kafka source: `keyed.topics.decode_values`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from keyed.arrow.write import table_of
from keyed.base.schemas import Schema, schema_of
from keyed.errors import DefinitionError, OutputDefinitionError
from keyed.formats.declared_formats import Format
from keyed.formats.sql_types import BadValue
from keyed.formats.topic_values import NO_VALUE, check_format, decoder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: The columns of Spark's Kafka source that are kept, with their types.
_RECORD = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
}
#: The columns that are added to those of a value.
_ADDED = {"record": f"struct<{', '.join(f'{name}: {type_}' for name, type_ in _RECORD.items())}>", "reason": "string"}


def decoded_frame(frame: DataFrame, value: Format, schema: Any) -> DataFrame:
    """Return the rows of Spark's Kafka source with decoded values. See `keyed.topics.decode_values`."""
    check_format(value)
    columns = schema_of(schema)
    missing = _RECORD.keys() - {*frame.columns}
    if missing:
        raise DefinitionError(
            f"decode_values: the DataFrame has no column {min(missing)!r}; give one of Spark's Kafka source, with "
            f"the columns {', '.join(_RECORD)}"
        )
    names = [name for name in columns.names if name.lower() in _ADDED]
    if names:
        raise DefinitionError(f"decode_values: schema= has the column {names[0]!r}, a name that the result uses itself")
    added = ", ".join(f"{name} {type_}" for name, type_ in _ADDED.items())
    return frame.select(*_RECORD).mapInArrow(ValueDecoder(value, columns), f"{columns.ddl}, {added}")


class ValueDecoder:
    """Decodes batches of records, in the processes of Spark's workers.

    Args:
        format: The format of the values.
        schema: Their columns.
    """

    def __init__(self, format: Format, schema: Schema) -> None:
        self._format = format
        self._schema = schema
        # By topic; a client of a registry cannot be pickled, so each process makes its own.
        self._decoders: dict[str, Callable[[bytes], Any]] = {}

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the decoded batches.

        Raises:
            SourceError: A schema cannot be fetched.
        """
        for batch in batches:
            yield from self._decoded(batch).to_batches()

    def _decoded(self, batch: pa.RecordBatch) -> pa.Table:
        rows: list[Any] = []
        reasons: list[str | None] = []
        for value, topic in zip(batch.column("value").to_pylist(), batch.column("topic").to_pylist(), strict=True):
            try:
                rows.append(self._row(value, topic))
                reasons.append(None)
            except BadValue as error:
                rows.append(self._empty)
                reasons.append(str(error))
        table = self._table(rows, reasons)
        good = pa.array([reason is None for reason in reasons], pa.bool_())
        values = batch.column("value")
        fields = {name: batch.column(name) for name in _RECORD}
        # A value that was decoded is not kept a second time.
        fields["value"] = pc.if_else(good, pa.scalar(None, values.type), values)
        record = pa.StructArray.from_arrays([*fields.values()], names=[*fields])
        return table.append_column("record", record).append_column("reason", pa.array(reasons, pa.string()))

    @property
    def _empty(self) -> tuple[None, ...]:
        return (None,) * len(self._schema.names)

    def _row(self, value: bytes | None, topic: Any) -> tuple[Any, ...]:
        if value is None:
            raise BadValue(NO_VALUE)
        if topic not in self._decoders:
            self._decoders[topic] = decoder(self._format, topic)
        row = self._decoders[topic](value)
        if not isinstance(row, dict):
            raise BadValue(f"it is not an object with columns, but of type {type(row).__name__}")
        return tuple(row.get(name) for name in self._schema.names)

    def _table(self, rows: list[Any], reasons: list[str | None]) -> pa.Table:
        """Return rows as a table; those that do not fit are emptied, and get a reason."""
        try:
            return self._columns(rows)
        except OutputDefinitionError:
            for number, row in enumerate(rows):
                try:
                    self._columns([row])
                except OutputDefinitionError as error:
                    rows[number], reasons[number] = self._empty, str(error)
            return self._columns(rows)

    def _columns(self, rows: Sequence[Any]) -> pa.Table:
        return table_of(rows, self._schema, "its columns")
