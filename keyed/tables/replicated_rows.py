"""The rows of a state table, and the changes of them in a batch, for copies of the table outside of keyed.

The columns are those of `keyed.tables.state_dataset.StateDataset`, except for two: a list is one row with all elements
in the column ``value``, and there is no ``expires``, because an expiry time that moves is not a change.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import attrs
import pyarrow as pa
from xxhash import xxh3_64_hexdigest

from keyed.arrow.read import plain_values
from keyed.destinations.sink import Sink, SinkBatch
from keyed.errors import DefinitionError, EncodingError, SinkError
from keyed.stores.database import successor
from keyed.tables.entries import Entry, OperatorTableReader
from keyed.tables.operator_view import View
from keyed.tables.state_dataset import Columns, TableColumn, value_column, with_validity

Row = dict[str, Any]
"""The values of a row by column: plain data, times as `datetime`, classes and maps as dicts."""


class ReplicatedRows:
    """The rows of one table, as of any batch in which it has the same columns.

    Args:
        view: A batch.
        table: Name of the table.
        namespaces: True to have the namespace in the key; otherwise an entry under a namespace is refused.

    Attributes:
        key: The columns that identify a row.
        columns: All columns with their types; ``None`` for a type that is not declared.
        are_types_known: False if the table had no entry yet, from which the types of the keys are known.

    Raises:
        TableNotFound: There is no such table in this batch.
    """

    def __init__(self, view: View, table: str, *, namespaces: bool) -> None:
        self._table = table
        self._reader = reader = view.reader(table, as_stored=True)
        self._kind = reader.schema.kind
        self._namespaces = namespaces
        is_given = isinstance(reader, OperatorTableReader) and view.operator.types.get(view.operator.name) is not None
        #: If the reader of the tables gave the aggregates, their results replace accumulators.
        self._results = "of the function" if is_given else ""
        shown = Columns(view, reader, has_key=False)
        self.are_types_known = shown.has_rows
        self._columns = list(self._columns_of(shown))
        self.key = tuple(column.name for column in self._columns if column.role == "key")
        if not self.key:
            raise DefinitionError(f"table {table!r} has no columns that identify a row")

    def _columns_of(self, shown: Columns) -> Iterator[TableColumn]:
        reader, is_list = self._reader, self._kind == "list"
        results = iter(reader.rows_of.columns if isinstance(reader, OperatorTableReader) else ())
        names = set()
        for column in shown.columns:
            if column.role == "key":
                names.add(column.name.lower())
                yield column
            elif column.role == "namespace" and self._namespaces:
                yield attrs.evolve(column, make=_or_null(column.make), role="key")
            elif column.role == "value" and not is_list:
                name, _ = next(results, (column.name, None))
                yield column if column.is_declared else attrs.evolve(column, make=_result(name))
        if is_list:
            value = value_column({"kind": "list", "items": reader.schema.value})
            yield attrs.evolve(value, name="value_value" if "value" in names else "value")

    @property
    def columns(self) -> dict[str, pa.DataType | None]:
        """All columns with their types."""
        return {column.name: column.type if column.is_declared else None for column in self._columns}

    @property
    def digest(self) -> str:
        """A digest of the columns and their types; empty if they are not known yet."""
        columns = {name: str(type_) for name, type_ in self.columns.items()}
        text = f"json {json.dumps(sorted(columns.items()))}{self._results}"
        return xxh3_64_hexdigest(text.encode()) if self.are_types_known else ""

    def fits(self, view: View) -> bool:
        """Return true if the table has the same columns in another batch."""
        return self.are_types_known and view.reader(self._table, as_stored=True) is self._reader

    def schema(self) -> pa.Schema:
        """Return the columns as a schema.

        Raises:
            DefinitionError: A column has no declared type.
        """
        fields: list[pa.Field[Any]] = []
        for column in self._columns:
            if not column.is_declared or pa.types.is_null(column.type):
                raise DefinitionError(
                    f"table {self._table!r}: the type of column {column.name!r} is not declared, and this format has "
                    "the types of all columns; declare the result type of the aggregate, or use Json()"
                )
            fields.append(pa.field(column.name, column.type))
        return pa.schema(fields)

    def stored_schema(self) -> pa.Schema:
        """Return the columns with times in microseconds, as tables have them."""
        types = pa.types
        return pa.schema(
            [
                (field.name, pa.timestamp("us", field.type.tz) if types.is_timestamp(field.type) else field.type)
                for field in self.schema()
            ]
        )

    def snapshot(self, view: View) -> Iterator[Entry]:
        """Yield all rows as of a batch."""
        reader = self._reader
        stored = view.scan(reader, *reader.range)
        if self._kind not in ("list", "versioned"):
            yield from (self._check(reader.entry(*group)) for group in stored)
            return
        for _, group in groupby(stored, itemgetter(0)):
            yield from self._together(reader.entry(*each) for each in group)

    def changes(self, view: View) -> tuple[list[Entry], list[Entry]]:
        """Return the rows that a batch changed or added, and those that it removed, each once."""
        upserts: list[Entry] = []
        removed: list[Entry] = []
        for entry, is_removed in self._changes(view):
            (removed if is_removed else upserts).append(entry)
        return upserts, removed

    def _changes(self, view: View) -> Iterator[tuple[Entry, bool]]:
        reader = self._reader
        changes = view.stored_changes(reader)
        if self._kind not in ("list", "versioned"):
            for prefix, sub, _, new in changes:
                yield self._check(reader.entry(prefix, sub, new)), new is None
            return
        for prefix, group in groupby(changes, itemgetter(0)):
            subs = [sub for _, sub, _, _ in group]
            stored = view.scan(reader, prefix, successor(prefix))
            current = list(self._together(reader.entry(*each) for each in stored))
            if self._kind == "list":
                key, namespace = reader.place(prefix)
                removed = self._check(Entry(key, namespace, None, None))
                yield (current[0], False) if current else (removed, True)
                continue
            # A version also ends the one before it.
            times = {reader.decode_sub(sub) for sub in subs}
            older = {max((each.entry[0] for each in current if each.entry[0] < time), default=time) for time in times}
            changed = times | older
            for each in current:
                if each.entry[0] in changed:
                    yield each, False
            key, namespace = reader.place(prefix)
            for time in sorted(times.difference(each.entry[0] for each in current)):
                yield self._check(Entry(key, namespace, (time, None), None)), True

    def rows(self, entries: Sequence[Entry], *, of_keys: bool) -> list[Row]:
        """Convert entries to rows of all columns, or of those that identify rows."""
        columns = self._columns_among(of_keys=of_keys)
        values = [
            [column.make(entry) for entry in entries]
            if not column.is_declared
            else _plain_list(column.array(entries, f"table {self._table!r}"), column)
            for column in columns
        ]
        names = [column.name for column in columns]
        return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]

    def table(self, entries: Sequence[Entry], *, of_keys: bool) -> pa.Table:
        """Convert entries to an Arrow table with the types of `stored_schema`."""
        columns, schema, stored = self._columns_among(of_keys=of_keys), self.schema(), self.stored_schema()
        arrays = [column.array(entries, f"table {self._table!r}") for column in columns]
        table = pa.Table.from_arrays(arrays, schema=pa.schema([schema.field(column.name) for column in columns]))
        return table.cast(pa.schema([stored.field(column.name) for column in columns]))

    def _columns_among(self, *, of_keys: bool) -> list[TableColumn]:
        return [column for column in self._columns if column.role == "key" or not of_keys]

    def _together(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Return the rows of one key and namespace of a list or of versions."""
        rows = [self._check(entry) for entry in entries]
        if self._kind == "versioned":
            yield from with_validity(iter(rows))
        elif rows:
            yield attrs.evolve(rows[0], entry=None, value=[entry.value for entry in rows])

    def _check(self, entry: Entry) -> Entry:
        if entry.namespace is not None and not self._namespaces:
            raise SinkError(
                f"table {self._table!r} has an entry of key {entry.key!r:.100} under the namespace "
                f"{entry.namespace!r:.100}; replicate it to a new topic or table with namespaces=True, which adds the "
                "column"
            )
        return entry


