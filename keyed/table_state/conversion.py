"""Converts columns to their declared types, and refuses conversions that would change values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from keyed.errors import KeyedError


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
