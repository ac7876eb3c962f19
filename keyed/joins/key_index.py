"""An index of a foreign key: the rows of each key, which a range of numbers reads."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import pyarrow as pa

from keyed.extending import Schema, inner_state
from keyed.joins.join_path import OWN
from keyed.joins.matching import Numbers, codes_of, distinct
from keyed.vectorized import TableState

_NUMBER, _COUNT = f"{OWN}number", f"{OWN}count"


@attrs.frozen(eq=False)
class KeyIndex:
    """The rows of each key, numbered without gaps. A change costs the rows that it adds and removes, a read its rows.

    A row that leaves is replaced by the one with the highest number of its key.

    Attributes:
        numbers: The number of each row.
        members: The row with each number of a key.
        counts: The number of rows of each key.
    """

    numbers: TableState
    members: TableState
    counts: TableState

    @staticmethod
    def states(columns: Sequence[tuple[str, str]], width: int) -> tuple[TableState, TableState, TableState]:
        """Return the states of an index.

        Args:
            columns: Names and types of the columns of the key, and of those that identify a row of a key.
            width: The number of columns of the key.
        """
        names = [name for name, _ in columns]
        keys, number = columns[:width], (_NUMBER, "bigint")
        states = (
            TableState(Schema((*columns, number)).ddl, key=names, name="numbers"),
            TableState(Schema((*keys, number, *columns[width:])).ddl, key=[*names[:width], _NUMBER], name="members"),
            TableState(Schema((*keys, (_COUNT, "bigint"))).ddl, key=names[:width], name="counts"),
        )
        numbers, members, counts = (inner_state(each, is_shown=False) for each in states)
        return numbers, members, counts

    def rows_of(self, keys: pa.Table) -> tuple[pa.Table, Numbers]:
        """Return the rows of distinct keys, and for each of them the place of its key."""
        places = np.arange(keys.num_rows)
        places, numbers = _expanded(places, np.zeros(keys.num_rows, dtype=np.int64), self._counted(keys))
        members = self.members.lookup(self._numbered(keys, places, numbers))
        return members.select(self.numbers.key), places

    def change(self, rows: pa.Table, is_gone: Numbers) -> None:
        """Add rows, which may be there, or remove them.

        Args:
            rows: Distinct rows: the columns of the key, and those that identify a row of a key.
            is_gone: A mask of those to be removed.
        """
        stored = self.numbers.lookup(rows)
        (_, of_stored) = codes_of([rows, stored], self.numbers.key)
        number = np.full(rows.num_rows, -1)
        number[of_stored] = stored.column(_NUMBER).to_numpy()
        added, removed = np.flatnonzero(~is_gone & (number < 0)), np.flatnonzero(is_gone & (number >= 0))
        if not len(added) and not len(removed):
            return
        names = self.counts.key
        keys = distinct(rows.select(names), names)
        (codes,) = codes_of([rows], names)
        count = self._counted(keys)
        width = keys.num_rows
        after = count + np.bincount(codes[added], minlength=width) - np.bincount(codes[removed], minlength=width)
        # Rows at the end of a key that shrinks go to the numbers of those that leave.
        end_codes, end_numbers = _expanded(np.arange(width), after, count)
        ends = self.members.lookup(self._numbered(keys, end_codes, end_numbers)).select(self.numbers.key)
        leaving = set(zip(codes[removed].tolist(), number[removed].tolist(), strict=True))
        pairs = zip(end_codes.tolist(), end_numbers.tolist(), strict=True)
        moved = np.flatnonzero(np.fromiter((each not in leaving for each in pairs), dtype=bool, count=len(end_codes)))
        placed = pa.concat_tables([rows.select(self.numbers.key).take(added).cast(ends.schema), ends.take(moved)])
        placed_codes = np.concatenate([codes[added], end_codes[moved]])
        is_free = number[removed] < after[codes[removed]]
        new_codes, new_numbers = _expanded(np.arange(width), count, after)
        free_codes = np.concatenate([codes[removed][is_free], new_codes])
        free_numbers = np.concatenate([number[removed][is_free], new_numbers])
        placed = placed.take(np.argsort(placed_codes, kind="stable"))
        free = free_numbers[np.argsort(free_codes, kind="stable")]
        placed = placed.append_column(_NUMBER, pa.array(free, pa.int64()))
        self.numbers.delete(rows.take(removed))
        self.members.delete(self._numbered(keys, end_codes, end_numbers))
        self.numbers.upsert(placed)
        self.members.upsert(placed)
        counted = keys.append_column(_COUNT, pa.array(after, pa.int64()))
        self.counts.delete(counted.filter(pa.array(after == 0)))
        self.counts.upsert(counted.filter(pa.array(after > 0)))

    def _counted(self, keys: pa.Table) -> Numbers:
        """Return the number of rows of distinct keys."""
        stored = self.counts.lookup(keys)
        _, places = codes_of([keys, stored], self.counts.key)
        counts = np.zeros(keys.num_rows, dtype=np.int64)
        counts[places] = stored.column(_COUNT).to_numpy()
        return counts

    def _numbered(self, keys: pa.Table, places: Numbers, numbers: Numbers) -> pa.Table:
        return keys.select(self.counts.key).take(places).append_column(_NUMBER, pa.array(numbers, pa.int64()))


def _expanded(places: Numbers, starts: Numbers, ends: Numbers) -> tuple[Numbers, Numbers]:
    """Return each number from a start up to an end, and its place."""
    counts = np.maximum(ends - starts, 0)
    before = np.cumsum(counts) - counts
    return np.repeat(places, counts), np.arange(int(counts.sum())) - np.repeat(before - starts, counts)
