"""Spark's TransformWithStateSuite and the cases of the suites of its states that Flink's do not have.

List, map and expiring states behave as in `test_flink_state_backends.py` and `test_flink_state_ttl.py`.

A Spark processor gets all rows of a key in a batch; here each element is a call of its own. Spark refuses an empty
list and a null map key or value; here an empty list clears, as in Flink, and a map may hold nulls of a type that does.
"""

from __future__ import annotations

import pytest

import keyed
from keyed import KeyedProcessFunction, ListState, MapState, StateTtl, ValueState
from tests.acceptance.support import Harness, Told


class MaxEventTime(KeyedProcessFunction):
    """MaxEventTimeStatefulProcessor."""

    latest = ValueState(int, name="maxEventTimeState")
    timer = ValueState(int, name="timerState", default=0)

    def process_element(self, value, ctx):
        if ctx.is_late():
            ctx.output("late", value)
            return
        latest = max(ctx.timestamp(), self.latest.value() or 0)
        self.latest.update(latest)
        at = latest + 5
        if self.timer.value() < at:
            ctx.timer_service().delete_event_time_timer(self.timer.value())
            ctx.timer_service().register_event_time_timer(at)
            self.timer.update(at)
        yield ctx.get_current_key(), latest

    def on_timer(self, timestamp, ctx):
        self.latest.clear()
        yield ctx.get_current_key(), -1


def test_event_time_timer_in_the_local_runtime():
    """TransformWithStateSuite's event time based timer: the watermark moves before the row that moves it."""
    rows = [{"key": "a", "t": t} for t in (11, 13, 15, 4, 10)] + [{"key": "b", "t": 31}]
    stream = keyed.stream(rows, timestamp="t", watermark=keyed.bounded_out_of_orderness(9))
    main = stream.key_by("key").process(MaxEventTime())
    values = main.run(rows_per_batch=3).values
    # Here a batch cuts (11, 13, 15) from (4, 10, 31): 4 is late, 10 is not.
    assert values == [("a", 11), ("a", 13), ("a", 15), ("a", 15), ("a", -1), ("b", 31), ("b", -1)]
    assert main.run(rows_per_batch=6).values[-4:] == [("a", 15), ("a", -1), ("b", 31), ("b", -1)]


def test_map_state_with_a_null_key():
    """TransformWithMapStateSuite: "Test getValue with null user key": a null is a key where the type has one."""

    class Nullable(Told):
        session = MapState(str | None, str)

    nullable = Harness(Nullable())
    nullable.call(lambda f, _: (f.session.put("a", "x"), f.session.put(None, "y")))
    assert nullable.call(lambda f, _: list(f.session.items())) == [(None, "y"), ("a", "x")]


def expiring_list(seconds):
    return type("F", (Told,), {"elements": ListState(int, ttl=StateTtl(seconds=seconds))})()


@pytest.mark.parametrize("where", ["middle", "end"])
def test_expired_elements_in_a_list_whose_ttl_changed(where):
    """TransformWithListStateTTLSuite: "... in middle of list" and "... in end of list": the ttl changes at restarts."""
    harness = Harness(expiring_list(180))
    harness.call(lambda f, _: f.elements.add_all([1, 2, 3]))
    harness = harness.again(expiring_list(15))
    harness.call(lambda f, _: f.elements.add_all([4, 5, 6]))
    if where == "middle":
        harness = harness.again(expiring_list(180), parallelism=2)
        harness.call(lambda f, _: f.elements.add_all([7, 8]))
    expected = [1, 2, 3] + ([7, 8] if where == "middle" else [])
    harness.advance_processing_time(15_000)
    assert harness.call(lambda f, _: list(f.elements)) == expected
    harness.advance_processing_time(180_000)
    assert harness.state_entries() == 0
