"""The window operator in the harness.

Cases step by step are in `tests/acceptance/flink_window_operator.json`.
"""

from contextlib import contextmanager
from typing import Any

import pytest

from keyed import MAX_TIMESTAMP, ListState, OutputTag, ReducingState, ValueState, VersionedState
from keyed import windows as w
from keyed.errors import DefinitionError, EncodingError, OutputDefinitionError, UserFunctionError
from keyed.testing import KeyedTestHarness
from tests.support.steps import steps
from tests.support.window_operators import window_rows

LATE = OutputTag("late")


class Collect(w.ProcessWindowFunction):
    """Gives out key, window and elements."""

    def process(self, key, context, elements):
        window = context.window()
        bounds = tuple(window)
        yield (key, *bounds, *elements)


def value_of(element):
    return element[1]


each_layout = pytest.mark.parametrize("keeps", ["packed", "general"])


def operator(assigner, keeps="packed", **options):
    """An operator that sums values: its windows packed per key, or kept one by one."""
    aggregate = w.Sum(value_of)
    if keeps == "general":
        aggregate.accumulator_type = int
    function = window_rows(assigner=assigner, aggregate={"total": aggregate}, late_tag=LATE, **options)
    assert (function.definition.layout == "general") is (keeps == "general")
    return function


def harness_of(function, **options):
    return KeyedTestHarness(function, key=lambda element: element[0], **options)


def taken(harness):
    return [(*record.value, record.timestamp) for record in harness.take_output()]


def late(harness):
    return [record.value for record in harness.take_side_output(LATE)]


def nothing_left(harness):
    assert harness.state_entries() == 0
    assert harness.pending_timers() == []


@contextmanager
def emptied(function, **options):
    """A harness of an operator that is left without state and timers."""
    with harness_of(function, **options) as harness:
        yield harness
        nothing_left(harness)


@each_layout
def test_times_at_the_limits(keeps):
    with emptied(operator(w.TumblingEventTimeWindows.of(1000), keeps)) as h:
        h.process(("k", 1), MAX_TIMESTAMP - 1)
        h.process(("k", 2), -5000)
        h.advance_watermark(-4001)
        assert taken(h) == [("k", -5000, -4000, 2, -4001)]
        h.end_of_input()
        assert taken(h) == [("k", 9223372036854775000, MAX_TIMESTAMP, 1, MAX_TIMESTAMP)]


@each_layout
def test_hopping_windows_at_the_end_of_time(keeps):
    with emptied(operator(w.HoppingEventTimeWindows.of(1000, 500), keeps)) as h:
        h.process(("k", 1), MAX_TIMESTAMP - 1)
        h.end_of_input()
        starts = (9223372036854775000, 9223372036854775500)
        assert sorted(taken(h)) == [("k", start, MAX_TIMESTAMP, 1, MAX_TIMESTAMP) for start in starts]


def test_process_window_function_gets_all_elements_and_the_context():
    seen = []

    class Look(w.ProcessWindowFunction):
        def process(self, key, context, elements):
            seen.append((context.window(), context.current_watermark(), context.current_processing_time()))
            context.output("side", len(elements))
            yield from elements

    with emptied(window_rows(assigner=w.TumblingEventTimeWindows.of(10), process=Look())) as h:
        h.advance_processing_time(77)
        h.process(("k", 3), 1)
        h.process(("k", 1), 0)
        h.crash_and_recover()
        h.process(("k", 2), 9)
        h.advance_watermark(9)
        assert h.take_output() == [(("k", 3), 9), (("k", 1), 9), (("k", 2), 9)]
        assert h.take_side_output("side") == [(3, 9)]
        assert seen == [(w.TimeWindow(0, 10), 9, 77)]


