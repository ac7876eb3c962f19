"""Wrong definitions, and triggers that no random program has; `test_properties.py` tests the others by an oracle."""

from typing import Any

import pytest

import keyed
from keyed import ReducingState
from keyed.errors import DefinitionError
from keyed.testing import KeyedTestHarness
from keyed.windows import (
    ContinuousEventTimeTrigger,
    Count,
    CountTrigger,
    EventTimeTrigger,
    GlobalWindows,
    ProcessingTimeoutTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
    TimeWindow,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
)
from keyed.windows.window_operator import WindowOperator

CONTEXT: Any = None
WINDOW = TimeWindow(0, 2)
WRONG: Any = 3


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_bad_counts_are_refused(count):
    with pytest.raises(DefinitionError, match="max_count"):
        CountTrigger.of(count)


def test_only_triggers_can_be_nested():
    with pytest.raises(DefinitionError, match="not a Trigger"):
        PurgingTrigger.of(WRONG)
    assert not ProcessingTimeoutTrigger.of(PurgingTrigger.of(EventTimeTrigger()), 50).can_merge()


@pytest.mark.parametrize(
    ("nested", "options", "times", "fired"),
    [
        (CountTrigger.of(3), {"reset_timer_on_new_record": True}, [0, 20], [(70, 2)]),
        (CountTrigger.of(3), {"should_clear_on_timeout": False}, [0, 0, 60], [(50, 2), (60, 3)]),
        (PurgingTrigger.of(ProcessingTimeTrigger()), {}, [0, 20, 60], [(50, 2), (110, 1)]),
    ],
    ids=["a record starts it anew", "the nested trigger is kept", "it purges if the nested trigger does"],
)
def test_the_options_of_a_timeout(nested, options, times, fired):
    trigger = ProcessingTimeoutTrigger.of(nested, 50, **options)
    operator = WindowOperator(assigner=GlobalWindows.create(), trigger=trigger, aggregate={"n": Count()})
    found = []
    with KeyedTestHarness(operator, key=lambda _: "k") as harness:
        for now in range(0, 200, 10):
            harness.advance_processing_time(now)
            for _ in range(times.count(now)):
                harness.process("x")
            found += [(now, record.value.n) for record in harness.take_output()]
    assert found == fired


def test_a_trigger_that_does_not_merge_says_so():
    class Plain(Trigger):
        count = ReducingState(max, int)

        def on_element(self, element, timestamp, window, ctx):
            return TriggerResult.CONTINUE

    assert not Plain().can_merge()
    with pytest.raises(DefinitionError, match="does not support merging"):
        Plain().on_merge(WINDOW, CONTEXT)
    with pytest.raises(NotImplementedError, match="on_element"):
        Trigger().on_element(1, 1, WINDOW, CONTEXT)


@pytest.mark.parametrize("assigner", [GlobalWindows.create(), TumblingEventTimeWindows.of(1_000)], ids=repr)
def test_a_continuous_trigger_ends_at_the_end_of_time(assigner):
    last = 2**63 - 1
    for times in ([5, 7], [last - 3, last - 2]):
        stream = keyed.stream([{"k": 1, "t": t} for t in times], timestamp="t", max_ahead=None)
        windowed = stream.key_by("k").window(assigner).trigger(ContinuousEventTimeTrigger.of(400))
        values = windowed.aggregate(n=Count()).run().values
        assert values[-1].n == 2
        assert len(values) <= 4
