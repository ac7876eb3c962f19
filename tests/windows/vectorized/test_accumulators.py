"""Aggregates over whole columns give what the row path's give, on the same rows in any groups and pieces."""

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyed import windows as w
from keyed.rows import row
from keyed.windows.definition import define
from keyed.windows.vectorized.accumulators import BatchRows
from keyed.windows.vectorized.fold import fold_of
from keyed.windows.vectorized.row_groups import Groups, concatenated
from tests.support.window_operators import accumulate, column_aggregates

UTC = dt.UTC
INT64 = st.integers(-(2**63), 2**63 - 1)
#: Column type → Arrow type and values.
TYPES: dict[str, tuple[Any, Any]] = {
    "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "bigint": (pa.int64(), INT64 | st.integers(-3, 3)),
    "double": (pa.float64(), st.floats(-1e6, 1e6, width=32) | st.sampled_from([0.0, 1.5, math.nan])),
    "decimal(20,2)": (pa.decimal128(20, 2), st.decimals(-10, 10, places=2) | st.just(Decimal("123456789012345678.99"))),
    "string": (pa.string(), st.text(max_size=3) | st.sampled_from(["a", "b"])),
    "binary": (pa.binary(), st.binary(max_size=2)),
    "boolean": (pa.bool_(), st.booleans()),
    "date": (pa.date32(), st.dates(dt.date(1, 1, 1), dt.date(9999, 12, 31))),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1), timezones=st.just(UTC)),
    ),
    "timestamp_ntz": (pa.timestamp("us"), st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1))),
}


@st.composite
def cases(draw):
    """A type, rows of ``v``, ``r`` and time, the group of each, and where they are cut."""
    type_, by = draw(st.sampled_from(sorted(TYPES))), draw(st.sampled_from(["int", "string", "date", "double"]))
    size = draw(st.integers(1, 12))
    values = draw(st.lists(st.none() | TYPES[type_][1], min_size=size, max_size=size))
    ranks = draw(st.lists(st.none() | TYPES[by][1], min_size=size, max_size=size))
    times = draw(st.lists(st.integers(-3, 3), min_size=size, max_size=size))
    groups = draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))
    dense = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    return type_, by, values, ranks, times, [dense[group] for group in groups], draw(st.integers(0, size))


def fold_over(aggregates, type_, **columns):
    """The fold of aggregates over a column ``v`` of a type, and others."""
    definition = define(assigner=w.TumblingEventTimeWindows.of(1), aggregate=aggregates)
    return fold_of(definition.named, {"v": type_, **columns})


def one_group(count):
    return Groups(np.zeros(count, dtype=np.int64), 1)


def row_results(aggregates, values, ranks, times):
    """Return the results of the row path, or its error."""
    results = {}
    rows = [type("Row", (), {"v": value, "r": rank}) for value, rank in zip(values, ranks, strict=True)]
    for name, aggregate in aggregates.items():
        accumulator = accumulate(aggregate, rows, times)
        try:
            results[name] = aggregate.get_result(accumulator)
        except OverflowError as error:
            results[name] = str(error)
    return results


def column_results(fold, names, parts):
    """The results of all groups; the error, where an aggregate raises."""

    def result(accumulator, own):
        try:
            return rows_of(accumulator.result(own).to_pylist())
        except OverflowError as error:
            return str(error)

    return dict(zip(names, fold._each(result, parts), strict=True))


def rows_of(results):
    """Results with the rows that a query gives for structs."""
    structs = (each if isinstance(each, list) and each and isinstance(each[0], dict) else None for each in results)
    return [
        each if parts is None else [row(**part) for part in parts] for each, parts in zip(results, structs, strict=True)
    ]


def same(found, wanted, magnitude):
    if isinstance(wanted, list) and isinstance(found, list):
        return len(found) == len(wanted) and all(map(same, found, wanted, [0.0] * len(found)))
    if isinstance(wanted, float) and math.isnan(wanted):
        return isinstance(found, float) and math.isnan(found)
    if isinstance(wanted, float) and isinstance(found, float):
        return math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-9 * magnitude)
    return found == wanted and type(found) is type(wanted)


