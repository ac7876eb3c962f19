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


class TableVersions:
    """Writes versions of global tables (`keyed.job.global_tables`) to broadcast states.

    Args:
        keys: The key columns of each table, by name.
        states: The broadcast states.
    """

    def __init__(self, keys: Mapping[str, tuple[str, ...]], states: Mapping[str, BoundBroadcastState]) -> None:
        self._keys = keys
        self._states = states

    def replace(self, version: Any, context: Any) -> None:
        """Replace the content of a state by the rows of a version. Unchanged rows are not written again.

        Raises:
            RowError: A row does not fit the types of the state.
        """
        name = version.name
        state, key = self._states[name], self._keys[name]
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
