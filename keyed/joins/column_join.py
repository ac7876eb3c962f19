"""Base of the joins over whole columns: the tables of the two sides, late rows, and outputs of pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keyed.errors import TimestampError, UserFunctionError
from keyed.extending import Schema, inner_state, table_of, table_rows
from keyed.joins.join_path import OWN, JoinPlan
from keyed.joins.matching import Numbers
from keyed.joins.pairs import Pairing
from keyed.joins.select import Select
from keyed.vectorized import TIMESTAMP_COLUMN, BatchContext, TableState, VectorizedCoFunction

TIME, NUMBER = f"{OWN}time", f"{OWN}number"
#: Number of outputs that are Python objects at a time.
_OUTPUTS = 8192
#: Number of outputs of a `Select` that are copied at a time.
_SELECTED = 65536
#: The greatest distance of a timestamp from 1970, so that sums with the bounds of a join fit into 64 bits.
MOST_TIME = 2**62


class ColumnJoin(VectorizedCoFunction):
    """A join over whole columns.

    Waiting rows are in one table per side, with their time and a number in order of arrival, which is unique within a
    key and time.

    Args:
        plan: The streams and the output.
    """

    #: Returns the output of a pair, of joins that have pairs.
    _pairing: Pairing

    def __init__(self, plan: JoinPlan) -> None:
        self._plan = plan
        self.known_side_outputs = {tag.name for tag in plan.late if tag is not None}

    def __repr__(self) -> str:
        return self._plan.shown

    def state(self, side: int, name: str, key: Iterable[str], **own: str) -> TableState:
        """Return the table of a side, with further columns after those of the stream.

        Args:
            side: The side.
            name: Name of the state.
            key: Further columns that are part of the key.
            own: Types of the further columns.
        """
        columns = self._plan.sides[side].stored | {OWN + column: type_ for column, type_ in own.items()}
        table = TableState(Schema(tuple(columns.items())).ddl, key=(*self.keys, *key), name=name)
        return table if self._plan.is_shown else inner_state(table, is_shown=False)

    @property
    def keys(self) -> tuple[str, ...]:
        """The key columns of both tables."""
        return self._plan.sides[0].keys

    def arrived(self, side: int, table: pa.Table | None, ctx: BatchContext, first_in_time: int) -> pa.Table | None:
        """Return the rows of a side that are not late, in their stored form without a number; late rows are diverted.

        Raises:
            TimestampError: A row has no timestamp.
        """
        if table is None:
            return None
        if TIMESTAMP_COLUMN not in table.column_names or table.column(TIMESTAMP_COLUMN).null_count:
            raise TimestampError("the join uses event time, and the element has no timestamp; give stream(timestamp=)")
        bounds: Any = pc.min_max(table.column(TIMESTAMP_COLUMN)).as_py()
        if not -MOST_TIME <= bounds["min"] <= bounds["max"] <= MOST_TIME:
            raise TimestampError(
                f"a timestamp is more than 2^62 ms from 1970 ({bounds['min']} to {bounds['max']}): joins over whole "
                "columns do not support it; use path='row'"
            )
        late: Any = pc.less(table.column(TIMESTAMP_COLUMN), pa.scalar(first_in_time, pa.int64()))
        if pc.any(late).as_py():
            self.divert(side, table.filter(late), ctx)
            table = table.filter(pc.invert(late))
        return self.stored(side, table) if table.num_rows else None

    def stored(self, side: int, table: pa.Table) -> pa.Table:
        """Return rows of a stream in their stored form, with their time."""
        of = self._plan.sides[side]
        columns: dict[str, Any] = {of.stored_name(name): _whole_microseconds(table.column(name)) for name in of.columns}
        return pa.table(columns | {TIME: table.column(TIMESTAMP_COLUMN)})

    def no_rows(self, side: int) -> pa.Table:
        """Return no rows of a side, in their stored form."""
        return table_of([], Schema((*self._plan.sides[side].stored.items(), (TIME, "bigint"))))

    def divert(self, side: int, late: pa.Table, ctx: BatchContext) -> None:
        """Route late rows to the side output, or count them as dropped."""
        tag = self._plan.late[side]
        if tag is None:
            ctx.drop(late.num_rows)
        else:
            ctx.output(tag, late)

    def rows(self, side: int, table: pa.Table, numbers: Numbers | None = None) -> list[Any]:
        """Return stored rows as elements of the stream.

        Args:
            side: The side.
            table: The rows.
            numbers: Their numbers, with repetitions, −1 for ``None``; all by default.
        """
        of = self._plan.sides[side]
        columns: dict[str, Any] = {name: table.column(of.stored_name(name)) for name in of.columns}
        table = pa.table(columns)
        if numbers is None:
            return table_rows(table)
        used, places = np.unique(numbers, return_inverse=True)
        lacks = len(used) > 0 and used[0] < 0
        elements = [*([None] if lacks else []), *table_rows(table.take(used[int(lacks) :]))]
        return [elements[place] for place in places.tolist()]

    def emit(self, ctx: BatchContext, values: list[Any], times: Numbers) -> None:
        """Emit outputs with their times."""
        if values:
            ctx.emit(table_of(values, self._plan.output).append_column(TIMESTAMP_COLUMN, pa.array(times)))

    def emit_pairs(
        self, ctx: BatchContext, lefts: tuple[pa.Table, Numbers], rights: tuple[pa.Table, Numbers], times: Numbers
    ) -> None:
        """Emit the outputs of pairs.

        Args:
            ctx: Receives them.
            lefts: Stored rows of the left side, and the position of each pair's left row, −1 for none.
            rights: The same for the right side.
            times: The time of each pair.
        """
        # Each `take` from a column of several chunks would copy the whole column first.
        stored, join = (lefts[0].combine_chunks(), rights[0].combine_chunks()), self._pairing.join
        select = join if isinstance(join, Select) and self._has_types(join, stored) else None
        size = _OUTPUTS if select is None else _SELECTED
        for start in range(0, len(times), size):
            part = slice(start, start + size)
            places = lefts[1][part], rights[1][part]
            if select is not None:
                ctx.emit(self.selected(select, stored, places).append_column(TIMESTAMP_COLUMN, pa.array(times[part])))
                continue
            left, right = (self.rows(side, stored[side], places[side]) for side in (0, 1))
            values, times_of_values = joined(join, left, right), times[part]
            if None in values:
                outputs = [place for place, value in enumerate(values) if value is not None]
                values, times_of_values = [values[place] for place in outputs], times_of_values[outputs]
            self.emit(ctx, values, times_of_values)

    def _has_types(self, select: Select, stored: tuple[pa.Table, pa.Table]) -> bool:
        """Return true if the output has the types of the selected columns."""
        none = np.empty(0, dtype=np.int64)
        types = self.selected(select, stored, (none, none)).schema.types
        return types == table_of([], self._plan.output).schema.types

    def selected(self, select: Select, stored: tuple[pa.Table, pa.Table], places: tuple[Numbers, Numbers]) -> pa.Table:
        """Return the selected columns of pairs."""
        indices = [pa.array(of, pa.int64(), mask=of < 0) for of in places]

        def cells(side: int, name: str) -> Any:
            return stored[side].column(self._plan.sides[side].stored_name(name)).take(indices[side])

        columns = [pc.coalesce(cells(0, name), cells(1, name)) for name in select.either]
        columns += [cells(0, name) for name in select.left] + [cells(1, name) for name in select.right]
        return pa.table(columns, names=list(self._plan.output.names)[: len(columns)])


def _whole_microseconds(column: Any) -> Any:
    """Return a column with times at the precision of Python's datetimes, as on the row path."""
    type_ = column.type
    if pa.types.is_timestamp(type_) and type_.unit == "ns":
        return column.cast(pa.timestamp("us", type_.tz), safe=False)
    return column


def joined(join: Callable[[Any, Any], Any], lefts: list[Any], rights: list[Any]) -> list[Any]:
    """Return a function's outputs for pairs.

    Raises:
        UserFunctionError: It raised.
    """
    outputs = []
    for left, right in zip(lefts, rights, strict=True):
        try:
            outputs.append(join(left, right))
        except Exception as error:
            raise UserFunctionError(f"join of {left!r} and {right!r}: {type(error).__name__}: {error}") from error
    return outputs


def numbered(table: pa.Table, stored: pa.Table) -> pa.Table:
    """Return rows with numbers that continue those of the stored rows."""
    highest = pc.max(stored.column(NUMBER)).as_py()
    first = 0 if highest is None else highest + 1
    return table.append_column(NUMBER, pa.array(np.arange(first, first + table.num_rows)))


def integers(table: pa.Table, name: str) -> Numbers:
    """Return a column of integers without null."""
    column: Numbers = table.column(name).to_numpy()
    return column


def in_order(table: pa.Table, *names: str) -> pa.Table:
    """Return rows sorted by columns of integers, the first one first."""
    return table.take(np.lexsort([integers(table, name) for name in reversed(names)]))