@given(cases())
def test_columns_give_what_rows_give(case):
    type_, by, values, ranks, times, ids, cut = case
    chosen = column_aggregates(type_)
    fold = fold_over(chosen, type_, r=by)
    table = pa.table({"v": pa.array(values, TYPES[type_][0]), "r": pa.array(ranks, TYPES[by][0])})
    numbers = np.array(ids)
    count = max(ids) + 1
    at_once = fold.of_rows(BatchRows(table, np.array(times)), Groups(numbers, count))
    # In two pieces, each with its own groups, merged.
    pieces, owners = [], []
    for start, end in ((0, cut), (cut, len(ids))):
        if start < end:
            here, groups = np.unique(numbers[start:end], return_inverse=True)
            rows = BatchRows(table.slice(start, end - start), np.array(times[start:end]))
            pieces.append(fold.of_rows(rows, Groups(groups, len(here))))
            owners.append(here)
    whole = [concatenated(columns) for columns in zip(*pieces, strict=True)]
    merged = fold.merged(whole, Groups(np.concatenate(owners), count))
    # Row by row, running: the last of each group is the whole.
    order = np.argsort(numbers, kind="stable")
    each = fold.of_rows(BatchRows(table, np.array(times)), Groups(np.arange(len(ids)), len(ids)))
    ordered = [part.take(pa.array(order)) for part in each]
    running = fold.running(ordered, numbers[order], np.arange(len(ids)))
    columns = values, ranks, times
    for position in range(len(ids)):
        group = numbers[order[position]]
        upto = [row for row in order[: position + 1] if numbers[row] == group]
        check(fold, chosen, running, position, *([of[row] for row in upto] for of in columns))
    for group in range(count):
        inside = [row for row in range(len(ids)) if ids[row] == group]
        for parts in (at_once, merged):
            check(fold, chosen, parts, group, *([of[row] for row in inside] for of in columns))


def check(fold, chosen, parts, group, values, ranks, times):
    own = [part.slice(group, 1) for part in parts]
    found = column_results(fold, chosen, own)
    wanted = row_results(chosen, values, ranks, times)
    magnitude = float(sum(v * v for v in map(float, filter(None, values)))) if "total" in chosen else 0.0
    for name, result in wanted.items():
        value = found[name] if isinstance(found[name], str) else found[name][0]
        if name == "frequent":
            # A row of the row path is of a class of its own.
            assert [each._fields for each in value + result] == [("value", "count")] * (len(value) + len(result))
            value, result = (list(map(tuple, each)) for each in (value, result))
        assert same(value, result, magnitude), (name, value, result)


def test_parts_have_their_declared_types():
    for type_ in TYPES:
        chosen = column_aggregates(type_)
        fold = fold_over(chosen, type_, r="int")
        table = pa.table({"v": pa.array([None], TYPES[type_][0]), "r": pa.array([1], pa.int32())})
        parts = fold.of_rows(BatchRows(table, np.array([1])), Groups(np.array([0]), 1))
        from keyed.arrow.write import arrow_type

        for (name, declared), part in zip(fold.columns, parts, strict=True):
            assert part.type == arrow_type(declared), name


def test_a_sum_beyond_64_bits_is_refused_only_as_a_result():
    fold = fold_over({"s": w.Sum("v")}, "bigint")
    table = pa.table({"v": [2**63 - 1, 2**63 - 1, -(2**63), 2**63 - 1]})
    one = one_group(4)
    with pytest.raises(OverflowError, match=f"the sum {3 * (2**63 - 1) - 2**63} does not fit into 64 bits"):
        fold.results(fold.of_rows(BatchRows(table, None), one))
    assert fold.results(fold.of_rows(BatchRows(table.slice(0, 3), None), one.of(slice(0, 3))))[0].to_pylist() == [
        2**63 - 2
    ]


MOST = Decimal("9999999999999999999999999999999999999.9")


@pytest.mark.parametrize("values", [[MOST] * 2, [MOST] * 3, [MOST, MOST.copy_negate(), MOST]])
def test_a_sum_of_decimals_beyond_38_digits_is_refused(values):
    fold = fold_over({"s": w.Sum("v")}, "decimal(38,1)")
    rows = BatchRows(pa.table({"v": pa.array(values, pa.decimal128(38, 1))}), None)
    one = one_group(len(values))
    each = fold.of_rows(rows, Groups(np.arange(len(values)), len(values)))
    for make in (lambda: fold.of_rows(rows, one), lambda: fold.merged(each, one)):
        if values[1] < 0:
            assert fold.results(make())[0].to_pylist() == [MOST]
            continue
        with pytest.raises(OverflowError, match="more than 38 digits"):
            make()
    by_rows = row_results({"s": w.Sum("v")}, values, values, values)["s"]
    assert by_rows == MOST if values[1] < 0 else "more than 38 digits" in by_rows


