"""Kafka Streams' joins of streams and of a stream with a table, as far as they map.

`kafka_streams_joins.json` has their steps: ``left KEY VALUE TIME``, ``right A{012} TIME+STEP`` (a record for each of
these keys), ``take``, ``dropped COUNT``, ``late``, ``end_of_input``; behind ``->`` is what came out by then, as
``key:left+right@time``. Kafka's stream time is the greatest time of both sides, where the watermark here is the least:
the cases move it by hand, to stream time less the delay. Kafka's window of a join is ``lower=-before, upper=after``,
and its grace is what the watermark stays behind. Records whose value is null, which Kafka leaves out of joins, are left
out by the caller here.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from keyed import OutputTag
from keyed.joins import AsOfJoin, IntervalJoin, TableJoin
from keyed.testing import KeyedTestHarness
from tests.support.data_files import read_data

CASES = [
    pytest.param(case, join, id=f"{case['name']}-{join}")
    for case in read_data("acceptance/kafka_streams_joins.json")
    for join in case["joins"]
]
LATE = OutputTag("late")


def pair(left: Any, right: Any) -> tuple[Any, str]:
    key = right[0] if left is None else left[0]
    return key, "+".join("null" if side is None else side[1] for side in (left, right))


def join_of(text: str) -> Any:
    """Return the join that a text names: ``interval -100 100 left``, ``table inner`` or ``as_of inner``."""
    kind, *bounds, how = text.split()
    options: dict[str, Any] = {"how": how}
    if kind == "interval":
        return IntervalJoin(pair, lower=int(bounds[0]), upper=int(bounds[1]), **options)
    if kind == "table":
        return TableJoin(pair, deletes=lambda value: value[1] is None, **options)
    return AsOfJoin(pair, late_left=LATE, **options)


class Driver:
    """TopologyTestDriver: each record is processed by itself; with a delay the watermark follows stream time."""

    def __init__(self, function: Any, delay: int | None) -> None:
        self.harness = KeyedTestHarness(function, key=lambda value: value[0])
        self.delay, self.stream_time = delay, -1

    def do(self, step: str) -> None:
        call, _, expected = step.partition(" -> ")
        name, *arguments = call.split()
        if name in {"left", "right"}:
            for key, value, time in records_of(*arguments):
                process = self.harness.process_element1 if name == "left" else self.harness.process_element2
                process((key, value), time)
                self.stream_time = max(self.stream_time, time)
                if self.delay is not None:
                    self.harness.advance_watermark(self.stream_time - self.delay)
        elif name == "end_of_input":
            self.harness.end_of_input()
        elif name == "dropped":
            assert self.harness.metrics()["rows_dropped"] == int(arguments[0])
        if name == "late":
            records = [record.value for record in self.harness.take_side_output(LATE)]
            assert [f"{key}:{value}" for key, value in records] == expected.split()
        elif expected:
            records = sorted(self.harness.take_output(), key=lambda record: record.value[0])
            shown = [f"{record.value[0]}:{record.value[1]}@{record.timestamp}" for record in records]
            assert shown == ([] if expected == "nothing" else expected.split())


def records_of(*arguments: str) -> list[tuple[int, str | None, int]]:
    """Return the records (key, value, time) of a step."""
    if len(arguments) == 3:
        key, value, time = arguments
        return [(int(key), None if value == "null" else value, int(time))]
    name, keys = re.fullmatch(r"(\w+)\{(\d+)\}", arguments[0]).groups()  # type: ignore[union-attr]
    begin, _, step = arguments[1].partition("+")
    return [(int(key), f"{name}{key}", int(begin) + number * int(step or 0)) for number, key in enumerate(keys)]


@pytest.mark.parametrize(("case", "join"), CASES)
def test_a_join(case, join):
    driver = Driver(join_of(join), case.get("delay"))
    for step in case["steps"]:
        driver.do(step)
