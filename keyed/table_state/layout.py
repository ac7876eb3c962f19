"""The columns of a table state: their Arrow types, the key among them, and the hidden column of a time to live."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import attrs
import pyarrow as pa

from keyed.arrow.write import arrow_schema, with_shown_type
from keyed.base.schemas import Schema
from keyed.errors import StateAccessError, StateDefinitionError
from keyed.job.table_declaration import TableState
from keyed.table_state.conversion import fitted, normalised_column

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
