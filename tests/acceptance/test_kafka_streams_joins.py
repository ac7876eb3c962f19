"""Kafka Streams' joins of streams and of a stream with a table, as far as they map.

An element is (key, value); what comes out is told as (key, "left+right", timestamp). Kafka's stream time is the
greatest time of both sides, where the watermark here is the least: the cases move it by hand. Its window of a join is
``lower=-before, upper=after``, and its grace is what the watermark stays behind. Records whose value is null, which
Kafka leaves out of joins, are left out by the caller here.
"""

from __future__ import annotations

from typing import Any

import pytest

from keyed import OutputTag
from keyed.joins import AsOfJoin, IntervalJoin, TableJoin
from keyed.testing import KeyedTestHarness

LATE = OutputTag("late")
KEYS = range(4)


def pair(left: Any, right: Any) -> tuple[Any, str]:
    key = right[0] if left is None else left[0]
    return key, "+".join("null" if side is None else side[1] for side in (left, right))


class Driver:
    """TopologyTestDriver: each record is processed by itself; with a delay the watermark follows stream time.

    Args:
        function: The join.
        delay_ms: How far behind stream time the watermark is; ``None`` leaves it where it is.
    """

    def __init__(self, function: Any, delay_ms: int | None = None) -> None:
        self.harness = KeyedTestHarness(function, key=lambda value: value[0])
        self.delay_ms = delay_ms
        self.stream_time = -1

    def left(self, key: Any, value: Any, time: int = 0) -> None:
        self.harness.process_element1((key, value), time)
        self._reach(time)

    def right(self, key: Any, value: Any, time: int = 0) -> None:
        self.harness.process_element2((key, value), time)
        self._reach(time)

    def push(self, side: str, name: str, keys: Any = KEYS, time: int = 0, step: int = 0) -> list[Any]:
        """Push an item for each key, and return what came out, by key and then as it came."""
        for number, key in enumerate(keys):
            getattr(self, side)(key, f"{name}{key}", time + number * step)
        return self.take()

    def take(self) -> list[Any]:
        found = [(*record.value, record.timestamp) for record in self.harness.take_output()]
        return sorted(found, key=lambda each: each[0])

    def dropped(self) -> int:
        return self.harness.metrics()["rows_dropped"]

    def _reach(self, time: int) -> None:
        self.stream_time = max(self.stream_time, time)
        if self.delay_ms is not None:
            self.harness.advance_watermark(self.stream_time - self.delay_ms)


def inner(before: int, after: int, how: Any = "inner") -> IntervalJoin:
    return IntervalJoin(pair, lower=-before, upper=after, how=how)


def joined(pairs: str, time: int = 0) -> list[Any]:
    """The pairs of a step, "A0+a0 A1+a1", which all have one time."""
    return [(int(each.partition("+")[0][1:]), each, time) for each in pairs.split()]


def test_join():
    """KStreamKStreamJoinTest.testJoin."""
    driver = Driver(inner(100, 100))
    assert driver.push("left", "A", (0, 1)) == []
    assert driver.push("right", "a", (0, 1)) == joined("A0+a0 A1+a1")
    assert driver.push("left", "B") == joined("B0+a0 B1+a1")
    assert driver.push("right", "b") == joined("A0+b0 B0+b0 A1+b1 B1+b1 B2+b2 B3+b3")
    assert driver.push("left", "C") == joined("C0+a0 C0+b0 C1+a1 C1+b1 C2+b2 C3+b3")
    assert driver.push("right", "c", (0, 1)) == joined("A0+c0 B0+c0 C0+c0 A1+c1 B1+c1 C1+c1")


