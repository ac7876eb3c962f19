"""Avro schemas of the rows of state tables, from their columns."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from keyed.errors import DefinitionError

if TYPE_CHECKING:
    import pyarrow as pa

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def avro_schema(columns: pa.Schema, key: Collection[str], *, of_keys: bool, name: str) -> dict[str, Any]:
    """Return the schema of records with the columns of a table, or with those of its key.

    Columns of the key are not null. All others may be null, and are null by default, so that columns can be added.

    Args:
        columns: All columns.
        key: Those of the key.
        of_keys: True for the schema of keys.
        name: Name of the table.

    Raises:
        DefinitionError: A column has a name or type that Avro lacks.
    """
    record = f"{re.sub(r'[^A-Za-z0-9_]', '_', name)}_{'key' if of_keys else 'value'}"
    record = record if _NAME.fullmatch(record) else f"t_{record}"
    fields: list[dict[str, Any]] = []
    for column in columns:
        if of_keys and column.name not in key:
            continue
        type_ = _type(column.type, column.name, f"{record}_{column.name}")
        name_of = _checked(column.name)
        fields.append(
            {"name": name_of, "type": type_}
            if column.name in key
            else {"name": name_of, "type": ["null", type_], "default": None}
        )
    return {"type": "record", "name": record, "fields": fields}


def _type(type_: pa.DataType, column: str, record: str) -> Any:
    """Return Avro's type for one of Arrow."""
    import pyarrow as pa

    types = pa.types
    if types.is_boolean(type_):
        return "boolean"
    if types.is_int8(type_) or types.is_int16(type_) or types.is_int32(type_):
        return "int"
    if types.is_int64(type_):
        return "long"
    if types.is_float32(type_):
        return "float"
    if types.is_float64(type_):
        return "double"
    if types.is_string(type_) or types.is_large_string(type_):
        return "string"
    if types.is_binary(type_) or types.is_large_binary(type_):
        return "bytes"
    if types.is_date32(type_):
        return {"type": "int", "logicalType": "date"}
    if types.is_timestamp(type_):
        unit = "millis" if type_.unit in ("s", "ms") else "micros"
        return {"type": "long", "logicalType": f"{'local-' if type_.tz is None else ''}timestamp-{unit}"}
    if types.is_time(type_):
        return {"type": "long", "logicalType": "time-micros"}
    if types.is_decimal128(type_):
        return {"type": "bytes", "logicalType": "decimal", "precision": type_.precision, "scale": type_.scale}
    if types.is_list(type_) or types.is_large_list(type_):
        return {"type": "array", "items": ["null", _type(type_.value_type, column, f"{record}_item")]}
    if types.is_map(type_) and types.is_string(type_.key_type):
        return {"type": "map", "values": ["null", _type(type_.item_type, column, f"{record}_value")]}
    if types.is_struct(type_):
        fields = [
            {
                "name": _checked(field.name),
                "type": ["null", _type(field.type, column, f"{record}_{field.name}")],
                "default": None,
            }
            for field in type_
        ]
        return {"type": "record", "name": record, "fields": fields}
    raise DefinitionError(f"column {column!r} of type {type_} has no type in Avro here; use Json()")


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise DefinitionError(
            f"column {name!r} cannot be a field in Avro, whose names have letters, digits and _; use Json()"
        )
    return name
