"""Changes of a key group, both entries and rows of tables: read from blocks, written to blocks, applied, folded."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from keyed.base.ids import random_id
from keyed.codec.arrow_streams import read_stream, write_stream
from keyed.content.addresses import TIMER_PROCESSING
from keyed.content.blocks import BLOCK_BYTES, Block, Change, LogBlock, TableBlock, TableChange, TableDelta, cut
from keyed.content.local_store import Applies
from keyed.errors import CorruptionError

if TYPE_CHECKING:
    import pyarrow as pa


OVERHEAD = 8
"""The overhead of an entry, in bytes."""
#: Maximal number of entries and rows, and of deltas, that are applied to a store at a time.
_RECORDS, _DELTAS = 20_000, 16


@attrs.frozen
class Delta:
    """Changes of a key group, later ones winning.

    Attributes:
        entries: Changed entries.
        tables: Changed rows of tables.
    """

    entries: list[Change] = attrs.field(factory=list)
    tables: list[TableDelta] = attrs.field(factory=list)

    @property
    def records(self) -> int:
        """The number of entries and rows."""
        return len(self.entries) + sum(table.records for table in self.tables)

    @property
    def timers(self) -> int:
        """Number of timers among the entries."""
        return sum(prefix[0] >= TIMER_PROCESSING for prefix, _, _ in self.entries)

    @property
    def size(self) -> int:
        """The size of the entries and the written rows in the counter of live bytes."""
        size = sum(len(prefix) + len(sub) + len(value or b"") + OVERHEAD for prefix, sub, value in self.entries)
        for table in self.tables:
            from keyed.content.row_hash import row_bytes

            size += row_bytes(table.upserts) if table.upserts is not None else 0
        return size

    def log_blocks(self) -> Iterator[tuple[int, LogBlock]]:
        """Yield the changes as blocks of a key group's log of about a megabyte, with the bytes of each."""
        yield from cut(self.entries)
        for table in self.tables:
            ranges = table.ranges
            for rows, is_removed in ((table.removed, True), (table.upserts, False)):
                for part in _parts(rows) if rows is not None else ():
                    data = write_stream(part)
                    streams = (data, None) if is_removed else (None, data)
                    block = TableBlock(table.state_id, part.num_rows, *streams)
                    yield 64 + len(data), TableChange(table.keys, ranges, block)
                    ranges = ()
            if ranges:
                yield 64, TableChange(table.keys, ranges, TableBlock(table.state_id, 0, None, None))

    def blocks(self) -> Iterator[Block]:
        """Yield the changes as blocks of a changelog. No ranges are removed in them."""
        return (exported(block) for _, block in self.log_blocks())

    def by_group(
        self, groups: Collection[int], of_prefix: Callable[[bytes], Collection[int]], of_rows: Callable[[pa.Table], Any]
    ) -> dict[int, Delta]:
        """Return the parts that belong to some key groups.

        Args:
            groups: Indices of the groups.
            of_prefix: Returns the groups of an entry by its prefix: one, or several for a broadcast state.
            of_rows: Returns the group of each row, as a numpy array.
        """
        parts = {group: Delta() for group in groups}
        for change in self.entries:
            for index in of_prefix(change[0]):
                part = parts.get(index)
                if part is not None:
                    part.entries.append(change)
        for table in self.tables:
            removed, upserts = (
                None if rows is None else (rows, of_rows(rows)) for rows in (table.removed, table.upserts)
            )
            for group, part in parts.items():
                removals, written = (
                    None if side is None else side[0].filter(side[1] == group) for side in (removed, upserts)
                )
                part.tables.append(attrs.evolve(table, removed=removals, upserts=written))
        return parts