def test_outer_join():
    """KStreamKStreamOuterJoinTest.testOuterJoin: a record without a partner comes out when the window has closed."""
    driver = Driver(inner(100, 100, "full"), delay_ms=1)
    assert driver.push("left", "A", (0, 1)) == []
    assert driver.push("right", "a", (0, 1)) == joined("A0+a0 A1+a1")
    assert driver.push("left", "B") == joined("B0+a0 B1+a1")
    assert driver.push("right", "b") == joined("A0+b0 B0+b0 A1+b1 B1+b1 B2+b2 B3+b3")
    driver.left(9, "C9", 0)
    driver.right(8, "c8", 0)
    driver.left(7, "bump", 101)
    # The time of an output without a partner is that of the record for Kafka, and here the end of its window.
    assert driver.take() == [(8, "null+c8", 100), (9, "C9+null", 100)]


def test_windowing():
    """KStreamKStreamJoinTest.testWindowing: ±100 ms, both ends included; results have the greater time."""
    driver = Driver(inner(100, 100))
    assert driver.push("left", "A", (0, 1)) == []
    assert driver.push("right", "a", (0, 1)) == joined("A0+a0 A1+a1")
    assert driver.push("left", "B", time=1000, step=1) == []
    assert driver.push("right", "b", time=1100) == joined("B0+b0 B1+b1 B2+b2 B3+b3", 1100)
    assert driver.push("right", "c", time=1101) == joined("B1+c1 B2+c2 B3+c3", 1101)
    assert driver.push("right", "d", time=1102) == joined("B2+d2 B3+d3", 1102)
    assert driver.push("right", "e", time=1103) == joined("B3+e3", 1103)
    assert driver.push("right", "f", time=1104) == []
    assert driver.push("right", "g", time=899) == []
    for number, name in enumerate("hijk"):
        expected = [(key, f"B{key}+{name}{key}", 1000 + key) for key in range(number + 1)]
        assert driver.push("right", name, time=900 + number) == expected
    assert driver.push("right", "l", time=2000, step=1) == []
    for number, name in enumerate("CDEFG"):
        expected = [(key, f"{name}{key}+l{key}", 2100 + number) for key in range(number, 4)]
        assert driver.push("left", name, time=2100 + number) == expected
    assert driver.push("left", "H", time=1899) == []
    for number, name in enumerate("IJKL"):
        expected = [(key, f"{name}{key}+l{key}", 2000 + key) for key in range(number + 1)]
        assert driver.push("left", name, time=1900 + number) == expected


def test_asymmetric_windowing():
    """KStreamKStreamJoinTest.testAsymmetricWindowingAfter and …Before: right records from A's time on, or up to it."""
    after = Driver(inner(0, 100))
    assert after.push("left", "A", time=1000, step=1) == []
    assert after.push("right", "a", time=999) == []
    assert after.push("right", "b", time=1000) == joined("A0+b0", 1000)
    assert after.push("right", "f", time=1100) == joined("A0+f0 A1+f1 A2+f2 A3+f3", 1100)
    assert after.push("right", "g", time=1101) == joined("A1+g1 A2+g2 A3+g3", 1101)
    assert after.push("right", "k", time=1104) == []
    before = Driver(inner(100, 0))
    assert before.push("left", "A", time=1000, step=1) == []
    assert before.push("right", "a", time=899) == []
    assert before.push("right", "b", time=900) == joined("A0+b0", 1000)
    assert before.push("right", "f", time=1000) == [(key, f"A{key}+f{key}", 1000 + key) for key in KEYS]
    assert before.push("right", "g", time=1001) == [(key, f"A{key}+g{key}", 1000 + key) for key in (1, 2, 3)]
    assert before.push("right", "k", time=1004) == []


