"""Time windows: arithmetic, limits and merging (Flink's TimeWindowTest)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyed import MAX_TIMESTAMP, MIN_TIMESTAMP
from keyed.windows import GlobalWindow, TimeWindow
from keyed.windows.window import time_window, window_start

TIMES = st.integers(MIN_TIMESTAMP, MAX_TIMESTAMP)


@pytest.mark.parametrize(
    ("timestamp", "offset", "size", "start"),
    [
        # As in Flink's test of the same name
        (1, 0, 7, 0),
        (6, 0, 7, 0),
        (7, 0, 7, 7),
        (8, 0, 7, 7),
        (1, 3, 7, -4),
        (2, 3, 7, -4),
        (3, 3, 7, 3),
        (9, 3, 7, 3),
        (10, 3, 7, 10),
        (1, -2, 7, -2),
        (-2, -2, 7, -2),
        (-3, -2, 7, -9),
        (4, -2, 7, -2),
        (7, -2, 7, 5),
        (12, -2, 7, 12),
        # before 1970
        (-12, 0, 7, -14),
        (-7, 0, 7, -7),
        (-8, 0, 7, -14),
        # Time zones: UTC+8 and UTC-4 days
        (1470902048450, -8 * 3_600_000, 86_400_000, 1470844800000),
        (1470902048450, 4 * 3_600_000, 86_400_000, 1470888000000),
    ],
)
def test_window_start_with_offset(timestamp, offset, size, start):
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
