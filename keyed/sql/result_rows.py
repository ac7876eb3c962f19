"""The rows of an output table as a state with a column each, so that state tables serve them.

A row is an object of a class with a field for each column: those of the key, the others, ``WINDOWSTART`` and
``WINDOWEND`` of a windowed table, and ``ROWTIME``. In SQL over state tables the fields are columns.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import attrs

from keyed import StateTtl, TimeDomain, ValueState
from keyed.sql.row_changes import KEY, TIME, VALUE, WINDOW, Change
from keyed.sql.sql_types import BIGINT, SqlType

_TYPES = {
    "BOOLEAN": bool,
    "INTEGER": int,
    "BIGINT": int,
    "DOUBLE": float,
    "STRING": str,
    "BYTES": bytes,
    "DECIMAL": Decimal,
    "TIME": int,
    "DATE": int,
    "TIMESTAMP": int,
}


class ResultRows:
    """Writes the rows of an output table into a state.

    Args:
        name: Name of the state.
        keys: Columns of the key.
        values: The other columns.
        retention_ms: How long a row is kept after its last change, in event time; ``None`` for ever.
        is_windowed: Rows have windows.
    """

    def __init__(
        self,
        name: str,
        keys: Sequence[tuple[str, SqlType]],
        values: Sequence[tuple[str, SqlType]],
        retention_ms: int | None = None,
        *,
        is_windowed: bool = False,
    ) -> None:
        bounds = (("WINDOWSTART", BIGINT), ("WINDOWEND", BIGINT)) if is_windowed else ()
        columns = (*keys, *values, *bounds, ("ROWTIME", BIGINT))
        self._row = _row_class(columns)
        self._first, self._end = len(keys), len(keys) + len(values)
        ttl = None if retention_ms is None else StateTtl(retention_ms, time_domain=TimeDomain.EVENT_TIME)
        #: The state, which an operator has as an attribute.
        self.state: ValueState[Any] = ValueState(self._row, name=name, ttl=ttl)

    def write(self, state: ValueState[Any], change: Change) -> None:
        """Write the row of a change, or remove it."""
        window, value = change[WINDOW], change[VALUE]
        if window is not None:
            state = state.namespace(window)
        if value is None:
            state.clear()
        else:
            state.update(self._row(*change[KEY], *value, *(window or ()), change[TIME]))

    def value(self, state: ValueState[Any], change: Change) -> tuple[Any, ...] | None:
        """Return the columns beside the key that the state has for the key of a change."""
        if change[WINDOW] is not None:
            state = state.namespace(change[WINDOW])
        row = state.value()
        return None if row is None else attrs.astuple(row, recurse=False)[self._first : self._end]


def _row_class(columns: Sequence[tuple[str, SqlType]]) -> type:
    """Return the class of a row; fields of names that Python does not have are named alike."""
    fields: dict[str, Any] = {}
    for number, (name, type_) in enumerate(columns):
        field = re.sub(r"\W", "_", name)
        if not field.isidentifier() or keyword.iskeyword(field):
            field = f"c_{field}"
        while field in fields:
            field += "_"
        # A column that is added later is null in the rows that are there.
        fields[field] = attrs.field(type=_type(type_) | None, default=None, alias=f"column_{number}")
    return attrs.make_class("Row", fields, frozen=True)


def _type(type_: SqlType) -> Any:
    if type_.base == "ARRAY":
        inner = _type(type_.element)
        return object if inner is object else list[inner | None]  # type: ignore[valid-type]
    if type_.base == "MAP":
        key, inner = map(_type, type_.parts)
        return object if inner is object or type_.parts[0].base in ("ARRAY", "MAP") else dict[key, inner | None]  # type: ignore[valid-type]
    return _TYPES.get(type_.base, object)
