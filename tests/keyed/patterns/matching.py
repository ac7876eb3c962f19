"""Runs a pattern over rows in the test harness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keyed import OutputTag, bounded_out_of_orderness
from keyed.errors import DefinitionError
from keyed.patterns import Match, Pattern, PatternProcessFunction
from keyed.patterns.pattern_operator import PatternContext, PatternOperator
from keyed.patterns.steps import check_pattern
from keyed.testing import KeyedTestHarness


class Recording(PatternProcessFunction):
    """Emits each match, and each partial match that times out, as plain data."""

    def process_match(self, match: Match, ctx: PatternContext) -> Any:
        yield ("match", ctx.timestamp(), dict(match))

    def process_timed_out_match(self, match: Match, ctx: PatternContext) -> Any:
        yield ("timed out", ctx.timestamp(), dict(match))


def operator_of(pattern: Pattern, **options: Any) -> PatternOperator:
    """Return the operator of a pattern."""
    given: dict[str, Any] = {
        "function": Recording(),
        "late_tag": OutputTag("late"),
        "bad_tag": None,
        "timed_out": None,
        "most_partial": 10_000,
    }
    return PatternOperator(pattern, **{**given, **options})


def bounded(pattern: Pattern) -> Pattern:
    """Return a pattern that is accepted: without a bound Flink keeps its state for ever, which keyed refuses."""
    try:
        check_pattern(pattern)
    except DefinitionError:
        pattern = pattern.within(days=1000)
        check_pattern(pattern)
    return pattern


def matches_of(
    pattern: Pattern, rows: Sequence[tuple[int, Any]], **options: Any
) -> list[tuple[str, int, dict[str, Any]]]:
    """Return the outcomes of rows (time, row) of one key."""
    with KeyedTestHarness(
        operator_of(pattern, **options), key=lambda _: 1, order="watermark", watermark=bounded_out_of_orderness(0)
    ) as harness:
        with harness.batch():
            for time, row in rows:
                harness.process(row, time)
        harness.end_of_input()
        return [record.value for record in harness.take_output()]
