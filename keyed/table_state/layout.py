"""The columns of a table state: their Arrow types, the key among them, and the hidden column of a time to live.

Columns are converted to their declared types; conversions that would change values are refused.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from keyed.arrow.write import arrow_schema, with_shown_type
from keyed.base.schemas import Schema
from keyed.errors import KeyedError, StateAccessError, StateDefinitionError
from keyed.job.table_declaration import TableState


def converted(column: Any, type_: pa.DataType) -> Any:
    """Return a column in a declared type.

    Integers become numbers of other kinds, and timestamps as milliseconds since the epoch, as times are everywhere.

    Raises:
        ValueError: The column has an incompatible type, or a value is out of range; the message names it.
    """
    types, source = pa.types, column.type
    if source == type_:
        return column
    try:
        if types.is_dictionary(source):
            return converted(column.cast(source.value_type), type_)
        if types.is_integer(source) and types.is_timestamp(type_) and type_.tz is not None:
            return column.cast(pa.int64()).cast(pa.timestamp("ms", type_.tz)).cast(type_)
        if types.is_integer(source) and types.is_decimal(type_):
            # Arrow would refuse small numbers too, by the digits that their type may have.
            return column.cast(pa.decimal128(38, type_.scale)).cast(type_)
        if _is_convertible(source, type_):
            return column.cast(type_)
    except pa.ArrowException as error:
        raise ValueError(str(error)) from error
    raise ValueError("types differ")


def fitted(table: pa.Table, schema: pa.Schema, where: str, failure: type[KeyedError]) -> list[Any]:
    """Return the columns of a schema out of a table, of its types.

    Raises:
        KeyedError: Of the type ``failure``: the table lacks a column, has it twice, or it does not fit.
    """
    columns: list[Any] = []
    for field in schema:
        index = table.schema.get_field_index(field.name)
        if index < 0:
            raise failure(
                f"{where}: column {field.name!r} is missing, or occurs twice, in {', '.join(table.column_names)}"
            )
        column = table.column(index)
        try:
            columns.append(converted(column, field.type))
        except ValueError as error:
            raise failure(
                f"{where}: column {field.name!r} of {column.type} does not fit {field.type}: {error}"
            ) from error
    return columns


def normalised_column(column: Any) -> Any:
    """Return a key column as it is stored: equal floats have equal bytes (`keyed.codec.keys.normalised`)."""
    if not pa.types.is_floating(column.type):
        return column
    zero = pa.scalar(0, column.type)
    column = pc.if_else(pc.equal(column, zero), zero, column)
    return pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), column)


def _is_convertible(source: Any, type_: Any) -> bool:
    """Return whether a cast converts values, and those inside of them, without a change of meaning."""
    types = pa.types
    if types.is_dictionary(source):
        return _is_convertible(source.value_type, type_)
    if _family(source) != _family(type_):
        return types.is_null(source) or (types.is_integer(source) and types.is_floating(type_))
    if types.is_struct(type_):
        by_name = {field.name: field.type for field in source}
        return all(each.name in by_name and _is_convertible(by_name[each.name], each.type) for each in type_)
    if types.is_map(type_):
        return _is_convertible(source.key_type, type_.key_type) and _is_convertible(source.item_type, type_.item_type)
    return _family(type_) != "list" or _is_convertible(source.value_type, type_.value_type)


def _family(type_: Any) -> object:
    """Return types that convert into each other without a change of meaning."""
    types = pa.types
    if types.is_timestamp(type_):
        return "timestamp", type_.tz is None
    tests: dict[str, Callable[[Any], bool]] = {
        "integer": types.is_integer,
        "real": types.is_floating,
        "decimal": types.is_decimal,
        "date": types.is_date,
        "time": types.is_time,
        "text": lambda t: types.is_string(t) or types.is_large_string(t) or types.is_string_view(t),
        "bytes": lambda t: (
            types.is_binary(t) or types.is_large_binary(t) or types.is_fixed_size_binary(t) or types.is_binary_view(t)
        ),
        "duration": types.is_duration,
        "list": lambda t: types.is_list(t) or types.is_large_list(t) or types.is_fixed_size_list(t),
        "map": types.is_map,
        "struct": types.is_struct,
    }
    return next((name for name, test in tests.items() if test(type_)), type_)


#: When a row of a table with a time to live expires: int64, milliseconds.
DUE_COLUMN = "__keyed_due"


@attrs.frozen(eq=False)
class Layout:
    """Stored form of a table.

    Attributes:
        name: Name of the state.
        keys: Columns of the key.
        schema: All columns that are stored; the last is `DUE_COLUMN` where there is a time to live.
        visible: Names of the columns that the user sees.
    """

    name: str
    keys: tuple[str, ...]
    schema: pa.Schema
    visible: tuple[str, ...]

    @classmethod
    def of(cls, state: TableState) -> Layout:
        """Return the layout of a declared table.

        Raises:
            StateDefinitionError: A column has a type that cannot be stored or be a key.
        """
        declared: Any = arrow_schema(state.schema) if isinstance(state.schema, Schema) else state.schema
        for field in declared:
            reason = _unsupported(field.type)
            if reason is None and field.name in state.key and pa.types.is_nested(field.type):
                reason = "a key column is a single value"
            if reason is not None:
                where = f"table state {state.name!r}: column {field.name!r} of {field.type}"
                raise StateDefinitionError(f"{where}: {reason}")
        fields = [pa.field(field.name, field.type) for field in declared]
        for name, type_ in state.shown_types.items():
            fields[declared.get_field_index(name)] = with_shown_type(declared.field(name), type_)
        visible = tuple(field.name for field in fields)
        if state.ttl is not None:
            fields.append(pa.field(DUE_COLUMN, pa.int64()))
        return cls(state.name, state.key, pa.schema(fields), visible)

    @property
    def values(self) -> tuple[str, ...]:
        """The stored columns beside the key."""
        return tuple(name for name in self.schema.names if name not in self.keys)

    def conform(self, table: pa.Table, columns: Sequence[str]) -> pa.Table:
        """Return the given columns of a user's table, with the types in which they are stored.

        Raises:
            StateAccessError: It is not a table, a column is missing, or a value does not fit its type.
        """
        if not isinstance(table, pa.Table):
            raise StateAccessError(f"table state {self.name!r}: {type(table).__name__} is not a pyarrow.Table")
        schema = pa.schema([self.schema.field(name) for name in columns])
        arrays = fitted(table, schema, f"table state {self.name!r}", StateAccessError)
        for index, name in enumerate(columns):
            if name in self.keys:
                arrays[index] = normalised_column(arrays[index])
        return pa.Table.from_arrays(arrays, schema=schema)

    def completed(self, table: pa.Table) -> pa.Table:
        """Return stored rows with all columns in their order; those that were added since are null."""
        if table.schema.equals(self.schema):
            return table
        names = set(table.column_names)
        columns = [
            table.column(field.name) if field.name in names else pa.nulls(table.num_rows, field.type)
            for field in self.schema
        ]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def shown(self, table: pa.Table) -> pa.Table:
        """Return stored rows without the hidden column."""
        return table if len(self.visible) == len(self.schema) else table.select(self.visible)

    def fingerprint(self, stream_keys: int) -> dict[str, Any]:
        """Return the columns as a fingerprint of a class whose fields have defaults, with their Arrow schema beside it.

        Args:
            stream_keys: How many columns of the key are columns of ``key_by``.
        """
        fields = {name: {"type": str(self.schema.field(name).type), "required": False} for name in self.visible}
        arrow = b64encode(self.schema.serialize().to_pybytes()).decode()
        return {"kind": "fields", "name": "table", "fields": fields, "stream_keys": stream_keys, "arrow": arrow}


def _unsupported(type_: Any) -> str | None:
    """Return the reason why values of a type cannot be stored."""
    types = pa.types
    if types.is_dictionary(type_):
        return "dictionaries are not stored; declare the type of their values"
    if types.is_struct(type_) or types.is_list(type_) or types.is_large_list(type_) or types.is_map(type_):
        parts = [type_.field(index).type for index in range(type_.num_fields)]
        return next((reason for part in parts if (reason := _unsupported(part))), None)
    known = (
        types.is_decimal(type_) or types.is_string(type_) or types.is_large_string(type_) or types.is_binary(type_)
        or types.is_large_binary(type_) or (types.is_primitive(type_) and not types.is_interval(type_))
    )  # fmt: skip
    return None if known else "this type cannot be stored in a table"
