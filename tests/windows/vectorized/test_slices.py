"""Slices and their windows against the assigner, window by window."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from keyed.windows import HoppingEventTimeWindows
from keyed.windows.vectorized.row_groups import grouped, ordered
from keyed.windows.vectorized.window_tables import Slices

TIMES = st.lists(st.integers(-100, 100) | st.integers(-(2**62), 2**62), min_size=1, max_size=8)


@st.composite
def hopping(draw):
    slide = draw(st.integers(1, 14))
    return HoppingEventTimeWindows.of(draw(st.integers(1, 14)), slide, draw(st.integers(1 - slide, slide - 1)))


@given(hopping(), TIMES, st.integers(-120, 120), st.integers(0, 40))
def test_windows_of_slices_are_those_of_the_assigner(assigner, times, after, length):
    slices = Slices(assigner)
    starts = slices.starts(np.array(times))
    rows, windows = slices.windows(starts, after, after + length)
    found = sorted(zip(rows.tolist(), windows.tolist(), strict=True))
    wanted = []
    for row, start in enumerate(starts.tolist()):
        assert start <= times[row] < start + slices.step
        windows_of = assigner.assign_windows(None, start, 0)
        wanted += [(row, w.start) for w in windows_of if after < w.end - 1 <= after + length]
    assert found == sorted(wanted)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([-(2**62), -1, 0, 1, 2**62])), max_size=12))
def test_rows_are_ordered_by_number_and_time(rows):
    numbers, times = np.array([n for n, _ in rows], dtype=np.int64), np.array([t for _, t in rows], dtype=np.int64)
    wanted = sorted(range(len(rows)), key=lambda row: rows[row])
    assert ordered(numbers, times).tolist() == wanted


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-(2**63), 2**63 - 1) | st.integers(0, 1)), max_size=12))
def test_rows_with_equal_values_are_a_group(rows):
    columns = [np.array([row[i] for row in rows], dtype=np.int64) for i in range(2)]
    groups = grouped(columns)
    assert groups.count == len(set(rows))
    assert len(set(zip(groups.ids.tolist(), rows, strict=True))) == groups.count
