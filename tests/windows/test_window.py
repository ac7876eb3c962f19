"""Time windows: arithmetic, limits and merging (Flink's TimeWindowTest)."""

from hypothesis import given
from hypothesis import strategies as st

from keyed import MAX_TIMESTAMP, MIN_TIMESTAMP
from keyed.windows import GlobalWindow, TimeWindow
from keyed.windows.window import time_window, window_start

TIMES = st.integers(MIN_TIMESTAMP, MAX_TIMESTAMP)


@given(TIMES, st.integers(-(10**9), 10**9), st.integers(1, 10**12))
def test_a_window_holds_its_timestamp(timestamp, offset, size):
    start = window_start(timestamp, offset, size)
    assert start <= timestamp < start + size
    assert (start - offset) % size == 0


@given(TIMES, st.integers(1, 10**18))
def test_the_last_timestamp_of_a_window_is_an_int64(timestamp, size):
    window = time_window(timestamp, timestamp + size)
    assert MIN_TIMESTAMP <= window.start <= window.max_timestamp() <= MAX_TIMESTAMP


def test_windows_that_touch_intersect():
    assert TimeWindow(0, 10).intersects(TimeWindow(10, 20))
    assert TimeWindow(10, 20).intersects(TimeWindow(0, 10))
    assert TimeWindow(0, 10).intersects(TimeWindow(3, 4))
    assert not TimeWindow(0, 10).intersects(TimeWindow(11, 20))
    assert TimeWindow(0, 10).cover(TimeWindow(30, 40)) == TimeWindow(0, 40)


def test_windows_are_plain_tuples_to_the_codec():
    assert tuple(TimeWindow(1, 2)) == (1, 2)
    assert TimeWindow(1, 2) == (1, 2)
    assert GlobalWindow() == ()
    assert not GlobalWindow()
    assert TimeWindow(1, 5).max_timestamp() == 4
    assert GlobalWindow().max_timestamp() == MAX_TIMESTAMP
