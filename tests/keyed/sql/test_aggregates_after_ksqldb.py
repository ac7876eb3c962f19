"""Aggregates have the values that ksqlDB's Java aggregates have, after their unit tests and their source."""

import math

import pytest

from keyed.formats.sql_types import BIGINT, BYTES, DOUBLE, INTEGER, STRING, array
from keyed.sql.sql_aggregates import aggregate_of

TENTHS, TOP = [10.2, 13.4, 14.5, 17.8], [10.0, 30.0, 45.0, 10.0, 50.0, 60.0, 20.0, 60.0, 80.0, 35.0, 25.0]
PAIRS = [(1.5, 14), (2, 11), (5.5, 3), (-5, 7), (-3.5, -8), (-1, 6), (1.5, 5), (8.5, 19), (-8, -6.5), (-3, -2)]
PAIRS += [(-3, 12.5), (4, 16.5)]
#: An aggregate with its number of values, the type of the values, the values, and the result.
ADDED = [
    ("STDDEV_SAMP", None, BIGINT, [1, 2, 3, 4, 5], 2.5),
    ("STDDEV_SAMP", None, INTEGER, [3, 5, 6, 7], 2.9166666666666665),
    ("STDDEV_SAMP", None, DOUBLE, TENTHS, 9.829166666666664),
    ("STDDEV_SAMP", None, INTEGER, [0, 0, 0], 0.0),
    ("STDDEV_SAMP", None, INTEGER, [], 0.0),
    ("STDDEV_SAMP", None, INTEGER, [60, 64, 70, None], 25.333333333333332),
    ("STDDEV_SAMPLE", None, BIGINT, [1, 2, 3, 4, 5], 1.5811388300841898),
    ("STDDEV_SAMPLE", None, INTEGER, [3, 5, 6, 7], 1.707825127659933),
    ("STDDEV_SAMPLE", None, DOUBLE, TENTHS, 3.1351501824739856),
    ("STDDEV_SAMPLE", None, INTEGER, [0, 0, 0], 0.0),
    ("STDDEV_SAMPLE", None, INTEGER, [], 0.0),
    ("STDDEV_SAMPLE", None, INTEGER, [60, 64, 70, None], 5.033222956847166),
    # Large values that differ by little.
    ("STDDEV_SAMP", None, BIGINT, [1_700_000_000_001, 1_700_000_000_002, 1_700_000_000_003], 1.0),
    ("AVG", None, BIGINT, [1, 1, 1, 1, 1], 1.0),
    ("AVG", None, INTEGER, [0, 0, 0], 0.0),
    ("AVG", None, INTEGER, [], 0.0),
    ("AVG", None, INTEGER, [1, 1, 1, None], 1.0),
    ("SUM_LIST", None, array(BIGINT), [[1, 1, 1, 1, 1]], 5),
    ("SUM_LIST", None, array(DOUBLE), [[1.0, 1.0, 1.0, 1.0, 1.0]], 5.0),
    ("SUM_LIST", None, array(INTEGER), [[]], 0),
    ("SUM_LIST", None, array(INTEGER), [[1, 1, None, 1]], 3),
    ("SUM_LIST", None, array(INTEGER), [[2**31 - 1], [1]], -(2**31)),
    ("MAX", None, DOUBLE, [None, 3.0, 5.0, 8.0, 2.2, 3.5, 4.6, 5.0, None], 8.0),
    ("MAX", None, BYTES, [b"C", b"F", b"B", b"E", b"A", b"D", b"B"], b"F"),
    ("MAX", None, BYTES, [b"\x80", b"\x01"], b"\x01"),
    ("MAX", None, DOUBLE, [1.0, math.nan, 2.0], math.nan),
    ("MIN", None, DOUBLE, [math.nan, 2.0], 2.0),
    ("MAX", None, STRING, ["\uffee", "😀"], "\uffee"),
    ("TOPK", 3, DOUBLE, TOP, [80.0, 60.0, 60.0]),
    ("TOPK", 3, DOUBLE, [10.0], [10.0]),
    ("TOPK", 2, DOUBLE, [1.0, math.nan, 2.0], [math.nan, 2.0]),
    ("TOPKDISTINCT", 3, INTEGER, [10, 30, 45, 10, 50, 60, 20, 60, 80, 35, 25, 60, 80], [80, 60, 50]),
    ("TOPKDISTINCT", 3, INTEGER, [80], [80]),
    ("HISTOGRAM", None, STRING, ["foo", "bar", "foo", "foo", "baz"], {"foo": 3, "bar": 1, "baz": 1}),
]
#: An aggregate, the type of the values, those of two accumulators, and the result of both.
MERGED = [
    ("STDDEV_SAMP", DOUBLE, [5.5, 8.4, 10.9], [6.3, 7.2, 9.7], 4.248000000000001),
    ("STDDEV_SAMPLE", BIGINT, [1, 2, 3, 4, 5], [2, 2, 1], 1.4142135623730951),
    ("STDDEV_SAMPLE", INTEGER, [5, 8, 10], [6, 7, 9], 1.8708286933869707),
    ("STDDEV_SAMPLE", DOUBLE, [5.5, 8.4, 10.9], [6.3, 7.2, 9.7], 2.0610676844781204),
    ("STDDEV_SAMPLE", DOUBLE, [], [1.0, 2.0], 0.7071067811865476),
    ("AVG", BIGINT, [1, 1, 1, 1, 1], [2, 2, 1], 1.25),
    ("SUM_LIST", array(INTEGER), [[1, 1, 1, 1]], [[2, 2, 2]], 10),
]
#: An aggregate, the type of the values, those that come, those that go, and the result.
UNDONE = [
    ("STDDEV_SAMP", BIGINT, [1, 2, 3, 4, 5], [2], 2.9166666666666665),
    ("STDDEV_SAMPLE", BIGINT, [1, 2, 3, 4, 5], [2], 1.707825127659933),
    ("STDDEV_SAMP", BIGINT, [1, 2], [1, None], 0.0),
    ("STDDEV_SAMP", BIGINT, [1, 2], [1, 2], 0.0),
    ("AVG", BIGINT, [1, 1, 1, 1, 1], [1], 1.0),
    ("SUM_LIST", array(INTEGER), [[1, 1, 1, 1]], [[1, 1, 1]], 1),
    ("HISTOGRAM", STRING, ["true", "true", "false", "true"], ["true"], {"true": 2, "false": 1}),
]


