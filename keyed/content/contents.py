"""All that a key group holds, entries and rows of tables alike: as blocks, as a hash, and as what a store applies.

pyarrow is imported with `keyed.tables`, so only where there are tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from keyed.content.addresses import key_of
from keyed.content.blocks import BLOCK_BYTES, Block, Change, TableBlock, TableChange
from keyed.content.entry_hash import MODULUS, hash_sum
from keyed.content.local_store import ReadStore

if TYPE_CHECKING:
    from keyed.tables.chunks import TableDelta


def table_keys(states: dict[str, Any]) -> dict[int, tuple[str, ...]]:
    """The key columns of the tables among described states (`GroupMeta.states`), by state id."""
    tables = (state for state in states.values() if state["schema"]["kind"] == "table")
    return {int(state["id"]): tuple(state["schema"]["key"]) for state in tables}


def contents(store: ReadStore, states: dict[str, Any]) -> Iterator[Block]:
    """Everything that a store holds, in blocks of about `BLOCK_BYTES`."""
    entries: list[Change] = []
    size = 0
    for entry in store.items():
        entries.append(entry)
        size += len(entry[0]) + len(entry[1]) + len(entry[2]) + 8
        if size >= BLOCK_BYTES:
            yield entries
            entries, size = [], 0
    if entries:
        yield entries
    for delta in _tables(store, states):
        from keyed.content.table_blocks import blocks_of

        yield from (change.block for change in blocks_of(delta))


def stored_key(store: ReadStore, states: dict[str, Any], stream_keys: int) -> Any:
    """One of the keys that a store holds, ``None`` if it holds nothing.

    Args:
        store: The store.
        states: Descriptions of the states.
        stream_keys: Number of key columns of the stream.
    """
    for prefix, _, _ in store.items():
        return key_of(prefix)
    for delta in _tables(store, states):
        from keyed.tables.batches import first_key

        assert delta.upserts is not None
        return first_key(delta.upserts, delta.keys[:stream_keys])
    return None


def contents_hash(store: ReadStore, states: dict[str, Any]) -> int:
    """The hash of everything that a store holds."""
    total = hash_sum(store.items())
    for delta in _tables(store, states):
        from keyed.tables.row_hash import rows_hash

        assert delta.upserts is not None
        total += rows_hash(delta.upserts, delta.state_id)
    return total % MODULUS


def delta_of_block(block: TableBlock, keys: dict[int, tuple[str, ...]], where: str) -> TableDelta:
    """A block of table rows as what a store applies.

    Args:
        block: The block.
        keys: The key columns of the tables, by state id.
        where: For messages.

    Raises:
        CorruptionError: The rows cannot be read.
    """
    from keyed.content.table_blocks import delta_of

    return delta_of(TableChange(keys[block.state_id], (), block), where)


def _tables(store: ReadStore, states: dict[str, Any]) -> Iterator[TableDelta]:
    """The rows of the tables, in parts."""
    for state_id, keys in table_keys(states).items():
        table = store.table(state_id)
        for _, rows in table.select(None) if table is not None else ():
            from keyed.tables.chunks import TableDelta

            if rows.num_rows:
                yield TableDelta(state_id, keys, upserts=rows)
