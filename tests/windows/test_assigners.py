"""Assigners (Flink's *WindowsTest)."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyed import MAX_TIMESTAMP, MIN_TIMESTAMP
from keyed import windows as w
from keyed.errors import DefinitionError


def wrong(value) -> Any:
    """A value of a wrong type."""
    return value


def assigned(assigner, timestamp, processing_time=0, element="x"):
    return sorted(map(tuple, assigner.assign_windows(element, timestamp, processing_time)))


TIMES = st.integers(-20_000, 20_000) | st.sampled_from([MIN_TIMESTAMP, MAX_TIMESTAMP])


@given(st.integers(1, 5_000), st.data(), TIMES)
def test_tumbling(size, data, timestamp):
    """Flink's cases, which have sizes and offsets of their own, and any others."""
    offset = data.draw(st.integers(1 - size, size - 1))
    start = timestamp - (timestamp - offset) % size
    window = (max(start, MIN_TIMESTAMP), min(start + size, MAX_TIMESTAMP + 1))
    assert assigned(w.TumblingEventTimeWindows.of(size, timedelta(milliseconds=offset)), timestamp) == [window]
    assert assigned(w.TumblingProcessingTimeWindows.of(size, offset), None, timestamp) == [window]


@given(st.integers(1, 40), st.data(), st.integers(-100, 100))
def test_hopping(slide, data, timestamp):
    size, offset = data.draw(st.integers(1, 100)), data.draw(st.integers(1 - slide, slide - 1))
    starts = [at for at in range(timestamp - size + 1, timestamp + 1) if (at - offset) % slide == 0]
    windows = [(start, start + size) for start in starts]
    assert assigned(w.HoppingEventTimeWindows.of(size, slide, offset), timestamp) == windows
    assert assigned(w.HoppingProcessingTimeWindows.of(size, slide, offset), None, timestamp) == windows


def test_sessions():
    assert assigned(w.EventTimeSessionWindows.with_gap(5000), 4999) == [(4999, 9999)]
    assert assigned(w.ProcessingTimeSessionWindows.with_gap(timedelta(seconds=5)), None, 7) == [(7, 5007)]
    dynamic = w.EventTimeSessionWindows.with_dynamic_gap(len)
    assert assigned(dynamic, 10, element="four") == [(10, 14)]
    assert assigned(w.EventTimeSessionWindows.with_gap(5000), MAX_TIMESTAMP) == [(MAX_TIMESTAMP, MAX_TIMESTAMP + 1)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: w.TumblingEventTimeWindows.of(0), "size"),
        (lambda: w.TumblingEventTimeWindows.of(-1), "size"),
        (lambda: w.TumblingEventTimeWindows.of(10, 10), "below the size of 10 ms"),
        (lambda: w.TumblingEventTimeWindows.of(10, -11), "below the size of 10 ms"),
        (lambda: w.TumblingEventTimeWindows.of(timedelta(microseconds=1)), "whole number"),
        (lambda: w.TumblingEventTimeWindows.of(wrong("1 minute")), "int milliseconds or a timedelta"),
        (lambda: w.TumblingProcessingTimeWindows.of(10, 11), "absolute value"),
        (lambda: w.HoppingEventTimeWindows.of(10, 0), "slide"),
        (lambda: w.HoppingEventTimeWindows.of(-10, 5), "size"),
        (lambda: w.HoppingEventTimeWindows.of(20, 10, 10), "below the slide of 10 ms"),
        (lambda: w.HoppingProcessingTimeWindows.of(20, 10, -10), "below the slide of 10 ms"),
        (lambda: w.EventTimeSessionWindows.with_gap(0), "gap"),
        (lambda: w.EventTimeSessionWindows.with_dynamic_gap(wrong(5)), "not callable"),
        (lambda: w.EventTimeSessionWindows.with_dynamic_gap(lambda _: 0).assign_windows("x", 1, 1), "session gap"),
        (lambda: w.CountWindows.of(0), "size"),
        (lambda: w.CountWindows.of(2, 0), "slide"),
    ],
)
def test_bad_parameters_are_refused_with_the_rule(make, message):
    with pytest.raises(DefinitionError, match=message):
        make()
