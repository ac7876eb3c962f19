"""Time windows: arithmetic, limits and merging (Flink's TimeWindowTest)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyed import MAX_TIMESTAMP, MIN_TIMESTAMP
from keyed.windows import GlobalWindow, TimeWindow
from keyed.windows.window import time_window, window_start

TIMES = st.integers(MIN_TIMESTAMP, MAX_TIMESTAMP)


HOUR = 3_600_000
#: The starts of windows by timestamp, by offset and size: those of Flink's test of the same name, before 1970, and of
#: the days of UTC+8 and UTC-4.
STARTS = {
    (0, 7): {1: 0, 6: 0, 7: 7, 8: 7, -12: -14, -7: -7, -8: -14},
    (3, 7): {1: -4, 2: -4, 3: 3, 9: 3, 10: 10},
    (-2, 7): {1: -2, -2: -2, -3: -9, 4: -2, 7: 5, 12: 12},
    (-8 * HOUR, 24 * HOUR): {1470902048450: 1470844800000},
    (4 * HOUR, 24 * HOUR): {1470902048450: 1470888000000},
}


@pytest.mark.parametrize(
    ("offset", "size", "timestamp", "start"), [(*key, *each) for key in STARTS for each in STARTS[key].items()]
)
def test_window_start_with_offset(offset, size, timestamp, start):
    assert window_start(timestamp, offset, size) == start


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
