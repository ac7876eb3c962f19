"""Conditions over the columns of tables, with the expressions of scripts: for operators of libraries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from keyed.expressions.engine import Columns, SqlStep, bind
from keyed.expressions.tokens import Text, sql, tokens
from keyed.formats.sql_types import BOOLEAN, of_arrow


@attrs.frozen(eq=False)
class RowConditions:
    """Conditions over the columns of a table.

    Attributes:
        columns: The columns that they read.
        expressions: The conditions.
    """

    columns: Columns
    expressions: tuple[str, ...]

    def __call__(self, table: pa.Table) -> list[tuple[Any, Any]]:
        """Return two masks for each condition, as numpy arrays: of the rows for which it holds, and for which it fails.

        It does not hold where it is null.
        """
        # A table without columns has no rows.
        cells: dict[str, Any] = {"#row": pa.repeat(True, table.num_rows)}
        cells |= {name: table.column(name).cast(type_.arrow_with(TIME=pa.time64("us"))) for name, type_ in self.columns}
        rows = pa.table(cells)
        results, bad = _step(self.expressions).run(rows)
        if not bad:
            failed = np.zeros(table.num_rows, dtype=bool)
            return [(_mask(column), failed) for column in results.columns]
        masks = []
        for expression in self.expressions:
            results, bad = _step([expression]).run(rows)
            failed = np.zeros(table.num_rows, dtype=bool)
            failed[[place for place, _ in bad]] = True
            holds = np.zeros(table.num_rows, dtype=bool)
            holds[~failed] = _mask(results.column(0))
            masks.append((holds, failed))
        return masks


def conditions_over(schema: pa.Schema, texts: Sequence[str]) -> RowConditions:
    """Return conditions over the columns of tables of a schema.

    Args:
        schema: The schema.
        texts: The conditions: expressions as in scripts, each over one row.

    Raises:
        SqlError: One is not valid, is no condition, or would read more than its row.
    """
    types = ((field.name, of_arrow(field.type)) for field in schema)
    columns: Columns = tuple((name, type_) for name, type_ in types if type_ is not None)
    named: set[str] = set()
    expressions = []
    for each in texts:
        text = Text(each)
        words = tokens(text)[:-1]
        if not words:
            text.fail("the condition is empty", 0)
        type_ = bind(text, columns, words, {})
        if type_ != BOOLEAN:
            text.fail(f"a condition is of type BOOLEAN, and this is of type {type_}", 0)
        named.update(word.identifier.lower() for word in words if word.is_identifier)
        expressions.append(sql(words))
    return RowConditions(tuple(each for each in columns if each[0].lower() in named), tuple(expressions))


def _step(expressions: Sequence[str]) -> SqlStep:
    return SqlStep(tuple((f"#{place}", text, BOOLEAN) for place, text in enumerate(expressions)))


def _mask(column: Any) -> Any:
    return column.combine_chunks().fill_null(False).to_numpy(zero_copy_only=False)