MEANS = [
    [MOST],
    [Decimal("1e33")],
    [Decimal("1e33") - 1],
    [Decimal("1e33"), Decimal(0)],
    [Decimal("1e20"), Decimal("0.1")],
]


@pytest.mark.parametrize("values", MEANS)
@pytest.mark.parametrize("declared", [None, "decimal(38,2)"])
def test_means_of_wide_decimals_have_spark_s_type_or_are_refused_on_both_paths(values, declared):
    # The mean of a decimal(38,1) is a decimal(38,5): 33 digits before the point.
    chosen = {"m": w.Mean("v", type=declared)}
    fold = fold_over(chosen, "decimal(38,1)")
    table = pa.table({"v": pa.array(values, pa.decimal128(38, 1))})
    values = table.column("v").to_pylist()
    parts = fold.of_rows(BatchRows(table, None), one_group(len(values)))
    found = column_results(fold, chosen, parts)["m"]
    by_rows = row_results(chosen, values, values, values)["m"]
    if sum(values) / len(values) < 10 ** (33 if declared is None else 36):
        assert found == [by_rows]
        assert found[0].as_tuple().exponent == (-5 if declared is None else -2)
    else:
        assert found == by_rows
        assert "more than 38 digits" in found


def test_nan_and_zero_are_one_value_each_whatever_their_bits():
    chosen = {"set": w.CollectSet("v"), "count": w.CountDistinct("v"), "about": w.ApproxCountDistinct("v")}
    fold = fold_over(chosen, "double")
    values = [math.nan, 2.0, -0.0, -math.nan, 0.0, float("nan"), -1.0]
    rows = BatchRows(pa.table({"v": values}), None)
    at_once, each = one_group(7), Groups(np.arange(7), 7)
    for parts in (fold.of_rows(rows, at_once), fold.merged(fold.of_rows(rows, each), at_once)):
        found = [column.to_pylist()[0] for column in fold.results(parts)]
        assert repr(found) == "[[-1.0, 0.0, 2.0, nan], 4, 4]"
    assert repr(list(row_results(chosen, values, values, values).values())) == repr(found)
    halves = [{math.nan, 1.0}, {float("nan"), 1.0}]
    assert chosen["count"].get_result(chosen["count"].merge(*halves)) == 2


def test_means_of_large_integers_have_one_rounding():
    fold = fold_over({"m": w.Mean("v")}, "bigint")
    values = [2**62 + 1, 2**62 + 3, 2**62 + 7]
    parts = fold.of_rows(BatchRows(pa.table({"v": values}), None), one_group(3))
    assert fold.results(parts)[0].to_pylist() == [sum(values) / 3]


def test_nan_is_no_extreme_where_there_is_another_value():
    chosen = {"least": w.Min("v"), "most": w.Max("v")}
    fold = fold_over(chosen, "double")
    nan = math.nan
    for values in ([nan, 1.0, 2.0], [1.0, nan, 2.0], [nan, None, 1.0]):
        parts = fold.of_rows(BatchRows(pa.table({"v": values}), None), one_group(3))
        found = [column.to_pylist()[0] for column in fold.results(parts)]
        assert found == list(row_results(chosen, values, values, [0, 0, 0]).values())


@pytest.mark.parametrize("length", [1, 31, 32, 33, 100])
def test_running_merges_go_over_long_segments(length):
    fold = fold_over({"s": w.Sum("v")}, "bigint")
    values = list(range(length)) * 2
    segments = np.repeat([4, 7], length)
    parts = fold.of_rows(BatchRows(pa.table({"v": values}), None), Groups(np.arange(2 * length), 2 * length))
    wanted = np.arange(0, 2 * length, 3)
    found = fold.results(fold.running(parts, segments, wanted))[0].to_pylist()
    sums = [sum(range(place % length + 1)) for place in wanted]
    assert found == sums
