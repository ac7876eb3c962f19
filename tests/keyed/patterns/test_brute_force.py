"""Random patterns over random rows: the automaton finds what the definition of each operator says.

The long tests try 10,000 patterns each.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from keyed.patterns import AfterMatchSkipStrategy
from tests.keyed.patterns.brute_force import Defined, expanded, matches_by_definition, pattern_of, skipping
from tests.keyed.patterns.matching import matches_of

LETTERS = ["a", "b", "c", "ab", "bc", "abc"]
LIMITS = st.sampled_from([None, None, None, 2, 3])


@st.composite
def steps(draw):
    made: list[Defined] = []
    for number in range(draw(st.integers(1, 4))):
        before = made[-1] if made else None
        may_negate = before is not None and not before.is_optional and not before.is_negative and not before.is_greedy
        allowed = ["next", "followed_by", "followed_by_any", *(["not_next", "not_followed_by"] if may_negate else [])]
        contiguity = draw(st.sampled_from(allowed))
        is_loop = before is not None and (before.least, before.most) != (1, 1)
        if contiguity == "not_next" and is_loop:
            # Flink ends the loop, too, with a row that must not come next.
            contiguity = "followed_by"
        if before is not None and contiguity == "not_followed_by" and before.least < (before.most or 0):
            # Flink does not end a loop that has skipped a row, if the loop has an upper bound and may end before it.
            contiguity = "followed_by"
        # No row is accepted by a step and by the negative one before it: Flink ends the partial match then, unless the
        # row is the last of the match.
        letters = "d" if contiguity.startswith("not_") else draw(st.sampled_from(LETTERS))
        step = Defined(f"s{number}", contiguity, letters)
        if not step.is_negative and draw(st.booleans()):
            least, most = draw(st.sampled_from([(1, None), (2, None), (1, 2), (2, 2), (1, 3), (2, 3)]))
            inner = draw(st.sampled_from(["next", "followed_by", "followed_by_any"]))
            until = draw(st.sampled_from(["", "", "c"])) if most is None else ""
            is_greedy = inner != "followed_by_any" and draw(st.booleans())
            loop_ms = draw(LIMITS)
            step = attrs.evolve(
                step, least=least, most=most, inner=inner, is_greedy=is_greedy, until=until, loop_ms=loop_ms
            )
        if not step.is_negative and (before is not None or step.loop_ms is not None):
            step = attrs.evolve(step, since_previous_ms=draw(LIMITS))
        after_not = [each for each in made if not each.is_optional][-1:]
        is_range = step.least != step.most and step.most is not None
        if after_not and after_not[0].contiguity == "not_followed_by" and (is_range or step.is_greedy):
            # In Flink the negative step goes on between the rows of such a loop once a row was skipped, and an optional
            # loop is not greedy after it.
            step = Defined(step.name, contiguity, step.letters)
        after_greed = before is not None and before.is_greedy
        # Flink tests the row that was taken for a negative step, if all that comes after it is optional.
        after_negation = before is not None and before.contiguity == "not_next"
        # A row that comes too late for the loop ends its greed, also before its first row.
        is_simple = not step.is_negative and not after_greed and not after_negation
        if is_simple and not (step.is_greedy and step.loop_ms is not None) and draw(st.integers(0, 3)) == 0:
            step = attrs.evolve(step, is_optional=True)
        made.append(step)
    return made


ROWS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abcd")), max_size=8)


@st.composite
def groups(draw):
    """Draw a pattern with a group, with or without a step before it and after it."""
    of = ["next", "followed_by", "followed_by_any"]
    inside = [
        Defined(f"g{number}", draw(st.sampled_from(of)), draw(st.sampled_from(LETTERS)))
        for number in range(draw(st.integers(1, 3)))
    ]
    for number in range(len(inside) - 1):
        inside[number] = attrs.evolve(inside[number], is_optional=draw(st.integers(0, 3)) == 0)
    least, most = draw(st.sampled_from([(1, 1), (1, None), (2, None), (1, 2), (2, 2), (2, 3)]))
    inner, loop_ms = "followed_by", None
    if (least, most) != (1, 1):
        inner, loop_ms = draw(st.sampled_from(of)), draw(LIMITS)
    group = Defined(
        *("g", draw(st.sampled_from(of)), "", least, most, inner, draw(st.booleans())),
        group=tuple(inside),
        loop_ms=loop_ms,
    )
    before = [Defined("before", "next", draw(st.sampled_from(LETTERS)))] if draw(st.booleans()) else []
    if before:
        group = attrs.evolve(group, since_previous_ms=draw(LIMITS))
    after = [Defined("after", draw(st.sampled_from(of)), draw(st.sampled_from(LETTERS)))]
    return [*before, group, *(after if draw(st.booleans()) else [])]


def timed(gaps):
    """Return rows (time, letter), and the same with the numbers of the rows."""
    time, rows = 0, []
    for gap, letter in gaps:
        time += gap
        rows.append((time, letter))
    return rows, [(time, (letter, number)) for number, (time, letter) in enumerate(rows)]


def found_by(pattern, numbered):
    """Return the matches that the automaton finds."""
    return [
        tuple((step, number) for step, taken in match.items() for _, number in taken)
        for kind, _, match in matches_of(pattern, numbered)
        if kind == "match"
    ]


WITHIN = st.sampled_from([3, 6, 1000])


def finds_the_defined_matches(steps, gaps, within):
    rows, numbered = timed(gaps)
    found = Counter(found_by(pattern_of(steps, within), numbered))
    assert found == Counter(matches_by_definition(steps, rows, within))


def repeats_groups(steps, gaps, within):
    rows, numbered = timed(gaps)
    # A match lists the rows by step.
    found = Counter(tuple(sorted(match)) for match in found_by(pattern_of(steps, within), numbered))
    defined: Counter[Any] = Counter()
    for each in expanded(steps, len(rows)):
        defined.update(tuple(sorted(match)) for match in matches_by_definition(each, rows, within))
    assert found == defined


def drops_by_strategy(steps, gaps, within, kind, data):
    rows, numbered = timed(gaps)
    names = [data.draw(st.sampled_from([step.name for step in steps]))] if kind.startswith("skip_to_") else []
    strategy = getattr(AfterMatchSkipStrategy, kind)(*([] if kind == "skip_to_next" else names))
    matches = list(matches_by_definition(steps, rows, within))
    assume(len(matches) <= 8)

    def oldest_kept(match):
        if kind == "skip_to_next":
            return match[0][1] + 1
        if kind == "skip_past_last_event":
            return match[-1][1] + 1
        taken = [row for step, row in match if step == names[0]]
        return (taken[0] if kind == "skip_to_first" else taken[-1]) if taken else 0

    outcomes = list(skipping(matches, oldest_kept, at_time_out=steps[-1].contiguity == "not_followed_by"))
    assert found_by(pattern_of(steps, within, strategy), numbered) in outcomes


STRATEGIES = st.sampled_from(["skip_to_next", "skip_past_last_event", "skip_to_first", "skip_to_last"])
PROPERTIES = {
    "operators": given(steps=steps(), gaps=ROWS, within=WITHIN)(finds_the_defined_matches),
    "groups": given(steps=groups(), gaps=ROWS, within=WITHIN)(repeats_groups),
    "strategies": given(steps=steps(), gaps=ROWS, within=WITHIN, kind=STRATEGIES, data=st.data())(drops_by_strategy),
}


@pytest.mark.parametrize("examples", [100, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.long])])
@pytest.mark.parametrize("of", PROPERTIES)
def test_the_automaton_finds_what_the_definition_says(of, examples):
    settings(max_examples=examples, deadline=None)(PROPERTIES[of])()
