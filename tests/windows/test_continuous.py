"""Continuous aggregates: both paths against the aggregates of all rows so far, once a key and batch."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyed
from keyed import windows
from keyed import windows as w
from keyed.testing import KeyedTestHarness, strategies
from keyed.windows.aggregates import Reduce
from keyed.windows.continuous import ContinuousColumns, ContinuousRows
from tests.support.explained import computed
from tests.support.window_operators import accumulate, column_aggregates

AGGREGATES: dict[str, Any] = column_aggregates("bigint") | {"first_seen": w.First("v"), "last_seen": w.Latest("v")}
COLUMNS = {"k": "string", "n": "bigint", "v": "bigint", "r": "string"}
SCHEMA = pa.schema(
    [
        pa.field(name, pa.string() if type_ == "string" else pa.int64())
        for name, type_ in {**COLUMNS, "t": "bigint"}.items()
    ]
)


class Reading(NamedTuple):
    k: str
    n: int
    v: int | None
    r: str | None
    t: int


ROW = strategies.rows(
    "k string, n int, v bigint, r string, t bigint",
    k=strategies.skewed("a", "b", "c"),
    n=st.integers(0, 1),
    v=st.none() | st.integers(-5, 5) | st.just(2**40),
    r=st.none() | st.sampled_from(["x", "y", "z"]),
)
BATCHES = (
    strategies.streams(ROW, timestamp="t", gap=1, late=9, max_size=20)
    .flatmap(strategies.batches)
    .map(lambda cut: [[Reading(**row.value) for row in batch.rows] for batch in cut])
)


def expected(aggregates: dict[str, Any], seen: list[Reading]) -> tuple[Any, ...]:
    """The aggregates of rows, one after the other."""
    times = [row.t for row in seen]
    return tuple(each.get_result(accumulate(each, seen, times)) for each in aggregates.values())


def close(values: tuple[Any, ...]) -> list[Any]:
    return [pytest.approx(value, rel=1e-9, abs=1e-6) if isinstance(value, float) else value for value in values]


def key_of(row: Reading, keys: tuple[str, ...]) -> Any:
    return row.k if len(keys) == 1 else (row.k, row.n)


@settings(max_examples=settings().max_examples // 2)
@given(
    BATCHES,
    st.lists(st.sampled_from(sorted(AGGREGATES)), min_size=1, max_size=5, unique=True),
    st.sampled_from([("k",), ("k", "n")]),
    st.integers(1, 3),
)
def test_both_paths_give_the_aggregates_of_all_rows_once_a_key_and_batch(batches, names, keys, parallelism):
    chosen = {name: AGGREGATES[name] for name in names}
    results = keyed.extending.Schema(
        (*((key, COLUMNS[key]) for key in keys), *((name, a.output_type(COLUMNS)) for name, a in chosen.items()))
    )
    functions = (ContinuousRows("totals", chosen, keys, None), ContinuousColumns("totals", chosen, results, COLUMNS))
    seen: dict[Any, list[Reading]] = {}
    with ExitStack() as stack:
        by_row, by_column = (
            stack.enter_context(KeyedTestHarness(function, key=keys, parallelism=parallelism)) for function in functions
        )
        for rows_of_batch in batches:
            # The harness runs them in this order, whatever the operator asks for.
            batch = sorted(rows_of_batch, key=lambda row: row.t)
            with by_row.batch():
                for row in batch:
                    by_row.process(row, row.t)
                    seen.setdefault(key_of(row, keys), []).append(row)
            by_column.process_batch(pa.Table.from_pylist([row._asdict() for row in batch], SCHEMA), timestamps="t")
            came = {key_of(row, keys) for row in batch}
            want = sorted(
                (key, expected(chosen, seen[key]), max(row.t for row in batch if key_of(row, keys) == key))
                for key in came
            )
            for harness in (by_row, by_column):
                got = [(tuple(record.value), record.timestamp) for record in harness.take_output()]
                found = sorted((value[0] if len(keys) == 1 else value[:2], value, time) for value, time in got)
                assert [(key, time) for key, _, time in found] == [(key, time) for key, _, time in want]
                for (_, value, _), (_, totals, _) in zip(found, want, strict=True):
                    assert list(value[len(keys) :]) == close(totals)
            by_row.crash_and_recover()
        # A row of results and one of accumulators for each key; over columns also one for each distinct value.
        counted = sum(len({row.v for row in rows} - {None}) for rows in seen.values()) if "distinct" in names else 0
        assert by_row.state_entries() == by_column.state_entries() - counted == 2 * len(seen)


SENSORS = [
    {"sensor": "sensor-1", "reading": 45, "t": 1},
    {"sensor": "sensor-2", "reading": 12, "t": 2},
    {"sensor": "sensor-1", "reading": 92, "t": 3},
]


def totals(stream, aggregates, tmp_path, **options):
    """The output by batches of two rows, and the state's rows by key."""
    changelog = keyed.DirectoryChangelog(tmp_path / "log")
    batches: list[Any] = []
    output = windows.aggregate(stream.key_by("sensor"), aggregates, name="sensors", changelog=changelog, **options)
    output.run(
        lambda rows, _: batches.append([tuple(row) for row in rows]), checkpoint=tmp_path / "ck", rows_per_batch=2
    )
    with keyed.tables.open_tables(changelog, tmp_path / "tables") as tables:
        tables.poll()
        return [rows for rows in batches if rows], {entry.key: entry.value for entry in tables["sensors"]}, output


