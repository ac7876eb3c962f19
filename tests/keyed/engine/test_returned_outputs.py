"""Results of functions: one output that is returned is refused, and an OutputTag first names a side output."""

import pytest

import keyed
from keyed import KeyedProcessFunction, OutputTag
from keyed import windows as w
from keyed.errors import OutputDefinitionError
from keyed.rows import row
from keyed.testing import KeyedTestHarness

LATE = OutputTag("late", "k string, n bigint")
ROWS = [{"k": "a", "t": 1}, {"k": "a", "t": 2}]


class Returns(KeyedProcessFunction):
    """Returns ``result`` from ``process_element`` or ``on_timer``."""

    def __init__(self, result, timer):
        self.result, self.timer = result, timer

    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(10)
        return None if self.timer else self.result

    def on_timer(self, timestamp, ctx):
        return self.result if self.timer else None


@pytest.mark.parametrize("timer", [False, True])
@pytest.mark.parametrize("result", [("a", 1), row(k="a", n=1), "text", b"bytes", {"k": "a"}], ids=repr)
def test_one_output_that_is_returned_is_refused(result, timer):
    stream = keyed.stream(ROWS, timestamp="t").key_by("k")
    with pytest.raises(OutputDefinitionError, match=r"was returned.*yield it"):
        stream.process(Returns(result, timer)).run()


@pytest.mark.parametrize("timer", [False, True])
@pytest.mark.parametrize("result", [[("a", 1)], {("a", 1): 0}.keys(), (), None], ids=["list", "keys", "empty", "none"])
def test_outputs_may_be_returned_as_a_collection(result, timer):
    stream = keyed.stream(ROWS[:1], timestamp="t").key_by("k")
    assert stream.process(Returns(result, timer)).run().values == ([("a", 1)] if result else [])


class Tagged(KeyedProcessFunction):
    """Yields to a side output as PyFlink does, and to the main output."""

    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(10)
        yield LATE, (value.k, 1)
        yield value.k, 2

    def on_timer(self, timestamp, ctx):
        yield LATE, (ctx.get_current_key(), 3)
        yield ctx.get_current_key(), 4


@pytest.mark.parametrize("declared", [None, "k string, n bigint"])
def test_an_output_tag_first_means_the_side_output(declared):
    output = keyed.stream(ROWS[:1], timestamp="t").key_by("k").process(Tagged(), declared)
    main, side = keyed.collect_sink(), keyed.collect_sink()
    keyed.run(output.to(main), output.side_output(LATE).to(side))
    assert [tuple(value) for value in main.values] == [("a", 2), ("a", 4)]
    assert [tuple(value) for value in side.values] == [("a", 1), ("a", 3)]


def test_an_output_tag_first_means_the_side_output_in_the_harness():
    with KeyedTestHarness(Tagged(), key=lambda value: value.k) as harness:
        harness.process(row(k="a"), 1)
        harness.advance_watermark(10)
        assert [record.value for record in harness.take_output()] == [("a", 2), ("a", 4)]
        assert [(record.value, record.timestamp) for record in harness.take_side_output(LATE)] == [
            (("a", 1), 1),
            (("a", 3), 10),
        ]


def test_an_output_tag_with_more_than_a_value_is_refused():
    class Wide(KeyedProcessFunction):
        def process_element(self, value, ctx):
            yield LATE, value.k, 1

    with pytest.raises(OutputDefinitionError, match=r"has 3 parts; yield tag, value"):
        keyed.stream(ROWS).key_by("k").process(Wide()).run()


class ToSide(w.ProcessWindowFunction):
    """Gives a window's number of elements to a side output and the main output."""

    def process(self, key, context, elements):
        count = len(list(elements))
        yield LATE, (key, count)
        yield key, -count


def test_an_output_tag_first_means_the_side_output_in_a_window_function():
    windows = keyed.stream(ROWS, timestamp="t").key_by("k").window(w.TumblingEventTimeWindows.of(10))
    output = windows.process(ToSide())
    main, side = keyed.collect_sink(), keyed.collect_sink()
    keyed.run(output.to(main), output.side_output(LATE).to(side))
    assert [tuple(value) for value in main.values] == [("a", -2)]
    assert [tuple(value) for value in side.values] == [("a", 2)]
