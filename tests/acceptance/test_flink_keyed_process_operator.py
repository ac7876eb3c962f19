"""Flink's KeyedProcessOperatorTest and the parts of its operator harness tests that hold for keyed functions."""

from __future__ import annotations

from typing import Any

import pytest

from keyed import MAX_TIMESTAMP, MIN_TIMESTAMP, KeyedProcessFunction, OutputTag, ValueState, errors
from keyed.testing import KeyedTestHarness, Record
from tests.acceptance.support import EVENT, Harness, Told, advance, both_domains, both_stores, register


def identity(value):
    return value


class Querying(KeyedProcessFunction):
    def __init__(self, domain):
        self.domain = domain

    def process_element(self, value, ctx):
        service = ctx.timer_service()
        time = service.current_watermark() if self.domain is EVENT else service.current_processing_time()
        yield f"{value}TIME:{time} TS:{ctx.timestamp()}"


class Triggering(KeyedProcessFunction):
    def __init__(self, domain):
        self.domain = domain

    def process_element(self, value, ctx):
        yield value
        service = ctx.timer_service()
        now = service.current_watermark() if self.domain is EVENT else service.current_processing_time()
        register(service, self.domain, now + 5)

    def on_timer(self, timestamp, ctx):
        assert ctx.time_domain() is self.domain
        yield 1777


class TriggeringStateful(Triggering):
    seen = ValueState(int, name="seen-element")

    def process_element(self, value, ctx):
        self.seen.update(value)
        yield f"INPUT:{value}"
        list(super().process_element(value, ctx))

    def on_timer(self, timestamp, ctx):
        assert ctx.time_domain() is self.domain
        yield f"STATE:{self.seen.value()}"


