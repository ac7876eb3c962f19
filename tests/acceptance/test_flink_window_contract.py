"""Flink's WindowOperatorContractTest: what the window operator calls, keeps and forgets, whatever trigger and assigner.

Flink mocks the trigger and the assigner; here an element says which windows it is in, and the trigger does what it was
told to and writes down how it was called. Timers and state are looked at through the harness.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from keyed import MAX_TIMESTAMP, MIN_TIMESTAMP, ValueState
from keyed import windows as w
from keyed.testing import KeyedTestHarness, Record
from keyed.windows.window import merge_time_windows
from tests.acceptance.support import EVENT, PROCESSING, advance, both_domains
from tests.support.window_operators import window_rows

CONTINUE, FIRE, PURGE, FIRE_AND_PURGE = w.TriggerResult
Step = Callable[[Any, Any], w.TriggerResult]


def resulting(result) -> Step:
    """Does nothing but to give a result."""
    return lambda trigger, ctx: result


class Told(w.Trigger):
    """Does with an element what `do` says, at each timer what `at_timer` says, and writes its calls down.

    Args:
        at_timer: The result of a timer at each time; ``CONTINUE`` for others.
        on_merge: Done when windows merge.
        on_clear: Done when a window goes away.
    """

    note = ValueState(str)

    def __init__(self, at_timer=None, on_merge=None, on_clear=None):
        self.do: Step = resulting(CONTINUE)
        self.at_timer = at_timer or {}
        self.merging = on_merge
        self.clearing = on_clear
        self.calls: list[Any] = []

    def __deepcopy__(self, memo):
        return self  # its calls are looked at from outside

    def on_element(self, element, timestamp, window, ctx):
        self.calls.append(("element", tuple(window)))
        return self.do(self, ctx)

    def on_event_time(self, time, window, ctx):
        self.calls.append((EVENT, time, tuple(window)))
        return self.at_timer.get(time, CONTINUE)

    def on_processing_time(self, time, window, ctx):
        self.calls.append((PROCESSING, time, tuple(window)))
        return self.at_timer.get(time, CONTINUE)

    def can_merge(self):
        return True

    def on_merge(self, window, ctx):
        self.calls.append(("merge", tuple(window)))
        if self.merging is not None:
            self.merging(self, ctx)

    def clear(self, window, ctx):
        self.calls.append(("clear", tuple(window)))
        if self.clearing is not None:
            self.clearing(self, ctx)

    def timers_called(self):
        return [call[1:] for call in self.calls if call[0] in (EVENT, PROCESSING)]

    def cleared(self):
        return [call[1] for call in self.calls if call[0] == "clear"]


class Windows(w.WindowAssigner):
    """The windows that an element names."""

    def assign_windows(self, element, timestamp, processing_time):
        return [w.TimeWindow(*window) for window in element[1]]


class ProcessingWindows(Windows):
    event_time = False


class Merging(w.MergingWindowAssigner):
    """The windows that an element names; those that touch merge."""

    def assign_windows(self, element, timestamp, processing_time):
        return [w.TimeWindow(*window) for window in element[1]]

    def merge_windows(self, windows):
        return merge_time_windows(windows)


class ProcessingMerging(Merging):
    event_time = False


class Collect(w.ProcessWindowFunction):
    def process(self, key, context, elements):
        yield (tuple(context.window()), len(elements))


class Harness(KeyedTestHarness):
    """A harness of one operator, in one time domain."""

    def __init__(self, trigger, domain=EVENT, merging=False, lateness=0, assigner=None):
        event, processing = (Merging, ProcessingMerging) if merging else (Windows, ProcessingWindows)
        self.trigger, self.domain = trigger, domain
        operator = window_rows(
            assigner=assigner or (event() if domain is EVENT else processing()),
            trigger=trigger,
            process=Collect(),
            allowed_lateness_ms=lateness,
        )
        super().__init__(operator, key=lambda element: element[0])

    def element(self, *windows, do: Step | None = None):
        self.trigger.do = do or resulting(CONTINUE)
        self.process((0, windows), 0)
        self.crash_and_recover()

    def advance(self, time):
        advance(self, self.domain, time)

    def timers(self):
        """The times of the pending timers in this domain; there are none in the other."""
        timers = self.pending_timers()
        assert {timer.domain for timer in timers} <= {self.domain}
        return [timer.timestamp for timer in timers]

    def values(self):
        return [record.value for record in self.take_output()]


def registering(domain, time, result=CONTINUE, note=None):
    """Registers a timer and notes something."""

    def do(trigger, ctx):
        set_timer = ctx.register_event_time_timer if domain is EVENT else ctx.register_processing_time_timer
        set_timer(time)
        if note is not None:
            ctx.get_partitioned_state(trigger.note).update(note)
        return result

    return do


def deleting(domain, time):
    def do(trigger, ctx):
        (ctx.delete_event_time_timer if domain is EVENT else ctx.delete_processing_time_timer)(time)
        ctx.get_partitioned_state(trigger.note).clear()
        return CONTINUE

    return do


def test_the_trigger_is_called_for_each_window_in_the_order_of_the_assigner():
    """Flink: testOnElementCalledPerWindow and testAssignerWithMultipleWindows."""
    h = Harness(Told())
    h.element((2, 4), (0, 2), do=resulting(FIRE))
    assert h.trigger.calls == [("element", (2, 4)), ("element", (0, 2))]
    assert h.take_output() == [Record(((2, 4), 1), 3), Record(((0, 2), 1), 1)]


def test_windows_that_share_a_start_are_apart():
    """Flink: testWindowsDontInterfere."""
    h = Harness(Told())
    for window in ((0, 2), (0, 1)):
        h.element(window)
    assert (h.state_entries(), len(h.timers())) == (2, 2)
    h.element((0, 1), do=resulting(FIRE))
    assert h.values() == [((0, 1), 2)]


@pytest.mark.parametrize(
    ("result", "fires", "entries"), [(CONTINUE, 0, 4), (FIRE, 2, 4), (PURGE, 0, 2), (FIRE_AND_PURGE, 2, 2)]
)
@both_domains
def test_what_a_result_for_an_element_does(domain, result, fires, entries):
    """Flink: testOnElementContinue, Fire, FireAndPurge and Purge: neither clears the trigger's state nor a timer."""
    h = Harness(Told(), domain)
    h.element((2, 4), (0, 2), do=registering(domain, 10, result, "hello"))
    assert len(h.take_output()) == fires
    assert h.state_entries() == entries  # contents and note of two windows
    assert h.timers() == [1, 3, 10, 10]
    assert h.trigger.cleared() == []


