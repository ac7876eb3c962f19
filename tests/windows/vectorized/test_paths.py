"""Both paths in the local runtime: the same outputs, whatever the definition, the data and the batches."""

import datetime as dt
import math
from collections import Counter as Multiset
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyed
from keyed import OutputTag
from keyed import windows as w
from keyed.arrow.write import arrow_schema
from keyed.errors import DefinitionError
from keyed.testing import strategies
from keyed.windows.window_operator import WindowBatchOperator, WindowOperator
from tests.support.explained import computed

LATE = OutputTag("late")
COUNTING = {"n": w.Count(), "total": w.Sum("number"), "least": w.Min("number"), "most": w.Max("amount")}
EVERYTHING = COUNTING | {
    "with_text": w.Count("text"),
    "mean": w.Mean("number"),
    "exact": w.Mean("amount"),
    "sum": w.Sum("amount"),
    "variance": w.Variance("number"),
    "first": w.First("text", by_time=True),
    "latest": w.Latest("number", by_time=True),
    "top": w.TopK(3, "text", by="number"),
    "at_most": w.ArgMax("text", "number"),
    "at_least": w.ArgMin("day", "number"),
    "distinct": w.CountDistinct("text"),
    "values": w.CollectSet("number"),
    "frequent": w.MostFrequent(2, "text"),
    "about": w.ApproxCountDistinct("text"),
}
EVENT_TIME = st.one_of(
    st.builds(w.TumblingEventTimeWindows.of, st.integers(1, 12)),
    st.builds(w.HoppingEventTimeWindows.of, st.integers(1, 12), st.integers(1, 14)),
    st.builds(w.EventTimeSessionWindows.with_gap, st.integers(1, 12)),
)
PROCESSING_TIME = st.one_of(
    st.builds(w.TumblingProcessingTimeWindows.of, st.integers(1, 6)),
    st.builds(w.HoppingProcessingTimeWindows.of, st.integers(1, 6), st.integers(1, 7)),
    st.builds(w.ProcessingTimeSessionWindows.with_gap, st.integers(2, 6)),
)


SCHEMA = keyed.extending.schema_of(
    "key string, more int, at bigint, number bigint, amount decimal(10,2), text string, day date"
)
ROW = strategies.rows(
    SCHEMA.ddl,
    key=strategies.skewed("a", "b"),
    more=st.integers(0, 1),
    number=st.none() | st.integers(-5, 5),
    amount=st.none() | st.decimals(-9, 9, places=2),
    text=st.none() | st.sampled_from(["x", "y", "ü"]),
    day=st.none() | st.dates(dt.date(2020, 1, 1), dt.date(2020, 1, 3)),
)


def table_of(stream, start):
    rows = [row.value | {"at": row.timestamp + start} for row in stream]
    return pa.Table.from_pylist(rows, arrow_schema(SCHEMA))


#: Rows in disorder, with nulls.
TABLES = st.builds(
    table_of, strategies.streams(ROW, gap=3, delay=6, late=6, min_size=1, max_size=30), st.integers(-30, 30)
)


def results(path, table, assigner, aggregates, *, delay=0, lateness=0, diverts=False, size=1000, clock=None, **options):
    """Main and late outputs of a path, without their order."""
    delayed = keyed.bounded_out_of_orderness(milliseconds=delay)
    windows = keyed.stream(table, timestamp="at", watermark=delayed).key_by("key", "more").window(assigner).path(path)
    if lateness:
        windows = windows.allowed_lateness(lateness)
    if diverts:
        windows = windows.side_output_late_data(LATE)
    output = windows.aggregate(dict(aggregates), **options)
    run = {"rows_per_batch": size} | ({} if clock is None else {"processing_time": iter(clock).__next__})
    main, late = keyed.collect_sink(), keyed.collect_sink()
    late_rows = [output.side_output(LATE).to(late)] if diverts else []
    result = keyed.run(output.to(main), *late_rows, **run)
    found = [tuple(hashable(value) for value in row) for row in main.values]
    dropped = result.metrics[output.stage.name]["rows_dropped"]
    return Multiset(found), Multiset(tuple(row) for row in late.values), dropped


def hashable(value):
    if isinstance(value, list):
        return tuple(value)
    return round(value, 9) if isinstance(value, float) and math.isfinite(value) else value