@pytest.mark.parametrize("how", ["inner", "left", "full"])
def test_records_after_the_window_has_closed_are_dropped(how):
    """KStreamKStreamWindowCloseTest.recordsArrivingPostWindowCloseShouldBeDropped: a window of 10 ms and 5 ms of grace.

    Kafka drops a record when its window with the grace is over. Here it is late below the watermark, whatever the
    window: to drop the same ones, the watermark stays behind by both together, 15 ms (a delay of 14).
    """
    driver = Driver(inner(10, 10, how), delay_ms=15)
    driver.left(0, "left", 15)
    driver.right(-1, "bumpTime", 40)
    assert driver.dropped() == 0
    driver.right(0, "closedAt40", 24)
    assert driver.dropped() == 1
    driver.right(0, "closedAt41", 25)
    assert driver.dropped() == 1
    driver.right(-1, "bumpTime", 41)
    driver.right(0, "closedAt41", 25)
    assert driver.dropped() == 2
    driver.right(1, "right", 115)
    driver.left(-1, "bumpTime", 140)
    driver.left(1, "closedAt140", 124)
    assert driver.dropped() == 3
    driver.left(1, "closedAt141", 125)
    assert driver.dropped() == 3
    driver.left(-1, "bumpTime", 141)
    driver.left(1, "closedAt141", 125)
    assert driver.dropped() == 4


def test_left_join_duplicates():
    """KStreamKStreamLeftJoinTest.testLeftJoinDuplicates: each of two records of one time comes out, and once."""
    driver = Driver(inner(100, 100, "left"), delay_ms=11)
    driver.left(0, "A0")
    driver.left(0, "A0-0")
    driver.right(1, "a0", 111)
    driver.right(2, "dummy", 500)
    assert driver.take() == [(0, "A0+null", 100), (0, "A0-0+null", 100)]
    driver.left(2, "A2", 1000)
    driver.left(2, "A2-0", 1000)
    driver.right(2, "a2", 1001)
    assert driver.take() == [(2, "A2+a2", 1001), (2, "A2-0+a2", 1001)]
    driver.right(3, "a3", 315)
    driver.harness.end_of_input()
    assert driver.take() == []


@pytest.mark.parametrize("by", ["left", "right"])
def test_left_records_without_a_partner_come_out_whichever_side_moves_time(by):
    """KStreamKStreamLeftJoinTest.testLeftExpiredNonJoinedRecordsAreEmittedByTheLeftProcessor and …RightProcessor."""
    driver = Driver(inner(100, 100, "left"), delay_ms=1)
    for time, key, name in ((1, 0, "A0"), (2, 1, "A1"), (3, 0, "A0-0")):
        driver.left(key, name, time)
    assert driver.take() == []
    driver.right(1, "a1", 3)
    assert driver.take() == [(1, "A1+a1", 3)]
    getattr(driver, by)(2, "dummy", 401)
    assert driver.take() == [(0, "A0+null", 101), (0, "A0-0+null", 103)]
    getattr(driver, "right" if by == "left" else "left")(2, "dummy", 401)
    assert driver.take() == [(2, "dummy+dummy", 401)]


def test_right_records_without_a_partner_never_come_out_of_a_left_join():
    """KStreamKStreamLeftJoinTest.testRightNonJoinedRecordsAreNeverEmittedByTheLeftProcessor and …RightProcessor."""
    driver = Driver(inner(100, 100, "left"), delay_ms=1)
    for time, key, name in ((1, 0, "A0"), (2, 1, "A1"), (3, 0, "A0-0")):
        driver.right(key, name, time)
    driver.left(1, "a1", 3)
    assert driver.take() == [(1, "a1+A1", 3)]
    driver.left(2, "dummy", 401)
    assert driver.take() == []
    driver.right(2, "dummy", 402)
    assert driver.take() == [(2, "dummy+dummy", 402)]