@pytest.mark.parametrize(
    ("result", "fires", "entries"), [(CONTINUE, 0, 4), (FIRE, 2, 4), (PURGE, 0, 2), (FIRE_AND_PURGE, 2, 2)]
)
@both_domains
def test_what_a_result_for_a_timer_does(domain, result, fires, entries):
    """Flink: testOnTimeContinue, Fire, FireAndPurge and Purge, with a timer of two windows at the same time."""
    h = Harness(Told({1: result}), domain)
    h.element((2, 4), (4, 6), do=registering(domain, 1, CONTINUE, "hello"))
    assert (h.state_entries(), h.timers()) == (4, [1, 1, 3, 5])
    h.advance(1)
    assert sorted(h.trigger.timers_called()) == [(1, (2, 4)), (1, (4, 6))]
    assert h.take_output() == ([Record(((2, 4), 1), 3), Record(((4, 6), 1), 5)] if fires else [])
    assert (h.state_entries(), h.timers(), h.trigger.cleared()) == (entries, [3, 5], [])
    h.advance(5)
    assert h.trigger.cleared() == [(2, 4), (4, 6)]


@both_domains
def test_a_timer_of_a_purged_window_does_not_call_the_function(domain):
    """Flink: testNoTimerFiringForPurgedWindow; since FLINK-4994 the trigger, whose state is still there, is called."""
    for merging in (False, True):
        h = Harness(Told({0: FIRE}), domain, merging)
        h.advance(-1)
        h.element((2, 4), do=registering(domain, 0, PURGE))
        h.advance(0)
        assert h.values() == []
        assert h.timers() == [3]


