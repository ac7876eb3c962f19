"""Programs in PyFlink's words: written after the Python examples of Flink's documentation, run by `keyed.pyflink`.

Each keeps the shape of its original, in other words and with other data: its classes, calls and types are PyFlink's,
and only the import lines name keyed. Two are translations: the fraud detector is in Flink's documentation in Java
alone, and windows with lateness are a fragment there. PyFlink's own example files run as they are in
`tests/acceptance/test_pyflink_examples.py`.
"""

import datetime as dt
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pytest

import keyed
import keyed.pyflink as flink
from keyed.errors import DefinitionError
from keyed.pyflink import (
    AggregateFunction,
    CountTrigger,
    CountWindow,
    Duration,
    EventTimeSessionWindows,
    EventTimeTrigger,
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessWindowFunction,
    ReduceFunction,
    Row,
    RuntimeContext,
    SessionWindowTimeGapExtractor,
    StateTtlConfig,
    StreamExecutionEnvironment,
    Time,
    TimestampAssigner,
    TimeWindow,
    TumblingEventTimeWindows,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
    WindowFunction,
)
from keyed.testing import KeyedTestHarness
from tests.support.data_files import read_data


class SecondField(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp) -> int:
        return int(value[1])


def in_order(collection, type_info=None):
    """A stream of tuples whose second field is the time."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(SecondField())
    return env.from_collection(collection, type_info).assign_timestamps_and_watermarks(strategy)


# Count with time-out: docs/dev/datastream/operators/process_function.md -----------------------------------------------


class CountWithTimeout(KeyedProcessFunction):
    def __init__(self):
        self.state: Any = None

    def open(self, runtime_context: RuntimeContext):
        self.state = runtime_context.get_state(ValueStateDescriptor("count", Types.PICKLED_BYTE_ARRAY()))

    def process_element(self, value, ctx: "KeyedProcessFunction.Context"):
        current = self.state.value()
        if current is None:
            current = Row(value.f1, 0, 0)
        current[1] += 1
        current[2] = ctx.timestamp()
        self.state.update(current)
        ctx.timer_service().register_event_time_timer(current[2] + 60_000)

    def on_timer(self, timestamp: int, ctx: "KeyedProcessFunction.OnTimerContext"):
        result = self.state.value()
        if timestamp == result[2] + 60_000:
            yield result[0], result[1]


class SinceTheEpoch(TimestampAssigner):
    def __init__(self):
        self.epoch = dt.datetime(1970, 1, 1)

    def extract_timestamp(self, value, record_timestamp) -> int:
        return int((value[0] - self.epoch).total_seconds() * 1000)


def test_count_with_timeout():
    start = dt.datetime(2024, 5, 1)
    events = [(0, "a"), (10, "b"), (50, "a"), (200, "a")]
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_collection(
        [(start + dt.timedelta(seconds=second), name, "") for second, name in events],
        Types.ROW([Types.SQL_TIMESTAMP(), Types.STRING(), Types.STRING()]),
    ).assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(SinceTheEpoch())
    )
    counted = stream.key_by(lambda value: value[1], key_type=Types.STRING()).process(
        CountWithTimeout(), output_type=Types.TUPLE([Types.STRING(), Types.LONG()])
    )
    with counted.execute_and_collect() as results:
        assert list(results) == [("b", 1), ("a", 2), ("a", 3)]
    assert counted.output.schema == keyed.extending.schema_of("f0 string, f1 bigint")


# Fraud detector: docs/try-flink/datastream.md -------------------------------------------------------------------------


class FraudDetector(KeyedProcessFunction):
    """A small amount that a large one follows within a minute."""

    def open(self, runtime_context: RuntimeContext):
        self.flag_state = runtime_context.get_state(ValueStateDescriptor("flag", Types.BOOLEAN()))
        self.timer_state = runtime_context.get_state(ValueStateDescriptor("timer", Types.LONG()))

    def process_element(self, value, ctx: KeyedProcessFunction.Context):
        if self.flag_state.value() is not None:
            if value["amount"] > 500.0:
                yield Row(id=value["account_id"])
            self.clean_up(ctx)
        if value["amount"] < 1.0:
            self.flag_state.update(True)
            timer = ctx.timer_service().current_processing_time() + 60_000
            ctx.timer_service().register_processing_time_timer(timer)
            self.timer_state.update(timer)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext):
        self.timer_state.clear()
        self.flag_state.clear()

    def clean_up(self, ctx):
        ctx.timer_service().delete_processing_time_timer(self.timer_state.value())
        self.timer_state.clear()
        self.flag_state.clear()


def test_fraud_detector():
    def transaction(account, amount):
        return {"account_id": account, "amount": amount}

    with KeyedTestHarness(FraudDetector(), key=lambda value: value["account_id"]) as harness:
        for amount in (0.5, 600.0, 700.0, 0.2):
            harness.process(transaction(1, amount))
        harness.advance_processing_time(60_000)
        harness.process(transaction(1, 900.0))
        assert [record.value for record in harness.take_output()] == [(1,)]
        assert harness.state_entries() == 0
        assert harness.pending_timers() == []

    env = StreamExecutionEnvironment.get_execution_environment()
    transactions = [transaction(1, 0.3), transaction(2, 900.0), transaction(1, 501.0)]
    alerts = env.from_collection(transactions).key_by(lambda value: value["account_id"])
    fraud = alerts.process(FraudDetector(), output_type=Types.ROW_NAMED(["id"], [Types.LONG()]))
    assert list(fraud.execute_and_collect()) == [(1,)]


# Windows with lateness and a side output: docs/dev/datastream/operators/windows.md ------------------------------------


class CountInWindow(ProcessWindowFunction[tuple, tuple, str, TimeWindow]):
    def process(
        self, key: str, context: ProcessWindowFunction.Context[TimeWindow], elements: Iterable[tuple]
    ) -> Iterable[tuple]:
        return [(key, context.window().start, context.window().end, len(list(elements)))]


def test_windows_with_lateness_and_a_side_output():
    late = OutputTag("late-data", Types.TUPLE([Types.STRING(), Types.LONG()]))
    counts = (
        in_order([("hi", 1), ("hi", 4), ("hi", 6), ("hi", 2), ("hi", 12), ("hi", 3)])
        .key_by(lambda value: value[0])
        .window(TumblingEventTimeWindows.of(Time.milliseconds(5)))
        .trigger(EventTimeTrigger.create())
        .allowed_lateness(2)
        .side_output_late_data(late)
        .process(CountInWindow(), Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG(), Types.LONG()]))
    )
    # In one batch rows run by their timestamps, and none is late; so each is a batch here.
    assert counts.output.run(rows_per_batch=1).values == [
        ("hi", 0, 5, 2),
        ("hi", 0, 5, 3),
        ("hi", 5, 10, 1),
        ("hi", 10, 15, 1),
    ]
    assert counts.get_side_output(late).output.run(rows_per_batch=1).values == [("hi", 3)]


# Session windows with a ProcessWindowFunction: examples/datastream/windowing/session_with_(dynamic_)gap_window.py -----


class GapOfElement(SessionWindowTimeGapExtractor):
    def extract(self, element: tuple) -> int:
        return element[1]


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        (EventTimeSessionWindows.with_gap(Time.milliseconds(5)), [("hi", 1, 14, 6), ("hi", 15, 20, 1)]),
        (
            EventTimeSessionWindows.with_dynamic_gap(GapOfElement()),
            [("hi", 1, 2, 1), ("hi", 2, 8, 3), ("hi", 8, 30, 3)],
        ),
    ],
)
def test_session_windows_with_a_process_window_function(capsys, windows, expected):
    stream = in_order([("hi", 1), ("hi", 2), ("hi", 3), ("hi", 4), ("hi", 8), ("hi", 9), ("hi", 15)])
    keyed_stream = stream.key_by(lambda value: value[0], key_type=Types.STRING())
    counts = keyed_stream.window(windows).process(
        CountInWindow(), Types.TUPLE([Types.STRING(), Types.INT(), Types.INT(), Types.INT()])
    )
    counts.print()
    stream._env.execute()
    assert capsys.readouterr().out.splitlines() == list(map(str, expected))


# State, and its time to live: docs/dev/datastream/fault-tolerance/state.md --------------------------------------------


class AverageOfTwo(FlatMapFunction):
    def __init__(self):
        self.sum: Any = None

    def open(self, runtime_context: RuntimeContext):
        self.sum = runtime_context.get_state(ValueStateDescriptor("average", Types.PICKLED_BYTE_ARRAY()))

    def flat_map(self, value):
        count, total = self.sum.value() or (0, 0)
        count, total = count + 1, total + value[1]
        self.sum.update((count, total))
        if count >= 2:
            self.sum.clear()
            yield value[0], total / count


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_flat_map_has_the_state_of_its_key(parallelism):
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    stream = env.from_collection([(1, 3), (1, 5), (2, 1), (1, 7), (1, 4), (1, 2), (2, 2), (3, 9)])
    averages = stream.key_by(lambda row: row[0]).flat_map(AverageOfTwo())
    assert sorted(averages.execute_and_collect()) == [(1, 4.0), (1, 5.5), (2, 1.5)]


class LastWithTtl(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        config = (
            StateTtlConfig.new_builder(Duration.of_seconds(1))
            .set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)
            .set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)
            .cleanup_incrementally(10, True)
            .build()
        )
        descriptor = ValueStateDescriptor("text state", Types.STRING())
        descriptor.enable_time_to_live(config)
        self.state = runtime_context.get_state(descriptor)

    def process_element(self, value, ctx):
        yield self.state.value()
        self.state.update(value[1])


def test_state_ttl():
    with KeyedTestHarness(LastWithTtl(), key=lambda value: value[0]) as harness:
        for time, text in ((0, "a"), (999, "b"), (1_998, "c"), (2_998, "d")):
            harness.advance_processing_time(time)
            harness.process(("k", text))
        assert [record.value for record in harness.take_output()] == [None, "a", "b", None]


# The rest -------------------------------------------------------------------------------------------------------------


class Average(AggregateFunction):
    def create_accumulator(self):
        return 0, 0

    def add(self, value, accumulator):
        return accumulator[0] + value[2], accumulator[1] + 1

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, a, b):
        return a[0] + b[0], a[1] + b[1]


class Later(ReduceFunction):
    def reduce(self, value1, value2):
        return max(value1, value2)


class Doubled(MapFunction):
    def map(self, value):
        return value[0], value[2] * 2


class NewOfKey(FilterFunction):
    """Passes the first element of a key."""

    def open(self, runtime_context: RuntimeContext):
        self.seen: Any = runtime_context.get_state(ValueStateDescriptor("seen", Types.BOOLEAN()))

    def filter(self, value):
        is_new = self.seen.value() is None
        self.seen.update(True)
        return is_new


class CountAndLast(WindowFunction[tuple, tuple, str, CountWindow]):
    def apply(self, key: str, window: CountWindow, inputs: Iterable[tuple]):
        elements = list(inputs)
        return [(key, len(elements), elements[-1][1])]


class FirstField(KeySelector):
    def get_key(self, value):
        return value[0]


ROWS = [("a", 1, 10.0), ("b", 2, 1.0), ("a", 3, 20.0), ("a", 7, 5.0)]


def test_reduce_and_aggregate():
    stream = in_order(ROWS).key_by(FirstField())
    assert list(stream.reduce(Later()).execute_and_collect()) == [ROWS[0], ROWS[1], ROWS[2], ROWS[3]]
    fives = stream.window(TumblingEventTimeWindows.of(Time.milliseconds(5)))
    averages = fives.aggregate(Average(), accumulator_type=Types.TUPLE([Types.DOUBLE(), Types.INT()]))
    assert sorted(averages.execute_and_collect()) == [1.0, 5.0, 15.0]
    assert sorted(fives.reduce(max).execute_and_collect()) == [ROWS[2], ROWS[3], ROWS[1]]
    pairs = stream.count_window(2).process(CountOnly(), Types.LONG())
    assert pairs.execute_and_collect(limit=5) == [2]
    counted = stream.window(TumblingEventTimeWindows.of(Time.seconds(1))).trigger(CountTrigger.of(2))
    assert list(counted.process(CountOnly()).execute_and_collect()) == [2]


def test_map_filter_and_window_functions():
    stream = in_order(ROWS).key_by(FirstField())
    assert stream.map(Doubled()).execute_and_collect(limit=2) == [("a", 20.0), ("b", 2.0)]
    assert stream.map(lambda value: value[1]).execute_and_collect(limit=9) == [1, 2, 3, 7]
    assert stream.filter(NewOfKey()).execute_and_collect(limit=9) == ROWS[:2]
    assert stream.count_window(3).apply(CountAndLast()).execute_and_collect(limit=9) == [("a", 3, 7)]


LARGE = OutputTag("large", Types.DOUBLE())


class Split(KeyedProcessFunction):
    def process_element(self, value, ctx):
        if value[2] >= 10.0:
            yield LARGE, value[2]
        else:
            yield value[1]


def test_a_tag_with_a_value_is_a_side_output():
    split = in_order(ROWS).key_by(FirstField()).process(Split())
    assert list(split.execute_and_collect()) == [2, 7]
    assert list(split.get_side_output(LARGE).execute_and_collect()) == [10.0, 20.0]


class CountOnly(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield len(elements)


def test_two_operators_of_one_class_have_names_of_their_own():
    first = in_order(ROWS).key_by(FirstField()).reduce(Later())
    second = first.key_by(FirstField()).reduce(Later())
    assert list(second.output.operators) == ["_Reduce", "_Reduce-2"]
    assert list(second.execute_and_collect()) == ROWS


@pytest.mark.parametrize(
    ("call", "remedy"),
    [
        (lambda env, stream: stream.map(str), "map of PyFlink has no key here: do it on a keyed.stream"),
        (lambda env, stream: stream.window_all(None), "window_all .* key the stream by a constant"),
        (lambda env, stream: stream.process(CountWithTimeout()), "not keyed has no key here"),
        (lambda env, stream: stream.key_by(FirstField()).project(0), "project of PyFlink"),
        (lambda env, stream: stream.key_by(FirstField()).reduce(Later()).sink_to(None), r"sink_to .*\.output"),
        (lambda env, stream: stream.output, "is not an output"),
        (lambda env, stream: env.add_source(None), "add_source of PyFlink is a source of Flink: give keyed.stream"),
        (lambda env, stream: env.enable_checkpointing(1), "checkpoint="),
        (lambda env, stream: stream.connect(stream).process(Counts()), "key both streams"),
        (lambda env, stream: stream.connect([1]), r"connect: \[1\] is not a stream"),
        (lambda env, stream: stream.connect(stream).key_by(FirstField(), FirstField()).map(str), "no map1 and map2"),
        (lambda env, stream: stream.join(stream), "keyed.joins"),
        (lambda env, stream: Row(1, a=2), "positions or names"),
    ],
)
def test_what_has_no_place_says_what_to_use(call, remedy):
    env = StreamExecutionEnvironment.get_execution_environment()
    with pytest.raises(DefinitionError, match=remedy):
        call(env, env.from_collection(ROWS))


@pytest.mark.parametrize("name", ["ProcessFunction", "FileSink", "ProcessAllWindowFunction"])
def test_imports_of_what_has_no_place_say_what_to_use(name):
    with pytest.raises(DefinitionError, match=f"{name} of PyFlink"):
        exec(f"from keyed.pyflink import {name}")
    with pytest.raises(ImportError):
        exec("from keyed.pyflink import NoSuchName")


def test_the_old_names_of_descriptors_lead_to_the_new_ones():
    with pytest.raises(DefinitionError, match=r"keyed\.pyflink\.MapStateDescriptor now"):
        exec("from keyed import MapStateDescriptor")
    with pytest.raises(DefinitionError, match=r"keyed\.pyflink\.ValueStateDescriptor now"):
        _ = keyed.ValueStateDescriptor


def test_types_are_those_of_states_and_columns():
    row = Types.ROW_NAMED(["name", "at", "parts"], [Types.STRING(), Types.INSTANT(), Types.LIST(Types.LONG())])
    assert row.schema == keyed.extending.schema_of("name string, at timestamp, parts array<bigint>")
    assert Types.MAP(Types.STRING(), Types.BIG_DEC()).schema == keyed.extending.schema_of(
        "f0 map<string,decimal(38,18)>"
    )
    assert Types.TUPLE([Types.STRING(), Types.PICKLED_BYTE_ARRAY()]).schema is None
    assert Types.PRIMITIVE_ARRAY(Types.BYTE()).python is bytes
    descriptor = MapStateDescriptor("m", Types.STRING(), Types.TUPLE([Types.INT(), Types.DOUBLE()]))
    assert (descriptor.key_type, descriptor.value_type) == (str, tuple[int, float])
    assert Duration.of_minutes(2) == dt.timedelta(minutes=2)


def test_a_disabled_time_to_live_is_none():
    builder = StateTtlConfig.new_builder(Time.hours(1)).return_expired_if_not_cleaned_up()
    assert builder.update_ttl_on_read_and_write().build() == keyed.StateTtl(
        hours=1,
        update=keyed.UpdateType.ON_READ_AND_WRITE,
        visibility=keyed.StateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP,
    )
    assert builder.set_update_type(StateTtlConfig.UpdateType.Disabled).build() is None


def test_keyed_does_not_load_it():
    program = "import sys, keyed; print([name for name in sys.modules if name in ('keyed.pyflink', 'windows')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_broadcast_state():
    """As PyFlink's own test_keyed_co_broadcast_process does it."""
    descriptor = flink.MapStateDescriptor("map_state", flink.Types.STRING(), flink.Types.INT())

    class Joined(flink.KeyedBroadcastProcessFunction):
        def __init__(self, map_state_desc):
            self._map_state_desc = map_state_desc

        def process_element(self, value, ctx: flink.KeyedBroadcastProcessFunction.ReadOnlyContext):
            yield value[0], ctx.get_broadcast_state(self._map_state_desc).get(value[1])

        def process_broadcast_element(self, value, ctx: flink.KeyedBroadcastProcessFunction.Context):
            ctx.get_broadcast_state(self._map_state_desc).put(value[0], value[1])

    env = flink.StreamExecutionEnvironment.get_execution_environment()
    rules = env.from_collection([("a", 1), ("b", 2)])
    as_it_is: Any = rules
    stream = env.from_collection([(1, "a"), (2, "b"), (3, "c")]).key_by(lambda row: row[0])
    joined = stream.connect(rules.broadcast(descriptor)).process(Joined(descriptor))
    assert list(joined.execute_and_collect()) == [(1, 1), (2, 2), (3, None)]
    with pytest.raises(DefinitionError, match="not keyed has no key: key both streams"):
        stream.connect(as_it_is).process(Counts())