@pytest.mark.parametrize("how", ["inner", "left", "full"])
def test_all_joins_of_a_stream_with_a_stream(how):
    """StreamStreamJoinIntegrationTest: testInner, testLeft, testOuter; each record has a partner within 10 s.

    Kafka before 3.1 told "A-null" at once; since then it waits for the window to close, as is done here.
    """
    driver = Driver(inner(10_000, 10_000, how))
    expected = {4: "A+a", 5: "B+a", 6: "A+b B+b", 9: "C+a C+b", 10: "A+c B+c C+c", 14: "A+d B+d C+d"}
    expected[15] = "D+a D+b D+c D+d"
    # Capitals are of the left side; a record whose value is null is left out.
    for number, value in enumerate("--AaBb--Cc---dD", start=1):
        if value != "-":
            (driver.left if value.isupper() else driver.right)(0, value, number)
        assert driver.take() == [(0, each, number) for each in expected.get(number, "").split()]
    driver.harness.end_of_input()
    assert driver.take() == []


def table(how: Any = "inner") -> Driver:
    return Driver(TableJoin(pair, how=how, deletes=lambda value: value[1] is None))


def test_a_table_does_not_join_on_its_updates():
    """KStreamKTableJoinTest: shouldNotJoinWithEmptyTableOnStreamUpdates, shouldNotJoinOnTableUpdates.

    Kafka's table takes what came last, also if it is older; here the latest by time counts, as in a versioned table.
    """
    driver = table()
    assert driver.push("left", "X", (0, 1), step=1) == []
    assert driver.push("right", "Y", (0, 1), time=10) == []
    assert driver.push("left", "X", step=1) == [(0, "X0+Y0", 0), (1, "X1+Y1", 1)]
    assert driver.push("right", "YY", time=20) == []
    assert driver.push("left", "X", step=1) == [(key, f"X{key}+YY{key}", key) for key in KEYS]
    assert driver.push("right", "YYY", time=30) == []
    assert driver.push("right", "older", time=25) == []
    assert driver.push("left", "X", (0,)) == [(0, "X0+YYY0", 0)]


def test_a_table_forgets_what_is_deleted():
    """KStreamKTableJoinTest.shouldClearTableEntryOnNullValueUpdates, and of the left join the same."""
    for how in ("inner", "left"):
        driver = table(how)
        assert driver.push("right", "Y") == []
        assert driver.push("left", "X", step=1) == [(key, f"X{key}+Y{key}", key) for key in KEYS]
        for key in (0, 1):
            driver.right(key, None)
        unmatched = [(key, f"XX{key}+null", key) for key in (0, 1)] if how == "left" else []
        assert driver.push("left", "XX", step=1) == [*unmatched, (2, "XX2+Y2", 2), (3, "XX3+Y3", 3)]


def test_a_left_join_with_a_table_keeps_what_has_no_partner():
    """KStreamKTableLeftJoinTest.shouldJoinRegardlessIfMatchFoundOnStreamUpdates."""
    driver = table("left")
    assert driver.push("right", "Y", (0, 1)) == []
    matched = [(0, "X0+Y0", 0), (1, "X1+Y1", 1)]
    assert driver.push("left", "X", step=1) == [*matched, (2, "X2+null", 2), (3, "X3+null", 3)]


def test_a_join_with_a_table_waits_for_the_grace_period():
    """KStreamKTableJoinTest.shouldDelayJoinByGracePeriod: an as-of join, with the watermark 2 ms behind.

    A late record is joined at once in Kafka (also shouldHandleLateJoinsWithGracePeriod); here it goes aside.
    """
    driver = Driver(AsOfJoin(pair, how="inner", late_left=LATE), delay_ms=2)
    assert driver.push("right", "Y") == []
    assert driver.push("left", "X", step=1) == [(0, "X0+Y0", 0), (1, "X1+Y1", 1)]
    assert driver.push("right", "YY") == []
    assert driver.push("left", "X", step=1) == []
    assert [record.value for record in driver.harness.take_side_output(LATE)] == [(0, "X0"), (1, "X1")]
    driver.left(5, "test", 7)
    assert driver.take() == [(key, f"X{key}+YY{key}", key) for key in (2, 2, 3, 3)]
    assert driver.push("right", "YYY") == []