@both_domains
def test_a_timer_behind_the_end_of_a_merging_window_is_ignored(domain):
    """Flink: testNoTimerFiringForGarbageCollectedMergingWindow."""
    h = Harness(Told({10: FIRE}), domain, merging=True)
    h.element((2, 4), do=registering(domain, 10))
    assert (h.state_entries(), h.timers()) == (2, [3, 10])
    h.advance(4)
    assert h.trigger.cleared() == [(2, 4)]
    assert (h.state_entries(), h.timers(), h.trigger.timers_called()) == (0, [10], [(3, (2, 4))])
    h.advance(10)
    assert h.trigger.timers_called() == [(3, (2, 4))]
    assert h.values() == []


@both_domains
def test_timers_are_registered_deleted_and_fired_once(domain):
    """Flink: testTimerCreationAndDeletion, testTimerFiring and testDeletedTimerDoesNotFire."""
    h = Harness(Told(), domain)
    for time in (1, 17, 42, 17):
        h.element((0, 100), do=registering(domain, time))
    assert h.timers() == [1, 17, 42, 99]
    h.element((0, 100), do=deleting(domain, 42))
    h.element((0, 50), do=deleting(domain, 17))  # that of another window stays
    assert h.timers() == [1, 17, 49, 99]
    for time in (1, 15, 42):
        h.advance(time)
    assert h.trigger.timers_called() == [(1, (0, 100)), (17, (0, 100))]


@both_domains
def test_windows_are_merged_when_they_come(domain):
    """Flink: testWindowsAreMergedEagerly: contents, trigger state and timers are those of one window."""
    h = Harness(Told(on_merge=registering(domain, 50, note="merged"), on_clear=deleting(domain, 50)), domain, True)
    h.element((0, 2), do=registering(domain, 50, note="hello"))
    assert (h.state_entries(), h.timers()) == (3, [1, 50])  # contents, note, windows in flight
    h.element((2, 4))
    assert h.trigger.calls[1:] == [("merge", (0, 4)), ("clear", (0, 2)), ("element", (0, 4))]
    assert (h.state_entries(), h.timers()) == (4, [3, 50])  # two elements, note, windows in flight


@both_domains
def test_of_windows_that_are_bridged_one_is_left(domain):
    """Flink: testMergingOfExistingWindows: also one cleanup timer."""
    h = Harness(Told(on_merge=registering(domain, 50, note="merged"), on_clear=deleting(domain, 50)), domain, True)
    for window in ((0, 2), (3, 5)):
        h.element(window, do=registering(domain, 50, note="hello"))
    assert (h.state_entries(), h.timers()) == (6, [1, 4, 50, 50])
    h.element((1, 4))
    assert (h.state_entries(), h.timers()) == (5, [4, 50])  # three elements, note, windows in flight
    h.element((0, 1), do=resulting(FIRE))
    assert h.values() == [((0, 5), 4)]
    h.advance(4)
    assert (h.state_entries(), h.timers()) == (0, [])


@both_domains
def test_a_purge_leaves_the_windows_in_flight(domain):
    """Flink: testOnElementPurgeDoesNotCleanupMergingSet and testOnTimePurgeDoesNotCleanupMergingSet."""
    h = Harness(Told({1: PURGE}), domain, merging=True)
    h.element((0, 4), do=registering(domain, 1, PURGE))
    assert (h.state_entries(), h.timers()) == (1, [1, 3])
    h.element((0, 4))
    assert h.state_entries() == 2
    h.advance(1)
    assert (h.state_entries(), h.timers()) == (1, [3])
    h.element((3, 6), do=resulting(FIRE))
    assert h.values() == [((0, 6), 1)]


@pytest.mark.parametrize(
    ("assigner", "domain", "lateness", "timers"),
    [(w.GlobalWindows.create(), EVENT, 0, []), (None, EVENT, 20, []), (None, PROCESSING, 20, [MAX_TIMESTAMP - 11])],
)
def test_a_window_that_never_ends_has_no_cleanup_timer(assigner, domain, lateness, timers):
    """Flink: testNoGarbageCollectionTimerForGlobalWindow, ...ForLongMax, and ...TimerIsAlwaysWindowMaxTimestamp."""
    h = Harness(Told(), domain, lateness=lateness, assigner=assigner)
    h.element((0, MAX_TIMESTAMP - 10))
    assert (h.state_entries(), h.timers()) == (1, timers)
    h.advance(MAX_TIMESTAMP - 10)
    assert h.trigger.cleared() == [(0, MAX_TIMESTAMP - 10)] * len(timers)