@attrs.frozen
class CopiedRows(SinkBatch):
    """Entries of a table as rows for a sink, or as their keys."""

    _copied: ReplicatedRows
    _entries: Sequence[Entry]
    _to: Sink
    _of_keys: bool

    @property
    def rows(self) -> list[Row]:
        """See `SinkBatch`."""
        return self._copied.rows(self._entries, of_keys=self._of_keys)

    @property
    def table(self) -> pa.Table:
        """See `SinkBatch`."""
        table = self._copied.table(self._entries, of_keys=self._of_keys)
        for name in self._copied.key:
            if table.column(name).null_count:
                raise SinkError(f"{self._to!r}: a row has a null in {name!r}, a column of the key")
        return table


def _plain_list(array: pa.Array[Any], column: TableColumn) -> list[Any]:
    """Return the values of a column as plain data.

    Raises:
        EncodingError: A time is out of the range of Python's.
    """
    type_ = array.type
    try:
        if pa.types.is_timestamp(type_) and type_.unit == "ns":
            array = array.cast(pa.timestamp("us", type_.tz))
        return plain_values(array)
    except (pa.ArrowException, OverflowError, ValueError) as error:
        raise EncodingError(f"column {column.name!r}: {error}") from error


def _result(name: str) -> Callable[[Entry], Any]:
    return lambda entry: entry.value[name]


def _or_null(make: Callable[[Entry], Any]) -> Callable[[Entry], Any]:
    """Return JSON's null as text instead of ``None``: columns of a key are not null."""
    return lambda entry: "null" if (text := make(entry)) is None else text
