"""What is changed of a key group, entries and rows of tables alike."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import attrs

from keyed.content.blocks import Block, Change, TableBlock
from keyed.content.contents import delta_of_block, table_keys
from keyed.content.local_store import LocalStore

if TYPE_CHECKING:
    import pyarrow as pa

    from keyed.tables.chunks import TableDelta

#: Blocks that are applied at a time. A block has about a megabyte at most.
_BLOCKS = 8


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
        parts = (rows for table in self.tables for rows in (table.removed, table.upserts))
        return len(self.entries) + sum(rows.num_rows for rows in parts if rows is not None)

    def by_group(
        self,
        groups: Collection[int],
        of_prefix: Callable[[bytes], int],
        of_rows: Callable[[pa.Table], Any],
    ) -> dict[int, Delta]:
        """The parts that belong to some key groups.

        Args:
            groups: Indices of the groups.
            of_prefix: Gives the group of an entry by its prefix.
            of_rows: Gives the group of each row, as an array of numpy.
        """
        parts = {group: Delta() for group in groups}
        for change in self.entries:
            part = parts.get(of_prefix(change[0]))
            if part is not None:
                part.entries.append(change)
        for table in self.tables:
            removed, upserts = (
                None if rows is None else (rows, of_rows(rows)) for rows in (table.removed, table.upserts)
            )
            for group, part in parts.items():
                gone, written = (
                    None if found is None else found[0].filter(found[1] == group) for found in (removed, upserts)
                )
                part.tables.append(attrs.evolve(table, removed=gone, upserts=written))
        return parts


def deltas(blocks: Iterable[Block], states: dict[str, Any], where: str, at_a_time: int = 1) -> Iterator[Delta]:
    """The changes that blocks hold.

    Args:
        blocks: The blocks.
        states: Descriptions of the states, by name.
        where: For messages.
        at_a_time: How many blocks make up a delta.

    Raises:
        CorruptionError: The rows of a table cannot be read.
    """
    keys, rest = table_keys(states), iter(blocks)
    while part := list(islice(rest, at_a_time)):
        delta = Delta()
        for block in part:
            if isinstance(block, TableBlock):
                delta.tables.append(delta_of_block(block, keys, where))
            else:
                delta.entries.extend(block)
        yield delta


def apply_blocks(
    store: LocalStore, log_id: str, row: int, blocks: Iterable[Block], states: dict[str, Any], where: str
) -> None:
    """Apply blocks to a store; many in parts, under a position that no log has, so that half of them is no state.

    Args:
        store: The store.
        log_id: Identity of the log, for the store's position.
        row: The position in it.
        blocks: The blocks.
        states: Descriptions of the states, by name.
        where: For messages.

    Raises:
        CorruptionError: The rows of a table cannot be read.
    """
    parts = deltas(blocks, states, where, _BLOCKS)
    part = next(parts, Delta())
    for following in parts:
        store.apply(f"part of {log_id}", row, part.entries, part.tables)
        part = following
    store.apply(log_id, row, part.entries, part.tables)