@settings(max_examples=settings().max_examples // 2)
@given(
    TABLES,
    EVENT_TIME,
    st.sampled_from([COUNTING, EVERYTHING]),
    st.sampled_from([0, 0, 1, 4, 20]),
    st.sampled_from([0, 0, 1, 5, 30]),
    st.booleans(),
    st.integers(1, 30),
)
def test_both_paths_give_the_same_in_event_time(table, assigner, aggregates, delay, lateness, diverts, size):
    options = {"delay": delay, "lateness": lateness, "diverts": diverts, "size": size}
    found = results("vectorized", table, assigner, aggregates, **options)
    assert found == results("row", table, assigner, aggregates, **options)
    assert found == results("vectorized", table, assigner, aggregates, parallelism=3, **options)


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 3)
@given(TABLES, EVENT_TIME, st.sampled_from([COUNTING, EVERYTHING]), st.integers(1, 30))
def test_it_does_not_matter_where_the_state_is_kept(table, assigner, aggregates, size):
    options = {"delay": 5, "lateness": 3, "diverts": True, "size": size}
    found = results("vectorized", table, assigner, aggregates, store="rocksdb", **options)
    assert found == results("vectorized", table, assigner, aggregates, **options)


@given(
    TABLES,
    PROCESSING_TIME,
    st.sampled_from([COUNTING, EVERYTHING]),
    st.integers(1, 10),
    st.lists(st.integers(0, 5), min_size=40, max_size=40),
)
def test_both_paths_give_the_same_in_processing_time(table, assigner, aggregates, size, steps):
    clock = [sum(steps[: number + 1]) for number in range(len(steps))]
    found = results("vectorized", table, assigner, aggregates, size=size, clock=clock)
    assert found == results("row", table, assigner, aggregates, size=size, clock=clock)


# Which path ----------------------------------------------------------------------------------------------------------

TABLE = pa.table(
    {
        "key": ["a"],
        "at": pa.array([1], pa.int64()),
        "number": pa.array([1], pa.int64()),
        "text": ["x"],
        "real": [1.5],
        "many": [[1]],
    }
)
NAIVE = pa.table({"naive": [dt.datetime(2020, 1, 1)], "slice_60000": [1], "at": [1]})
MINUTE = w.TumblingEventTimeWindows.of(60_000)


def windows_of(assigner=MINUTE, *keys, source=TABLE):
    return keyed.stream(source, timestamp="at").key_by(*(keys or ("key",))).window(assigner)


class Label(w.ProcessWindowFunction):
    def process(self, key, context, elements):
        yield key


ROW_BY_ROW = [
    (lambda: windows_of().trigger(w.CountTrigger.of(2)).aggregate(n=w.Count()), "is not the default one"),
    (lambda: windows_of().evictor(w.CountEvictor.of(2)).aggregate(n=w.Count()), "an evictor needs all elements"),
    (lambda: windows_of().aggregate(w.Count(), Label()), "a window function is called for each window"),
    (lambda: windows_of().process(Label()), "a window function is called for each window"),
    (lambda: windows_of().close_when_idle(5).aggregate(n=w.Count()), "windows close when they are idle"),
    (lambda: windows_of().aggregate(w.Count(), output="n bigint"), "the aggregate has no column name"),
    (lambda: windows_of().aggregate(n=w.Sum(lambda row: 1)), "is not a built-in aggregate of a column"),
    (lambda: windows_of().aggregate(n=w.First("number")), "depends on the order of arrival"),
    (lambda: windows_of().aggregate(n=w.CollectList("number")), "is not a built-in aggregate of a column"),
    (lambda: windows_of().aggregate(n=w.CountDistinct("real")), "CountDistinct('real') of a column of type double"),
    (lambda: windows_of().aggregate(n=w.Max("many")), "Max('many') of a column of type None"),
    (lambda: windows_of().aggregate({"n": w.Count()}, order="arrival"), "order='arrival'"),
    (lambda: windows_of(MINUTE, "real").aggregate(n=w.Count()), "the key column 'real' is of type double"),
    (
        lambda: windows_of(MINUTE, "naive", source=NAIVE).aggregate(n=w.Count()),
        "the key column 'naive' is of type timestamp_ntz",
    ),
    (
        lambda: windows_of(MINUTE, "slice_60000", source=NAIVE).aggregate(n=w.Count()),
        "the key column 'slice_60000' may have the name of a column of the state",
    ),
    (lambda: windows_of(MINUTE, lambda row: row.key).aggregate(n=w.Count()), "the stream is keyed by a function"),
    (
        lambda: windows_of(source=[{"key": 1, "at": 1}]).aggregate(n=w.Count()),
        "types of the input's columns are not known",
    ),
    (lambda: windows_of(w.GlobalWindows.create()).aggregate(n=w.Count()), "neither tumbling, hopping nor sessions"),
    (
        lambda: windows_of(w.CalendarWindows.days("UTC")).aggregate(n=w.Count()),
        "neither tumbling, hopping nor sessions",
    ),
    (
        lambda: windows_of(w.EventTimeSessionWindows.with_dynamic_gap(lambda row: 5)).aggregate(n=w.Count()),
        "the session gap is a function of the element",
    ),
    (
        lambda: windows_of(w.ProcessingTimeSessionWindows.with_gap(1)).aggregate(n=w.Count()),
        "sessions with a gap of 1 ms end within the batch",
    ),
    (lambda: windows_of(w.TumblingEventTimeWindows.of(2**61)).aggregate(n=w.Count()), "windows are longer than"),
    (lambda: windows_of().path("row").aggregate(n=w.Count()), "because of path='row'"),
]


