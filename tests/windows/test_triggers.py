"""Triggers by themselves: what they refuse, the timers of windows that merge, the end of time.

When triggers fire, and that nothing is left, is compared with an oracle in `test_properties.py`; Flink's cases are in
`tests/acceptance/flink_window_operator.json`.
"""

from typing import Any

import pytest

import keyed
from keyed import ReducingState
from keyed import windows as w
from keyed.errors import DefinitionError
from keyed.testing import KeyedTestHarness
from tests.support.window_operators import trigger_of, window_rows

WRONG: Any = 3
CONTEXT: Any = None


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_bad_counts_are_refused(count):
    with pytest.raises(DefinitionError, match="max_count"):
        w.CountTrigger.of(count)


def timers_of(trigger, gap, times):
    """The times of the timers that elements of one key leave in sessions."""
    sessions = w.ProcessingTimeSessionWindows if "clock" in trigger else w.EventTimeSessionWindows
    operator = window_rows(assigner=sessions.with_gap(gap), trigger=trigger_of(trigger), aggregate=w.Count())
    with KeyedTestHarness(operator, key=lambda _: "k") as harness:
        for time in times:
            harness.advance_processing_time(time)
            harness.process("x", time)
        return [timer.timestamp for timer in harness.pending_timers()]


@pytest.mark.parametrize(
    "trigger", ["purging event_time", "purging by_clock", "by_clock", "continuous_by_clock 8", "count 3", "never"]
)
def test_windows_that_merge_leave_the_timers_of_one(trigger):
    assert timers_of(trigger, 3, [0, 2]) == timers_of(trigger, 5, [0])


def test_a_purge_is_passed_on():
    class Purges(w.Trigger):
        def on_element(self, element, timestamp, window, ctx):
            return w.TriggerResult.PURGE

    trigger = w.PurgingTrigger.of(Purges())
    assert trigger.on_element(1, 0, None, CONTEXT) is w.TriggerResult.PURGE
    assert not trigger.can_merge()
    with pytest.raises(DefinitionError, match="not a Trigger"):
        w.PurgingTrigger.of(WRONG)


def test_a_trigger_that_does_not_merge_says_so():
    class Plain(w.Trigger):
        count = ReducingState(max, int)

        def on_element(self, element, timestamp, window, ctx):
            return w.TriggerResult.CONTINUE

    assert not Plain().can_merge()
    with pytest.raises(DefinitionError, match="does not support merging"):
        Plain().on_merge(None, CONTEXT)
    with pytest.raises(NotImplementedError, match="on_element"):
        w.Trigger().on_element(1, 1, None, CONTEXT)


@pytest.mark.parametrize("assigner", [w.GlobalWindows.create(), w.TumblingEventTimeWindows.of(1_000)], ids=repr)
def test_a_continuous_trigger_ends_at_the_end_of_time(assigner):
    last = 2**63 - 1
    for times in ([5, 7], [last - 3, last - 2]):
        stream = keyed.stream([{"k": 1, "t": t} for t in times], timestamp="t", max_ahead=None)
        windowed = stream.key_by("k").window(assigner).trigger(w.ContinuousEventTimeTrigger.of(400))
        values = windowed.aggregate(n=w.Count()).run().values
        assert values[-1].n == 2
        assert len(values) <= 4
