"""Outputs of the local runtime as rows, so that they look as they do on Spark."""

from __future__ import annotations

from typing import Any

from keyed.errors import OutputDefinitionError
from keyed.outputs import Schema
from keyed.rows import row_class


def as_rows(values: list[Any], schema: Schema | None, operator: str) -> list[Any]:
    """Emitted tuples and dictionaries as rows of the declared columns; other objects as they are.

    Args:
        values: What was emitted.
        schema: The declared columns; without them nothing is changed.
        operator: Name of the operator, for messages.

    Raises:
        OutputDefinitionError: A tuple or dictionary does not have the columns.
    """
    if schema is None:
        return values
    names = schema.names
    make = row_class(names)
    width = len(names)
    if set(map(type, values)) == {tuple} and set(map(len, values)) == {width}:
        return list(map(make, values))
    rows = []
    for value in values:
        kind = value.__class__
        if kind is tuple:
            if len(value) != width:
                raise OutputDefinitionError(
                    f"operator {operator!r}: output {value!r} has {len(value)} values for {width} columns: "
                    f"{', '.join(names)}"
                )
            rows.append(make(value))
        elif kind is dict:
            missing = [name for name in names if name not in value]
            if missing:
                raise OutputDefinitionError(f"operator {operator!r}: output {value!r} lacks column {missing[0]!r}")
            rows.append(make([value[name] for name in names]))
        else:
            rows.append(value)
    return rows
