"""Chunks of several inputs as one sequence."""

from hypothesis import given
from hypothesis import strategies as st

from keyed.engine.batch import merged_chunks

CHUNKS = st.lists(st.lists(st.integers(-3, 3), max_size=5), max_size=4)


@given(st.lists(CHUNKS, min_size=1, max_size=3), st.booleans())
def test_rows_run_by_time_and_those_of_equal_times_in_the_order_of_the_inputs(inputs, sided):
    # A row is its input and its place there; the times of an input do not go back.
    rows, parts = [], []
    for number, chunks in enumerate(inputs):
        times = sorted(time for chunk in chunks for time in chunk)
        made, start = [], 0
        for chunk in chunks:
            end = start + len(chunk)
            values = [(number, place) for place in range(start, end)]
            made.append(([f"key{number}"] * len(chunk), times[start:end], iter(values), None))
            start = end
        rows += [(time, number, place) for place, time in enumerate(times)]
        parts.append((made, number if sided else None))
    found = []
    for keys, when, what, sides in merged_chunks(parts, by_time=True):
        assert (sides is None) == (not sided)
        assert sides is None or list(sides) == [int(key[3:]) for key in keys]
        found += [(time, *value) for time, value in zip(when or (), what, strict=True)]
    assert found == sorted(rows)


def test_without_times_one_input_runs_after_the_other():
    parts = [([(["a"], None, [1], None), (["b"], None, [2], None)], 0), ([(["c"], None, [3], None)], 1)]
    found = [(list(values), list(sides or ())) for _, _, values, sides in merged_chunks(parts, by_time=False)]
    assert found == [([1], [0]), ([2], [0]), ([3], [1])]
