"""Flink's CoGroupJoinITCase, and the session windows of its page on joins, in the local runtime.

Pairs of tumbling windows are those of brute force, in `tests/keyed/joins/test_oracles.py`.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

import keyed
from keyed import OutputTag
from keyed.arrow.write import arrow_schema
from keyed.extending import schema_of
from keyed.joins import WindowCoGroup, WindowJoin
from keyed.testing import KeyedTestHarness, Record

PATHS = pytest.mark.parametrize("path", ["row", "vectorized"])
SCHEMA = arrow_schema(schema_of("k string, v string, t bigint"))


def joined(function, left, right, output="l string, r string"):
    streams = [
        keyed.stream(pa.Table.from_pylist([dict(zip("kvt", row, strict=True)) for row in rows], SCHEMA), timestamp="t")
        for rows in (left, right)
    ]
    # Cut into batches of two, so that watermarks pass in between.
    out = streams[0].connect(streams[1]).key_by("k").process(function, output).run(rows_per_batch=2)
    assert out.metrics[type(function).__name__]["rows_dropped"] == 0
    return sorted(map(tuple, out.values))


def pair(left, right):
    return tuple("".join(map(str, row)) for row in (left, right))


def product(*windows):
    return sorted((left, right) for lefts, rights in windows for left in lefts.split() for right in rights.split())


@PATHS
def test_co_group(path):
    """TestCoGroup."""
    left = [(key, "", time) for time, key in enumerate("aaabbbaaa")]
    right = [(key, "", time) for time, key in [(0, "a"), (1, "a"), (3, "b"), (6, "c"), (7, "c"), (8, "c")]]

    def told(start, end, lefts, rights):
        yield tuple("".join(f"({row.k},{row.t})" for row in rows) for rows in (lefts, rights))

    assert joined(WindowCoGroup(told, size=3, path=path), left, right) == [
        ("", "(c,6)(c,7)(c,8)"),
        ("(a,0)(a,1)(a,2)", "(a,0)(a,1)"),
        ("(a,6)(a,7)(a,8)", ""),
        ("(b,3)(b,4)(b,5)", "(b,3)"),
    ]


def test_session_windows():
    """The figure of Session Window Join: sessions are of both streams, and one without a pair emits nothing."""
    left = [("k", "o", time) for time in (1, 2, 5, 6)]
    right = [("k", "g", time) for time in (0, 4, 9)]
    found = joined(WindowJoin(pair, gap=2), left, right)
    # 0 to 6 are no further apart than 2, and 9 is alone.
    assert found == product(("ko1 ko2 ko5 ko6", "kg0 kg4"))


def test_sessions_meet_as_in_flink():
    """TimeWindow.intersects: sessions that touch are one; an element that is late by itself counts in an open one."""
    function = WindowCoGroup(lambda start, end, *rows: [(start, end, *rows)], gap=3, late_left=OutputTag("late"))
    with KeyedTestHarness(function, key=lambda value: "k") as harness:
        for time in (0, 10, 6, 3):
            harness.process_element1(time, time)
        harness.advance_watermark(8)
        assert harness.take_output() == [Record((0, 9, [0, 6, 3], []), 8)]
        harness.process_element2(8, 8)
        harness.process_element1(4, 4)
        harness.process_element1(6, 6)
        assert [record.value for record in harness.take_side_output("late")] == [4]
        harness.end_of_input()
        assert harness.take_output() == [Record((6, 13, [10, 6], [8]), 12)]
        assert harness.state_entries() == 0
