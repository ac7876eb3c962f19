"""Joins of two tables, whose rows are changes, against dictionaries; the cost of a join by a foreign key."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyed.extending import Schema
from keyed.joins import TableJoin
from keyed.joins.join_path import JoinPlan, Side
from keyed.joins.pairs import Pairing
from keyed.joins.select import Select
from keyed.joins.table_columns import ChangeColumns
from keyed.table_state.chunks import ChunkedTable
from keyed.testing import KeyedTestHarness

HOWS = ("inner", "left", "right", "full")


def join(how: str, *, foreign: bool) -> ChangeColumns:
    """Return a join of rows (k, id, v) and (k, w), by the key or by a foreign key."""
    sides = [Side({"k": "bigint", name: "bigint", value: "bigint"}, ("k",), ("k",)) for name, value in ("iv", "xw")]
    output = Schema((("k", "bigint"), ("i", "bigint"), ("v", "bigint"), ("w", "bigint")))
    select = Select(["i", "v"], ["w"], either=["k"])
    plan = JoinPlan("join", sides, output)
    return ChangeColumns(plan, Pairing(select, how), "change", "change", ["i"] if foreign else [])


def harness(how: str, *, foreign: bool) -> KeyedTestHarness:
    return KeyedTestHarness(join(how, foreign=foreign), key="k", key2="k")


def table(names: str, rows: list[tuple[int, ...]]) -> pa.Table | None:
    """Return changes as a table: the columns, the change and the time."""
    if not rows:
        return None
    columns = zip(*rows, strict=True)
    return pa.table([pa.array(each, pa.int64()) for each in columns], names=[*names, "change", "t"])


#: Writes of a side, by batch: the row's number, its foreign key, and its value; none removes the row.
BATCHES = st.lists(
    st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 2), st.none() | st.integers(0, 9))), max_size=6
)


@pytest.mark.parametrize(("how", "foreign"), [*((how, False) for how in HOWS), ("inner", True), ("left", True)])
@given(batches=BATCHES)
def test_changes_lead_from_the_joined_rows_before_a_batch_to_those_after_it(how, foreign, batches):
    lefts: dict[int, tuple[int, int]] = {}
    rights: dict[int, int] = {}
    held: set[tuple[Any, ...]] = set()
    time = 0
    with harness(how, foreign=foreign) as driven:
        for batch in batches:
            changes: tuple[list[Any], list[Any]] = ([], [])
            for is_left, number, key, value in batch:
                time += 1
                key = key if foreign else number
                if not is_left:
                    changes[1].append((key, 0, value or 0, -1 if value is None else 1, time))
                    rights.pop(key, None)
                    rights |= {} if value is None else {key: value}
                    continue
                if number in lefts:
                    changes[0].append((lefts[number][0], number, lefts[number][1], -1, time))
                    del lefts[number]
                if value is not None:
                    changes[0].append((key, number, value, 1, time))
                    lefts[number] = key, value
            driven.process_batches(table("kiv", changes[0]), table("kxw", changes[1]), "t")
            for record in driven.take_output():
                row = tuple(record.value)
                (held.remove if row[4] < 0 else held.add)(row[:4])
            joined: set[tuple[Any, ...]] = {
                (key, i, v, rights.get(key)) for i, (key, v) in lefts.items() if key in rights or how in HOWS[1::2]
            }
            if how in ("right", "full"):
                joined |= {(key, None, None, w) for key, w in rights.items() if key not in lefts}
            assert held == joined


#: Writes of one key to the left table (L) and the right one (R), `.` deletes; and the results after each, ``gone`` for
#: a row that is deleted: as in Kafka Streams' ``TableTableJoinIntegrationTest``.
WRITES = "L. R. LA Ra LB Rb L. R. LC Rc R. L. R. Rd LD"
RESULTS = {
    "inner": "- - - A-a B-a B-b gone - - C-c gone - - - D-d",
    "left": "- - A-null A-a B-a B-b gone - C-null C-c C-null gone - - D-d",
    "full": "- - A-null A-a B-a B-b null-b gone C-null C-c C-null gone - null-d D-d",
}


@pytest.mark.parametrize("path", ["row", "vectorized"])
@pytest.mark.parametrize("how", RESULTS)
def test_two_tables_of_python_are_joined_as_in_kafka_streams(how, path):
    function: Any = TableJoin(Select(["v"], ["v"], either=["k"]), how=how, left_table=True, deletes="gone", path=path)
    columns = {"k": "bigint", "v": "string", "gone": "boolean"}
    if path == "vectorized":
        output = Schema((("k", "bigint"), ("l", "string"), ("r", "string"), ("change", "int")))
        function = function.over_columns(JoinPlan("join", [Side(columns, ("k",), ("k",))] * 2, output))
    results = []
    with KeyedTestHarness(function, key="k", key2="k") as driven:
        for time, (side, value) in enumerate(zip(WRITES[::3], WRITES[1::3], strict=True)):
            row = {"k": 1, "v": value, "gone": value == "."}
            if path == "row":
                (driven.process_element1 if side == "L" else driven.process_element2)(row, time)
            else:
                rows = pa.table({**{name: [cell] for name, cell in row.items()}, "t": [time]})
                driven.process_batches(rows if side == "L" else None, None if side == "L" else rows, "t")
            changes = driven.take_output()
            assert [each.value[3] for each in changes] in ([], [-1], [1], [-1, 1])
            assert {each.timestamp for each in changes} <= {time}
            shown = ["-".join(each or "null" for each in each.value[1:3]) for each in changes if each.value[3] > 0]
            results.append(shown[0] if shown else "gone" if changes else "-")
    assert " ".join(results) == RESULTS[how]


def reads(call: Any) -> int:
    """Return how many rows a call reads from the stored tables."""
    count = 0
    at, select = ChunkedTable.at, ChunkedTable.select

    def counted(self: Any, positions: Any) -> Any:
        nonlocal count
        count += len(positions)
        return at(self, positions)

    def all_of(self: Any, ranges: Any) -> Any:
        nonlocal count
        for positions, rows in select(self, ranges):
            count += rows.num_rows
            yield positions, rows

    with patch.object(ChunkedTable, "at", counted), patch.object(ChunkedTable, "select", all_of):
        call()
    return count


def test_a_change_of_a_foreign_key_join_reads_the_rows_that_it_changes_and_no_others():
    found: list[tuple[int, ...]] = []
    for rows in (100, 8_000):
        with harness("inner", foreign=True) as driven:
            driven.process_batches(None, table("kxw", [(1, 0, 1, 1, 0), (2, 0, 2, 1, 0)]), "t")
            driven.process_batches(table("kiv", [(1, i, 0, 1, 0) for i in range(rows)]), None, "t")
            driven.process_batches(table("kiv", [(2, i, 0, 1, 0) for i in range(rows, rows + 5)]), None, "t")
            driven.take_output()
            moved = table("kiv", [(1, 7, 0, -1, 1), (2, 7, 0, 1, 1)])
            of_left = reads(partial(driven.process_batches, moved, None, "t"))
            assert len(driven.take_output()) == 2
            of_right = reads(lambda: driven.process_batches(None, table("kxw", [(2, 0, 3, 1, 2)]), "t"))
            assert len(driven.take_output()) == 12
            found.append((of_left, of_right))
            gone = reads(lambda: driven.process_batches(table("kiv", [(1, 8, 0, -1, 3)]), None, "t"))
            assert len(driven.take_output()) == 1
            found[-1] += (gone,)
    assert found[0] == found[1]
    assert max(found[0]) <= 40