def made(name, type_, count=None):
    types = [type_] if count is None else [type_, INTEGER]
    return aggregate_of(name, types, [...] if count is None else [..., count], pytest.fail)


def folded(aggregate, values):
    accumulator = aggregate.start()
    for value in values:
        accumulator = aggregate.add(accumulator, [value])
    return accumulator


@pytest.mark.parametrize(("name", "count", "type_", "values", "expected"), ADDED)
def test_results_of_values(name, count, type_, values, expected):
    aggregate = made(name, type_, count)
    assert repr(aggregate.result(folded(aggregate, values))) == repr(expected)


@pytest.mark.parametrize(("name", "type_", "left", "right", "expected"), MERGED)
def test_results_of_merged_accumulators(name, type_, left, right, expected):
    aggregate = made(name, type_)
    merged = aggregate.merge(folded(aggregate, left), folded(aggregate, right))
    assert aggregate.result(merged) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(("name", "type_", "added", "undone", "expected"), UNDONE)
def test_results_without_values_that_went(name, type_, added, undone, expected):
    aggregate = made(name, type_)
    accumulator = folded(aggregate, added)
    for value in undone:
        accumulator = aggregate.undo(accumulator, [value])
    assert aggregate.result(accumulator) == expected


def test_the_correlation_of_pairs():
    aggregate = aggregate_of("CORRELATION", [DOUBLE, DOUBLE], [..., ...], pytest.fail)
    accumulator = aggregate.start()
    for pair in [*PAIRS, (None, 1), (1, None)]:
        accumulator = aggregate.add(accumulator, pair)
    assert aggregate.result(accumulator) == pytest.approx(0.6717, abs=0.00005)
    assert math.isnan(aggregate.result(aggregate.start()))
