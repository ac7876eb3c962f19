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
from tests.keyed.patterns.brute_force import Defined, expanded, is_emitted, matches_by_definition, pattern_of
from tests.keyed.patterns.matching import matches_of

LETTERS = ["a", "b", "c", "ab", "bc", "abc"]
LIMITS = st.sampled_from([None, None, None, 2, 3])


OF = ["next", "followed_by", "followed_by_any"]


@st.composite
def steps(draw, prefix="s", most=4, *, of_group=False):
    """Draw the steps of a pattern.

    Those of a group end with one that has to occur once: after a group that may end earlier, Flink can find a match
    twice, and keyed finds it once (`docs/how-to/patterns.md`).
    """
    made: list[Defined] = []
    count = draw(st.integers(1, most))
    for number in range(count):
        before = made[-1] if made else None
        is_last = of_group and number == count - 1
        # A negative step is refused at the start, after an optional one and at the end of a group. No test of Flink
        # has two in sequence. After a greedy loop, Flink's `findFinalStateAfterProceed` tests the row that the loop has
        # taken against the greed of the loop, so the loop cannot end the match.
        may_negate = before is not None and not (
            before.is_optional or before.is_negative or before.is_greedy or is_last
        )
        contiguity = draw(st.sampled_from([*OF, *(["not_next", "not_followed_by"] if may_negate else [])]))
        letters = draw(st.sampled_from(["d", "d", *LETTERS] if contiguity.startswith("not_") else LETTERS))
        step = Defined(f"{prefix}{number}", contiguity, letters)
        if not step.is_negative and not is_last and draw(st.booleans()):
            least, most_rows = draw(st.sampled_from([(1, None), (2, None), (1, 2), (2, 2), (1, 3), (2, 3)]))
            inner = draw(st.sampled_from(OF))
            step = attrs.evolve(
                step,
                least=least,
                most=most_rows,
                inner=inner,
                is_greedy=inner != "followed_by_any" and draw(st.booleans()),
                until=draw(st.sampled_from(["", "", "c"])) if most_rows is None else "",
                loop_ms=draw(LIMITS),
            )
        if not step.is_negative and (before is not None or step.loop_ms is not None):
            step = attrs.evolve(step, since_previous_ms=draw(LIMITS))
        # An optional step after a greedy one is refused.
        may_be_left_out = not (step.is_negative or is_last or (before is not None and before.is_greedy))
        # A row that comes too late for the loop ends its greed, also before its first row.
        if may_be_left_out and not (step.is_greedy and step.loop_ms is not None) and draw(st.integers(0, 3)) == 0:
            step = attrs.evolve(step, is_optional=True)
        made.append(step)
    return made


ROWS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abcd")), max_size=7)


@st.composite
def groups(draw):
    """Draw a pattern with a group, with or without steps before it and after it."""
    inside = draw(steps("g", 3, of_group=True))
    least, most = draw(st.sampled_from([(1, 1), (1, None), (2, None), (1, 2), (2, 2), (2, 3)]))
    is_repeated = (least, most) != (1, 1)
    group = Defined(
        *("g", draw(st.sampled_from(OF)), "", least, most),
        inner=draw(st.sampled_from(OF)) if is_repeated else "followed_by",
        is_optional=draw(st.booleans()),
        until=draw(st.sampled_from(["", "", "c", "d"])) if most is None else "",
        group=tuple(inside),
        loop_ms=draw(LIMITS) if is_repeated else None,
    )
    before = [Defined("before", "next", draw(st.sampled_from(LETTERS)))] if draw(st.booleans()) else []
    if before:
        group = attrs.evolve(group, since_previous_ms=draw(LIMITS))
    after = [Defined("after", draw(st.sampled_from(OF)), draw(st.sampled_from(LETTERS)))]
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

    found = found_by(pattern_of(steps, within, strategy), numbered)
    assert is_emitted(found, matches, oldest_kept, at_time_out=steps[-1].contiguity == "not_followed_by")


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