@pytest.mark.parametrize("path", ["auto", "row"])
def test_an_average_is_told_with_each_batch_and_kept_as_a_table(path, tmp_path):
    stream = keyed.stream(pa.Table.from_pylist(SENSORS), timestamp="t")
    batches, table, output = totals(stream, {"avg": w.Mean("reading"), "n": w.Count()}, tmp_path, path=path)
    assert (computed(output) == "whole columns, a row of state per key") is (path == "auto")
    assert batches == [[("sensor-1", 45.0, 1), ("sensor-2", 12.0, 1)], [("sensor-1", 68.5, 2)]]
    assert table == {"sensor-1": {"avg": 68.5, "n": 2}, "sensor-2": {"avg": 12.0, "n": 1}}


SPAN: Any = w.aggregate_of(
    list, lambda row, seen: [*seen, row.reading], lambda a, b: a + b, lambda seen: max(seen) - min(seen)
)


@pytest.mark.parametrize(
    ("aggregate", "result", "reason"),
    [
        (w.CollectList("reading"), [45, 92], "CollectList('reading') is not a built-in aggregate of a column"),
        (w.Sum(lambda row: row.reading * 2), 274, "is not a built-in aggregate of a column"),
        (
            Reduce(lambda a, b: max(a, b, key=lambda row: row.reading)),
            ("sensor-1", 92, 3),
            "is not a built-in aggregate",
        ),
        (SPAN, 47, "is not a built-in aggregate"),
    ],
)
def test_what_has_to_go_row_by_row(aggregate, result, reason, tmp_path):
    stream = keyed.stream(pa.Table.from_pylist(SENSORS), timestamp="t")
    _, table, output = totals(stream, {"x": aggregate}, tmp_path)
    found = table["sensor-1"]["x"]
    assert found == result
    assert reason in computed(output)
    with pytest.raises(keyed.errors.DefinitionError, match="path='vectorized': these aggregates cannot be computed"):
        windows.aggregate(stream.key_by("sensor"), {"x": aggregate}, path="vectorized")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("stream", {"n": w.Count()}), "is not keyed; give stream.key_by"),
        (("keyed", {}), "names no aggregate; give a dict"),
        (("keyed", {"n": w.Count}), "is a class; give an object"),
        (("keyed", {"sensor": w.Count()}), "the key has a column of that name"),
        (("keyed", w.Count()), "names no aggregate; give a dict"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, message):
    stream = keyed.stream(SENSORS)
    with pytest.raises(keyed.errors.DefinitionError, match=message):
        windows.aggregate(stream if arguments[0] == "stream" else stream.key_by("sensor"), arguments[1])  # type: ignore[arg-type]
    with pytest.raises(keyed.errors.DefinitionError, match="path='fast' must be"):
        windows.aggregate(stream.key_by("sensor"), {"n": w.Count()}, path="fast")  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["auto", "row"])
def test_a_value_by_time_needs_timestamps(path, tmp_path):
    stream = keyed.stream(pa.Table.from_pylist(SENSORS))
    with pytest.raises(keyed.KeyedError, match="has none"):
        totals(stream, {"x": w.Latest("reading", by_time=True)}, tmp_path, path=path)


@pytest.mark.parametrize("path", ["auto", "row"])
def test_without_timestamps(path, tmp_path):
    stream = keyed.stream(pa.Table.from_pylist(SENSORS))
    batches, _, _ = totals(stream, {"x": w.Latest("reading")}, tmp_path, path=path)
    assert batches == [[("sensor-1", 45), ("sensor-2", 12)], [("sensor-1", 92)]]
