"""The most frequent values: exact counts agree with brute force, and those of the sketch keep their bound."""

import math
import pickle
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keyed
from keyed import windows as w
from keyed.errors import DefinitionError
from keyed.rows import row
from keyed.testing import KeyedTestHarness
from tests.support.explained import computed
from tests.support.window_operators import accumulate

VALUES = st.lists(st.integers(0, 12) | st.just(1), max_size=80)


def brute(values, k):
    """Counts by brute force: the most frequent first, those of equal counts by value."""
    counts = Counter(value for value in values if value is not None)
    return [row(value=v, count=n) for v, n in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:k]]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["b", "a", "b", None, "c", "a"], [("a", 2), ("b", 2)]),
        ([], []),
        ([None], []),
        ([0.0, -0.0, math.nan, 1.0, math.nan, math.nan], [(math.nan, 3), (0.0, 2)]),
        (["a", 1, "a", 1, 2], [(1, 2), ("a", 2)]),
        ([(1, "x"), (1, "x"), (0, "y")], [((1, "x"), 2), ((0, "y"), 1)]),
    ],
)
@pytest.mark.parametrize("make", [w.MostFrequent, w.ApproxMostFrequent])
def test_results(make, values, expected):
    found = make(2)
    assert repr([tuple(each) for each in found.get_result(accumulate(found, values))]) == repr(expected)


@given(VALUES, VALUES, st.integers(1, 5))
def test_exact_counts_are_those_of_brute_force_in_any_order_and_pieces(left, right, k):
    exact = w.MostFrequent(k)
    expected = brute([*left, *right], k)
    assert exact.get_result(accumulate(exact, [*left, *right])) == expected
    a, b = accumulate(exact, left), accumulate(exact, right)
    before = pickle.dumps((a, b))
    assert exact.get_result(exact.merge(a, b)) == exact.get_result(exact.merge(b, a)) == expected
    assert pickle.dumps((a, b)) == before


@given(st.lists(VALUES, min_size=1, max_size=6), st.integers(1, 8), st.randoms(use_true_random=False))
def test_the_sketch_keeps_its_bound_however_it_is_merged(pieces, capacity, random):
    sketch = w.ApproxMostFrequent(capacity, capacity=capacity)
    parts = [accumulate(sketch, piece) for piece in pieces]
    while len(parts) > 1:
        random.shuffle(parts)
        parts.append(sketch.merge(parts.pop(), parts.pop()))
    true = Counter(value for piece in pieces for value in piece)
    most = true.total() / (capacity + 1)
    found = {each.value: each.count for each in sketch.get_result(parts[0])}
    assert len(parts[0]) <= capacity
    for value in true:
        assert true[value] - most <= found.get(value, 0) <= true[value]
    assert all(value in found for value, count in true.items() if count > most)
    if len(true) <= capacity:
        assert found == true


@given(VALUES)
def test_the_sketch_is_deterministic(values):
    sketch = w.ApproxMostFrequent(2, capacity=3)
    assert accumulate(sketch, values) == accumulate(w.ApproxMostFrequent(2, capacity=3), list(values))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: w.MostFrequent(0), "k=0 must be an int of at least 1"),
        (lambda: w.MostFrequent(True), "k=True must be an int"),
        (lambda: w.ApproxMostFrequent(5, capacity=4), "capacity=4 must be an int of at least k=5"),
    ],
)
def test_parameters_are_checked(make, said):
    with pytest.raises(DefinitionError, match=said):
        make()


ROWS = [("k", at, page) for at, page in enumerate("aabcabddddbbbbaac" * 3)]
TABLE = pa.table({"key": [r[0] for r in ROWS], "at": [r[1] for r in ROWS], "page": [r[2] for r in ROWS]})


def test_the_sketch_goes_by_row_and_explain_names_it():
    windowed = keyed.stream(TABLE, timestamp="at").key_by("key").window(w.TumblingEventTimeWindows.of(10))
    assert "ApproxMostFrequent" in computed(windowed.aggregate(pages=w.ApproxMostFrequent(2, "page")))


@pytest.mark.parametrize("make", [w.MostFrequent, w.ApproxMostFrequent])
@pytest.mark.parametrize("rows_per_batch", [1, 1000])
def test_continuous_aggregates_count_too(make, rows_per_batch, tmp_path):
    keyed_rows = keyed.stream(TABLE, timestamp="at").key_by("key")
    output = w.aggregate(keyed_rows, {"pages": make(2, "page")}, name="pages")
    result = output.run(rows_per_batch=rows_per_batch, tables=tmp_path / "tables")
    expected = brute([page for *_, page in ROWS], 2)
    assert list(result)[-1].pages == expected
    assert [(each.value, each.count) for each in list(result)[-1].pages] == [tuple(each) for each in expected]
    with result.tables as tables:
        (found,) = tables["pages"]
        # A struct of a table is a dictionary.
        pages = found.value["pages"]
        assert [tuple(each.values()) if isinstance(each, dict) else tuple(each) for each in pages] == expected


def test_accumulators_survive_a_crash():
    class Counts(keyed.KeyedProcessFunction):
        pages = keyed.AggregatingState(w.MostFrequent(2))
        floats = keyed.AggregatingState(w.MostFrequent(2))

        def process_element(self, value, ctx):
            self.pages.add(value)
            self.floats.add(math.nan)
            yield [tuple(each) for each in self.pages.get() or ()], [each.count for each in self.floats.get() or ()]

    with KeyedTestHarness(Counts(), key=lambda _: "k") as harness:
        for value in ("b", "a", "b"):
            harness.process(value)
            harness.crash_and_recover()
        assert harness.take_output()[-1].value == ([("b", 2), ("a", 1)], [3])
