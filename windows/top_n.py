"""Top-N: the rows of each window, or of any other key, with the greatest values of a column."""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyed import MIN_TIMESTAMP
from keyed.errors import DefinitionError
from keyed.extending import Schema
from keyed.vectorized import TIMESTAMP_COLUMN, BatchContext, TableState, VectorizedFunction
from keyed.windows.window import check_count

if TYPE_CHECKING:
    import pyarrow as pa

_TIME = "row.time"


class TopN(VectorizedFunction):
    """Ranks the rows of each key and emits the first ``n``, with a column ``rank`` from 1.

    For the results of windows: ``counts.key_by("window_start", "window_end").process(TopN(10, by="count", item="item",
    columns=WindowCount), output=Ranked)``. Rows wait until the watermark reaches their timestamps, when the window is
    complete. They are ranked by ``by`` descending (null last), then by ``item`` ascending; a row replaces a waiting
    one of its key and item. Rows without a timestamp (processing-time windows) are ranked with those of their batch,
    which has all of their window.

    Args:
        n: Number of rows of a key, at least 1.
        by: The column whose greatest values come first.
        item: The column that identifies a row of a key.
        columns: The input's columns: a DDL string, `StructType`, attrs class or dataclass.
        keys: The key's columns.

    Raises:
        DefinitionError: ``n`` is below 1, or a column is not among the input's.
    """

    def __init__(
        self, n: int, *, by: str, item: str, columns: Any, keys: tuple[str, ...] = ("window_start", "window_end")
    ) -> None:
        self.n = check_count(n, "n", "row")
        self.by = by
        self.item = item
        self.keys = keys
        schema = TableState(columns, key=(*keys, item)).schema
        if not isinstance(schema, Schema):
            raise DefinitionError(
                f"columns={columns!r}: give a DDL string, a StructType, an attrs class or a dataclass"
            )
        if by not in schema.names:
            raise DefinitionError(f"by={by!r} is not one of the columns {', '.join(schema.names)}")
        self.waiting = TableState(f"{schema.ddl}, `{_TIME}` bigint", key=(*keys, item))
        self._columns = schema.names
        self._table: Any = None

    def process_batch(self, table: pa.Table, ctx: BatchContext) -> None:
        # Most rows arrive in the batch whose watermark they wait for, so they are not stored before that is known.
        self._table = table

    def on_watermark(self, watermark: int, ctx: BatchContext) -> None:
        import pyarrow as pa

        from keyed.windows.vectorized.row_groups import grouped, pc, plain_column

        due = self.waiting.take((_TIME, "<=", watermark))
        table, self._table = self._table, None
        if table is not None:
            # A row without a timestamp has the lowest one, so that it does not wait.
            times: Any = pa.repeat(MIN_TIMESTAMP, table.num_rows)
            if TIMESTAMP_COLUMN in table.column_names:
                times = table.column(TIMESTAMP_COLUMN).fill_null(MIN_TIMESTAMP)
            table = table.select(list(self._columns)).append_column(_TIME, times).cast(due.schema)
            is_due = pc.less_equal(table.column(_TIME), pa.scalar(watermark, pa.int64()))
            self.waiting.upsert(table.filter(pc.invert(is_due)))
            due = pa.concat_tables([due, table.filter(is_due)])
            # The last row of each key and item counts.
            groups = grouped([plain_column(due.column(name)) for name in (*self.keys, self.item)])
            if groups.count < due.num_rows:
                due = due.take(pa.array(groups.last_rows()))
        if due.num_rows:
            ctx.emit(self._ranked(due))

    def _ranked(self, rows: pa.Table) -> pa.Table:
        """Return the first rows of each key with their ranks."""
        import numpy as np
        import pyarrow as pa

        from keyed.windows.vectorized.row_groups import grouped, integers, pc, plain_column

        ids = grouped([plain_column(rows.column(name)) for name in self.keys]).ids
        order = pc.sort_indices(
            pa.table([pa.array(ids), rows.column(self.by), rows.column(self.item)], names=["key", "by", "item"]),
            sort_keys=[("key", "ascending"), ("by", "descending"), ("item", "ascending")],
        )
        ordered = ids[integers(order)]
        rank = np.arange(len(ids)) - np.searchsorted(ordered, ordered) + 1
        chosen = np.flatnonzero(rank <= self.n)
        first = rows.take(order.take(pa.array(chosen)))
        times = first.column(_TIME)
        is_timed = pc.not_equal(times, pa.scalar(MIN_TIMESTAMP, pa.int64()))
        return (
            first.drop_columns([_TIME])
            .append_column("rank", pa.array(rank[chosen]))
            .append_column(TIMESTAMP_COLUMN, pc.if_else(is_timed, times, pa.scalar(None, pa.int64())))
        )
