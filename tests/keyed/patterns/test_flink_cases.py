"""The cases of Flink's own tests hold."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.keyed.patterns.flink_cases import CASES, Case, Event
from tests.keyed.patterns.matching import bounded, matches_of


def rows_of(case: Case) -> list[tuple[int, Any]]:
    """Return the rows of a case with their times."""
    rows: list[tuple[int, Any]] = []
    for text in case.rows.split():
        fields, time = text.rsplit("@", 1)
        name, number, price, *volume = fields.split(":")
        rows.append((int(time), Event((name, int(number), float(price), float(volume[0]) if volume else None))))
    return rows


def counted(matches: list[list[Any]]) -> Counter[Any]:
    """Return matches in a form without order."""
    return Counter(tuple(sorted((row.name, row.price, row.id) for row in match)) for match in matches)


#: In Flink, ``times(n, window)`` limits the time before the first row of the loop, and not the time before its last.
#: It chooses the states with a limit by the order in which they were named. Here it limits the time between the rows.
DIFFERENT = {
    "TimesOrMoreITCase.testTimesOrMoreNonStrict[3]",
    "TimesOrMoreITCase.testTimesOrMoreNotStrictWithFollowedByAny[3]",
    "TimesRangeITCase.testTimesRangeNonStrict[3]",
    "TimesRangeITCase.testTimesRangeNotStrictWithFollowedByAny[3]",
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_of_flink_holds(case, request):
    if case.name in DIFFERENT:
        request.applymarker(pytest.mark.xfail(reason="the time between the rows of a loop", strict=True))
    rows = rows_of(case)
    found = matches_of(bounded(case.pattern()), rows)
    matches = [[row for each in match.values() for row in each] for kind, _, match in found if kind == "match"]
    expected = [[rows[int(number)][1] for number in match.split()] for match in case.matches]
    assert counted(matches) == counted(expected)
