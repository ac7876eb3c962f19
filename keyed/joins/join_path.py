"""The path of a join: row by row, or over whole columns, which costs a fraction and gives the same results.

The path is chosen in ``process``, by the known columns of the streams.
"""

from __future__ import annotations

from typing import Any

import attrs

from keyed import KeyedStream, OutputTag
from keyed.extending import Schema
from keyed.job.execution_path import kind_of

#: Types whose values are immutable and come out of a table unchanged.
_PLAIN = ("tinyint", "smallint", "int", "bigint", "decimal", "string", "binary", "boolean", "date", "timestamp")
_VALUES = (*_PLAIN, "float", "double", "timestamp_ntz")
#: Prefix of the tables' own columns.
OWN = "join."


@attrs.frozen
class Side:
    """One of the joined streams, as whole columns.

    Attributes:
        columns: Its columns with their types.
        keys: Its key columns.
        stored_keys: The names under which they are stored: those of the left side.
    """

    columns: dict[str, str]
    keys: tuple[str, ...]
    stored_keys: tuple[str, ...]

    @property
    def stored(self) -> dict[str, str]:
        """The columns in their stored form: the key first, with the names of the left side."""
        keys = {stored: self.columns[key] for stored, key in zip(self.stored_keys, self.keys, strict=True)}
        others = (name for name in self.columns if name not in self.keys)
        return keys | {self.stored_name(name): self.columns[name] for name in others}

    def stored_name(self, column: str) -> str:
        """Return the name under which a column is stored."""
        if column in self.keys:
            return self.stored_keys[self.keys.index(column)]
        # Of the right side, a column may have the name of a key column of the left one.
        return f"{OWN}right.{column}" if column in self.stored_keys else column


@attrs.frozen
class JoinPlan:
    """The streams and the output of a join over whole columns.

    Attributes:
        shown: Its representation.
        sides: The two streams.
        output: Columns of the output.
        late: Side outputs of late rows of either side; without one, late rows are dropped and counted.
        is_shown: State tables list the states of the join.
    """

    shown: str
    sides: list[Side]
    output: Schema
    late: tuple[OutputTag | None, OutputTag | None] = (None, None)
    is_shown: bool = True


def sides_of(stream: KeyedStream) -> list[Side]:
    """Return the sides of two connected streams whose columns are known (`row_reason`)."""
    return [
        Side({name: str(type_) for name, type_ in (each.columns or {}).items()}, each.key_columns, stream.key_columns)
        for each in stream.sides
    ]


def row_reason(stream: KeyedStream, output: Any, order: str) -> str | None:
    """Return the reason why a join has to run row by row; ``None`` if whole columns are possible.

    Args:
        stream: The connected streams.
        output: The columns of the output as they are declared, if they are.
        order: Order of the rows of a batch.
    """
    if not stream.key_columns:
        return "the streams are keyed by a function"
    if order != "event_time":
        return f"order={order!r}"
    if output is None:
        return "the columns of the output are not declared"
    if isinstance(output, type) and not stream.on_spark:
        return f"the outputs are objects of {output.__name__}"
    keys: list[list[str]] = []
    for name, side in zip(("left", "right"), stream.sides, strict=True):
        types = side.columns
        if types is None:
            return (
                f"the types of the columns of the {name} side are not known before it runs; an Arrow table or a "
                "DataFrame has them"
            )
        for column, type_ in types.items():
            kinds = _PLAIN if column in side.key_columns else _VALUES
            if kind_of(type_) not in kinds:
                return f"column {column!r} of the {name} side is of type {type_ or 'unknown'}"
            if column.startswith(OWN):
                return f"column {column!r} of the {name} side has a name that the join reserves"
        missing = [key for key in side.key_columns if key not in types]
        if missing:
            return f"the {name} side has no column {missing[0]!r}"
        keys.append([str(types[key]) for key in side.key_columns])
    return None if keys[0] == keys[1] else "the keys of the two sides are of different types"