@pytest.mark.parametrize(("build", "reason"), ROW_BY_ROW)
def test_what_has_to_run_row_by_row_says_why(build, reason):
    assert f"row by row, because {reason}" in computed(build()) or reason in computed(build())
    assert isinstance(build().stage.function, WindowOperator)


@pytest.mark.parametrize(
    "assigner",
    [
        MINUTE,
        w.HoppingEventTimeWindows.of(60, 10),
        w.EventTimeSessionWindows.with_gap(5),
        w.TumblingProcessingTimeWindows.of(5),
        w.HoppingProcessingTimeWindows.of(60, 10),
        w.ProcessingTimeSessionWindows.with_gap(5),
    ],
)
def test_whole_columns_by_themselves(assigner):
    output = (
        windows_of(assigner).allowed_lateness(5).side_output_late_data("late").aggregate(n=w.Count(), s=w.Sum("number"))
    )
    assert isinstance(output.stage.function, WindowBatchOperator)
    assert computed(output) == "whole columns, a row of state per key and window"


def test_a_path_that_is_not_possible_is_refused_with_the_reason():
    with pytest.raises(
        DefinitionError, match=r"because the trigger .* is not the default one; use path='auto' or 'row'"
    ):
        windows_of().trigger(w.CountTrigger.of(2)).path("vectorized").aggregate(n=w.Count())
    with pytest.raises(DefinitionError, match=r"path='columnar' .*; it is called 'vectorized' now"):
        windows_of().path("columnar")
    with pytest.raises(DefinitionError, match="path='fast' must be 'auto', 'row' or 'vectorized'"):
        windows_of().path("fast")


def test_windows_follow_windows_on_either_path():
    """A later stage: its watermark is that of the one before."""

    def chain(first, second, size):
        delayed = keyed.bounded_out_of_orderness(milliseconds=4)
        rows = pa.table({"key": list("abab") * 5, "at": [n * 3 - n % 4 for n in range(20)], "number": list(range(20))})
        stream = keyed.stream(rows, timestamp="at", watermark=delayed)
        small = stream.key_by("key").window(w.TumblingEventTimeWindows.of(5)).path(first)
        counts = small.aggregate(
            {"total": w.Sum("number")}, output="key string, window_start bigint, total bigint", name="one"
        )
        sessions = counts.key_by("key").window(w.EventTimeSessionWindows.with_gap(5)).path(second)
        output = sessions.aggregate(n=w.Count(), total=w.Sum("total"))
        return sorted(map(tuple, output.run(rows_per_batch=size).values))

    wanted = chain("row", "row", 100)
    assert wanted
    for size in (1, 3, 7, 100):
        for paths in (("row", "vectorized"), ("vectorized", "row"), ("vectorized", "vectorized")):
            assert chain(*paths, size) == chain("row", "row", size)


@pytest.mark.parametrize(("before", "after"), [("row", "vectorized"), ("vectorized", "row")])
def test_another_path_is_refused_on_a_checkpoint(tmp_path, before, after):
    def run(path, rows):
        source = pa.concat_tables([TABLE] * rows)
        output = windows_of(source=source).path(path).aggregate(n=w.Count())
        return output.run(checkpoint=str(tmp_path / "c"), drain=False, rows_per_batch=1).values

    assert run(before, 1) == []
    with pytest.raises(
        keyed.errors.StateSchemaChanged, match=r"the state of the operator '.*' does not fit what is stored"
    ) as refused:
        run(after, 2)
    assert f'windows continue with .path("{before}")' in str(refused.value)
    # The same path goes on.
    assert run(before, 2) == []