@pytest.mark.parametrize("assigner", [w.TumblingEventTimeWindows.of(10), w.EventTimeSessionWindows.with_gap(10)])
def test_an_aggregate_combined_with_a_window_function(assigner):
    named = window_rows(assigner=assigner, aggregate={"n": w.Count(), "total": w.Sum(value_of)}, process=Collect())
    with harness_of(named) as h:
        h.process(("k", 3), 0)
        h.advance_watermark(9)
        (record,) = h.take_output()
        assert (record.value[3].n, record.value[3].total) == (1, 3)


class Counting(w.ProcessWindowFunction):
    """Counts firings per window, and windows over all."""

    fired = ValueState(int, 0)

    def process(self, key, context, elements):
        window, total = context.window_state(self.fired), context.global_state(self.fired)
        window.update(window.value() + 1)
        total.update(total.value() + 1)
        yield (key, context.window().start, window.value(), total.value())

    def clear(self, context):
        context.window_state(self.fired).clear()


def test_per_window_and_global_state():
    op = window_rows(assigner=w.TumblingEventTimeWindows.of(10), process=Counting(), allowed_lateness_ms=5)
    with harness_of(op) as h:
        h.process(("k", 1), 1)
        h.process(("k", 1), 12)
        h.advance_watermark(9)
        h.process(("k", 1), 2)  # late: the first window fires again
        h.crash_and_recover()
        h.advance_watermark(30)
        assert [value for value, _ in h.take_output()] == [("k", 0, 1, 1), ("k", 0, 2, 2), ("k", 10, 1, 3)]
        assert h.state_entries() == 1  # the global one
        assert h.pending_timers() == []


@pytest.mark.parametrize("kind", ["global_state", "window_state"])
def test_errors_have_the_names_of_states_as_users_declared_them(kind):
    class Wrong(w.ProcessWindowFunction):
        total = ValueState(int)

        def process(self, key, context, elements):
            getattr(context, kind)(self.total).update("one")

    op = window_rows(assigner=w.TumblingEventTimeWindows.of(10), process=Wrong())
    with harness_of(op) as h:
        h.process(("k", 1), 1)
        with pytest.raises(EncodingError, match=r"^value state 'total': 'one' of type str"):
            h.advance_watermark(9)


class Compared(w.ProcessWindowFunction):
    """Compares each window with the one before, also where it fires again."""

    totals = VersionedState(int, history=100)

    def process(self, key, context, elements):
        start, totals = context.window().start, context.global_state(self.totals)
        totals.put(len(elements), start)
        before = totals.get(start - 1)
        yield start, len(elements), before and before.value


def test_versioned_state_of_windows():
    op = window_rows(assigner=w.TumblingEventTimeWindows.of(10), process=Compared(), allowed_lateness_ms=20)
    with harness_of(op) as h:
        h.process(("k", 1), 1)
        h.process(("k", 1), 12)
        h.advance_watermark(20)
        h.process(("k", 1), 2)  # late: the first window fires again
        h.process(("k", 1), 13)  # and so does the second, which sees it
        assert [value for value, _ in h.take_output()] == [(0, 1, None), (10, 1, 1), (0, 2, None), (10, 2, 2)]


def test_per_window_state_is_refused_where_windows_merge():
    with harness_of(window_rows(assigner=w.EventTimeSessionWindows.with_gap(10), process=Counting())) as h:
        h.process(("k", 1), 1)
        with pytest.raises(Exception, match="no per-window state"):
            h.advance_watermark(100)


def test_tumbling_count_windows():
    with harness_of(window_rows(assigner=w.CountWindows.of(2), process=Collect())) as h:
        for value in range(5):
            h.process(("k", value), None)
        assert [v for v, _ in h.take_output()] == [("k", ("k", 0), ("k", 1)), ("k", ("k", 2), ("k", 3))]


def test_sliding_count_windows():
    with harness_of(window_rows(assigner=w.CountWindows.of(3, 2), aggregate={"all": w.CollectList(value_of)})) as h:
        for value in range(6):
            h.process(("k", value), None)
        h.crash_and_recover()
        assert [v.all for v, _ in h.take_output()] == [[0, 1], [1, 2, 3], [3, 4, 5]]
        assert h.state_entries() <= 4


