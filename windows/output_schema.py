"""The output columns of a windowed stream, as far as they follow from its input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keyed import DefinitionError, OutputDefinitionError, Schema
from windows.definition import Definition
from windows.window import GlobalWindow


def output_schema(definition: Definition, columns: Mapping[str, Any] | None, *, strict: bool) -> Schema | None:
    """The columns of the rows of named aggregates; ``None`` where they are not known.

    Args:
        definition: The operator.
        columns: The input's columns.
        strict: Whether not to know them is an error.

    Raises:
        OutputDefinitionError: The input lacks a column, or a type does not follow from the input.
    """
    if definition.names is None or definition.process is not None or columns is None:
        return None
    types: list[tuple[str, str | None]] = [(name, columns.get(name)) for name in definition.key_names]
    if definition.assigner.window_type is not GlobalWindow:
        kind = "timestamp" if definition.timestamps else "bigint"
        types += [("window_start", kind), ("window_end", kind)]
    pairs = zip(definition.names, definition.aggregates, strict=True)
    types += [(name, aggregate.output_type(columns)) for name, aggregate in pairs]
    known: list[tuple[str, str]] = []
    for name, type_ in types:
        if type_ is None:
            if strict:
                raise OutputDefinitionError(
                    f"the type of output column {name!r} does not follow from the input; give it as type=... to the "
                    "aggregate, or all columns as output=..."
                )
            return None
        known.append((name, type_))
    return Schema(tuple(known))


def row_timestamps(output: Schema) -> bool:
    """Whether the output's window bounds are timestamps.

    Raises:
        DefinitionError: ``window_start`` and ``window_end`` are of different kinds.
    """
    kinds = {type_.startswith("timestamp") for name, type_ in output.columns if name in ("window_start", "window_end")}
    if len(kinds) > 1:
        raise DefinitionError("window_start and window_end must both be timestamp or both bigint")
    return kinds == {True}