class Counts(flink.KeyedCoProcessFunction):
    """PyFlink's own MyKeyedCoProcessFunction."""

    def open(self, runtime_context: RuntimeContext):
        self.count: Any = runtime_context.get_state(ValueStateDescriptor("count", Types.INT()))

    def _counted(self, value):
        self.count.update((self.count.value() or 0) + 1)
        return [Row(value[0], self.count.value())]

    def process_element1(self, value, ctx: flink.KeyedCoProcessFunction.Context):
        if value[0] == "a":
            ctx.timer_service().register_event_time_timer(3)
        return self._counted(value)

    def process_element2(self, value, ctx: flink.KeyedCoProcessFunction.Context):
        return self._counted(value)

    def on_timer(self, timestamp: int, ctx: flink.KeyedCoProcessFunction.OnTimerContext):
        yield Row("on timer", timestamp)


class Letters(flink.CoFlatMapFunction):
    """PyFlink's own MyRichCoFlatMapFunction."""

    def open(self, runtime_context: RuntimeContext):
        self.seen: Any = runtime_context.get_map_state(MapStateDescriptor("map", Types.STRING(), Types.BOOLEAN()))

    def flat_map1(self, value):
        yield str(value[0] + 1)
        yield str(value[0] + 1)

    def flat_map2(self, value):
        if value[0] not in self.seen:
            self.seen[value[0]] = True
            yield value[0]