def test_slices_of_another_kind_are_refused_on_a_checkpoint(tmp_path):
    def run(assigner, rows):
        output = windows_of(assigner, source=pa.concat_tables([TABLE] * rows)).path("vectorized").aggregate(n=w.Count())
        return output.run(checkpoint=str(tmp_path / "c"), drain=False, rows_per_batch=1).values

    run(w.HoppingEventTimeWindows.of(60, 10), 1)
    with pytest.raises(keyed.errors.StateSchemaChanged, match="slice_20"):
        run(w.HoppingEventTimeWindows.of(60, 20), 2)
    # Windows of other sizes share the slices, if there are no gaps between them.
    run(w.HoppingEventTimeWindows.of(30, 10), 2)
    with pytest.raises(keyed.errors.StateSchemaChanged, match="slice_10_first_4"):
        run(w.HoppingEventTimeWindows.of(4, 10), 3)


def resume(tmp_path, source, aggregates, more, assigner=MINUTE):
    """Run over the first row, and over all rows with more aggregates: the values of the windows."""
    for count, chosen in ((1, aggregates), (len(source), aggregates | more)):
        windowed = windows_of(assigner, source=source.slice(0, count)).path("vectorized").aggregate(chosen)
        values = windowed.run(checkpoint=tmp_path / "c", rows_per_batch=1, drain=count > 1).values
    return sorted(list(row)[3:] for row in values)


def test_an_aggregate_that_is_added_counts_from_then_on(tmp_path):
    table = pa.table({"key": ["a"] * 3, "at": [1, 2, 3], "number": [5, 6, 7], "text": ["x", "y", "z"]})
    more = {
        "rows": w.Count(),
        "mean": w.Mean("number"),
        "variance": w.Variance("number"),
        "first": w.First("text", by_time=True),
        "latest": w.Latest("number", by_time=True),
        "top": w.TopK(3, "text", by="number"),
        "at_most": w.ArgMax("text", "number"),
        "distinct": w.CountDistinct("text"),
        "about": w.ApproxCountDistinct("text"),
        "least": w.Min("number"),
    }
    both = [18, 2, 6.5, 0.5, "y", 7, ["z", "y"], "z", 2, 2, 6]
    assert resume(tmp_path, table, {"total": w.Sum("number")}, more, w.HoppingEventTimeWindows.of(20, 10)) == [both] * 2


def test_windows_without_a_value_of_an_aggregate_that_is_added(tmp_path):
    source = pa.table({"key": ["a", "b"], "at": [1, 2], "number": [5, 6]})
    more = {"n": w.Count(), "mean": w.Mean("number")}
    assert resume(tmp_path, source, {"total": w.Sum("number")}, more) == [[5, 0, None], [6, 1, 6.0]]


def test_times_that_a_function_gives_leave_the_columns_their_types():
    empty = pa.table(
        {"key": ["a", "a"], "at": [1, 2], "number": pa.nulls(2, pa.int32()), "text": pa.nulls(2, pa.string())}
    )
    for path in ("row", "vectorized"):
        windows = keyed.stream(empty, timestamp=lambda row: row.at).key_by("key").window(MINUTE).path(path)
        results = windows.aggregate(least=w.Min("number"), most=w.Max("text"), total=w.Sum("number")).run(
            rows_per_batch=1
        )
        assert [tuple(row)[3:] for row in results.values] == [(None, None, None)]


def test_other_arrow_types_of_the_same_kind():
    utc, berlin = pa.timestamp("us", "UTC"), pa.timestamp("ns", "Europe/Berlin")
    plain: dict[str, Any] = {
        "key": pa.string(),
        "text": pa.string(),
        "when": utc,
        "blob": pa.binary(),
        "at": pa.int64(),
    }
    other = plain | {"key": pa.large_string(), "text": pa.large_string(), "when": berlin, "blob": pa.large_binary()}
    moments = [dt.datetime(2020, 1, day, tzinfo=dt.UTC) for day in (1, 2)]
    columns: list[Any] = [["a", "b", "a"], ["x", None, "y"], [*moments, None], [b"1", None, b"2"], [0, 1, 2]]
    aggregates: dict[str, Any] = {"top": w.TopK(2, "text"), "least": w.Min("when"), "last": w.Max("text")}
    aggregates["values"] = w.CollectSet("blob")

    def run(path, types):
        table = pa.table([pa.array(*each) for each in zip(columns, types.values(), strict=True)], list(types))
        windows = windows_of(w.HoppingEventTimeWindows.of(20, 10), source=table).path(path).allowed_lateness(5)
        return sorted(map(repr, map(tuple, windows.aggregate(aggregates).run(rows_per_batch=1).values)))

    assert len(run("row", plain)) == 4
    assert run("vectorized", plain) == run("row", plain)
    assert run("vectorized", other) == run("row", other)
