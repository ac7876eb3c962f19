"""Merge planning (Flink's MergingWindowSetTest and TimeWindow.mergeWindows)."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyed.windows import TimeWindow
from keyed.windows.merge_plan import merge_time_windows, plan_merge

W = TimeWindow


class WindowSet:
    """Flink's MergingWindowSet on top of the plan, so that its tests read as they do there."""

    def __init__(self, merge_windows=merge_time_windows):
        self.in_flight: dict = {}
        self.merge_windows = merge_windows
        self.merges: tuple[Any, ...] = ()

    def add(self, start, end):
        plan = plan_merge(self.in_flight, W(start, end), self.merge_windows)
        self.in_flight, self.merges = plan.state_windows, plan.merges
        return plan.window

    def state_window(self, start, end):
        return self.in_flight.get(W(start, end))


def test_incremental_merging():
    windows = WindowSet()
    assert windows.add(0, 4) == W(0, 4)
    assert not windows.merges
    assert windows.state_window(0, 4) == W(0, 4)
    assert windows.add(0, 4) == W(0, 4)
    assert not windows.merges

    assert windows.add(3, 5) == W(0, 5)
    (merge,) = windows.merges
    assert (merge.result, merge.merged, merge.state_window, merge.merged_state_windows) == (
        W(0, 5),
        (W(0, 4),),
        W(0, 4),
        (),
    )
    assert windows.add(4, 6) == W(0, 6)
    (merge,) = windows.merges
    assert (merge.merged, merge.state_window, merge.merged_state_windows) == ((W(0, 5),), W(0, 4), ())
    assert windows.state_window(0, 6) == W(0, 4)

    for inside in ((1, 4), (0, 4), (3, 5), (4, 6)):
        assert windows.add(*inside) == W(0, 6)
        assert not windows.merges
    assert windows.state_window(0, 6) == W(0, 4)

    assert windows.add(11, 14) == W(11, 14)
    assert not windows.merges
    assert windows.add(10, 13) == W(10, 14)
    assert windows.merges[0].state_window == W(11, 14)
    assert windows.add(12, 15) == W(10, 15)
    assert windows.merges[0].merged == (W(10, 14),)
    assert windows.add(11, 14) == W(10, 15)
    assert not windows.merges
    assert windows.state_window(0, 6) == W(0, 4)
    assert windows.state_window(10, 15) == W(11, 14)


def test_late_merging():
    windows = WindowSet()
    for first in (0, 5, 10):
        assert windows.add(first, first + 3) == W(first, first + 3)
        assert not windows.merges
    assert windows.add(8, 10) == W(5, 13)
    (merge,) = windows.merges
    assert set(merge.merged) == {W(5, 8), W(10, 13)}
    assert {merge.state_window, *merge.merged_state_windows} == {W(5, 8), W(10, 13)}
    assert merge.result not in merge.merged_state_windows
    assert windows.state_window(0, 3) == W(0, 3)
    for inside in ((5, 8), (8, 10), (10, 13)):
        assert windows.add(*inside) == W(5, 13)
        assert not windows.merges
    assert windows.add(3, 5) == W(0, 13)
    (merge,) = windows.merges
    assert set(merge.merged) == {W(0, 3), W(5, 13)}
    assert len(merge.merged_state_windows) == 1


def test_a_large_window_that_covers_one():
    windows = WindowSet()
    windows.add(1, 2)
    assert windows.add(0, 3) == W(0, 3)
    assert windows.merges[0].merged == (W(1, 2),)
    assert windows.state_window(0, 3) == W(1, 2)


def test_a_large_window_that_covers_several():
    windows = WindowSet()
    for window in ((1, 3), (5, 8), (10, 13)):
        windows.add(*window)
    assert windows.add(0, 13) == W(0, 13)
    (merge,) = windows.merges
    assert set(merge.merged) == {W(1, 3), W(5, 8), W(10, 13)}
    assert len({merge.state_window, *merge.merged_state_windows}) == 3


def test_adding_an_identical_window_merges_nothing():
    windows = WindowSet()
    windows.add(1, 2)
    assert windows.add(1, 2) == W(1, 2)
    assert not windows.merges
    assert windows.in_flight == {W(1, 2): W(1, 2)}


def test_windows_that_do_not_hold_the_added_one_may_merge_too():
    """Flink's NonEagerlyMergingWindowAssigner: it merges only from the third window on."""

    def merge_windows(windows):
        windows = list(windows)
        return merge_time_windows(windows) if len(windows) > 2 else []

    windows = WindowSet(merge_windows)
    for window in ((0, 2), (2, 5), (1, 2), (10, 12)):
        assert windows.state_window(*windows.add(*window)) is not None


@pytest.mark.parametrize(
    ("windows", "merged"),
    [
        ([], []),
        ([(0, 1)], []),
        ([(0, 1), (1, 2)], [((0, 2), [(0, 1), (1, 2)])]),
        ([(0, 1), (2, 3)], []),
        ([(5, 6), (0, 9), (20, 21), (9, 10)], [((0, 10), [(0, 9), (5, 6), (9, 10)])]),
    ],
)
def test_which_windows_merge(windows, merged):
    assert merge_time_windows(map(W._make, windows)) == merged


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 5)), max_size=12))
def test_windows_in_flight_never_touch_and_cover_all(added):
    windows = WindowSet()
    for start, length in added:
        windows.add(start, start + length)
        in_flight = sorted(windows.in_flight)
        assert all(a.end < b.start for a, b in pairwise(in_flight))
        assert len(set(windows.in_flight.values())) == len(in_flight)
    covered = {time for start, length in added for time in range(start, start + length)}
    assert {time for w in windows.in_flight for time in range(w.start, w.end)} >= covered
