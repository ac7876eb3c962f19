"""Evictors in the operator; the cases of Flink's EvictingWindowOperatorTest are in `tests/acceptance`."""

from typing import Any

import pytest

from keyed import windows as w
from keyed.errors import DefinitionError
from keyed.testing import KeyedTestHarness
from tests.support.window_operators import window_rows

WRONG: Any = 2


class Values(w.ProcessWindowFunction):
    def process(self, key, context, elements):
        yield [value for _, value in elements]


def evicting(evictor, trigger_count=2, **options):
    options.setdefault("process", Values())
    operator = window_rows(
        assigner=w.GlobalWindows.create(), trigger=w.CountTrigger.of(trigger_count), evictor=evictor, **options
    )
    return KeyedTestHarness(operator, key=lambda element: element[0])


def values(harness):
    return [value for value, _ in harness.take_output()]


def test_an_element_as_old_as_the_duration_goes():
    with evicting(w.TimeEvictor.of(2000)) as h:
        for value, time in ((1, 1000), (2, 3000)):
            h.process(("k", value), time)
        assert values(h) == [[2]]


def test_time_evictor_keeps_elements_without_timestamps():
    with evicting(w.TimeEvictor.of(1)) as h:
        for value in range(2):
            h.process(("k", value), None)
        assert values(h) == [[0, 1]]


def test_an_aggregate_over_what_is_left():
    with evicting(w.CountEvictor.of(2), process=None, aggregate={"n": w.Count(), "total": w.Sum(lambda e: e[1])}) as h:
        for value in range(4):
            h.process(("k", value), 0)
        assert [(row.n, row.total) for row in values(h)] == [(2, 1), (2, 5)]


def test_nothing_is_left_after_cleanup():
    for assigner in (w.TumblingEventTimeWindows.of(10), w.EventTimeSessionWindows.with_gap(10)):
        operator = window_rows(assigner=assigner, evictor=w.CountEvictor.of(2), process=Values())
        with KeyedTestHarness(operator, key=lambda element: element[0]) as h:
            for value in range(4):
                h.process(("k", value), value)
                h.crash_and_recover()
            h.advance_watermark(100)
            assert values(h) == [[2, 3]]
            assert h.state_entries() == 0
            assert h.pending_timers() == []


def test_a_custom_evictor():
    class Odd(w.Evictor):
        def evict_before(self, elements, size, window, ctx):
            assert size == len(elements)
            assert ctx.get_current_watermark() < ctx.get_current_processing_time()
            return [element for element in elements if element.value[1] % 2]

    with evicting(Odd(), trigger_count=3) as h:
        for value in range(3):
            h.process(("k", value), 0)
        assert values(h) == [[1]]


@pytest.mark.parametrize(
    "make", [lambda: w.CountEvictor.of(-1), lambda: w.TimeEvictor.of(-1), lambda: w.DeltaEvictor.of(1, WRONG)]
)
def test_bad_parameters_are_refused(make):
    with pytest.raises(DefinitionError):
        make()
