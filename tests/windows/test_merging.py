"""Merge planning (Flink's MergingWindowSetTest and TimeWindow.mergeWindows)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyed.windows import TimeWindow
from keyed.windows.window import merge_time_windows, plan_merge

W = TimeWindow


def cover_of(windows):
    return W(min(window.start for window in windows), max(window.end for window in windows))


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 5) | st.integers(1, 40)), max_size=12))
def test_windows_that_touch_are_one_and_keep_the_state_of_the_first(added):
    """MergingWindowSetTest: incremental and late merging, identical windows, and large ones that cover others."""
    in_flight: dict[W, W] = {}
    for start, length in added:
        window = W(start, start + length)
        touched = sorted(each for each in in_flight if each.intersects(window))
        cover, state_window = cover_of([*touched, window]), in_flight[touched[0]] if touched else window
        plan = plan_merge(in_flight, window)
        assert plan.window == cover
        if cover in in_flight or not touched:
            assert not plan.merges
        else:
            (merge,) = plan.merges
            assert (merge.result, merge.merged, merge.state_window) == (cover, tuple(touched), state_window)
            assert merge.merged_state_windows == tuple(in_flight[each] for each in touched[1:])
        assert plan.state_windows == {w: s for w, s in in_flight.items() if w not in touched} | {cover: state_window}
        in_flight = plan.state_windows


def test_windows_that_do_not_hold_the_added_one_may_merge_too():
    """Flink's NonEagerlyMergingWindowAssigner: it merges only from the third window on."""

    def merge_windows(windows):
        windows = list(windows)
        return merge_time_windows(windows) if len(windows) > 2 else []

    in_flight: dict[W, W] = {}
    for window in ((0, 2), (2, 5), (1, 2), (10, 12)):
        plan = plan_merge(in_flight, W(*window), merge_windows)
        in_flight = plan.state_windows
        assert plan.window in in_flight


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
