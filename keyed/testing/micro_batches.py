"""Conversion of a test's elements and tables to the parts of a micro-batch for each key group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from keyed.arrow.read import column_values
from keyed.codec.key_hash import group_of, key_hash
from keyed.codec.keys import key_type
from keyed.engine.batch import Batch, ChannelId, Chunk
from keyed.engine.key_checks import KeyTypes
from keyed.job.functions import TIMESTAMP_COLUMN, OperatorSpec, combines

if TYPE_CHECKING:
    import pyarrow as pa

#: An element, its timestamp and its side.
Element = tuple[Any, int | None, int]


class MicroBatches:
    """Cuts micro-batches by key group.

    Args:
        name: Name of the operator.
        keys: Functions from an element of each side to its key.
        by_time: Whether the rows of a micro-batch are sorted by timestamp, stable by arrival.
    """

    def __init__(self, name: str, keys: Sequence[Callable[[Any], Any]], *, by_time: bool) -> None:
        self._key_types = KeyTypes(name)
        self._keys = keys
        # A batch with a row without a timestamp keeps the order of arrival, so the engine gets no order.
        self._by_time = by_time

    def of_rows(self, spec: OperatorSpec, rows: list[Element], processing_time: int) -> list[Batch]:
        """Return the micro-batch of elements, by key group; broadcast elements go to all."""
        if getattr(spec.function, "right_first", False):
            rows = sorted(rows, key=lambda row: -row[2])
        if self._by_time and all(timestamp is not None for _, timestamp, _ in rows):
            rows = sorted(rows, key=lambda row: row[1] or 0)
        routed: list[list[tuple[Any, ...]]] = [[] for _ in range(spec.parallelism)]
        highest: dict[ChannelId, int] = {}
        for _, timestamp, side in rows:
            if timestamp is not None:
                highest[side, ""] = max(timestamp, highest.get((side, ""), timestamp))
        broadcast: list[Chunk] = []
        if spec.broadcast:
            broadcast = [([None], [timestamp], [value], None) for value, timestamp, side in rows if side]
            rows = [row for row in rows if not row[2]]
        for value, timestamp, side in rows:
            key = self._key_types.check(self._keys[side](value), value)
            index = group_of(key_hash(key), len(routed)) if len(routed) > 1 else 0
            routed[index].append((key, timestamp, value, side))
        batches = self.without_rows(spec, processing_time)
        for batch, group in zip(batches, routed, strict=True):
            batch.chunks, batch.broadcast, batch.highest = partial(_chunks, group), lambda: broadcast, highest
        return batches

    def of_tables(self, spec: OperatorSpec, tables: list[pa.Table | None], processing_time: int) -> list[Batch]:
        """Return the micro-batch of the tables of each side, by key group.

        Raises:
            DefinitionError: A key column is missing.
        """
        from keyed.table_state.batches import check_keys, combined, first_key, group_indices, in_time_order

        function, name = spec.function, spec.name
        batches = self.without_rows(spec, processing_time)
        highest: dict[ChannelId, int] = {}
        count = 0
        for side, (table, keys) in enumerate(zip(tables, (spec.keys, spec.keys2), strict=False)):
            if table is None or not table.num_rows:
                continue
            check_keys(table, keys, name)
            if TIMESTAMP_COLUMN in table.column_names:
                highest[side, ""] = max(column_values(table[TIMESTAMP_COLUMN]))
            count += table.num_rows
            if combines(function):
                table = combined(function, table, keys, name)
                count -= table.num_rows
            type_ = key_type(first_key(table, keys)) if table.num_rows else ""
            groups = group_indices(table, keys, len(batches))
            for index, batch in enumerate(batches):
                part = table.filter(groups == index)
                batch.key_type = type_
                rows = partial(in_time_order if self._by_time else _itself, part)
                setattr(batch, "table2" if side else "table", rows)
        for batch in batches:
            batch.highest = highest
        batches[0].rows_combined = count if combines(function) else 0
        return batches

    def without_rows(
        self, spec: OperatorSpec, processing_time: int, *, watermark: int | None = None, end: bool = False
    ) -> list[Batch]:
        """Return a micro-batch that moves the clocks, or ends the input."""
        clocks: Any = {"watermark": watermark, "processing_time": processing_time, "end_of_input": end}
        return [Batch(**clocks, key_type=self._key_types.name) for _ in range(spec.parallelism)]


def _chunks(rows: list[tuple[Any, ...]]) -> list[Chunk]:
    """Return the keys, timestamps, elements and sides of rows as one chunk."""
    if not rows:
        return []
    keys, timestamps, values, sides = zip(*rows, strict=True)
    return [(keys, timestamps, values, sides if any(sides) else None)]


def _itself(table: pa.Table) -> pa.Table:
    return table
