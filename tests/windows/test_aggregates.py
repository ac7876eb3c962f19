"""Aggregates: results, nulls, ties, merging, types."""

import math
import statistics
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyed import windows as w
from keyed.errors import DefinitionError, OutputDefinitionError
from keyed.rows import row
from keyed.testing import KeyedTestHarness
from keyed.windows.aggregates import Reduce
from keyed.windows.sketches import hash_value
from tests.support.states import Product
from tests.support.window_operators import accumulate, window_rows

WRONG: Any = 3


def result(aggregate, values, times=None):
    return aggregate.get_result(accumulate(aggregate, values, times))


@pytest.mark.parametrize(
    ("aggregate", "values", "expected"),
    [
        (w.Count(), [1, None, 3], 3),
        (w.Count(lambda v: v), [1, None, 3], 2),
        (w.Sum(), [1, None, 3], 4),
        (w.Sum(), [None], None),
        (w.Sum(), [0.5, 0.25], 0.75),
        (w.Sum(), [Decimal("0.1"), Decimal("0.2")], Decimal("0.3")),
        (w.Min(), [3, None, 1], 1),
        (w.Max(), ["b", "a"], "b"),
        (w.Max(), [None], None),
        (w.Mean(), [1, 2, None, 6], 3.0),
        (w.Mean(), [], None),
        (w.Variance(), [2, 4, 4, 4, 5, 5, 7, 9], 32 / 7),
        (w.Variance(sample=False), [2, 4, 4, 4, 5, 5, 7, 9], 4.0),
        (w.Stddev(sample=False), [2, 4, 4, 4, 5, 5, 7, 9], 2.0),
        (w.Variance(), [1], None),
        (w.Variance(), [], None),
        (w.CollectList(), [3, None, 1, 3], [3, 1, 3]),
        (w.CollectSet(), [3, None, 1, 3], [1, 3]),
        (w.CollectSet(), ["b", 2, "a"], [2, "a", "b"]),
        (w.CountDistinct(), [3, None, 1, 3], 2),
        (w.First(), [None, 2], None),
        (w.First(), [], None),
        (w.Latest(), [1, 2], 2),
        (w.TopK(2), [1, 5, 3, 5], [5, 5]),
        (w.TopK(3), [1], [1]),
        (w.ArgMax(lambda v: v[0], lambda v: v[1]), [("b", 2), ("a", 2), ("c", 1), ("z", None)], "a"),
        (w.ArgMin(lambda v: v[0], lambda v: v[1]), [("b", 2), ("a", 1), ("c", 1)], "a"),
        (w.ApproxCountDistinct(), ["a", "b", "a", None], 2),
        (w.ApproxCountDistinct(), [], 0),
    ],
)
def test_results(aggregate, values, expected):
    assert result(aggregate, values) == expected


@pytest.mark.parametrize("values", [[math.nan], [math.inf], [1.0, math.nan], [-math.inf, 1.0]])
def test_variance_is_nan_where_a_value_is_not_finite(values):
    """As Spark's var_pop, also for a single value."""
    assert math.isnan(result(w.Variance(sample=False), values))


def test_ties_of_top_k_go_by_value_ascending():
    values = [("late", 3), ("b", 5), ("a", 5), ("c", 5), ("low", 1)]
    for order in (values, values[::-1]):
        assert result(w.TopK(3, lambda v: v[0], by=lambda v: v[1]), order) == ["a", "b", "c"]
        assert result(w.TopK(4, lambda v: v[0], by=lambda v: v[1]), order) == ["a", "b", "c", "late"]


def test_first_and_latest_by_time():
    assert result(w.First(by_time=True), "cabd", [3, 1, 1, 9]) == "a"
    assert result(w.Latest(by_time=True), "cabd", [3, 9, 9, 1]) == "b"


def test_columns_are_attributes_keys_or_functions():
    assert result(w.Sum("amount"), [row(amount=3), row(amount=4)]) == 7
    assert result(w.Sum("per cent"), [row(**{"per cent": 3})]) == 3
    with pytest.raises(DefinitionError, match="neither the name of a column nor a function"):
        w.Sum(WRONG)


