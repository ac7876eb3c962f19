"""Random patterns over random rows: the automaton finds what the definition of each operator says.

``KEYED_EXAMPLES=10000`` tries more.
"""

from __future__ import annotations

import os
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.keyed.patterns.brute_force import Defined, matches_by_definition, pattern_of
from tests.keyed.patterns.matching import matches_of

EXAMPLES = int(os.environ.get("KEYED_EXAMPLES", "100"))
LETTERS = ["a", "b", "c", "ab", "bc", "abc"]


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
            is_greedy = inner != "followed_by_any" and not until and draw(st.booleans())
            step = Defined(step.name, contiguity, step.letters, least, most, inner, False, is_greedy, until)
        after_not = [each for each in made if not each.is_optional][-1:]
        is_range = step.least != step.most and step.most is not None
        if after_not and after_not[0].contiguity == "not_followed_by" and (is_range or step.is_greedy):
            # In Flink the negative step goes on between the rows of such a loop once a row was skipped, and an optional
            # loop is not greedy after it.
            step = Defined(step.name, contiguity, step.letters)
        after_greed = before is not None and before.is_greedy
        # Flink tests the row that was taken for a negative step, if all that comes after it is optional.
        after_negation = before is not None and before.contiguity == "not_next"
        if not step.is_negative and not after_greed and not after_negation and draw(st.integers(0, 3)) == 0:
            step = Defined(
                *(step.name, contiguity, step.letters, step.least, step.most, step.inner),
                *(True, step.is_greedy, step.until),
            )
        made.append(step)
    if made[-1].contiguity == "not_followed_by" and (made[-2].least, made[-2].most) != (1, 1):
        made.pop()
    return made


ROWS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abcd")), max_size=8)


@settings(max_examples=EXAMPLES, deadline=None)
@given(steps=steps(), gaps=ROWS, within=st.sampled_from([3, 6, 1000]))
def test_the_automaton_finds_what_the_definition_says(steps, gaps, within):
    time, rows = 0, []
    for gap, letter in gaps:
        time += gap
        rows.append((time, letter))
    numbered = [(time, (letter, number)) for number, (time, letter) in enumerate(rows)]
    pattern = pattern_of(steps, within)
    found = Counter(
        tuple((step, number) for step, taken in match.items() for _, number in taken)
        for kind, _, match in matches_of(pattern, numbered)
        if kind == "match"
    )
    assert found == Counter(matches_by_definition(steps, rows, within))
