"""The cost of a row of a join does not grow with the rows of its key that wait."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import keyed
from keyed import TimeDomain, bounded_out_of_orderness
from keyed.joins import AsOfJoin, EnrichmentJoin, IntervalJoin, TableJoin, WindowCoGroup, WindowJoin
from tests.support.steps import steps

ROWS = 50
#: The watermark stands still.
HELD = bounded_out_of_orderness(10**9)
MOVING = bounded_out_of_orderness(0)


def pair(left: Any, right: Any) -> Any:
    return left and left["n"], right and right["n"]


def sizes(start: int, end: int, lefts: list[Any], rights: list[Any]) -> Any:
    yield start, end, len(lefts), len(rights)


def joined(join: Any, rows: int, rights: int, watermark: Any, batch: int) -> None:
    given = [[{"k": "a", "n": n, "t": 10 * n + side} for n in range(rows)] for side in (0, 7)]
    left, right = (keyed.stream(each, timestamp="t", watermark=watermark).key_by("k") for each in given)
    if not rights:
        right = keyed.stream([], timestamp="t", watermark=watermark).key_by("k")
    left.connect(right).process(join).run(rows_per_batch=batch)


JOINS = {
    "time-outs": (EnrichmentJoin(pair, timeout=10**6), 0, HELD),
    "time-outs by the clock": (EnrichmentJoin(pair, timeout=10**6, domain=TimeDomain.PROCESSING_TIME), 0, HELD),
    "overdue time-outs": (EnrichmentJoin(pair, timeout=5), 1, HELD),
    "intervals": (IntervalJoin(pair, lower=-5, upper=5, path="row"), 1, HELD),
    "intervals that pass": (IntervalJoin(pair, lower=-5, upper=5, path="row", how="full"), 1, MOVING),
    "sessions": (WindowCoGroup(sizes, gap=2), 1, HELD),
    "sessions that pass": (WindowCoGroup(sizes, gap=2), 1, MOVING),
    "windows": (WindowJoin(pair, size=5, path="row"), 1, HELD),
    "as of": (AsOfJoin(pair, path="row"), 1, HELD),
    "table": (TableJoin(pair), 1, HELD),
}


@pytest.mark.parametrize("batch", [1000, 5])
@pytest.mark.parametrize("name", JOINS)
def test_the_cost_of_a_row_does_not_grow_with_the_rows_that_wait(name, batch):
    join, rights, watermark = JOINS[name]
    joined(join, 2, rights, watermark, batch)
    few, many = (steps(partial(joined, join, rows, rights, watermark, batch)) for rows in (ROWS, 4 * ROWS))
    assert many < 5 * few, f"{few:,} and {many:,} steps"
