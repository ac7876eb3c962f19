"""Windowed streams in the local runtime: the fluent form, its rows, its columns."""

from datetime import UTC, datetime, timedelta

import attrs
import pyarrow as pa
import pytest

import keyed
from keyed import KeyedProcessFunction, OutputTag
from keyed import windows as w
from keyed.errors import DefinitionError
from tests.support.explained import computed

ROWS = [
    {"user": "ada", "shop": 1, "at": 1_000, "amount": 5},
    {"user": "bob", "shop": 1, "at": 2_000, "amount": 7},
    {"user": "ada", "shop": 2, "at": 61_000, "amount": 1},
    {"user": "ada", "shop": 1, "at": 62_000, "amount": 2},
]


def keyed_rows(*keys, rows=ROWS):
    delay = keyed.bounded_out_of_orderness(seconds=5)
    return keyed.stream(rows, timestamp="at", watermark=delay).key_by(*keys)


def minutes(stream) -> w.WindowedStream:
    found = stream.window(w.TumblingEventTimeWindows.of(timedelta(minutes=1)))
    assert isinstance(found, w.WindowedStream)
    return found


def test_named_aggregates_are_rows_of_key_window_and_results():
    output = minutes(keyed_rows("user")).aggregate(orders=w.Count(), revenue=w.Sum("amount"))
    values = output.run(rows_per_batch=2).values
    assert sorted(values) == [("ada", 0, 60_000, 1, 5), ("ada", 60_000, 120_000, 2, 3), ("bob", 0, 60_000, 1, 7)]
    assert values[0]._fields == ("user", "window_start", "window_end", "orders", "revenue")


def test_a_key_of_two_columns_is_two_columns():
    values = minutes(keyed_rows("user", "shop")).aggregate(n=w.Count()).run().values
    assert min(values) == ("ada", 1, 0, 60_000, 1)
    assert values[0]._fields == ("user", "shop", "window_start", "window_end", "n")


def test_a_key_by_function_is_the_column_key_and_global_windows_have_no_bounds():
    keyed_stream = keyed.stream(ROWS, timestamp="at").key_by(lambda row: row.user)
    values = keyed_stream.window(w.CountWindows.of(2)).aggregate(total=w.Sum("amount")).run().values
    assert values == [("ada", 6)]
    assert values[0]._fields == ("key", "total")


def test_bounds_are_timestamps_where_the_output_says_so(tmp_path):
    output = minutes(keyed_rows("user")).aggregate(
        {"n": w.Count()}, output="user string, window_start timestamp, window_end timestamp, n bigint"
    )
    values = output.run().values
    assert min(values)[1] == datetime(1970, 1, 1, tzinfo=UTC)
    output.run(keyed.parquet_sink(tmp_path))
    table = pa.parquet.read_table(tmp_path) if hasattr(pa, "parquet") else None
    assert table is None or table.schema.field("window_end").type == pa.timestamp("us", "UTC")
    with pytest.raises(DefinitionError, match="must both be"):
        minutes(keyed_rows("user")).aggregate(
            {"n": w.Count()}, output="user string, window_start timestamp, window_end bigint, n bigint"
        )