def test_global_windows_at_the_end_of_the_stream():
    op = window_rows(assigner=w.GlobalWindows.create_with_end_of_stream_trigger(), aggregate={"n": w.Count()})
    with harness_of(op) as h:
        h.process(("k", 1), 1)
        h.process(("k", 1), 2)
        h.advance_watermark(100)
        assert taken(h) == []
        h.end_of_input()
        assert taken(h) == [("k", 2, MAX_TIMESTAMP)]


class Custom(w.Trigger):
    """Fires on every element above 10, purges on 0; remembers elements in a list; uses both clocks."""

    seen = ListState(int)

    def on_element(self, element, timestamp, window, ctx):
        ctx.get_partitioned_state(self.seen).add(element[1])
        ctx.register_processing_time_timer(ctx.get_current_processing_time() + 50)
        if element[1] == 0:
            return w.TriggerResult.PURGE
        return w.TriggerResult.FIRE if element[1] > 10 else w.TriggerResult.CONTINUE

    def on_processing_time(self, time, window, ctx):
        return (
            w.TriggerResult.FIRE if sum(ctx.get_partitioned_state(self.seen).get()) > 100 else w.TriggerResult.CONTINUE
        )

    def can_merge(self):
        return True

    def on_merge(self, window, ctx):
        ctx.merge_partitioned_state(self.seen)

    def clear(self, window, ctx):
        ctx.get_partitioned_state(self.seen).clear()


@pytest.mark.parametrize("assigner", [w.TumblingEventTimeWindows.of(100), w.EventTimeSessionWindows.with_gap(50)])
def test_a_custom_trigger_with_state_and_timers(assigner):
    with emptied(operator(assigner, "general", trigger=Custom())) as h:
        h.process(("k", 1), 1)
        h.process(("k", 20), 2)
        assert [row[3] for row in taken(h)] == [21]
        h.crash_and_recover()
        h.process(("k", 0), 3)
        h.process(("k", 90), 4)
        assert [row[3] for row in taken(h)] == [90]
        h.advance_processing_time(50)
        assert {row[3] for row in taken(h)} == {90}
        h.advance_watermark(200)


class Reaching(w.MergingWindowAssigner):
    """Merges windows into what lies before them: Flink's test of merging past the watermark."""

    def assign_windows(self, element, timestamp, processing_time):
        return (w.TimeWindow(timestamp, timestamp + 3000),)

    def merge_windows(self, windows):
        windows = list(windows)
        return [(w.TimeWindow(0, 1000), windows)] if len(windows) > 1 else []


def test_a_window_cannot_end_before_the_watermark_by_merging():
    with harness_of(operator(Reaching(), "general")) as h:
        h.advance_watermark(2000)
        h.process(("k", 1), 3000)
        with pytest.raises(DefinitionError, match="cannot become earlier than the current watermark by merging"):
            h.process(("k", 1), 4000)


@each_layout
def test_event_time_windows_need_timestamps(keeps):
    for assigner in (w.TumblingEventTimeWindows.of(10), w.EventTimeSessionWindows.with_gap(10)):
        with harness_of(operator(assigner, keeps)) as h, pytest.raises(DefinitionError, match="need timestamps"):
            h.process(("k", 1), None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trigger": w.CountTrigger}, "not the class"),
        ({"evictor": 5}, "evictor"),
        ({"process": Collect}, "not the class"),
        ({"process": w.ProcessWindowFunction()}, "does not define process"),
        ({"aggregate": None}, "aggregate=..., process=... or both"),
        ({"late_tag": 5}, "OutputTag"),
        ({"aggregate": {"key": w.Count()}}, "columns key, window_start, window_end, key: 'key' occurs twice"),
        ({"aggregate": {"n": w.Count(), "window_end": w.Count()}}, "'window_end' occurs twice"),
        ({"aggregate": {"n": w.Count()}, "key_names": ("window_start",)}, "'window_start' occurs twice"),
        (
            {
                "assigner": w.EventTimeSessionWindows.with_gap(5),
                "trigger": w.ProcessingTimeoutTrigger.of(w.EventTimeTrigger(), 5),
            },
            "windows of .* merge, which .* does not support",
        ),
    ],
)
def test_bad_definitions_are_refused(options, message):
    options = {"assigner": w.TumblingEventTimeWindows.of(10), "aggregate": w.Count(), **options}
    with pytest.raises(DefinitionError, match=message):
        window_rows(**options)


