"""Random programs of joins through the harness, against models without state that is freed.

A program is elements of either side, late ones among them, watermarks of either side, crashes, and restores at another
parallelism, by row and over whole columns. More of them: ``KEYED_HYPOTHESIS_PROFILE=thorough``, 2,000 a test.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyed
from keyed.arrow.write import arrow_schema
from keyed.base.arguments import MIN_TIMESTAMP
from keyed.joins import AsOfJoin, IntervalJoin, WindowJoin
from keyed.testing import KeyedTestHarness, strategies
from keyed.testing.scripts import ProcessingTime, Rescale, Rows, Watermark

PATHS = pytest.mark.parametrize("path", ["row", "vectorized"])
KEYS = strategies.rows("k string", k=strategies.skewed("a", "b"))
#: Rows of either side in any order, as they are late or not.
SIDES = strategies.two_streams(*[strategies.streams(KEYS, gap=1, late=20, max_size=12)] * 2)


def programs(**clocks: bool) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    """Steps as tuples: a side with a row's key and time, how far which clock moves, a crash, a restore."""

    def program(stream: Any) -> st.SearchStrategy[list[tuple[Any, ...]]]:
        drawn = strategies.steps(stream, crashes=True, parallelisms=(1, 2, 3, 4), move=12, most=12, **clocks)
        return drawn.map(lambda steps: [each for step in steps for each in plain(step)])

    return SIDES.flatmap(program)


def plain(step: Any) -> list[tuple[Any, ...]]:
    if isinstance(step, Rows):
        return [("left" if row.input == 1 else "right", row.value["k"], row.timestamp) for row in step.rows]
    if isinstance(step, Watermark):
        return [(f"watermark{step.input or 1}", step.to)]
    if isinstance(step, ProcessingTime):
        return [("clock", step.to)]
    return [("restore", step.parallelism) if isinstance(step, Rescale) else ("crash",)]


STEPS = programs(watermarks=True, clocks=False)


SIDE = arrow_schema(keyed.extending.schema_of("k string, n bigint, t bigint"))


def on_columns(function: Any) -> Any:
    """Return the same join over whole columns."""
    streams = [keyed.stream(SIDE.empty_table(), timestamp="t") for _ in range(2)]
    out = streams[0].connect(streams[1]).key_by("k").process(function, "l bigint, r bigint", name="join")
    return out.operators["join"]


def arrive(harness: Any, path: str, side: str, key: str, number: int, time: int) -> None:
    """Process an element of a side."""
    element = {"k": key, "n": number, "t": time}
    if path == "row":
        process = harness.process_element1 if side == "left" else harness.process_element2
        process(element, time)
        return
    table = pa.Table.from_pylist([element], SIDE)
    left, right = (table, None) if side == "left" else (None, table)
    harness.process_batches(left, right, "t")


def run(function: Any, steps: list[Any], path: str) -> list[Any]:
    """Return (value, timestamp) of all outputs; an element is (key, number of its step, time)."""
    is_as_of, key = isinstance(function, AsOfJoin), "k"
    if path == "vectorized":
        function = on_columns(function)
    harness = KeyedTestHarness(function, key=key)
    found = []
    try:
        for number, (what, *rest) in enumerate(steps):
            if what in ("left", "right"):
                arrive(harness, path, what, rest[0], number, rest[1])
            elif what == "watermark1":
                harness.advance_watermark1(rest[0])
            elif what == "watermark2":
                harness.advance_watermark2(rest[0])
            elif what == "crash":
                harness.crash_and_recover()
            else:
                found += harness.take_output()
                # A snapshot has one watermark for both sides, as a changelog has.
                snapshot, clocks = harness.snapshot(), list(harness._watermarks)
                harness.close()
                harness = KeyedTestHarness.restore(function, snapshot, key=key, parallelism=rest[0])
                harness.advance_watermark1(clocks[0])
                harness.advance_watermark2(clocks[1])
        harness.end_of_input()
        found += harness.take_output()
        if not is_as_of:
            assert harness.state_entries() == 0
        return [(tuple(record.value), record.timestamp) for record in found]
    finally:
        harness.close()


