"""The semantics of state, timers and outputs as Flink's harness tests state them, through the public harness."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import attrs
import pytest

from keyed import (
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    AggregatingState,
    KeyedProcessFunction,
    ListState,
    MapState,
    OutputTag,
    ReducingState,
    TimeDomain,
    ValueState,
)
from keyed.errors import (
    DefinitionError,
    EncodingError,
    KeyTypeError,
    NullKeyError,
    StateAccessError,
    StateDefinitionError,
    TimerDefinitionError,
    UserFunctionError,
)
from keyed.testing import KeyedTestHarness, Record

STORES = ("memory", "rocksdb")


class Count(KeyedProcessFunction):
    seen = ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.seen.update(self.seen.value() + 1)
        yield ctx.get_current_key(), self.seen.value()


@pytest.mark.parametrize("store", STORES)
def test_value_state_is_per_key_and_survives_a_crash(store):
    with KeyedTestHarness(Count(), key=lambda v: v[0], store=store) as harness:
        harness.process("a", 1)
        harness.process("b", 2)
        harness.crash_and_recover()
        harness.process("a", 3)
        assert harness.take_output() == [Record(("a", 1), 1), Record(("b", 1), 2), Record(("a", 2), 3)]
        assert harness.state_entries() == 2


def test_a_batch_is_one_commit_in_event_time_order():
    harness = KeyedTestHarness(Count(), key=lambda v: v)
    with harness.batch():
        harness.process("a", 30)
        harness.process("b", 10)
        harness.process("a", 20)
    assert harness.take_output() == [Record(("b", 1), 10), Record(("a", 1), 20), Record(("a", 2), 30)]
    assert harness.metrics()["batches"] == 1


def test_a_batch_is_in_the_order_of_arrival_where_the_job_is():
    harness = KeyedTestHarness(Count(), order="arrival")
    with harness.batch():
        harness.process("a", 30)
        harness.process("b", 10)
    assert harness.take_output() == [Record(("a", 1), 30), Record(("b", 1), 10)]
    with pytest.raises(DefinitionError, match="order='time' must be 'event_time', 'watermark' or 'arrival'"):
        KeyedTestHarness(Count(), order="time")  # type: ignore[arg-type]


class Timers(KeyedProcessFunction):
    """Elements are (key, call, *arguments) on the timer service."""

    def process_element(self, value, ctx):
        _, call, *arguments = value
        getattr(ctx.timer_service(), call)(*arguments)
        yield "element", ctx.timer_service().current_watermark()

    def on_timer(self, timestamp, ctx):
        yield timestamp, ctx.get_current_key(), ctx.time_domain().name, ctx.timer_name(), ctx.timestamp()


def timers(**kwargs):
    return KeyedTestHarness(Timers(), key=lambda v: v[0], **kwargs)


@pytest.mark.parametrize("store", STORES)
def test_event_timers_fire_by_timestamp_then_key_when_the_watermark_reaches_them(store):
    harness = timers(store=store)
    for key, time in (("b", 5), ("a", 5), ("a", 3), ("c", 9), ("a", 5)):
        harness.process((key, "register_event_time_timer", time))
    harness.take_output()
    harness.advance_watermark(4)
    assert harness.take_output() == [Record((3, "a", "EVENT_TIME", None, 3), 3)]
    harness.crash_and_recover()
    assert [timer.timestamp for timer in harness.pending_timers()] == [5, 5, 9]
    harness.advance_watermark(5)
    assert [r.value[:2] for r in harness.take_output()] == [(5, "a"), (5, "b")]
    harness.advance_watermark(MAX_TIMESTAMP)
    assert [r.value[:2] for r in harness.take_output()] == [(9, "c")]
    assert harness.pending_timers() == []


def test_processing_timers_fire_without_a_timestamp_and_independently_of_event_timers():
    harness = timers()
    harness.process(("a", "register_processing_time_timer", 10), 100)
    harness.process(("a", "register_event_time_timer", 10), 100)
    harness.take_output()
    harness.advance_processing_time(9)
    assert harness.take_output() == []
    harness.advance_processing_time(10)
    assert harness.take_output() == [Record((10, "a", "PROCESSING_TIME", None, 10), None)]
    assert [t.domain for t in harness.pending_timers("a")] == [TimeDomain.EVENT_TIME]


def test_an_event_timer_in_the_past_waits_for_the_next_advance():
    harness = timers()
    harness.advance_watermark(100)
    harness.process(("a", "register_event_time_timer", 50), 200)
    harness.advance_watermark(100)
    assert [r.value[0] for r in harness.take_output()] == ["element"]
    harness.advance_watermark(101)
    assert [r.value[0] for r in harness.take_output()] == [50]


def test_a_processing_timer_in_the_past_fires_right_after_the_call():
    harness = timers()
    harness.advance_processing_time(100)
    with harness.batch():
        harness.process(("a", "register_processing_time_timer", 50), 1)
        harness.process(("a", "register_processing_time_timer", 500), 2)
    assert [r.value[0] for r in harness.take_output()] == ["element", 50, "element"]


def test_a_named_timer_is_replaced_and_can_be_cancelled():
    harness = timers()
    harness.process(("a", "set_timer", ("w", 1), 10))
    harness.process(("a", "set_timer", ("w", 1), 20))
    harness.process(("a", "set_timer", "other", 15))
    harness.process(("a", "set_timer", "gone", 15))
    harness.process(("a", "cancel_timer", "gone"))
    harness.process(("b", "cancel_timer", "other"))
    assert [(t.timestamp, t.name) for t in harness.pending_timers()] == [(15, "other"), (20, ("w", 1))]
    harness.take_output()
    harness.advance_watermark(20)
    assert [(r.value[0], r.value[3]) for r in harness.take_output()] == [(15, "other"), (20, ("w", 1))]
    assert harness.pending_timers() == []


def test_deleting_a_timer_that_is_stored_or_not_there():
    harness = timers()
    harness.process(("a", "register_event_time_timer", 10))
    harness.process(("a", "delete_event_time_timer", 10))
    harness.process(("a", "delete_event_time_timer", 11))
    harness.advance_watermark(20)
    assert [r.value[0] for r in harness.take_output()] == ["element"] * 3
    metrics = harness.metrics()
    assert (metrics["timers_registered"], metrics["timers_fired"], metrics["timers_pending"]) == (1, 0, 0)


class Chain(KeyedProcessFunction):
    """A timer that sets others when it fires."""

    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(value[1])

    def on_timer(self, timestamp, ctx):
        service = ctx.timer_service()
        if timestamp == 10 and ctx.get_current_key() == "a":
            service.register_event_time_timer(5)  # already due: before anything later
            service.register_event_time_timer(12)  # due in the same advance
            service.register_event_time_timer(99)  # not due
        if timestamp == 12 and not service.timers():
            service.register_event_time_timer(12)
        yield timestamp, ctx.get_current_key(), [t.timestamp for t in service.timers()]


def test_timers_set_while_firing_fire_in_the_same_advance_in_order():
    harness = KeyedTestHarness(Chain(), key=lambda v: v[0])
    harness.process(("a", 10))
    harness.process(("b", 10))
    harness.advance_watermark(50)
    assert [r.value for r in harness.take_output()] == [
        (10, "a", [5, 12, 99]),
        (5, "a", [12, 99]),
        (10, "b", []),
        (12, "a", [99]),
    ]
    assert [t.timestamp for t in harness.pending_timers()] == [99]


class Reregister(KeyedProcessFunction):
    fired = ValueState(int, default=0)

    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(10)

    def on_timer(self, timestamp, ctx):
        self.fired.update(self.fired.value() + 1)
        if self.fired.value() < 3:
            ctx.timer_service().register_event_time_timer(timestamp)
        yield self.fired.value()


def test_registering_the_same_time_from_on_timer_is_not_lost():
    harness = KeyedTestHarness(Reregister(), key=lambda v: v)
    harness.process("a", 1)
    harness.advance_watermark(10)
    assert [r.value for r in harness.take_output()] == [1, 2, 3]


def test_end_of_input_fires_event_timers_then_waiting_processing_timers():
    harness = timers()
    harness.process(("a", "register_processing_time_timer", 10**15))
    harness.process(("a", "register_event_time_timer", 10**15))
    harness.take_output()
    harness.end_of_input()
    assert [r.value[2] for r in harness.take_output()] == ["EVENT_TIME", "PROCESSING_TIME"]
    assert harness.pending_timers() == []


class Lists(KeyedProcessFunction):
    items = ListState(int)

    def process_element(self, value, ctx):
        _, call, *arguments = value
        getattr(self.items, call)(*arguments)
        yield self.items.get(), list(self.items)


@pytest.mark.parametrize("store", STORES)
def test_list_state_keeps_the_order_over_batches_and_rejects_null(store):
    harness = KeyedTestHarness(Lists(), key=lambda v: v[0], store=store)
    harness.process(("a", "add", 3))
    harness.process(("a", "add_all", [1, 2]))
    harness.crash_and_recover()
    harness.process(("a", "add", 9))
    assert harness.take_output()[-1].value == ([3, 1, 2, 9],) * 2
    assert harness.state_entries() == 4
    harness.process(("a", "update", [7]))
    harness.process(("a", "add", 8))
    assert harness.take_output()[-1].value[0] == [7, 8]
    with pytest.raises(EncodingError, match="None"):
        harness.process(("a", "add", None))
    harness.process(("a", "clear"))
    assert harness.state_entries() == 0


class Maps(KeyedProcessFunction):
    counts: MapState[str, int | None] = MapState(str, int)

    def process_element(self, value, ctx):
        counts = self.counts
        counts["b"] = 2
        counts.put("a", None)
        counts.put_all({"c": 3, "d": 4})
        del counts["d"]
        assert "a" in counts
        assert counts.contains("a")
        assert counts.get("zz", 5) == 5
        with pytest.raises(KeyError):
            counts["zz"]
        for key in counts.keys():  # noqa: SIM118 - it is keys() that is tested
            if key == "c":
                counts.remove(key)
        yield list(counts.items()), len(counts), bool(counts), counts.is_empty()
        counts["0"] = 0


@pytest.mark.parametrize("store", STORES)
def test_map_state_is_a_mapping_in_key_order_with_null_values(store):
    harness = KeyedTestHarness(Maps(), key=lambda v: v, store=store)
    harness.process("x")
    harness.process("x")
    first, second = (r.value for r in harness.take_output())
    assert first == ([("a", None), ("b", 2)], 2, True, False)
    assert second == ([("0", 0), ("a", None), ("b", 2)], 3, True, False)


class Mean:
    def create_accumulator(self):
        return (0, 0)

    def add(self, value, accumulator):
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, a, b):
        return a[0] + b[0], a[1] + b[1]


class Reduces(KeyedProcessFunction):
    largest = ReducingState(max, int)
    mean = AggregatingState(Mean(), tuple[int, int])

    def process_element(self, value, ctx):
        self.largest.add(value)
        self.mean.add(value)
        yield self.largest.get(), self.mean.get()
        if value == 0:
            self.largest.clear()
            self.mean.clear()
            yield self.largest.get(), self.mean.get()


def test_reducing_and_aggregating_state():
    harness = KeyedTestHarness(Reduces(), key=lambda v: "k")
    for value in (2, 6, 4, 0, 5):
        harness.process(value)
    assert [r.value for r in harness.take_output()] == [(2, 2), (6, 4), (6, 4), (6, 3), (None, None), (5, 5)]


class Namespaces(KeyedProcessFunction):
    total = ValueState(int, default=0)
    items = ListState(int)

    def process_element(self, value, ctx):
        window, amount = value
        state = self.total.namespace(window)
        state.update(state.value() + amount)
        self.items.namespace(window).add(amount)
        yield self.total.value(), state.value(), self.items.namespace(window).get(), self.items.get()


@pytest.mark.parametrize("store", STORES)
def test_namespaces_are_apart_from_each_other_and_from_the_state_itself(store):
    harness = KeyedTestHarness(Namespaces(), key=lambda v: "k", store=store)
    harness.process(((0, 10), 1))
    harness.process(((10, 20), 2))
    harness.process(((0, 10), 3))
    assert [r.value for r in harness.take_output()] == [(0, 1, [1], []), (0, 2, [2], []), (0, 4, [1, 3], [])]


LATE = OutputTag("late", "v bigint")


class Outputs(KeyedProcessFunction):
    def process_element(self, value, ctx):
        ctx.collect("first")
        ctx.collect("given", 77)
        ctx.output(LATE, value)
        yield "yielded"
        ctx.collect("last")
        if ctx.is_late():
            ctx.output("late", "late")


def test_outputs_keep_their_order_and_take_the_element_s_timestamp_or_their_own():
    harness = KeyedTestHarness(Outputs(), key=lambda v: v)
    harness.process(1, 5)
    assert harness.take_output() == [
        Record("first", 5),
        Record("given", 77),
        Record("yielded", 5),
        Record("last", 5),
    ]
    assert harness.take_side_output(LATE) == [Record(1, 5)]
    harness.advance_watermark(9)
    harness.process(1, 9)
    assert [r.value for r in harness.take_side_output("late")] == [1, "late"]
    assert harness.metrics()["rows_late"] == 1


@attrs.frozen
class Departure:
    tail: str
    at: dt.datetime
    price: Decimal = Decimal(0)


class Typed(KeyedProcessFunction):
    last = ValueState(Departure)
    anything = ValueState()

    def open(self, context):
        self.names = context.get_list_state(ListState(str, name="names"))
        self.n = context.get_state(ValueState(int, 7, name="n"))

    def process_element(self, value, ctx):
        yield self.last.value(), self.anything.value(), self.n.value(), self.names.get()
        self.last.update(value)
        self.anything.update((1, {"a": [Decimal("1.0")]}, value.at))
        self.n.update(self.n.value() + 1)
        self.names.add(value.tail)


def test_typed_untyped_and_descriptor_states_round_trip():
    harness = KeyedTestHarness(Typed(), key=lambda v: v.tail)
    departure = Departure("N1", dt.datetime(2013, 1, 1, 5, tzinfo=dt.UTC), Decimal("1.50"))
    harness.process(departure)
    harness.crash_and_recover()
    harness.process(departure)
    assert harness.take_output()[1].value == (
        departure,
        (1, {"a": [Decimal("1.0")]}, departure.at),
        8,
        ["N1"],
    )


def test_parallelism_and_snapshots_move_state_timers_and_clocks():
    harness = timers(parallelism=3)
    for i in range(20):
        harness.process((f"k{i}", "register_event_time_timer", 100 + i), i)
    harness.advance_watermark(104)
    harness.advance_processing_time(55)
    snapshot = harness.snapshot()
    for parallelism in (1, 4):
        again = KeyedTestHarness.restore(Timers(), snapshot, key=lambda v: v[0], parallelism=parallelism)
        assert again.current_watermark == 104
        assert again.current_processing_time == 55
        assert [t.timestamp for t in again.pending_timers()] == list(range(105, 120))
        again.advance_watermark(200)
        assert sorted(r.value[0] for r in again.take_output()) == list(range(105, 120))


class Broken(KeyedProcessFunction):
    n = ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.n.update(self.n.value() + 1)
        if value == "bad":
            raise ValueError("no good")
        yield self.n.value()


def test_a_user_error_names_operator_call_key_and_element_and_commits_nothing():
    harness = KeyedTestHarness(Broken(), key=lambda v: "k")
    harness.process("ok", 3)
    with pytest.raises(UserFunctionError, match=r"process_element of element 'bad', timestamp 4, key 'k'.*no good"):
        harness.process("bad", 4)
    harness.process("ok", 5)
    assert [r.value for r in harness.take_output()] == [1, 2]


def test_bad_definitions_are_refused_before_the_first_row():
    class NoTimer(KeyedProcessFunction):
        def process_element(self, value, ctx):
            ctx.timer_service().register_event_time_timer(1)

    class Twice(KeyedProcessFunction):
        a = ValueState(int, name="x")
        b = ValueState(int, name="x")

        def process_element(self, value, ctx):
            return None

    with pytest.raises(TimerDefinitionError, match="on_timer"):
        KeyedTestHarness(NoTimer())
    with pytest.raises(StateDefinitionError, match="'x' twice"):
        KeyedTestHarness(Twice())
    with pytest.raises(StateDefinitionError, match="must match"):
        ValueState(int, name="a/b")


def test_state_outside_of_a_call_with_a_key_is_refused():
    class Early(KeyedProcessFunction):
        n = ValueState(int, default=0)

        def open(self, context):
            self.n.value()

        def process_element(self, value, ctx):
            return None

    with pytest.raises(StateAccessError, match="'n'"):
        KeyedTestHarness(Early()).process(1)
    with pytest.raises(StateAccessError, match="'n'"):
        Early().n.update(3)


def test_keys_have_one_type_and_are_not_null():
    harness = KeyedTestHarness(Count(), key=lambda v: v)
    harness.process(1)
    with pytest.raises(KeyTypeError, match="bool"):
        harness.process(True)
    with pytest.raises(NullKeyError):
        harness.process(None)


def test_the_watermark_starts_at_the_minimum_and_never_moves_back():
    harness = timers()
    assert harness.current_watermark == MIN_TIMESTAMP
    harness.process(("a", "register_event_time_timer", -(10**9)))
    harness.advance_watermark(-5)
    harness.advance_watermark(-50)
    assert harness.current_watermark == -5
    assert [r.value[0] for r in harness.take_output()] == ["element", -(10**9)]


class PerSensor(KeyedProcessFunction):
    n = ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.n.update(self.n.value() + value.v)
        yield ctx.get_current_key(), value["v"], self.n.value()


@pytest.mark.parametrize("key", ["sensor", ["sensor"], lambda row: row.sensor, lambda row: row["sensor"]])
def test_keys_by_name_and_rows_out_of_dictionaries_are_as_in_a_stream(key):
    harness = KeyedTestHarness(PerSensor(), key=key)
    for sensor, value in (("a", 1), ("b", 2), ("a", 3)):
        harness.process({"sensor": sensor, "v": value})
    assert [record.value for record in harness.take_output()] == [("a", 1, 1), ("b", 2, 2), ("a", 3, 4)]
    harness = KeyedTestHarness(PerSensor(), key=["sensor", "v"])
    harness.process({"sensor": "a", "v": 1})
    assert [record.value for record in harness.take_output()] == [(("a", 1), 1, 1)]
    with pytest.raises(DefinitionError, match="'sensor' is not in element"):
        harness.process({"v": 1})