def test_explain_says_how_windows_are_kept():
    assert "one value of state per key, its open slices" in operator(w.HoppingEventTimeWindows.of(60, 10)).explanation
    assert (
        "one value of state per key, its open sessions" in operator(w.EventTimeSessionWindows.with_gap(60)).explanation
    )
    reasons: dict[str, Any] = {
        "trigger": {"trigger": w.CountTrigger.of(2)},
        "idle": {"idle_timeout_ms": 5},
        "more than 64 open slices": {"allowed_lateness_ms": 10_000},
    }
    for reason, options in reasons.items():
        assert reason in operator(w.TumblingEventTimeWindows.of(10), "general", **options).explanation or reason in (
            window_rows(assigner=w.TumblingEventTimeWindows.of(10), aggregate=w.Count(), **options).explanation
        )


def test_errors_of_user_functions_name_the_key():
    op = window_rows(assigner=w.TumblingEventTimeWindows.of(10), aggregate=w.Sum("missing"))
    with harness_of(op) as h, pytest.raises(UserFunctionError, match="missing"):
        h.process(("k", 1), 1)


@pytest.mark.parametrize("returned", ["text", b"bytes", {"a": "dict"}, ("k", 1), w.TimeWindow(0, 1), (None,)])
def test_a_window_function_returns_a_list_of_outputs(returned):
    class Returns(w.ProcessWindowFunction):
        def process(self, key, context, elements):
            return returned

    with harness_of(window_rows(assigner=w.TumblingEventTimeWindows.of(10), process=Returns())) as h:
        h.process(("k", 1), 1)
        with pytest.raises(OutputDefinitionError, match=r"returned by Returns.process.*yield it"):
            h.advance_watermark(9)


def test_two_states_of_one_name_in_a_trigger_are_refused():
    class Twice(w.Trigger):
        one = ReducingState(max, int, name="same")
        two = ReducingState(max, int, name="same")

        def on_element(self, element, timestamp, window, ctx):
            return w.TriggerResult.CONTINUE

    op = operator(w.TumblingEventTimeWindows.of(10), "general", trigger=Twice())
    with harness_of(op) as h, pytest.raises(DefinitionError, match="two states named 'same'"):
        h.process(("k", 1), 1)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="packed"),
        pytest.param({"allowed_lateness_ms": 10**6}, id="late elements allowed"),
        pytest.param({"trigger": w.PurgingTrigger.of(w.EventTimeTrigger())}, id="general"),
    ],
)
def test_many_open_sessions_of_a_key_cost_no_quadratic_time(options):
    few, many = (_steps_of_open_sessions(options, count) for count in (100, 800))
    assert many < 12 * few


def _steps_of_open_sessions(options, count):
    """Count the steps of the interpreter for sessions of one key, opened out of order."""
    operator = window_rows(assigner=w.EventTimeSessionWindows.with_gap(10), aggregate=w.Count(), **options)
    with KeyedTestHarness(operator, key=lambda row: "k") as harness:

        def run():
            with harness.batch():
                for at in range(count):
                    harness.process(at, at * 7919 % count * 100)
            harness.advance_watermark(count * 100)

        number = steps(run)
        assert len(harness.take_output()) == count
    return number