class Model:
    """Watermarks and arrivals; what is late by Flink's or by our rule is up to those who derive from it."""

    def __init__(self, steps: list[Any], every: int = 1) -> None:
        self.outputs: list[Any] = []
        self.sides: list[list[Any]] = [[], []]
        clocks, self.watermark = [MIN_TIMESTAMP, MIN_TIMESTAMP], MIN_TIMESTAMP
        for number, (what, *rest) in enumerate(steps):
            if what in ("left", "right"):
                self.arrives(int(what == "right"), rest[0], rest[1], number // every)
            elif what == "watermark":
                self.moves(rest[0])
            elif what in ("watermark1", "watermark2"):
                side = int(what == "watermark2")
                clocks[side] = max(clocks[side], rest[0])
                self.moves(max(self.watermark, min(clocks)))
        self.moves(2**63 - 1)

    def arrives(self, side: int, key: str, time: int, number: int) -> None:
        raise NotImplementedError

    def moves(self, watermark: int) -> None:
        raise NotImplementedError


def pair(left, right):
    return left and left.n, right and right.n


class Intervals(Model):
    def __init__(self, steps, lower, upper, how, every=1):
        self.lower, self.upper, self.how = lower, upper, how
        super().__init__(steps, every)

    def end(self, side, time):
        return time + max(-self.lower if side else self.upper, 0)

    def arrives(self, side, key, time, number):
        if time < self.watermark:
            return
        mine = [key, time, number, False, self.watermark]
        for other in self.sides[1 - side]:
            left, right = (other, mine) if side else (mine, other)
            # One that comes when its time is over is kept until the next advance, as Flink's clean-up timer does.
            kept = self.end(1 - side, other[1]) > self.watermark or other[4] == self.watermark
            if kept and other[0] == key and self.lower <= right[1] - left[1] <= self.upper:
                mine[3] = other[3] = True
                self.outputs.append(((left[2], right[2]), max(time, other[1])))
        self.sides[side].append(mine)

    def moves(self, watermark):
        for side, name in ((0, "left"), (1, "right")):
            for _, time, number, had, _ in self.sides[side]:
                end = self.end(side, time)
                # An element that comes when its time is over is told with the next advance.
                due = self.told.get((side, number)) is None and end <= watermark and watermark > self.watermark
                if due:
                    self.told[side, number] = True
                    if not had and self.how in (name, "full"):
                        self.outputs.append((((None, number) if side else (number, None)), end))
        self.watermark = max(self.watermark, watermark)

    @property
    def told(self) -> dict[Any, bool]:
        return self.__dict__.setdefault("_told", {})


BOUNDS = st.tuples(st.integers(-6, 6), st.integers(-6, 6)).map(sorted)
HOWS: Any = st.sampled_from(["inner", "left", "right", "full"])


@PATHS
@settings(max_examples=settings().max_examples // 2)
@given(steps=STEPS, bounds=BOUNDS, how=HOWS)
def test_interval_join(path, steps, bounds, how):
    lower, upper = bounds
    found = run(IntervalJoin(pair, lower=lower, upper=upper, how=how), steps, path)
    assert sorted(found, key=str) == sorted(Intervals(steps, lower, upper, how).outputs, key=str)


class AsOf(Model):
    def __init__(self, steps, tolerance, every=1):
        self.tolerance = tolerance
        super().__init__(steps, every)

    def arrives(self, side, key, time, number):
        if side or time > self.watermark:
            self.sides[side].append((key, time, number))

    def moves(self, watermark):
        for key, time, number in list(self.sides[0]):
            if time <= watermark:
                self.sides[0].remove((key, time, number))
                rights = [(t, n) for k, t, n in self.sides[1] if k == key and t <= time]
                last = max(rights, default=None)
                near = last is not None and (self.tolerance is None or time - last[0] <= self.tolerance)
                self.outputs.append(((number, last[1] if near and last else None), time))
        self.watermark = max(self.watermark, watermark)


@PATHS
@settings(max_examples=settings().max_examples // 2)
@given(steps=STEPS, tolerance=st.none() | st.integers(0, 8))
def test_as_of_join(path, steps, tolerance):
    found = run(AsOfJoin(pair, tolerance=tolerance), steps, path)
    assert sorted(found, key=str) == sorted(AsOf(steps, tolerance).outputs, key=str)


class Windows(Model):
    def arrives(self, side, key, time, number):
        self.sides[side] += [
            (key, start, number)
            for start in range(-10, 25, 2)
            if start <= time < start + 5 and start + 4 > self.watermark
        ]

    def moves(self, watermark):
        for key, start, number in self.sides[0]:
            if self.watermark < start + 4 <= watermark:
                self.outputs += [
                    ((number, other), start + 4) for k, s, other in self.sides[1] if (k, s) == (key, start)
                ]
        self.watermark = max(self.watermark, watermark)


@PATHS
@settings(max_examples=settings().max_examples // 2)
@given(steps=STEPS)
def test_window_join(path, steps):
    found = run(WindowJoin(pair, size=5, slide=2), steps, path)
    assert sorted(found, key=str) == sorted(Windows(steps).outputs, key=str)


PATIENT = keyed.bounded_out_of_orderness(milliseconds=3).with_idleness(10)
IDLE_STEPS = programs()
#: A join, and the model that the steps go through.
JOINS: Any = st.one_of(
    st.tuples(BOUNDS, HOWS).map(
        lambda drawn: (
            IntervalJoin(pair, lower=drawn[0][0], upper=drawn[0][1], how=drawn[1]),
            lambda steps: Intervals(steps, drawn[0][0], drawn[0][1], drawn[1], every=2),
        )
    ),
    (st.none() | st.integers(0, 8)).map(
        lambda tolerance: (AsOfJoin(pair, tolerance=tolerance), lambda steps: AsOf(steps, tolerance, every=2))
    ),
    st.just((WindowJoin(pair, size=5, slide=2), lambda steps: Windows(steps, every=2))),
)


@PATHS
@settings(max_examples=settings().max_examples // 2)
@given(steps=IDLE_STEPS, join=JOINS)
def test_joins_while_sides_are_silent(path, steps, join):
    """The watermark follows the rows, and a side that is silent for 10 ms does not hold it back; both may be."""
    function, model = join
    function = on_columns(function) if path == "vectorized" else function
    seen: list[Any] = []
    found: list[Any] = []
    now = 0
    harness = KeyedTestHarness(function, key="k", watermark=PATIENT)
    try:
        for number, (what, *rest) in enumerate(steps):
            if what in ("left", "right"):
                arrive(harness, path, what, rest[0], number, rest[1])
            elif what == "clock":
                now = rest[0]
                harness.advance_processing_time(now)
            elif what == "crash":
                harness.crash_and_recover()
            else:
                found += harness.take_output()
                snapshot, reached = harness.snapshot(), harness.current_watermark
                harness.close()
                harness = KeyedTestHarness.restore(function, snapshot, key="k", watermark=PATIENT, parallelism=rest[0])
                harness.advance_processing_time(now)
                assert harness.current_watermark == reached
            seen += [(what, *rest), ("watermark", harness.current_watermark)]
        harness.end_of_input()
        found += harness.take_output()
        if not isinstance(join[0], AsOfJoin):
            assert harness.state_entries() == 0
    finally:
        harness.close()
    outputs = [(tuple(record.value), record.timestamp) for record in found]
    assert sorted(outputs, key=str) == sorted(model(seen).outputs, key=str)