class Rank(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield (value.window_end, value.user, value.orders, ctx.timestamp())


def test_rows_go_on_to_the_next_operator_with_the_windows_time():
    output = (
        minutes(keyed_rows("user"))
        .aggregate({"orders": w.Count()}, name="per-user")
        .key_by("window_end")
        .process(Rank())
    )
    assert sorted(output.run().values) == [
        (60_000, "ada", 1, 59_999),
        (60_000, "bob", 1, 59_999),
        (120_000, "ada", 2, 119_999),
    ]


def test_columns_of_a_known_input_are_derived():
    first = keyed_rows("user").process(Rank(), output="user string, window_end bigint, price decimal(10,2)")
    output = first.key_by("user").window(w.CountWindows.of(2)).aggregate(n=w.Count(), total=w.Sum("price"))
    assert output.schema.ddl == "`user` string, `n` bigint, `total` decimal(20,2)"


def test_late_data_lateness_trigger_and_evictor():
    late = OutputTag("late")
    rows = [*ROWS, ROWS[3] | {"at": 70_000}, {"user": "bob", "shop": 1, "at": 3_000, "amount": 100}]
    windowed = minutes(keyed_rows("user", rows=rows)).side_output_late_data(late)
    output = windowed.aggregate(n=w.Count())
    values = keyed.run(output.side_output(late).to(keyed.collect_sink()), rows_per_batch=5).values
    assert [row.amount for row in values] == [100]
    again = windowed.allowed_lateness(timedelta(hours=1)).aggregate(n=w.Count(), total=w.Sum("amount"))
    assert ("bob", 0, 60_000, 2, 107) in again.run(rows_per_batch=5).values
    counted = (
        keyed_rows("user").window(w.GlobalWindows.create()).trigger(w.CountTrigger.of(2)).evictor(w.CountEvictor.of(1))
    )
    assert counted.aggregate(total=w.Sum("amount")).run().values == [("ada", 1)]


class Amounts(w.ProcessWindowFunction):
    def process(self, key, context, elements):
        yield {"user": key, "start": context.window().start, "amounts": [row.amount for row in elements]}


def test_process_and_reduce():
    sessions = keyed_rows("user").window(w.EventTimeSessionWindows.with_gap(10_000))
    values = sessions.process(Amounts(), output="user string, start bigint, amounts array<bigint>").run().values
    assert ("ada", 61_000, [1, 2]) in values
    largest = sessions.reduce(lambda a, b: a if a.amount >= b.amount else b).run().values
    assert sorted(row.amount for row in largest) == [2, 5, 7]


def test_reduce_of_typed_elements():
    @attrs.frozen
    class Order:
        user: str
        at: int
        amount: int

    orders = [Order("ada", 1, 3), Order("ada", 2, 4)]
    windowed = keyed.stream(orders, timestamp="at").key_by("user").window(w.TumblingEventTimeWindows.of(10))
    output = windowed.reduce(lambda a, b: Order(a.user, b.at, a.amount + b.amount), type=Order)
    assert output.run().values == [Order("ada", 2, 7)]
    collected = windowed.element_type(Order).process(Amounts()).run().values
    assert collected == [{"user": "ada", "start": 0, "amounts": [3, 4]}]


def test_a_long_delay_keeps_windows_one_by_one():
    def reason(delay):
        watermark = keyed.bounded_out_of_orderness(milliseconds=delay)
        stream = keyed.stream(ROWS, timestamp="at", watermark=watermark).key_by("user")
        return computed(stream.window(w.HoppingEventTimeWindows.of(60, 10)).aggregate(n=w.Count()))

    assert "because a key may have more" not in reason(100)
    assert "because a key may have more than 64 open slices" in reason(1_000)


def test_columns_and_options_share_no_names():
    """A keyword is a column, or an option beside the columns."""
    named = minutes(keyed_rows("user")).aggregate(name=w.Count(), output=w.Sum("amount"))
    assert named.schema is None
    assert named.run().values[0]._fields == ("user", "window_start", "window_end", "name", "output")
    with pytest.raises(DefinitionError, match=r"name='n' would be a column.* aggregate\({'orders': Count\(\)}, name="):
        minutes(keyed_rows("user")).aggregate(orders=w.Count(), name="n")  # type: ignore[call-overload]
    with pytest.raises(DefinitionError, match="'orders' is not an option; columns go into the dict"):
        minutes(keyed_rows("user")).aggregate({"n": w.Count()}, orders=w.Count())  # type: ignore[call-overload]


def test_the_function_beside_an_aggregate_goes_by_position_or_name():
    class Named(w.ProcessWindowFunction):
        def process(self, key, context, elements):
            yield key, list(elements)

    by_position = minutes(keyed_rows("user")).aggregate(w.Count(), Named())
    by_name = minutes(keyed_rows("user")).aggregate(w.Count(), process=Named())
    assert by_name.run().values == by_position.run().values != []
    with pytest.raises(DefinitionError, match="two functions"):
        minutes(keyed_rows("user")).aggregate(w.Count(), Named(), process=Named())  # type: ignore[call-overload]


@pytest.mark.parametrize("make", [lambda s: s.aggregate(), lambda s: s.aggregate(w.Count(), n=w.Count())])
def test_one_aggregate_or_named_ones(make):
    with pytest.raises(DefinitionError, match="one aggregate, or aggregates by name"):
        make(minutes(keyed_rows("user")))


def test_only_assigners_make_windows():
    with pytest.raises(DefinitionError, match="not a window assigner"):
        keyed_rows("user").window(60_000)


def test_durations_out_of_range_are_refused():
    with pytest.raises(DefinitionError, match="allowed_lateness"):
        minutes(keyed_rows("user")).allowed_lateness(-1)
    with pytest.raises(DefinitionError, match="timeout"):
        minutes(keyed_rows("user")).close_when_idle(0)


@pytest.mark.parametrize("assigner", [w.HoppingEventTimeWindows.of(60, 20), w.EventTimeSessionWindows.with_gap(60)])
@pytest.mark.parametrize("trigger", [None, w.CountTrigger.of(9)])
def test_accumulators_of_other_aggregates_are_refused_on_a_checkpoint(tmp_path, assigner, trigger):
    def run(rows, **aggregates):
        windows = keyed_rows("user", rows=ROWS[:rows]).window(assigner).path("row")
        windows = windows.trigger(trigger) if trigger is not None else windows
        return windows.aggregate(**aggregates).run(checkpoint=str(tmp_path / "c"), drain=False, rows_per_batch=1)

    run(1, n=w.Count())
    with pytest.raises(
        keyed.errors.StateSchemaChanged,
        match=r"(?s)the state of the operator '.*' does not fit .* with n: .* with n, total: ",
    ):
        run(2, n=w.Count(), total=w.Sum("amount"))
    run(2, n=w.Count())