class BothTriggering(KeyedProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().register_processing_time_timer(5)
        ctx.timer_service().register_event_time_timer(6)

    def on_timer(self, timestamp, ctx):
        yield "EVENT:1777" if ctx.time_domain() is EVENT else "PROC:1777"


def harness_of(function, **kwargs):
    return KeyedTestHarness(function, key=identity, **kwargs)


@both_domains
def test_timestamp_and_time_querying(domain):
    """KeyedProcessOperatorTest.testTimestampAndWatermarkQuerying and testTimestampAndProcessingTimeQuerying."""
    harness = harness_of(Querying(domain))
    for now, value in ((17, 5), (42, 6)):
        advance(harness, domain, now)
        timestamp = value + 7 if domain is EVENT else None
        harness.process(value, timestamp)
        assert harness.take_output() == [Record(f"{value}TIME:{now} TS:{timestamp}", timestamp)]


@both_stores
@both_domains
def test_timers_and_the_timestamps_of_their_outputs(store, domain):
    """KeyedProcessOperatorTest.testEventTimeTimers and testProcessingTimeTimers.

    The output has the timestamp of an event-time timer, and none in processing time.
    """
    harness = harness_of(Triggering(domain), store=store)
    advance(harness, domain, 0)
    timestamps = (42, 5) if domain is EVENT else (None, None)
    harness.process(17, timestamps[0])
    advance(harness, domain, 5)
    assert harness.take_output() == [Record(17, timestamps[0]), Record(1777, timestamps[1])]


@both_stores
@both_domains
def test_timers_with_state(store, domain):
    """KeyedProcessOperatorTest.testEventTimeTimerWithState and testProcessingTimeTimerWithState: keys are apart."""
    harness = harness_of(TriggeringStateful(domain), store=store)
    for now, value, timestamp in ((1, 17, 0), (2, 42, 1)):
        advance(harness, domain, now)
        harness.process(value, timestamp if domain is EVENT else None)
    outputs = []
    for now in (6, 7):
        advance(harness, domain, now)
        outputs.append(harness.take_output())
    times = (0, 1, 6, 7) if domain is EVENT else (None,) * 4
    values = ("INPUT:17", "INPUT:42", "STATE:17", "STATE:42")
    records = [Record(value, time) for value, time in zip(values, times, strict=True)]
    assert outputs == [records[:3], records[3:]]


@both_stores
@pytest.mark.parametrize("parallelism", [1, 3])
def test_snapshot_and_restore(store, parallelism):
    """KeyedProcessOperatorTest.testSnapshotAndRestore, also at another parallelism."""
    first = harness_of(BothTriggering())
    first.process(5, 12)
    harness = KeyedTestHarness.restore(
        BothTriggering(), first.snapshot(), key=identity, store=store, parallelism=parallelism
    )
    harness.advance_processing_time(5)
    harness.advance_watermark(6)
    assert harness.take_output() == [Record("PROC:1777", None), Record("EVENT:1777", 6)]
    assert harness.pending_timers() == []


class SideOutputs(KeyedProcessFunction):
    ints = OutputTag("int-out")
    longs = OutputTag("long-out")

    def process_element(self, value, ctx):
        yield f"IN:{value}"
        ctx.output(self.ints, value)
        ctx.output(self.longs, value * 2)
        ctx.timer_service().register_event_time_timer(100)
        ctx.timer_service().register_processing_time_timer(100)

    def on_timer(self, timestamp, ctx):
        ctx.output(self.ints, -value_of(ctx))


def value_of(ctx):
    return ctx.get_current_key()


def test_side_output():
    """KeyedProcessOperatorTest.testSideOutput: side outputs have the element's timestamp, or the event timer's."""
    harness = harness_of(SideOutputs())
    harness.process(42, 17)
    assert harness.take_output() == [Record("IN:42", 17)]
    assert harness.take_side_output(SideOutputs.ints) == [Record(42, 17)]
    assert harness.take_side_output("long-out") == [Record(84, 17)]
    harness.advance_watermark(100)
    harness.advance_processing_time(100)
    assert harness.take_side_output(SideOutputs.ints) == [Record(-42, 100), Record(-42, None)]
    assert harness.take_side_output(SideOutputs.ints) == []


@pytest.mark.parametrize("tag", [None, 5])
def test_null_output_tag_refusal(tag):
    """KeyedProcessOperatorTest.testNullOutputTagRefusal."""
    harness = Harness()
    with pytest.raises(errors.OutputDefinitionError, match="not an OutputTag"):
        harness.call(lambda _, ctx: ctx.output(tag, 1))


def test_timestamps_that_a_function_gives_an_output_are_checked():
    """TimestampedCollector, with a timestamp of the function's choice."""
    harness = Harness()
    harness.call(lambda _, ctx: ctx.collect("least", MIN_TIMESTAMP))
    assert harness.take_output() == [Record("least", MIN_TIMESTAMP)]
    for bad in (1.0, "1", True, 2**63):
        with pytest.raises(errors.OutputDefinitionError, match="timestamp"):
            harness.call(lambda _, ctx, bad=bad: ctx.collect("x", bad))
    assert harness.take_output() == []


def test_a_processing_timer_s_output_can_be_given_a_timestamp():
    """Outputs of processing-time timers have no timestamp unless the function gives one."""

    def timer(_, ctx, timestamp):
        ctx.collect("given", 77)
        return ["not given"]

    harness = Harness(Told(timer))
    harness.timers(lambda t: t.register_processing_time_timer(4))
    harness.advance_processing_time(4)
    assert harness.take_output() == [Record("given", 77), Record("not given", None)]


def test_time_domain_is_for_timers():
    """ProcessFunction.Context has no timeDomain()."""
    with pytest.raises(ValueError, match="on_timer"):
        Harness().call(lambda _, ctx: ctx.time_domain())


class Fragile(KeyedProcessFunction):
    total = ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.total.update(self.total.value() + 1)
        yield "lost"
        ctx.output("side", "lost")
        ctx.timer_service().register_event_time_timer(value[1])
        if value[2]:
            raise value[2]

    def on_timer(self, timestamp, ctx):
        return ()


@both_stores
def test_a_user_exception_leaves_nothing_behind(store):
    """StreamTask fails as a whole: no state, timer, output or side output of the failed call is there afterwards."""
    harness = KeyedTestHarness(Fragile(), key=lambda v: v[0], store=store, parallelism=2)
    harness.process(("k", 20, None), 1)
    before = harness.state_entries(), harness.pending_timers(), harness.snapshot()
    harness.take_output()
    harness.take_side_output("side")
    for error in (ValueError("no good"), KeyError("x"), AssertionError("y"), StopIteration("z")):
        with pytest.raises(
            errors.UserFunctionError, match=r"operator 'function', process_element of element \('k', 30"
        ):
            harness.process(("k", 30, error), 2)

    def batch():
        with harness.batch():
            for key in "abcdefgh":
                harness.process((key, 30, None), 2)
            harness.process(("i", 30, RuntimeError("in the middle of a batch")), 3)

    with pytest.raises(errors.UserFunctionError, match="in the middle of a batch"):
        batch()
    assert (harness.state_entries(), harness.pending_timers(), harness.snapshot()) == before
    assert harness.take_output() == []
    assert harness.take_side_output("side") == []


def test_exceptions_that_a_function_handles_are_its_own_business():
    """An exception that a function catches does not stop the batch, and refused calls have changed nothing."""

    class Catching(Told):
        n = ValueState(int, default=0)

    def do(function, ctx):
        function.n.update(1)
        try:
            ctx.timer_service().register_event_time_timer(None)
        except ValueError:
            function.n.update(2)

    harness = Harness(Catching())
    harness.call(do)
    assert harness.call(lambda f, _: f.n.value()) == 2
    assert harness.pending_timers() == []


@pytest.mark.parametrize("result", [5, object()])
def test_a_result_that_is_not_iterable(result):
    """The message names the call, as for every exception in the function."""
    harness = Harness()
    with pytest.raises(errors.UserFunctionError, match=r"process_element.*not iterable"):
        harness.process(("k", lambda _, ctx: result))


def test_keys_are_not_null_and_of_one_type():
    """KeyGroupRangeAssignment: key must not be null; here a part of it neither."""
    harness = Harness()
    with pytest.raises(errors.NullKeyError):
        harness.process((None, lambda _, ctx: None))
    harness.process((("a", 1), lambda _, ctx: None))
    with pytest.raises(errors.NullKeyError):
        harness.process((("a", None), lambda _, ctx: None))
    with pytest.raises(errors.KeyTypeError):
        harness.process((("a", True), lambda _, ctx: None))
    with pytest.raises(errors.EncodingError, match="tuple"):
        Harness().call(lambda f, ctx: ctx.timer_service().set_timer("x", 1), key=[1])


def test_open_and_close_are_called_around_the_elements():
    """AbstractUdfStreamOperator: open before the first element, close at the end; state has no key in either."""
    calls: list[Any] = []

    class Opened(KeyedProcessFunction):
        n = ValueState(int, default=0)

        def open(self, context):
            calls.append(("open", context.get_index_of_this_subtask(), context.get_number_of_parallel_subtasks()))
            with pytest.raises(errors.StateAccessError, match="'n'"):
                self.n.value()
            self.extra = context.get_state(ValueState(int, 7, name="extra"))

        def process_element(self, value, ctx):
            calls.append(("element", self.extra.value()))
            self.extra.update(8)

        def close(self):
            calls.append("close")
            with pytest.raises(errors.StateAccessError):
                self.n.value()

    with KeyedTestHarness(Opened(), key=identity) as harness:
        harness.process("a")
        harness.process("a")
    assert calls == [("open", 0, 1), ("element", 7), ("element", 8), "close"]


def test_an_exception_in_open_or_close_is_named():
    """StreamOperator.open failing fails the task."""

    class Failing(KeyedProcessFunction):
        def open(self, context):
            raise OSError("no network")

        def process_element(self, value, ctx):
            return None

    with pytest.raises(errors.UserFunctionError, match="'function', key group 0, open: OSError: no network"):
        harness_of(Failing()).process(1)


def test_state_is_obtained_in_open():
    """Flink gives state in processElement too; here states are declared or obtained in open, and the error says so."""

    class Late(KeyedProcessFunction):
        def open(self, context):
            self.context = context

        def process_element(self, value, ctx):
            if value == "late":
                self.context.get_state(ValueState(int, name="x"))

    harness = KeyedTestHarness(Late(), key=lambda _: "k")
    with pytest.raises(errors.StateAccessError, match=r"'x'.*open"):
        harness.process("late")
    harness.process("fine")
    # The refused state has left no trace in what the checkpoint says of the function.
    again = KeyedTestHarness.restore(Late(), harness.snapshot(), key=lambda _: "k")
    again.process("fine")


def test_definitions_are_checked_before_the_first_row():
    """Function classes, names and timers without on_timer."""

    class NoHandler(KeyedProcessFunction):
        def process_element(self, value, ctx):
            self.helper(ctx.timer_service())

        def helper(self, timers):
            timers.set_timer("x", 1)

    class Hidden(KeyedProcessFunction):
        def process_element(self, value, ctx):
            register = getattr(ctx.timer_service(), "register_" + "event_time_timer")
            register(1)

    with pytest.raises(errors.DefinitionError, match="helper calls set_timer"):
        harness_of(NoHandler())
    with pytest.raises(errors.StateDefinitionError, match="give an object, not the class"):
        harness_of(Querying)
    with pytest.raises(errors.DefinitionError, match="on_timer"):
        harness_of(Hidden()).process(1)
    with pytest.raises(errors.StateDefinitionError, match="'x' twice"):
        harness_of(type("Twice", (Querying,), {"a": ValueState(int, name="x"), "b": ValueState(int, name="x")})(EVENT))
    for name in ("", "a/b"):
        with pytest.raises(errors.StateDefinitionError, match="must match"):
            ValueState(int, name=name)
    with pytest.raises(errors.StateDefinitionError):
        ValueState(int, ttl=5)  # type: ignore[call-overload]


def test_a_function_given_twice_keeps_its_states_apart():
    """Two harnesses of the same function object share nothing."""

    class Count(KeyedProcessFunction):
        n = ValueState(int, default=0)

        def process_element(self, value, ctx):
            self.n.update(self.n.value() + 1)
            yield self.n.value()

    function = Count()
    one, two = harness_of(function), harness_of(function)
    one.process("a")
    one.process("a")
    two.process("a")
    assert [r.value for r in one.take_output()] == [1, 2]
    assert [r.value for r in two.take_output()] == [1]


def test_the_end_of_input():
    """StreamOperator.finish: the watermark is Long.MAX_VALUE, and nothing may come after it."""
    harness = Harness()
    harness.timers(lambda t: (t.register_event_time_timer(MAX_TIMESTAMP), t.register_event_time_timer(3)))
    harness.timers(lambda t: t.register_processing_time_timer(MAX_TIMESTAMP))
    harness.end_of_input()
    assert harness.values() == [(3, "k", None), (MAX_TIMESTAMP, "k", None), (MAX_TIMESTAMP, "k", None)]
    assert harness.current_watermark == MAX_TIMESTAMP


def test_a_context_that_is_kept_is_refused_after_its_batch():
    """ContextImpl's element is null outside of processElement; here nothing that it is given is lost silently."""
    kept: list[Any] = []

    class Keeping(Told):
        def close(self):
            kept[0].collect("from close")

    harness = Harness(Keeping())
    harness.call(lambda _, ctx: kept.append(ctx))
    for use in (
        lambda ctx: ctx.collect(1),
        lambda ctx: ctx.output("side", 1),
        lambda ctx: ctx.timer_service().register_event_time_timer(5),
        lambda ctx: ctx.timer_service().register_processing_time_timer(5),
        lambda ctx: ctx.timer_service().delete_event_time_timer(5),
        lambda ctx: ctx.timer_service().set_timer("x", 5),
        lambda ctx: ctx.timer_service().cancel_timer("x"),
    ):
        with pytest.raises(errors.StateAccessError, match="outside of a call"):
            use(kept[0])
    with pytest.raises(errors.StateAccessError):
        harness.close()


@pytest.mark.parametrize("time", [1.5, True, "5", 2**63, -(2**63) - 1])
def test_times_that_the_harness_refuses(time):
    """A long in Flink's harness; what is none leaves clocks and state as they were."""
    harness = Harness()
    with pytest.raises(errors.TimestampError):
        harness.process(("k", lambda _, ctx: None), time)
    with pytest.raises(errors.DefinitionError):
        harness.advance_watermark(time)
    with pytest.raises(errors.DefinitionError):
        harness.advance_processing_time(time)
    assert (harness.current_watermark, harness.current_processing_time) == (MIN_TIMESTAMP, 0)
    harness.call(lambda _, ctx: None, timestamp=MIN_TIMESTAMP)


@pytest.mark.parametrize("parallelism", [0, -1, 1.5, True, "2", None])
def test_parallelism_that_the_harness_refuses(parallelism):
    """KeyGroupRangeAssignment.checkParallelismPreconditions."""
    with pytest.raises(errors.DefinitionError, match="parallelism"):
        Harness(parallelism=parallelism)
