"""Cases of Flink's tests in which time decides: time-outs, negative steps at the end, what is left in state.

From ``NFAITCase``, ``CEPITCase`` and ``CEPOperatorTest`` of Flink CEP. Rows are (time, (name, id)).
"""

from __future__ import annotations

from typing import Any

import pytest

from keyed import OutputTag, bounded_out_of_orderness
from keyed.patterns import AfterMatchSkipStrategy, Pattern
from keyed.testing import KeyedTestHarness
from tests.keyed.patterns.matching import bounded, matches_of, operator_of


def named(name):
    return lambda row: row[0] == name


def outcomes(pattern, rows, kind):
    return [
        (time, [row[1] for taken in match.values() for row in taken])
        for each, time, match in matches_of(pattern, rows)
        if each == kind
    ]


ROWS = [
    (1, ("start", 1)),
    (2, ("start", 2)),
    (3, ("middle", 3)),
    (4, ("foobar", 4)),
    (11, ("end", 5)),
    (13, ("end", 6)),
]
THREE = Pattern.begin("start", named("start")).followed_by_any("middle", named("middle"))
THREE = THREE.followed_by_any("end", named("end"))


def test_simple_pattern_with_timeout_handling_within_first_and_last():
    pattern = THREE.within(10)
    assert len(outcomes(pattern, ROWS, "match")) == 1
    assert sorted(outcomes(pattern, ROWS, "timed out")) == [(11, [1]), (11, [1, 3]), (12, [2]), (12, [2, 3])]


def test_simple_pattern_with_timeout_handling_within_previous_and_current():
    timed_out = outcomes(bounded(THREE.within(10, since="previous")), ROWS, "timed out")
    # The others wait for a middle without a limit, until the end of the input.
    assert [each for each in timed_out if each[0] == 13] == [(13, [1, 3]), (13, [2, 3])]


@pytest.mark.parametrize("since", ["first", "previous"])
def test_pending_state_matches(since):
    rows = [(1, ("start", 1)), (4, ("middle", 2)), (5, ("start", 3)), (11, ("start", 4)), (18, ("middle", 5))]
    pattern = Pattern.begin("start", named("start")).not_followed_by("middle", named("middle")).within(5, since=since)
    assert outcomes(pattern, rows, "match") == [(10, [3]), (16, [4])]


def test_partial_match_timeout_outputs_completed_match():
    skip = AfterMatchSkipStrategy.skip_past_last_event()
    pattern = (
        Pattern.begin("start", named("start"), after_match=skip)
        .one_or_more()
        .consecutive()
        .greedy()
        .followed_by("middle", lambda row, match: row[0] == ("middle" if len(match["start"]) > 2 else "end"))
        .within(100)
    )
    rows = [(number, ("start", number + 1)) for number in range(4)] + [(4, ("end", 5))]
    assert [(ids[0], ids[-1]) for _, ids in outcomes(pattern, rows, "match")] == [(3, 5)]


C, A, B = named("c"), named("a"), named("b")
CLEARED: dict[str, Any] = {
    "times": Pattern.begin("start", C).next("middle", A).times(2).followed_by("end1", B),
    "optional": Pattern.begin("start", C).followed_by("middle", A).optional().followed_by("end1", B),
    "at least one": Pattern.begin("start", C).followed_by_any("middle", A).one_or_more().followed_by("end1", B),
    "zero or more": Pattern.begin("start", C)
    .followed_by_any("middle", A)
    .one_or_more()
    .optional()
    .followed_by("end1", B),
}


@pytest.mark.parametrize("kind", CLEARED)
def test_nothing_is_left_in_state_when_the_time_is_over(kind):
    operator = operator_of(CLEARED[kind].within(8))
    rows = [(1, "c"), (2, "a"), (3, "a"), (4, "a"), (6, "b")]
    with KeyedTestHarness(
        operator, key=lambda _: 1, order="watermark", watermark=bounded_out_of_orderness(0)
    ) as harness:
        for time, name in rows:
            harness.process((name, time), time)
        harness.advance_watermark(6)
        harness.take_output()
        harness.advance_watermark(10)
        assert [harness.state(name) for name in harness.state_names] == [{}] * len(harness.state_names)
        assert harness.pending_timers() == []


def test_late_elements_go_to_the_side_output_or_are_counted():
    operator = operator_of(THREE.within(10), late_tag=OutputTag("late"))
    with KeyedTestHarness(operator, key=lambda row: 1, order="watermark") as harness:
        harness.process(("start", 1), 6)
        harness.advance_watermark(6)
        for time, name in ((4, "middle"), (5, "middle"), (7, "middle")):
            harness.process((name, time), time)
        assert [record.value for record in harness.take_side_output("late")] == [("middle", 4), ("middle", 5)]


def test_time_advances_without_elements():
    with KeyedTestHarness(operator_of(THREE.within(10)), key=lambda row: 1, order="watermark") as harness:
        harness.process(("start", 42), 3)
        harness.advance_watermark(5)
        assert harness.take_output() == []
        harness.advance_watermark(13)
        assert [record.value for record in harness.take_output()] == [("timed out", 13, {"start": [("start", 42)]})]


D: dict[str, Any] = {"a": Pattern.begin("a", A), "b then c": Pattern.begin("b", B).followed_by("c", C)}
#: Patterns, the rows that they are tried on, and the numbers of the rows of the match. The automaton of Flink keeps the
#: limit of a step for those after it, and finds the last one only if another row comes before the time-out.
LIMITS: dict[str, Any] = {
    "a limit of a loop ends with the loop": (D["a"].one_or_more(within=3).followed_by("c", C), "a0 c10", [0, 10]),
    "a limit of a range ends with it": (D["a"].times(1, 2, within=3).followed_by("c", C), "a0 c10", [0, 10]),
    "a limit of a step that is left out": (
        D["a"].followed_by("b", B).optional().within(5, since="previous").followed_by("c", C),
        "a0 c10",
        [0, 10],
    ),
    "a limit between repetitions of a group": (Pattern.begin(D["b then c"]).times(2, within=3), "b0 c1 b10 c11", []),
    "a group within its limit": (Pattern.begin(D["b then c"]).times(2, within=3), "b0 c8 b10 c18", [0, 10, 8, 18]),
    "a loop before a silence": (D["a"].one_or_more().not_followed_by("b", B).within(10), "a0 c20", [0]),
}


@pytest.mark.parametrize("of", LIMITS)
def test_limits_of_time_hold_between_the_rows_that_they_name(of):
    pattern, text, times = LIMITS[of]
    rows = [(int(each[1:]), (each[0], int(each[1:]))) for each in text.split()]
    assert [ids for _, ids in outcomes(bounded(pattern), rows, "match")] == ([times] if times else [])


def test_the_time_before_a_group_does_not_limit_a_loop_at_its_head():
    group = Pattern.begin("middle", named("middle")).times(2).followed_by("end", named("end"))
    pattern = Pattern.begin("start", named("start")).followed_by(group).within(5, since="previous").within(100)
    rows = [(0, ("start", 1)), (2, ("middle", 2)), (12, ("middle", 3)), (14, ("end", 4))]
    assert outcomes(pattern, rows, "match") == [(14, [1, 2, 3, 4])]
    too_late = [(0, ("start", 1)), (6, ("middle", 2)), (12, ("middle", 3)), (14, ("end", 4))]
    assert outcomes(pattern, too_late, "match") == []
