"""Folds changes of a key group to the newest change of each address and row."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from keyed.content.blocks import Change, TableDelta
from keyed.content.delta import Delta
from keyed.errors import CorruptionError

if TYPE_CHECKING:
    import pyarrow as pa

#: Entries in a delta of folded changes.
_ENTRIES = 8192
_ORDER, _LIVE = "__keyed_order", "__keyed_live"
_Overlay = dict[tuple[bytes, bytes], bytes | None]


class DeltaFold:
    """The newest change of each address and row. Changes are applied to it as to a store."""

    def __init__(self) -> None:
        self._entries: _Overlay = {}
        self._tables: list[TableDelta] = []

    def apply(self, _log_id: str, _row: int, changes: Iterable[Change], tables: Sequence[TableDelta] = ()) -> None:
        """See `Applies.apply`."""
        self._entries.update(((prefix, sub), value) for prefix, sub, value in changes)
        self._tables += tables

    def onto(self, base: Iterable[Delta], where: str) -> Iterator[Delta]:
        """Yield the state after the changes are applied to another one. Holds all rows of tables in memory.

        Args:
            base: A whole state, its entries in the order of their addresses.
            where: For messages.

        Raises:
            CorruptionError: The columns of a table's rows have conflicting types.
        """
        addresses, position = sorted(self._entries), 0
        entries: list[Change] = []
        tables: list[TableDelta] = []
        for delta in base:
            tables += delta.tables
            block = delta.entries
            end = bisect_right(addresses, block[-1][:2], position) if block else position
            if end == position:
                entries += block
            else:
                live: _Overlay = {(prefix, sub): value for prefix, sub, value in block}
                live.update((address, self._entries[address]) for address in addresses[position:end])
                entries += _live_entries(live, sorted(live))
                position = end
            if len(entries) >= _ENTRIES:
                yield Delta(entries)
                entries = []
        entries += _live_entries(self._entries, addresses[position:])
        if entries:
            yield Delta(entries)
        tables += self._tables
        keys = {table.state_id: table.keys for table in tables if table.records}
        for state_id in sorted(keys):
            changed = [table for table in tables if table.state_id == state_id]
            rows = _live_rows(changed, list(keys[state_id]), where)
            yield Delta(tables=[TableDelta(state_id, keys[state_id], upserts=rows)])


def _live_entries(entries: _Overlay, addresses: Iterable[tuple[bytes, bytes]]) -> list[Change]:
    return [(*address, value) for address in addresses if (value := entries[address]) is not None]


def _live_rows(changes: Sequence[TableDelta], keys: list[str], where: str) -> pa.Table:
    """Return the rows of an empty table after changes."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    parts = []
    for change in changes:
        for rows, live in ((change.removed, False), (change.upserts, True)):
            if rows is not None:
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
