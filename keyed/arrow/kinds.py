"""Column types of Parquet files of any writer: one name for each type that readers do not distinguish."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa


def kinds(schema: pa.Schema) -> Mapping[str, str]:
    """Return the kind of each column by name, in their order; ``null`` for a column that had no values."""
    return {field.name: _kind(field.type) for field in schema}


def _kind(type_: pa.DataType) -> str:
    types = pa.types
    if types.is_dictionary(type_):
        return _kind(type_.value_type)
    if types.is_string(type_) or types.is_large_string(type_):
        return "string"
    if types.is_binary(type_) or types.is_large_binary(type_):
        return "binary"
    if types.is_timestamp(type_):
        # Spark writes those of an instant without a zone.
        return "timestamp"
    if types.is_map(type_):
        return f"map<{_kind(type_.key_type)}, {_kind(type_.item_type)}>"
    if types.is_list(type_) or types.is_large_list(type_):
        return f"list<{_kind(type_.value_type)}>"
    if types.is_struct(type_):
        return f"struct<{', '.join(f'{field.name}: {_kind(field.type)}' for field in type_)}>"
    return str(type_)
