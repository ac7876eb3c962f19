"""Merge planning (Flink's MergingWindowSetTest and TimeWindow.mergeWindows)."""

from itertools import pairwise
from typing import Any

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


def test_windows_that_do_not_hold_the_added_one_may_merge_too():
    """Flink's NonEagerlyMergingWindowAssigner: it merges only from the third window on."""

    def merge_windows(windows):
        windows = list(windows)
        return merge_time_windows(windows) if len(windows) > 2 else []

    windows = WindowSet(merge_windows)
    for window in ((0, 2), (2, 5), (1, 2), (10, 12)):
        assert windows.state_window(*windows.add(*window)) is not None


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 5)), max_size=12))
def test_windows_in_flight_never_touch_and_cover_all(added):
    windows = WindowSet()
    for start, length in added:
        windows.add(start, start + length)
        in_flight = sorted(windows.in_flight)
        assert all(a.end < b.start for a, b in pairwise(in_flight))
        assert len(set(windows.in_flight.values())) == len(in_flight)
    covered = {time for start, length in added for time in range(start, start + length)}
    assert {time for w in windows.in_flight for time in range(w.start, w.end)} == covered