class Both(flink.CoMapFunction):
    def map1(self, value):
        return value[0]

    def map2(self, value):
        return None if value[1] == 3 else value[1]


@pytest.mark.parametrize("keyed_first", [True, False])
def test_connected_streams(keyed_first):
    """As PyFlink's own test_keyed_co_process does it."""
    row = Types.ROW([Types.STRING(), Types.INT()])
    env = StreamExecutionEnvironment.get_execution_environment()
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(SecondField())
    first, second = (
        env.from_collection(rows, type_info=row).assign_timestamps_and_watermarks(strategy)
        for rows in ([("a", 1), ("b", 2), ("c", 3)], [("b", 2), ("c", 3), ("d", 4)])
    )
    if keyed_first:
        connected = first.key_by(FirstField()).connect(second.key_by(FirstField()))
    else:
        connected = first.connect(second).key_by(lambda value: value[0], lambda value: value[0])
    found = sorted(tuple(made) for made in connected.process(Counts()).execute_and_collect())
    assert found == [("a", 1), ("b", 1), ("b", 2), ("c", 1), ("c", 2), ("d", 1), ("on timer", 3)]
    # Connected once more, with other keys.
    again = connected.key_by(lambda value: value[1], lambda value: value[1]).process(Counts())
    assert len(list(again.execute_and_collect())) == 7
    assert sorted(connected.map(Both()).execute_and_collect(), key=str) == [2, 4, "a", "b", "c"]


