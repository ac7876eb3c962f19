"""Deltas: parts by key group, and blocks that are applied as a whole or count as no state."""

from typing import Any

import pyarrow as pa
import pytest

from keyed.codec.arrow_streams import write_stream
from keyed.content.blocks import TableBlock, TableDelta
from keyed.content.delta import Delta, apply_blocks, deltas
from keyed.errors import CorruptionError
from keyed.stores import MemoryStore

STATES = {"t": {"id": 7, "schema": {"kind": "table", "key": ["k"]}}}


def entry(number):
    return b"%d" % number, b"", b"%d" % number


def rows(*keys):
    return pa.table({"k": pa.array(keys, pa.int64()), "v": pa.array(keys, pa.int64())})


def test_every_record_goes_to_its_group():
    delta = Delta([entry(n) for n in range(10)], [TableDelta(7, ("k",), (), rows(1, 3).select(["k"]), rows(5, 8))])
    assert delta.records == 14
    parts = delta.by_group((0, 2), lambda prefix: (int(prefix) % 3,), lambda rows: rows["k"].to_numpy() % 3)
    assert [[int(prefix) for prefix, _, _ in parts[group].entries] for group in (0, 2)] == [[0, 3, 6, 9], [2, 5, 8]]
    tables: list[Any] = [parts[group].tables[0] for group in (0, 2)]
    assert [table.removed["k"].to_pylist() for table in tables] == [[3], []]
    assert [table.upserts["k"].to_pylist() for table in tables] == [[], [5, 8]]
    assert [parts[group].records for group in (0, 2)] == [5, 5]


@pytest.mark.parametrize("blocks", [0, 1, 8, 9, 20])
def test_blocks_are_applied_in_order_and_in_parts(blocks):
    positions = []

    class Watched(MemoryStore):
        def apply(self, log_id, row, changes, tables=()):
            super().apply(log_id, row, changes, tables)
            positions.append(self.position())

    store = Watched()
    written = [TableBlock(7, 1, None, write_stream(rows(number % 3))) for number in range(blocks)]
    content = [part for number in range(blocks) for part in ([entry(number % 5)], written[number])]
    apply_blocks(store, "log", 3, content, STATES, "here")
    assert positions[-1] == ("log", 3)
    parts = [position for position in positions[:-1] if position is not None]
    assert [row for _, row in parts] == [3] * max(0, -(-len(content) // 16) - 1)
    assert len(parts) == len(positions) - 1
    assert all(log.startswith("part ") for log, _ in parts)
    assert len(list(store.items())) == min(blocks, 5)
    table = store.table(7)
    assert (0 if table is None else table.num_rows) == min(blocks, 3)


def test_rows_that_cannot_be_read_are_named():
    with pytest.raises(CorruptionError, match="here"):
        list(deltas([TableBlock(7, 1, None, b"junk")], STATES, "here"))
