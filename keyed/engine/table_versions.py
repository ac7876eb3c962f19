"""Versions of global tables in a key group, each of which replaces the previous one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from keyed.arrow.read import column_values
from keyed.base.shown import shown
from keyed.codec.arrow_streams import read_stream
from keyed.engine.bound import MISSING
from keyed.engine.bound_broadcast import BoundBroadcastState
from keyed.engine.declared_values import as_declared
from keyed.errors import RowError


def replace_table(
    keys: Mapping[str, tuple[str, ...]], states: Mapping[str, BoundBroadcastState], version: Any, _: object
) -> None:
    """Replace the content of a broadcast state by the rows of a version of a global table.

    Unchanged rows are not written again.

    Args:
        keys: The key columns of each table (`keyed.job.global_tables`), by name.
        states: The broadcast states.
        version: The version.

    Raises:
        RowError: A row does not fit the types of the state.
    """
    name = version.name
    state, key = states[name], keys[name]
    declared = state.declaration
    table = read_stream(version.rows, f"global table {name!r}")
    columns = table.column_names
    rows = {}
    for values in zip(*map(column_values, table.columns), strict=True):
        row = dict(zip(columns, values, strict=True))
        parts = tuple(row[column] for column in key)
        try:
            entry = as_declared(parts[0] if len(parts) == 1 else parts, declared.key_type)
            rows[entry] = as_declared(row, declared.value_type)
        except msgspec.ValidationError as error:
            raise RowError(f"global table {name!r}, row {shown(row)}: {error}") from error
    for entry in [entry for entry in state.keys() if entry not in rows]:  # noqa: SIM118 - it is no dictionary
        state.remove(entry)
    for entry, value in rows.items():
        if state.get(entry, MISSING) != value:
            state.put(entry, value)
