"""Conditions over columns: they are computed for a whole batch, before its rows are keyed.

`EvaluatedSteps` adds a column with a number for each row: two bits for each condition, the lower one if it holds and
the upper one if it failed. If a row that satisfies none of them cannot change a partial match, it is left out.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import attrs

from keyed.errors import DefinitionError, SqlError, UserFunctionError
from keyed.extending import schema_of, table_of
from keyed.patterns.pattern_conditions import ColumnCondition, parts_of
from keyed.patterns.steps import StepSequence, every_step

if TYPE_CHECKING:
    import pyarrow as pa

_MOST = 31


def column_conditions(pattern: StepSequence) -> list[ColumnCondition]:
    """Return the conditions over columns of a pattern, in the order of its steps."""
    conditions = [each for step in every_step(pattern) for each in (step.condition, step.until) if each is not None]
    parts = dict.fromkeys(part for each in conditions for part in parts_of(each) if isinstance(part, ColumnCondition))
    return list(parts)


@attrs.frozen(eq=False)
class EvaluatedSteps:
    """The function of tables that computes the conditions.

    Attributes:
        conditions: The conditions.
        drops: True if rows that satisfy none of them are left out.
        column: The name of the column, which differs for other conditions: rows that wait keep the column.
    """

    conditions: Sequence[ColumnCondition]
    drops: bool
    column: str = attrs.field(init=False)

    @column.default
    def _name(self) -> str:
        return f"_pattern_steps_{zlib.crc32('; '.join(map(str, self.conditions)).encode()):08x}"

    def __str__(self) -> str:
        return f"steps over columns: {'; '.join(map(str, self.conditions))}"

    def output(self, columns: dict[str, str | None] | None) -> str:
        """Return the columns after it as a DDL string; check the expressions.

        Raises:
            DefinitionError: The columns are not known, or an expression is not valid over them.
        """
        if columns is None or None in columns.values():
            raise DefinitionError(
                f"a condition over columns needs the columns of the stream and their types, and they are {columns}: "
                "read a table or a DataFrame, or declare them with stream.map(..., output='card string, amount double')"
            )
        if len(self.conditions) > _MOST:
            raise DefinitionError(f"a pattern has at most {_MOST} conditions over columns, not {len(self.conditions)}")
        ddl = ", ".join(f"`{name}` {type_}" for name, type_ in columns.items())
        empty = table_of([], schema_of(ddl))
        for condition in self.conditions:
            if isinstance(condition.where, str):
                try:
                    _expressions((condition.where,), empty.schema)
                except SqlError as error:
                    raise DefinitionError(f"where={condition.where!r} of step {condition.step!r}: {error}") from error
        return f"{ddl}, `{self.column}` bigint"

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return a table with the column."""
        import numpy as np
        import pyarrow as pa

        bits: Any = np.zeros(table.num_rows, dtype="int64")
        texts = {place: each.where for place, each in enumerate(self.conditions) if isinstance(each.where, str)}
        if texts:
            masks = _expressions(tuple(texts.values()), table.schema)(table)
            for place, (holds, failed) in zip(texts, masks, strict=True):
                bits |= (holds | failed * 2) << 2 * place
        for place, condition in enumerate(self.conditions):
            if not isinstance(condition.where, str):
                bits |= np.where(_mask(condition, table), 1 << 2 * place, 0)
        if self.drops:
            kept = bits != 0
            table, bits = table.filter(pa.array(kept)), bits[kept]
        return table.append_column(self.column, pa.array(bits))


@lru_cache(64)
def _expressions(texts: tuple[str, ...], schema: pa.Schema) -> Any:
    """Return the conditions that are expressions, over tables of a schema."""
    from keyed.expressions.row_conditions import conditions_over

    return conditions_over(schema, texts)


def _mask(condition: ColumnCondition, table: pa.Table) -> Any:
    """Return the result of a function of a table."""
    import pyarrow as pa

    assert callable(condition.where)
    try:
        result = condition.where(table)
        if isinstance(result, pa.ChunkedArray):
            result = result.combine_chunks()
        if not isinstance(result, pa.BooleanArray) or len(result) != table.num_rows:
            raise TypeError(f"it returned {type(result)!s} for {table.num_rows} rows; return as many booleans")
    except Exception as error:
        raise UserFunctionError(
            f"the condition over columns of step {condition.step!r} raised {type(error).__name__}: {error}"
        ) from error
    return result.fill_null(False).to_numpy(zero_copy_only=False)