def test_connected_streams_of_other_types():
    """As PyFlink's own test_keyed_co_flat_map does it."""
    env = StreamExecutionEnvironment.get_execution_environment()
    numbers = env.from_collection([(1, 1), (2, 2), (3, 3)], type_info=Types.ROW([Types.INT(), Types.INT()]))
    letters = env.from_collection(
        [("a", "a"), ("b", "b"), ("c", "c"), ("a", "a")], type_info=Types.ROW([Types.STRING(), Types.STRING()])
    )
    keyed_together = numbers.connect(letters).key_by(lambda x: 1, lambda x: 1)
    found = keyed_together.flat_map(Letters(), output_type=Types.STRING())
    assert sorted(value[0] for value in found.execute_and_collect()) == ["2", "2", "3", "3", "4", "4", "a", "b", "c"]


def test_a_union_is_a_stream_of_both():
    env = StreamExecutionEnvironment.get_execution_environment()
    both = env.from_collection([("a", 1, 1.0)]).union(env.from_collection([("b", 2, 1.0)]), env.from_collection(ROWS))
    keyed_both = both.key_by(FirstField())
    assert sorted(keyed_both.map(lambda value: value[1]).execute_and_collect()) == [1, 1, 2, 2, 3, 7]
    again = keyed_both.union(env.from_collection(ROWS).key_by(FirstField())).key_by(FirstField())
    assert len(list(again.map(lambda value: value[1]).execute_and_collect())) == 10


#: ``pyflink.datastream.__all__`` of Flink 2, and names of ``pyflink.common`` and the connectors, are in the file.
@pytest.mark.parametrize("name", read_data("keyed/pyflink_names.json"))
def test_every_name_of_pyflink_is_here_or_explains_itself(name):
    if name in flink.__all__:
        assert getattr(flink, name)
    else:
        with pytest.raises(DefinitionError, match=rf"{name} of PyFlink (is|has) .{{20,}}"):
            getattr(flink, name)


def test_a_name_that_pyflink_does_not_have_is_an_ordinary_attribute_error():
    for name in ("Nothing", "data_stream", "__wrapped__"):
        assert not hasattr(flink, name)