NUMBERS = st.lists(st.integers(-(10**6), 10**6), max_size=20)
MERGED = [
    *(
        w.Count(),
        w.Sum(),
        w.Min(),
        w.Max(),
        w.Mean(),
        w.CollectList(),
        w.CollectSet(),
        w.CountDistinct(),
        w.First(),
        w.Latest(),
    ),
    *(w.First(by_time=True), w.Latest(by_time=True), w.MostFrequent(3), w.TopK(3)),
    *(w.TopK(3, lambda v: v, by=lambda v: v // 1000), w.ArgMax(lambda v: v, lambda v: v // 1000)),
    *(
        w.ArgMin(lambda v: v, lambda v: v // 1000),
        w.ApproxCountDistinct(precision=4),
        w.ApproxCountDistinct(precision=8),
    ),
]
#: Not `repr`, which shows the addresses of functions: workers of xdist must agree about the names.
MERGED_IDS = [f"{type(aggregate).__name__} {number}" for number, aggregate in enumerate(MERGED)]


@pytest.mark.parametrize("aggregate", MERGED, ids=MERGED_IDS)
@given(left=NUMBERS, right=NUMBERS)
def test_merging_is_adding_all(aggregate, left, right):
    parts = accumulate(aggregate, left), accumulate(aggregate, right, range(len(left), len(left) + len(right)))
    merged = aggregate.get_result(aggregate.merge(*parts))
    assert merged == result(aggregate, [*left, *right])
    if aggregate.commutative:
        parts = accumulate(aggregate, right), accumulate(aggregate, left)
        assert aggregate.get_result(aggregate.merge(*parts)) == merged


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20), st.integers(0, 20))
def test_variance_merges(values, cut):
    aggregate = w.Variance()
    parts = (accumulate(aggregate, part) for part in (values[:cut], values[cut:]))
    variance = aggregate.get_result(aggregate.merge(*parts))
    assert math.isclose(variance, statistics.variance(values), rel_tol=1e-9, abs_tol=1e-6)


def test_a_sum_beyond_64_bits_is_refused():
    with pytest.raises(OverflowError, match="64 bits"):
        result(w.Sum(), [2**63 - 1, 1])
    assert result(w.Sum(), [2**63 - 1, 1, -1]) == 2**63 - 1


@pytest.mark.parametrize("number", [10, 1_000, 50_000])
def test_approximate_distinct_counts_are_within_four_standard_errors(number):
    aggregate = w.ApproxCountDistinct(precision=12)
    accumulator = accumulate(aggregate, (f"user-{value}" for value in range(number)))
    error = 1.04 / math.sqrt(2**12)
    assert abs(aggregate.get_result(accumulator) - number) <= max(1, 4 * error * number)
    assert len(accumulator) <= 2**12


def test_equal_values_hash_equal():
    assert hash_value(1) == hash_value(1.0) == hash_value(Decimal(1))
    assert hash_value("1") != hash_value(1)
    assert hash_value((1, "a")) != hash_value((1, "b"))
    assert hash_value(("a", "bc")) != hash_value(("ab", "c"))
    assert hash_value(float("nan")) == hash_value(float("nan"))


def test_types_follow_from_the_input():
    columns = {"n": "int", "x": "double", "d": "decimal(10,2)", "s": "string"}
    derived = {
        w.Count(): "bigint",
        w.Sum("n"): "bigint",
        w.Sum("x"): "double",
        w.Sum("d"): "decimal(20,2)",
        w.Min("s"): "string",
        w.Mean("n"): "double",
        w.Mean("d"): "decimal(14,6)",
        w.CollectList("s"): "array<string>",
        w.TopK(3, "s", by="n"): "array<string>",
        w.CountDistinct("s"): "bigint",
        w.ArgMax("s", "n"): "string",
        w.Latest("d"): "decimal(10,2)",
        w.Sum(len): None,
        w.Sum(len, type="bigint"): "bigint",
    }
    for aggregate, expected in derived.items():
        assert aggregate.output_type(columns) == expected, aggregate
    with pytest.raises(OutputDefinitionError, match="no column 'missing'"):
        w.Sum("missing").output_type(columns)


class Extending(Product, w.Aggregate):
    """A product that extends the class of aggregates."""


@pytest.mark.parametrize(
    "aggregate",
    [
        Extending(),
        Product(),
        w.aggregate_of(lambda: 1, lambda v, a: a * v, lambda a, b: a * b),
        Reduce(lambda a, b: a * b),
    ],
    ids=["subclass", "methods", "functions", "reduce"],
)
def test_users_write_aggregates(aggregate):
    operator = window_rows(assigner=w.TumblingEventTimeWindows.of(10), aggregate=aggregate)
    with KeyedTestHarness(operator, key=lambda _: "k") as harness:
        for time, value in ((1, 3), (2, 5), (11, 7)):
            harness.process(value, time)
        harness.crash_and_recover()
        harness.end_of_input()
        assert harness.take_output() == [(15, 9), (7, 19)]


@pytest.mark.parametrize("aggregate", [object(), w.Count, {"n": 3}, {}])
def test_what_is_no_aggregate_is_refused(aggregate):
    with pytest.raises(DefinitionError):
        window_rows(assigner=w.TumblingEventTimeWindows.of(10), aggregate=aggregate)


@pytest.mark.parametrize(
    "make", [lambda: w.TopK(0), lambda: w.ApproxCountDistinct(precision=3), lambda: w.aggregate_of(WRONG, WRONG, WRONG)]
)
def test_bad_parameters_are_refused(make):
    with pytest.raises(DefinitionError):
        make()
