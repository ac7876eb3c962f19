"""Joins against brute force, and as-of joins against pandas, over random inputs, cut into batches anywhere."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import keyed
from keyed.joins import AsOfJoin, EnrichmentJoin, IntervalJoin, TableJoin, WindowCoGroup, WindowJoin
from keyed.testing import strategies

DELAY = 6


def sides(**disorder: Any) -> st.SearchStrategy[list[tuple[str, int]]]:
    """Rows (key, time) as they arrive."""
    keys = strategies.rows("k string", k=strategies.skewed("a", "b"))
    stream = strategies.streams(keys, gap=3, max_size=14, **disorder)
    return stream.map(lambda records: [(record.value["k"], record.timestamp or 0) for record in records])


ROWS = sides(delay=DELAY)
SIZES = st.integers(1, 15)
BOUNDS = st.tuples(st.integers(-8, 8), st.integers(-8, 8), st.booleans(), st.booleans())
HOWS = ("inner", "left", "right", "full")


def arrived(rows):
    """Rows with their number."""
    return [{"k": key, "t": time, "id": number} for number, (key, time) in enumerate(rows)]


def ids(left, right):
    return (None if left is None else left.id, None if right is None else right.id)


def joined(function, left, right, size, parallelism=1):
    delay = keyed.bounded_out_of_orderness(DELAY)
    streams = [keyed.stream(arrived(rows), timestamp="t", watermark=delay) for rows in (left, right)]
    out = streams[0].connect(streams[1]).key_by("k").process(function, parallelism=parallelism)
    result = out.run(rows_per_batch=size)
    assert result.metrics[type(function).__name__]["rows_dropped"] == 0
    assert result.metrics[type(function).__name__]["live_entries"] == 0 or isinstance(function, TableJoin | AsOfJoin)
    return result.values


def with_lonely(pairs, left, right, how):
    """Pairs, and the rows of the outer sides that have none."""
    pairs = set(pairs)
    if how in ("left", "full"):
        pairs |= {(i, None) for i in range(len(left)) if i not in {pair[0] for pair in pairs}}
    if how in ("right", "full"):
        pairs |= {(None, j) for j in range(len(right)) if j not in {pair[1] for pair in pairs}}
    return sorted(pairs, key=str)


@pytest.mark.parametrize("how", HOWS)
@given(left=ROWS, right=ROWS, bounds=BOUNDS, size=SIZES)
def test_interval_join(how, left, right, bounds, size):
    lower, upper = sorted(bounds[:2])
    options = {"lower_exclusive": bounds[2], "upper_exclusive": bounds[3]}
    low, up = lower + bounds[2], upper - bounds[3]
    if low > up:
        with pytest.raises(keyed.errors.DefinitionError, match="no time lies between"):
            IntervalJoin(ids, lower=lower, upper=upper, **options)
        return
    function = IntervalJoin(ids, lower=lower, upper=upper, how=how, **options)
    pairs = [
        (i, j) for i, a in enumerate(left) for j, b in enumerate(right) if a[0] == b[0] and low <= b[1] - a[1] <= up
    ]
    found = joined(function, left, right, size, parallelism=2)
    assert sorted(found, key=str) == with_lonely(pairs, left, right, how)


@pytest.mark.parametrize("exact", [True, False])
@given(left=ROWS, right=ROWS, tolerance=st.none() | st.integers(0, 9), size=SIZES)
def test_as_of_join_is_that_of_pandas(exact, left, right, tolerance, size):
    # Of right rows of one key and time the last to arrive counts; each time has one here.
    right = list({row[:2]: row for row in right}.values())
    found = joined(AsOfJoin(ids, tolerance=tolerance, allow_exact_matches=exact), left, right, size)
    columns: Any = {"k": object, "t": "int64", "id": "int64"}
    lefts, rights = (pd.DataFrame(arrived(rows), columns=[*columns]).astype(columns) for rows in (left, right))
    lefts, rights = lefts.sort_values("t"), rights.sort_values("t")
    merged = pd.merge_asof(lefts, rights, on="t", by="k", tolerance=tolerance, allow_exact_matches=exact)
    expected = [(i, None if pd.isna(j) else int(j)) for i, j in zip(merged["id_x"], merged["id_y"], strict=True)]
    assert sorted(found, key=str) == sorted(expected, key=str)
    inner = joined(AsOfJoin(ids, tolerance=tolerance, allow_exact_matches=exact, how="inner"), left, right, size)
    assert sorted(inner, key=str) == sorted((pair for pair in expected if pair[1] is not None), key=str)


@pytest.mark.parametrize("how", HOWS)
@given(left=ROWS, right=ROWS, window=st.tuples(st.integers(1, 12), st.integers(1, 12)), size=SIZES)
def test_window_join(how, left, right, window, size):
    width, slide = window
    function = WindowJoin(ids, size=width, slide=slide, offset=-3, how=how)
    expected: list[Any] = []
    for start in range(-99, 99):
        if (start + 3) % slide:
            continue
        for key in "ab":
            mine, theirs = (
                [i for i, row in enumerate(rows) if row[0] == key and start <= row[1] < start + width]
                for rows in (left, right)
            )
            expected += [(i, j) for i in mine for j in theirs]
            if not theirs and how in ("left", "full"):
                expected += [(i, None) for i in mine]
            if not mine and how in ("right", "full"):
                expected += [(None, j) for j in theirs]
    assert sorted(joined(function, left, right, size), key=str) == sorted(expected, key=str)


# A row as late as the delay allows may touch a session that has just fired, and begins another one, as in Flink.
EARLIER = sides(delay=DELAY - 1)


@given(left=EARLIER, right=EARLIER, gap=st.integers(1, 6), size=SIZES)
def test_sessions_are_of_both_sides(left, right, gap, size):
    def cogroup(start, end, lefts, rights):
        yield start, end, sorted(row.id for row in lefts), sorted(row.id for row in rights)

    rows = sorted((key, time, side, i) for side, each in enumerate((left, right)) for i, (key, time) in enumerate(each))
    expected: list[Any] = []
    for before, (key, time, side, i) in zip([None, *rows], rows, strict=False):
        if before is None or before[0] != key or time > before[1] + gap:
            expected.append([time, 0, [], []])
        expected[-1][1] = time + gap
        expected[-1][2 + side].append(i)
    found = joined(WindowCoGroup(cogroup, gap=gap), left, right, size)
    assert sorted(found) == sorted((start, end, sorted(mine), sorted(theirs)) for start, end, mine, theirs in expected)


@given(left=ROWS, right=ROWS, size=SIZES)
def test_cogroup_gives_each_row_to_its_window_once(left, right, size):
    def cogroup(start, end, lefts, rights):
        assert all(start <= row.t < end for row in [*lefts, *rights])
        assert lefts or rights
        yield start, [row.id for row in lefts], [row.id for row in rights]

    found = joined(WindowCoGroup(cogroup, size=10), left, right, size)
    assert sorted(i for _, lefts, _ in found for i in lefts) == list(range(len(left)))
    assert sorted(j for _, _, rights in found for j in rights) == list(range(len(right)))


IN_ORDER = sides()


@given(left=IN_ORDER, right=IN_ORDER)
def test_table_join_in_one_batch_sees_what_was_valid_then(left, right):
    found = joined(TableJoin(ids), left, right, 100)
    expected: list[Any] = []
    for i, (key, time) in enumerate(left):
        # The table's row of equal time comes before the left one.
        before = [(b[1], j) for j, b in enumerate(right) if b[0] == key and b[1] <= time]
        expected.append((i, max(before)[1] if before else None))
    assert sorted(found, key=str) == sorted(expected, key=str)


# The left input holds the watermark back.
@example(left=[("a", 0)], right=[("a", 1)], timeout=0)
@given(left=IN_ORDER, right=IN_ORDER, timeout=st.integers(0, 10))
def test_enrichment_waits_for_the_first_row_as_long_as_the_time_out(left, right, timeout):
    function = EnrichmentJoin(ids, timeout=timeout)
    streams = [keyed.stream(arrived(rows), timestamp="t") for rows in (left, right)]
    found = streams[0].connect(streams[1]).key_by("k").process(function).run().values
    expected: list[Any] = []
    for i, (key, time) in enumerate(left):
        of_key = [(b[1], j) for j, b in enumerate(right) if b[0] == key]
        before = [each for each in of_key if each[0] <= time]
        after = [each for each in of_key if time < each[0] <= time + timeout]
        # The first of equal times is the one that comes first.
        partner = max(before)[1] if before else min(after)[1] if after else None
        expected.append((i, partner))
    assert sorted(found, key=str) == sorted(expected, key=str)