def _parts(table: pa.Table) -> Iterator[pa.Table]:
    from keyed.content.row_hash import row_bytes

    size = max(1, table.num_rows * BLOCK_BYTES // max(1, row_bytes(table)))
    for start in range(0, table.num_rows, size):
        yield table.slice(start, size)


def exported(block: LogBlock) -> Block:
    """Return the changelog form of a block of a key group's log, which removes no ranges."""
    return block.block if isinstance(block, TableChange) else block


def described_tables(states: dict[str, Any], where: str = "") -> dict[int, dict[str, Any]]:
    """Return the tables among described states (`GroupMeta.states`), by state id.

    Args:
        states: The descriptions, by name.
        where: For messages.

    Raises:
        CorruptionError: They do not describe states.
    """
    try:
        tables = (state for state in states.values() if state["schema"]["kind"] == "table")
        return {int(state["id"]): state for state in tables if isinstance(state["schema"]["key"], list)}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CorruptionError(f"{states!r:.200} does not describe states ({error!r})", where=where) from error


def table_keys(states: dict[str, Any], where: str = "") -> dict[int, tuple[str, ...]]:
    """Return the key columns of the tables among described states, as `described_tables` finds them."""
    return {state_id: tuple(state["schema"]["key"]) for state_id, state in described_tables(states, where).items()}


def deltas(blocks: Iterable[Block | LogBlock], states: dict[str, Any], where: str) -> Iterator[Delta]:
    """Yield the changes of blocks, one delta for each.

    Args:
        blocks: The blocks.
        states: Descriptions of the states, by name. Blocks of a key group's log need none.
        where: For messages.

    Raises:
        CorruptionError: The rows of a table cannot be read, or belong to a state that is not a table.
    """
    keys = table_keys(states, where)
    for block in blocks:
        if isinstance(block, TableBlock):
            if block.state_id not in keys:
                raise CorruptionError(f"there are rows of state {block.state_id}, which is not a table", where=where)
            yield Delta(tables=[_table_delta(TableChange(keys[block.state_id], (), block), where)])
        elif isinstance(block, TableChange):
            yield Delta(tables=[_table_delta(block, where)])
        else:
            yield Delta(block)


def _table_delta(change: TableChange, where: str) -> TableDelta:
    streams = change.block.removed, change.block.written
    removed, upserts = (None if data is None else read_stream(data, where) for data in streams)
    return TableDelta(change.block.state_id, change.keys, change.ranges, removed, upserts)


class Applying:
    """Applies deltas to a store, many at a time.

    Until `finish` the store has a position that no log has, so that it is not used with only a part of the deltas.

    Args:
        store: The store.
        log_id: Identity of the log.
        row: The position of the store in it after the last delta.
    """

    def __init__(self, store: Applies, log_id: str, row: int) -> None:
        self._store = store
        self._log_id = log_id
        self._row = row
        # Another process that applies the same log cannot continue from a part of this one.
        self._part = f"part {random_id()} of {log_id}"
        self._waiting = Delta()
        self._records = self._deltas = 0

    def add(self, delta: Delta) -> None:
        """Add the next delta, of about a megabyte at most."""
        if self._records >= _RECORDS or self._deltas >= _DELTAS:
            self.flush()
        self._waiting.entries.extend(delta.entries)
        self._waiting.tables.extend(delta.tables)
        records = delta.records
        self._records += records
        self._deltas += records > 0

    def flush(self) -> None:
        """Apply the added deltas."""
        self._apply(self._part)

    def finish(self) -> None:
        """Apply the last added deltas, with the position."""
        self._apply(self._log_id)

    def _apply(self, log_id: str) -> None:
        self._store.apply(log_id, self._row, self._waiting.entries, self._waiting.tables)
        self._waiting, self._records, self._deltas = Delta(), 0, 0


def apply_blocks(
    store: Applies, log_id: str, row: int, blocks: Iterable[Block | LogBlock], states: dict[str, Any], where: str
) -> None:
    """Apply blocks to a store, with `Applying`.

    Args:
        store: The store.
        log_id: Identity of the log, for the store's position.
        row: The position in it.
        blocks: The blocks.
        states: Descriptions of the states, by name. Blocks of a key group's log need none.
        where: For messages.

    Raises:
        CorruptionError: The rows of a table cannot be read.
    """
    applying = Applying(store, log_id, row)
    for delta in deltas(blocks, states, where):
        applying.add(delta)
    applying.finish()


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
