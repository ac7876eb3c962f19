"""Rules of state, timers and time that a random program seldom meets."""

from __future__ import annotations

import pyarrow as pa
import pytest

from keyed import MIN_TIMESTAMP, KeyedError, KeyedProcessFunction, ListState, MapState, TimeDomain, ValueState
from keyed.engine.batch import Batch
from keyed.errors import CorruptionError, EncodingError, StateAccessError, UserFunctionError
from keyed.testing import KeyedTestHarness
from keyed.vectorized import VectorizedFunction
from tests.keyed.engine.groups import Group

PROCESSING = TimeDomain.PROCESSING_TIME


class Scripted(KeyedProcessFunction):
    """Elements are (key, function of self and ctx); timers call ``self.fire``."""

    value = ValueState(int)
    list = ListState(int)
    map = MapState(int, int)

    def __init__(self, fire=None) -> None:
        self.fire = fire

    def process_element(self, value, ctx):
        return value[1](self, ctx)

    def on_timer(self, timestamp, ctx):
        if self.fire is not None:
            return self.fire(self, timestamp, ctx)
        return [(ctx.get_current_key(), timestamp, ctx.time_domain().value, ctx.timer_name())]


def harness(fire=None, **options):
    return KeyedTestHarness(Scripted(fire), key=lambda value: value[0], **options)


def values(subject):
    return [record.value for record in subject.take_output()]


def test_the_batch_that_ends_the_input_fires_each_processing_timer_once():
    def set_timers(f, ctx):
        service = ctx.timer_service()
        for at in (10, 20, 30):
            service.register_processing_time_timer(at)
        service.set_timer("moved", 10, PROCESSING)
        service.set_timer("gone", 20, PROCESSING)
        service.set_timer("kept", 40, PROCESSING)

    def change(f, ctx):
        service = ctx.timer_service()
        service.delete_processing_time_timer(30)
        service.cancel_timer("gone", PROCESSING)
        service.set_timer("moved", 50, PROCESSING)
        assert [(t.timestamp, t.name) for t in service.timers()] == [(20, None), (40, "kept"), (50, "moved")]

    group = Group(Scripted())
    group.run(("a", set_timers))
    chunks = Batch(lambda: [(["a"], None, [("a", change)], None)], processing_time=10, end_of_input=True)
    result = group.group.run(chunks)
    group.commits.commit()
    fired = [(value[1], value[3]) for value in result.main.values]
    assert fired == [(10, None), (10, "moved"), (20, None), (40, "kept"), (50, "moved")]
    assert group.entries() == []
    counters = group.meta().counters
    assert (counters["timers_fired"], counters["timers_pending"], counters["live_bytes"]) == (5, 0, 0)


def test_an_error_that_is_raised_again_is_told_where_it_was_raised_last():
    error = StateAccessError("too early")

    def refuse(f, ctx):
        raise error

    for key in ("a", "b"):
        with pytest.raises(StateAccessError) as raised:
            harness().process((key, refuse))
        assert raised.value is error
        assert str(error).startswith("too early (operator 'function', process_element of element ('")
        assert (str(error).count("operator"), str(error)[-10:]) == (1, f", key '{key}')")


def test_damage_that_a_call_meets_keeps_its_file_and_offset():
    damage = CorruptionError("a record is cut short", where="log/7", offset=12)

    def read(f, ctx):
        raise damage

    with pytest.raises(CorruptionError, match=r"cut short in log/7 at byte 12 \(operator .*, key 'a'\)") as raised:
        harness().process(("a", read))
    assert (raised.value, raised.value.where, raised.value.offset) == (damage, "log/7", 12)

    class Damaged(VectorizedFunction):
        def process_batch(self, table, ctx):
            raise damage

    with (
        KeyedTestHarness(Damaged(), key="k") as columns,
        pytest.raises(CorruptionError, match="process_batch") as raised,
    ):
        columns.process_batch(pa.table({"k": ["a"]}))
    assert (raised.value, raised.value.where, raised.value.offset) == (damage, "log/7", 12)


def test_state_kept_beyond_its_call_is_refused():
    kept = {}

    def keep(f, ctx):
        kept["namespace"] = f.value.namespace("w")
        kept["namespace"].update(1)
        kept["function"] = f
        kept["items"] = f.map

    subject = harness()
    subject.process(("a", keep))
    for use in (
        lambda: kept["namespace"].update(2),
        kept["namespace"].value,
        kept["function"].value.value,
        lambda: kept["function"].list.add(1),
        lambda: kept["items"].get(1),
        lambda: list(kept["items"].items()),
    ):
        with pytest.raises(StateAccessError, match="outside of a call"):
            use()
    with pytest.raises(StateAccessError, match="namespace"):
        subject.process(("a", lambda f, ctx: kept["namespace"].update(3)))
    subject.process(("a", lambda f, ctx: [f.value.namespace("w").value()]))
    assert values(subject) == [1]


def test_namespaces_are_not_nested_and_must_be_encodable():
    with pytest.raises(StateAccessError, match="namespace"):
        harness().process(("a", lambda f, ctx: f.value.namespace(1).namespace(2)))
    for bad in ([1], {"a": 1}, object(), (1, [2])):
        with pytest.raises(EncodingError):
            harness().process(("a", lambda f, ctx, bad=bad: f.value.namespace(bad)))


def test_all_nan_are_one_key_and_one_namespace():
    def count(f, ctx):
        state = f.value.namespace(float("nan"))
        state.update((state.value() or 0) + 1)
        f.value.update((f.value.value() or 0) + 1)
        return [(state.value(), f.value.value())]

    for key in (lambda: float("nan"), lambda: (1, float("nan"))):
        for parallelism in (1, 2):
            subject = harness(parallelism=parallelism)
            with subject.batch():
                for _ in range(3):
                    subject.process((key(), count))
            subject.process((key(), count))
            assert values(subject) == [(n, n) for n in range(1, 5)]


def test_an_error_in_on_timer_names_the_timer_and_commits_nothing():
    def fire(f, timestamp, ctx):
        f.value.update(5)
        yield "lost"
        raise LookupError("no good")

    subject = harness(fire)

    def set_timers(f, ctx):
        ctx.timer_service().set_timer("w", 10)
        ctx.timer_service().register_processing_time_timer(10)

    subject.process(("a", set_timers))
    with pytest.raises(
        UserFunctionError, match=r"'function', on_timer of event_time timer 'w' at 10, key 'a'.*no good"
    ):
        subject.advance_watermark(20)
    with pytest.raises(UserFunctionError, match="processing_time timer at 10, key 'a'"):
        subject.advance_processing_time(20)
    assert (subject.current_watermark, subject.current_processing_time) == (MIN_TIMESTAMP, 0)
    assert values(subject) == []
    assert len(subject.pending_timers()) == 2
    assert subject.state_entries() == 0
    subject.crash_and_recover()
    assert len(subject.pending_timers()) == 2


def test_an_error_class_of_the_user_s_own_is_named_too():
    class Own(KeyedError):
        def __init__(self, code, text) -> None:
            super().__init__(text)

    def fail(f, ctx):
        raise Own(5, "mine")

    with pytest.raises(UserFunctionError, match="Own: mine"):
        harness().process(("a", fail))
