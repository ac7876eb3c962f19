"""Assigners (Flink's *WindowsTest)."""

from datetime import timedelta
from typing import Any

import pytest

from keyed.errors import DefinitionError
from keyed.windows import (
    CountWindows,
    EventTimeSessionWindows,
    HoppingEventTimeWindows,
    HoppingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)


def wrong(value) -> Any:
    """A value of a wrong type."""
    return value


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TumblingEventTimeWindows.of(0), "size"),
        (lambda: TumblingEventTimeWindows.of(-1), "size"),
        (lambda: TumblingEventTimeWindows.of(10, 10), "below the size of 10 ms"),
        (lambda: TumblingEventTimeWindows.of(10, -11), "below the size of 10 ms"),
        (lambda: TumblingEventTimeWindows.of(timedelta(microseconds=1)), "whole number"),
        (lambda: TumblingEventTimeWindows.of(wrong("1 minute")), "int milliseconds or a timedelta"),
        (lambda: TumblingProcessingTimeWindows.of(10, 11), "absolute value"),
        (lambda: HoppingEventTimeWindows.of(10, 0), "slide"),
        (lambda: HoppingEventTimeWindows.of(-10, 5), "size"),
        (lambda: HoppingEventTimeWindows.of(20, 10, 10), "below the slide of 10 ms"),
        (lambda: HoppingProcessingTimeWindows.of(20, 10, -10), "below the slide of 10 ms"),
        (lambda: EventTimeSessionWindows.with_gap(0), "gap"),
        (lambda: EventTimeSessionWindows.with_dynamic_gap(wrong(5)), "not callable"),
        (lambda: EventTimeSessionWindows.with_dynamic_gap(lambda _: 0).assign_windows("x", 1, 1), "session gap"),
        (lambda: CountWindows.of(0), "size"),
        (lambda: CountWindows.of(2, 0), "slide"),
    ],
)
def test_bad_parameters_are_refused_with_the_rule(make, message):
    with pytest.raises(DefinitionError, match=message):
        make()
