"""Table rows folded: the changes of a table state made into blocks that say how its rows are in the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from keyed.codec.arrow_streams import read_stream, write_stream
from keyed.content.blocks import TableBlock
from keyed.errors import CorruptionError

_ORDER, _LIVE = "__keyed_order", "__keyed_live"
_BLOCK_ROWS = 1 << 15


def fold_tables(blocks: Sequence[TableBlock], states: dict[str, Any], where: str) -> Iterator[TableBlock]:
    """Fold the changes of tables. All rows of a table are in memory while it is folded.

    Args:
        blocks: Blocks of any number of tables, in order, beginning with empty tables.
        states: Descriptions of the states with their ids, by name: they have the tables' keys.
        where: For messages.

    Yields:
        Blocks with the live rows alone.

    Raises:
        CorruptionError: A block belongs to no table, or holds something else than its rows.
    """
    try:
        keys = {state["id"]: state["schema"]["key"] for state in states.values()}
    except (KeyError, TypeError) as error:
        raise CorruptionError(f"{states!r:.200} does not describe states ({error!r})", where=where) from error
    changed = [block for block in blocks if block.rows]
    for state_id in sorted({block.state_id for block in changed}):
        if not isinstance(keys.get(state_id), list):
            raise CorruptionError(f"there are rows of state {state_id}, which is no table", where=where)
        rows = _live_rows([block for block in changed if block.state_id == state_id], keys[state_id], where)
        for start in range(0, rows.num_rows, _BLOCK_ROWS):
            part = rows.slice(start, _BLOCK_ROWS)
            yield TableBlock(state_id, part.num_rows, None, write_stream(part))


def _live_rows(blocks: Sequence[TableBlock], keys: list[str], where: str) -> Any:
    """The rows of one table after all blocks."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    parts = []
    for block in blocks:
        for data, live in ((block.removed, False), (block.written, True)):
            if data is not None:
                rows = read_stream(data, where)
                parts.append(rows.append_column(_LIVE, pa.array(np.full(rows.num_rows, live))))
    try:
        # A column that was added is null in the rows before.
        table = pa.concat_tables(parts, promote_options="default")
        numbered = table.select(keys).append_column(_ORDER, pa.array(np.arange(table.num_rows)))
        last = numbered.group_by(keys).aggregate([(_ORDER, "max")]).column(f"{_ORDER}_max")
        table = table.take(last.combine_chunks().sort())
        return table.filter(pc.field(_LIVE)).drop_columns([_LIVE])
    except (pa.ArrowException, KeyError) as error:
        raise CorruptionError(f"rows of a table do not fit together: {error}", where=where) from error
