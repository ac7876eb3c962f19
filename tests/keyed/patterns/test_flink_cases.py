"""The cases of Flink's own tests hold: rows in, a pattern, matches out.

`flink_cases.json` has them, transcribed from ``flink-libraries/flink-cep/src/test`` of Flink; `flink_patterns.py` reads
their patterns. A row is ``name:id:price@time``, with a fourth part for rows of the subclass. A match is the positions
of its rows. Flink's automaton does not look at the order of times: where a case has them out of order and no time
limit, they are in order here.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from keyed.rows import row_class
from tests.keyed.patterns.flink_patterns import pattern_of
from tests.keyed.patterns.matching import bounded, matches_of
from tests.support.data_files import read_data

CASES = read_data("keyed/patterns/flink_cases.json")
#: A row of Flink's tests.
Event = row_class(("name", "id", "price", "volume"))


def rows_of(case: dict[str, Any]) -> list[tuple[int, Any]]:
    """Return the rows of a case with their times."""
    rows: list[tuple[int, Any]] = []
    for text in case["rows"].split():
        fields, time = text.rsplit("@", 1)
        name, number, price, *volume = fields.split(":")
        rows.append((int(time), Event((name, int(number), float(price), float(volume[0]) if volume else None))))
    return rows


def counted(matches: list[list[Any]]) -> Counter[Any]:
    """Return matches in a form without order."""
    return Counter(tuple(sorted((row.name, row.price, row.id) for row in match)) for match in matches)


#: The matches of cases that differ. Flink documents the window of ``times(n, window)`` as the "time of the matching
#: window between times". But its ``NFACompiler`` gives the limit to the states of the loop whose names have a suffix:
#: not to the last row's, and instead to that of the first row, before which no row of the loop comes. So
#: ``times(2, window)`` of a first step limits nothing. Here the limit is that between the rows, as `brute_force.py`
#: defines it.
DIFFERENT = {
    "TimesOrMoreITCase.testTimesOrMoreNonStrict[3]": ["0 2 4 6", "0 4 5 6", "0 2 4 5 6"],
    "TimesOrMoreITCase.testTimesOrMoreNotStrictWithFollowedByAny[3]": ["0 1 2 4", "0 2 3 4", "0 1 2 3 4"],
    "TimesRangeITCase.testTimesRangeNonStrict[3]": ["0 2 6", "0 4 6", "0 5 6", "0 2 4 6", "0 4 5 6", "0 2 4 5 6"],
    "TimesRangeITCase.testTimesRangeNotStrictWithFollowedByAny[3]": ["0 1 2 4", "0 2 3 4", "0 1 2 3 4"],
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_case_of_flink_holds(case):
    rows = rows_of(case)
    found = matches_of(bounded(pattern_of(case["pattern"])), rows)
    matches = [[row for each in match.values() for row in each] for kind, _, match in found if kind == "match"]
    expected = DIFFERENT.get(case["name"], case["matches"])
    assert counted(matches) == counted([[rows[int(number)][1] for number in match.split()] for match in expected])
