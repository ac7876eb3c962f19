"""Cases of Flink's tests over streams: keys, late rows, restarts, equal times, time-outs, what is left in state.

`flink_streams.json` has them as data, with the cases that do not apply and the reasons. Each is from the class of
``flink-libraries/flink-cep/src/test`` that its name begins with. The input is rows ``key/name:price:volume@time``,
watermarks, restarts, and checks that no state is left. Rows of the subclass have a volume. Where Flink's test runs in
processing time, times are positions. A match is the positions of its rows.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from keyed import OutputTag, bounded_out_of_orderness
from keyed.errors import UserFunctionError
from keyed.patterns import Pattern
from keyed.testing import KeyedTestHarness
from tests.keyed.patterns import test_flink_cases, test_flink_times
from tests.keyed.patterns.flink_patterns import pattern_of
from tests.keyed.patterns.matching import bounded, operator_of
from tests.support.data_files import read_data

DATA = read_data("keyed/patterns/flink_streams.json")
CASES = [case for case in DATA["cases"] if "see" not in case]
#: A time limit that only makes the definition legal.
FOREVER = 10**9


def row_of(text: str) -> tuple[int, dict[str, Any]]:
    """Return the time and the fields of a row."""
    fields, time = text.split("@")
    key, fields = fields.split("/")
    name, price, *volume = fields.split(":")
    number = float(price) if "." in price else int(price)
    return int(time), {"key": key, "name": name, "price": number, "volume": float(volume[0]) if volume else None}


def run(case: dict[str, Any], pattern: Pattern) -> dict[str, list[Any]]:
    """Return the matches, time-outs and late rows of a case."""
    order = case.get("order_by")
    late = OutputTag("late")
    found: dict[str, list[Any]] = {"match": [], "timed out": [], "late": []}

    def operator() -> Any:
        return operator_of(pattern, late_tag=late, order_by=None if order is None else lambda row: row[order])

    def take() -> None:
        for record in harness.take_output():
            kind, time, match = record.value
            if time < FOREVER:
                found[kind].append([row for rows in match.values() for row in rows])
        found["late"] += [[record.value] for record in harness.take_side_output("late")]

    options: dict[str, Any] = {"key": lambda row: row["key"], "order": "watermark"}
    if "delay" in case:
        options["watermark"] = bounded_out_of_orderness(case["delay"])
    harness = KeyedTestHarness(operator(), **options)
    try:
        for text in case["input"].split():
            if text == "restart":
                take()
                snapshot = harness.snapshot()
                harness.close()
                harness = KeyedTestHarness.restore(operator(), snapshot, **options)
            elif text == "empty":
                take()
                assert [harness.state(name) for name in harness.state_names] == [{}] * len(harness.state_names)
                assert harness.pending_timers() == []
            elif text.startswith("watermark="):
                harness.advance_watermark(int(text.partition("=")[2]))
            else:
                time, row = row_of(text)
                harness.process(row, time)
        harness.end_of_input()
        take()
    finally:
        harness.close()
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_case_of_flink_holds_in_a_stream(case):
    rows = [row_of(text)[1] for text in case["input"].split() if "@" in text]
    pattern = bounded(pattern_of(case["pattern"]))
    if "fails" in case:
        with pytest.raises(UserFunctionError, match=case["fails"]):
            run(case, pattern)
        return
    found = run(case, pattern)
    for kind, names in (("match", "matches"), ("timed out", "timed_out"), ("late", "late")):
        expected = [[rows[int(number)] for number in each.split()] for each in case.get(names, [])]
        if names in case or kind == "match":
            assert counted(found[kind]) == counted(expected)
            if "order_by" in case:
                assert list(counted(found[kind])) == list(counted(expected))


def counted(matches: list[list[Any]]) -> Counter[Any]:
    """Return matches in a form without order."""
    return Counter(tuple(sorted((row["key"], row["name"], row["price"]) for row in match)) for match in matches)


#: The tests of each class of Flink CEP, parameters not counted.
SUITES = DATA["tests"]


def test_every_test_of_these_suites_is_transcribed_or_has_a_reason():
    transcribed = {case["name"].partition("[")[0] for case in test_flink_cases.CASES} | {
        case["name"] for case in DATA["cases"]
    }
    assert not transcribed & DATA["not applicable"].keys()
    counts = Counter(name.partition(".")[0] for name in (*transcribed, *DATA["not applicable"]))
    assert counts == SUITES
    assert {case["see"] for case in DATA["cases"] if "see" in case} <= set(vars(test_flink_times))
    # At least 95 % of those that apply hold; the others are differences, which the page on patterns lists.
    assert len(test_flink_cases.DIFFERENT) <= 0.05 * len(transcribed)