@pytest.mark.parametrize("merging", [False, True])
@both_domains
def test_a_window_is_cleaned_up_once_and_completely(domain, merging):
    """Flink: testGarbageCollectionTimer, testStateAndTimerCleanupAtGarbageCollection, ...WithPurgingTrigger."""
    lateness = 20 if domain is EVENT else 0
    for result in (CONTINUE, PURGE):
        h = Harness(Told(on_clear=deleting(domain, 1000)), domain, merging, lateness)
        h.element((0, 20), do=registering(domain, 1000, result, "hello"))
        assert h.timers() == [19 + lateness, 1000]
        h.advance(18 + lateness)
        assert h.trigger.cleared() == []
        h.advance(19 + lateness)
        assert h.trigger.cleared() == [(0, 20)]
        assert (h.state_entries(), h.timers()) == (0, [])


@both_domains
def test_a_trigger_s_timer_at_the_cleanup_time_is_one_with_it(domain):
    """Flink: testTriggerTimerAndGarbageCollectionTimerCoincide."""
    h = Harness(Told({19: FIRE}), domain)
    h.element((0, 20), do=registering(domain, 19))
    assert h.timers() == [19]
    h.advance(19)
    assert h.trigger.timers_called() == [(19, (0, 20))]
    assert (h.values(), h.trigger.cleared(), h.timers()) == ([((0, 20), 1)], [(0, 20)], [])


def test_the_last_watermark_at_which_an_element_is_allowed():
    """Flink: testProcessingElementsWithinAllowedLateness and testLateWindowDropping: 1 + 20 ms is too late."""
    h = Harness(Told(), lateness=20)
    h.advance(20)
    h.element((0, 2), do=resulting(FIRE))
    assert (h.values(), h.state_entries(), h.timers()) == ([((0, 2), 1)], 1, [21])
    h = Harness(Told(), lateness=20)
    h.advance(21)
    h.element((0, 2), do=resulting(FIRE))
    assert (h.values(), h.state_entries(), h.timers()) == ([], 0, [])
    assert h.metrics()["rows_dropped"] == 1


def test_everything_of_windows_is_in_a_snapshot():
    """Flink: testStateSnapshotAndRestore: contents, trigger state, timers and windows in flight of two windows."""
    h = Harness(Told(), merging=True)
    h.element((3, 5), (0, 2), do=registering(EVENT, 0, note="hello"))
    trigger = Told({0: FIRE}, on_clear=deleting(EVENT, 0))
    operator = window_rows(assigner=Merging(), trigger=trigger, process=Collect())
    again = KeyedTestHarness.restore(operator, h.snapshot(), key=lambda element: element[0], parallelism=3)
    assert again.state_entries() == 6
    assert [timer.timestamp for timer in again.pending_timers()] == [0, 0, 1, 4]
    again.advance_watermark(20)
    assert sorted(record.value for record in again.take_output()) == [((0, 2), 1), ((3, 5), 1)]
    assert sorted(trigger.timers_called()) == [(0, (0, 2)), (0, (3, 5)), (1, (0, 2)), (4, (3, 5))]
    assert sorted(trigger.cleared()) == [(0, 2), (3, 5)]
    assert (again.state_entries(), again.pending_timers()) == (0, [])


def test_the_clocks_that_a_trigger_reads():
    """Flink: testCurrentTimeQuerying."""
    read = []

    def look(trigger, ctx):
        read.append((ctx.get_current_watermark(), ctx.get_current_processing_time()))
        return CONTINUE

    h = Harness(Told(on_clear=look))
    h.element((0, 2), do=look)
    h.advance_processing_time(10)
    h.element((0, 2), do=look)
    h.advance_watermark(20)
    assert read == [(MIN_TIMESTAMP, 0), (MIN_TIMESTAMP, 10), (20, 10)]
