"""The cases of the tests of Flink CEP, as data: rows in, a pattern, matches out.

Transcribed from ``flink-libraries/flink-cep/src/test`` of Flink. A row is ``name:id:price@time``, with a fourth part
for rows of the subclass. A match is the positions of its rows. Flink's automaton does not look at the order of times:
where a case has them out of order and no time limit, they are in order here. `test_flink_cases.py` runs them.
"""

# ruff: noqa: E501 - a pattern stands in one line

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from keyed.patterns import AfterMatchSkipStrategy, Pattern
from keyed.rows import row_class

#: A row of Flink's tests.
Event = row_class(("name", "id", "price", "volume"))


@attrs.frozen
class Case:
    """A test of Flink: its suite and name, the rows, the pattern and the matches."""

    name: str
    rows: str
    pattern: Callable[[], Pattern]
    matches: list[str]


def named(name: str) -> Callable[[Any], bool]:
    """Return the condition that a row has a name."""
    return lambda row: row.name == name


def is_sub(row: Any) -> bool:
    """Return whether a row is one of the subclass: rows that wait are plain data, so a column tells."""
    return row.volume is not None


def total(rows: list[Any]) -> float:
    """Return the sum of the prices of rows."""
    return sum(row.price for row in rows)


CASES = [
    Case(
        "AfterMatchSkipITCase.testNoSkip",
        "a:1:0@0 a:2:0@0 a:3:0@0 a:4:0@0 a:5:0@0 a:6:0@0",
        lambda: Pattern.begin("start", after_match=AfterMatchSkipStrategy.no_skip()).where(named("a")).times(3),
        ["0 1 2", "1 2 3", "2 3 4", "3 4 5"],
    ),
    Case(
        "AfterMatchSkipITCase.testNoSkipWithFollowedByAny",
        "a:1:0@0 b:2:0@0 a:4:0@0 b:5:0@0",
        lambda: (
            Pattern.begin("start", after_match=AfterMatchSkipStrategy.no_skip())
            .where(named("a"))
            .followed_by_any("end")
            .where(named("b"))
        ),
        ["0 1", "0 3", "2 3"],
    ),
    Case(
        "AfterMatchSkipITCase.testSkipToNextWithFollowedByAny",
        "a:1:0@0 b:2:0@0 a:4:0@0 b:5:0@0",
        lambda: (
            Pattern.begin("start", after_match=AfterMatchSkipStrategy.skip_to_next())
            .where(named("a"))
            .followed_by_any("end")
            .where(named("b"))
        ),
        ["0 1", "2 3"],
    ),
    Case(
        "AfterMatchSkipITCase.testNoSkipWithQuantifierAtTheEnd",
        "a:1:0@0 b:2:0@0 b:4:0@0 b:5:0@0",
        lambda: (
            Pattern.begin("start", after_match=AfterMatchSkipStrategy.no_skip())
            .where(named("a"))
            .next("end")
            .where(named("b"))
            .one_or_more()
        ),
        ["0 1", "0 1 2", "0 1 2 3"],
    ),
    Case(
        "AfterMatchSkipITCase.testSkipToNextWithQuantifierAtTheEnd",
        "a:1:0@0 b:2:0@0 b:4:0@0 b:5:0@0",
        lambda: (
            Pattern.begin("start", after_match=AfterMatchSkipStrategy.skip_to_next())
            .where(named("a"))
            .next("end")
            .where(named("b"))
            .one_or_more()
        ),
        ["0 1"],
    ),
    Case(
        "AfterMatchSkipITCase.testSkipPastLast",
        "a:1:0@0 a:2:0@0 a:3:0@0 a:4:0@0 a:5:0@0 a:6:0@0",
        lambda: (
            Pattern.begin("start", after_match=AfterMatchSkipStrategy.skip_past_last_event()).where(named("a")).times(3)
        ),
        ["0 1 2", "3 4 5"],
    ),
    Case(
        "AfterMatchSkipITCase.testSkipToFirst",
        "ab:1:0@0 ab:2:0@0 ab:3:0@0 ab:4:0@0 ab:5:0@0 ab:6:0@0",
        lambda: (
            Pattern.begin("start", after_match=AfterMatchSkipStrategy.skip_to_first("end"))
            .where(lambda row: "a" in row.name)
            .times(2)
            .next("end")
            .where(lambda row: "b" in row.name)
            .times(2)
        ),
        ["0 1 2 3", "2 3 4 5"],
    ),
    Case(
        "AfterMatchSkipITCase.testSkipToLast",
        "ab:1:0@0 ab:2:0@0 ab:3:0@0 ab:4:0@0 ab:5:0@0 ab:6:0@0 ab:7:0@0",
        lambda: (
            Pattern.begin("start", after_match=AfterMatchSkipStrategy.skip_to_last("end"))
            .where(lambda row: "a" in row.name)
            .times(2)
            .next("end")
            .where(lambda row: "b" in row.name)
            .times(2)
        ),
        ["0 1 2 3", "3 4 5 6"],
    ),
    Case(
        "AfterMatchSkipITCase.testSkipPastLast2",
        "a1:1:0@0 a2:2:0@0 b1:3:0@0 b2:4:0@0 c1:5:0@0 c2:6:0@0 d1:7:0@0 d2:7:0@0",
        lambda: (
            Pattern.begin("a", after_match=AfterMatchSkipStrategy.skip_past_last_event())
            .where(lambda row: "a" in row.name)
            .followed_by_any("b")
            .where(lambda row: "b" in row.name)
            .followed_by_any("c")
            .where(lambda row: "c" in row.name)
            .followed_by("d")
            .where(lambda row: "d" in row.name)
        ),
        ["0 2 4 6"],
    ),
    Case(
        "AfterMatchSkipITCase.testSkipPastLast3",
        "a1:1:0@0 c:2:0@0 a2:3:0@0 b2:4:0@0",
        lambda: (
            Pattern.begin("a", after_match=AfterMatchSkipStrategy.skip_past_last_event())
            .where(lambda row: "a" in row.name)
            .next("b")
            .where(lambda row: "b" in row.name)
        ),
        ["2 3"],
    ),
    Case(
        "AfterMatchSkipITCase.testSkipToFirstWithOptionalMatch",
        "ab1:1:0@0 c1:2:0@0 ab2:3:0@0 c2:4:0@0",
        lambda: (
            Pattern.begin("x", after_match=AfterMatchSkipStrategy.skip_to_first("b"))
            .where(lambda row: "x" in row.name)
            .one_or_more()
            .optional()
            .next("b")
            .where(lambda row: "b" in row.name)
            .next("c")
            .where(lambda row: "c" in row.name)
        ),
        ["0 1", "2 3"],
    ),
    Case(
        "AfterMatchSkipITCase.testSkipToFirstAtStartPosition",
        "ab1:1:0@0 c1:2:0@0 ab2:3:0@0 c2:4:0@0",
        lambda: (
            Pattern.begin("b", after_match=AfterMatchSkipStrategy.skip_to_first("b"))
            .where(lambda row: "b" in row.name)
            .next("c")
            .where(lambda row: "c" in row.name)
        ),
        ["0 1", "2 3"],
    ),
    Case(
        "AfterMatchSkipITCase.testSkipToFirstWithOneOrMore",
        "a1:1:0@0 b1:2:0@0 a2:3:0@0 b2:4:0@0 b3:5:0@0 a3:3:0@0 b4:4:0@0",
        lambda: (
            Pattern.begin("a", after_match=AfterMatchSkipStrategy.skip_to_first("b"))
            .where(lambda row: "a" in row.name)
            .next("b")
            .where(lambda row: "b" in row.name)
            .one_or_more()
            .consecutive()
        ),
        ["0 1", "2 3", "5 6"],
    ),
    Case(
        "AfterMatchSkipITCase.testSkipToFirstNonExistentPositionWithoutException",
        "a:1:0@0 c:4:0@0",
        lambda: (
            Pattern.begin("a", after_match=AfterMatchSkipStrategy.skip_to_first("b"))
            .where(lambda row: "a" in row.name)
            .next("b")
            .where(lambda row: "b" in row.name)
            .one_or_more()
            .optional()
            .consecutive()
            .next("c")
            .where(lambda row: "c" in row.name)
        ),
        ["0 1"],
    ),
    Case(
        "AfterMatchSkipITCase.testSkipToLastNonExistentPositionWithoutException",
        "a:1:0@0 c:4:0@0",
        lambda: (
            Pattern.begin("a", after_match=AfterMatchSkipStrategy.skip_to_first("b"))
            .where(lambda row: "a" in row.name)
            .next("b")
            .where(lambda row: "b" in row.name)
            .one_or_more()
            .optional()
            .consecutive()
            .next("c")
            .where(lambda row: "c" in row.name)
        ),
        ["0 1"],
    ),
    Case(
        "AfterMatchSkipITCase.testSkipToLastWithOneOrMore",
        "a1:1:0@0 b1:2:0@0 a2:3:0@0 b2:4:0@0 b3:5:0@0 a3:3:0@0 b4:4:0@0",
        lambda: (
            Pattern.begin("a", after_match=AfterMatchSkipStrategy.skip_to_last("b"))
            .where(lambda row: "a" in row.name)
            .next("b")
            .where(lambda row: "b" in row.name)
            .one_or_more()
            .consecutive()
        ),
        ["0 1", "2 3", "5 6"],
    ),
    Case(
        "AfterMatchSkipITCase.testSkipPastLastWithOneOrMoreAtBeginning",
        "a1:1:0@0 a2:2:0@0 a3:3:0@0 b1:4:0@0",
        lambda: (
            Pattern.begin("a", after_match=AfterMatchSkipStrategy.skip_past_last_event())
            .where(lambda row: "a" in row.name)
            .one_or_more()
            .consecutive()
            .greedy()
            .next("b")
            .where(lambda row: "b" in row.name)
        ),
        ["0 1 2 3"],
    ),
    Case(
        "AfterMatchSkipITCase.testSkipToLastWithOneOrMoreAtBeginning",
        "a1:1:0@0 a2:2:0@0 a3:3:0@0 b1:4:0@0",
        lambda: (
            Pattern.begin("a", after_match=AfterMatchSkipStrategy.skip_to_last("a"))
            .where(lambda row: "a" in row.name)
            .one_or_more()
            .consecutive()
            .greedy()
            .next("b")
            .where(lambda row: "b" in row.name)
        ),
        ["2 3", "0 1 2 3"],
    ),
    Case(
        "AfterMatchSkipITCase.testSkipToFirstWithOneOrMoreAtBeginning",
        "a1:1:0@0 a2:2:0@0 a3:3:0@0 b1:4:0@0",
        lambda: (
            Pattern.begin("a", after_match=AfterMatchSkipStrategy.skip_to_first("a"))
            .where(lambda row: "a" in row.name)
            .one_or_more()
            .consecutive()
            .greedy()
            .next("b")
            .where(lambda row: "b" in row.name)
        ),
        ["2 3", "1 2 3", "0 1 2 3"],
    ),
    Case(
        "AfterMatchSkipITCase.testNoSkipWithOneOrMoreAtBeginning",
        "a1:1:0@0 a2:2:0@0 a3:3:0@0 b1:4:0@0",
        lambda: (
            Pattern.begin("a", after_match=AfterMatchSkipStrategy.no_skip())
            .where(lambda row: "a" in row.name)
            .one_or_more()
            .consecutive()
            .greedy()
            .next("b")
            .where(lambda row: "b" in row.name)
        ),
        ["2 3", "1 2 3", "0 1 2 3"],
    ),
    Case(
        "AfterMatchSkipITCase.testSkipToFirstDiscarding",
        "a:1:0@0 b:2:0@0 c1:3:0@0 c2:4:0@0 c3:5:0@0 d:6:0@0",
        lambda: (
            Pattern.begin("a or c", after_match=AfterMatchSkipStrategy.skip_to_first("c*"))
            .where(lambda row: "a" in row.name or "c" in row.name)
            .followed_by("b or c")
            .where(lambda row: "b" in row.name or "c" in row.name)
            .followed_by("c*")
            .where(lambda row: "c" in row.name)
            .one_or_more()
            .greedy()
            .followed_by("d")
            .where(lambda row: "d" in row.name)
        ),
        ["2 3 4 5", "0 1 2 3 4 5"],
    ),
    Case(
        "AfterMatchSkipITCase.testSkipBeforeOtherAlreadyCompleted",
        "a1:1:0@0 c1:2:0@0 a2:3:1@0 c2:4:0@0 b1:5:1@0 b2:6:0@0",
        lambda: (
            Pattern.begin("a", after_match=AfterMatchSkipStrategy.skip_to_first("c"))
            .where(lambda row: "a" in row.name)
            .followed_by("c")
            .where(lambda row: "c" in row.name)
            .followed_by("b")
            .where(lambda row, match: "b" in row.name and match["a"][0].price == row.price)
        ),
        ["0 1 5", "2 3 4"],
    ),
    Case(
        "GreedyITCase.testGreedyZeroOrMore",
        "c:40:1@1 a:41:2@2 a:42:2@3 a:43:2@4 d:44:3@5",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .one_or_more()
            .optional()
            .greedy()
            .followed_by("end")
            .where(named("d"))
        ),
        ["0 1 2 3 4"],
    ),
    Case(
        "GreedyITCase.testGreedyZeroOrMoreInBetween",
        "c:40:1@1 dummy:1:1111@2 a:41:2@3 dummy:1:1111@4 a:42:2@5 dummy:1:1111@6 a:43:2@7 d:44:3@8",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .one_or_more()
            .optional()
            .greedy()
            .followed_by("end")
            .where(named("d"))
        ),
        ["0 2 4 6 7"],
    ),
    Case(
        "GreedyITCase.testGreedyZeroOrMoreWithDummyEventsAfterQuantifier",
        "c:40:1@1 a:41:2@2 a:42:2@3 dummy:43:2@4 d:44:3@5",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .one_or_more()
            .optional()
            .greedy()
            .followed_by("end")
            .where(named("d"))
        ),
        ["0 1 2 4"],
    ),
    Case(
        "GreedyITCase.testGreedyZeroOrMoreWithDummyEventsBeforeQuantifier",
        "c:40:1@1 dummy:43:2@2 d:44:3@5",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .one_or_more()
            .optional()
            .greedy()
            .followed_by("end")
            .where(named("d"))
        ),
        ["0 2"],
    ),
    Case(
        "GreedyITCase.testGreedyUntilZeroOrMoreWithDummyEventsAfterQuantifier",
        "c:40:1@1 a:41:2@2 a:42:3@3 a:43:3@4 a:44:4@5 d:45:3@6",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .one_or_more()
            .optional()
            .greedy()
            .until(lambda row: row.price > 3.0)
            .followed_by("end")
            .where(named("d"))
        ),
        ["0 1 2 3 5"],
    ),
    Case(
        "GreedyITCase.testGreedyUntilWithDummyEventsBeforeQuantifier",
        "c:40:1@1 a:44:4@2 a:41:2@3 a:42:3@4 a:43:3@5 d:45:3@6",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .one_or_more()
            .optional()
            .greedy()
            .until(lambda row: row.price > 3.0)
            .followed_by("end")
            .where(named("d"))
        ),
        ["0 5"],
    ),
    Case(
        "GreedyITCase.testGreedyOneOrMore",
        "c:40:1@1 a:41:2@2 a:42:2@3 a:43:2@4 d:44:3@5",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .one_or_more()
            .greedy()
            .followed_by("end")
            .where(named("d"))
        ),
        ["0 1 2 3 4"],
    ),
    Case(
        "GreedyITCase.testGreedyOneOrMoreInBetween",
        "c:40:1@1 dummy:1:1111@2 a:41:2@3 dummy:1:1111@4 a:42:2@5 dummy:1:1111@6 a:43:2@7 d:44:3@8",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .one_or_more()
            .greedy()
            .followed_by("end")
            .where(named("d"))
        ),
        ["0 2 4 6 7"],
    ),
    Case(
        "GreedyITCase.testGreedyOneOrMoreWithDummyEventsAfterQuantifier",
        "c:40:1@1 a:41:2@2 a:42:2@3 dummy:43:2@4 d:44:3@5",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .one_or_more()
            .greedy()
            .followed_by("end")
            .where(named("d"))
        ),
        ["0 1 2 4"],
    ),
    Case(
        "GreedyITCase.testGreedyOneOrMoreWithDummyEventsBeforeQuantifier",
        "c:40:1@1 dummy:43:2@2 d:44:3@5",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .one_or_more()
            .greedy()
            .followed_by("end")
            .where(named("d"))
        ),
        [],
    ),
    Case(
        "GreedyITCase.testGreedyUntilOneOrMoreWithDummyEventsAfterQuantifier",
        "c:40:1@1 a:41:2@2 a:42:3@3 a:43:3@4 a:44:4@5 d:45:3@6",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .one_or_more()
            .greedy()
            .until(lambda row: row.price > 3.0)
            .followed_by("end")
            .where(named("d"))
        ),
        ["0 1 2 3 5"],
    ),
    Case(
        "GreedyITCase.testGreedyUntilOneOrMoreWithDummyEventsBeforeQuantifier",
        "c:40:1@1 a:44:4@2 a:41:2@3 a:42:3@4 a:43:3@5 d:45:3@6",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .one_or_more()
            .greedy()
            .until(lambda row: row.price > 3.0)
            .followed_by("end")
            .where(named("d"))
        ),
        [],
    ),
    Case(
        "GreedyITCase.testGreedyZeroOrMoreBeforeGroupPattern",
        "c:40:1@1 a:40:1@2 a:40:1@3 dummy:43:2@4 a:40:1@5 d:40:1@6 e:40:1@7 d:40:1@8 e:40:1@9 f:44:3@10",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .one_or_more()
            .optional()
            .greedy()
            .followed_by(Pattern.begin("middle1").where(named("d")).followed_by("middle2").where(named("e")))
            .times(2)
            .followed_by("end")
            .where(named("f"))
        ),
        ["0 1 1 1 5 5 6 6 9"],
    ),
    Case(
        "GreedyITCase.testEndWithZeroOrMoreGreedy",
        "c:40:1@1 a:41:2@2 a:42:2@3 dummy:44:2@4 a:43:2@5",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("end")
            .where(named("a"))
            .one_or_more()
            .optional()
            .greedy()
        ),
        ["0", "0 1", "0 1 2", "0 1 2 4"],
    ),
    Case(
        "GreedyITCase.testEndWithZeroOrMoreConsecutiveGreedy",
        "c:40:1@1 a:41:2@2 a:42:2@3 dummy:44:2@4 a:43:2@5",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("end")
            .where(named("a"))
            .one_or_more()
            .optional()
            .consecutive()
            .greedy()
        ),
        ["0", "0 1", "0 1 2"],
    ),
    Case(
        "GreedyITCase.testEndWithGreedyTimesRange",
        "c:40:1@1 a:41:2@2 a:42:2@3 a:43:2@4 a:44:2@5 dummy:44:2@6",
        lambda: Pattern.begin("start").where(named("c")).followed_by("end").where(named("a")).times(2, 5).greedy(),
        ["0 1 2", "0 1 2 3", "0 1 2 3 4"],
    ),
    Case(
        "GreedyITCase.testGreedyTimesRange",
        "c:40:1@1 a:41:2@2 a:42:2@3 a:43:2@4 a:44:2@5 d:45:2@6",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .times(2, 5)
            .greedy()
            .followed_by("end")
            .where(named("d"))
        ),
        ["0 1 2 3 4 5"],
    ),
    Case(
        "GroupITCase.testGroupFollowedByTimes",
        "c:40:1@1 a:41:2@2 b:42:3@3 a:43:4@4 b:44:5@5 d:45:6@6",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by(Pattern.begin("middle1").where(named("a")).followed_by("middle2").where(named("b")))
            .times(2)
            .followed_by("end")
            .where(named("d"))
        ),
        ["0 1 2 3 4 5"],
    ),
    Case(
        "GroupITCase.testGroupFollowedByOptional",
        "c:40:1@1 a:41:2@2 a:42:2@3 b:43:3@4 d:44:4@5",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by(Pattern.begin("middle1").where(named("a")).followed_by("middle2").where(named("b")))
            .optional()
            .followed_by("end")
            .where(named("d"))
        ),
        ["0 4", "0 1 3 4"],
    ),
    Case(
        "GroupITCase.testFollowedByGroupTimesOptional",
        "c:40:1@1 a:41:2@2 d:45:3@3",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by(Pattern.begin("middle1").where(named("a")).followed_by("middle2").where(named("b")))
            .times(2)
            .optional()
            .followed_by("end")
            .where(named("d"))
        ),
        ["0 2"],
    ),
    Case(
        "GroupITCase.testGroupFollowedByOneOrMore",
        "c:40:1@1 a:41:2@2 b:42:3@3 a:43:4@4 b:44:5@5 d:45:6@6",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by(Pattern.begin("middle1").where(named("a")).followed_by("middle2").where(named("b")))
            .one_or_more()
            .followed_by("end")
            .where(named("d"))
        ),
        ["0 1 2 5", "0 1 2 3 4 5"],
    ),
    Case(
        "GroupITCase.testGroupFollowedByZeroOrMore",
        "c:40:1@1 a:41:2@2 b:42:3@3 a:43:4@4 b:44:5@5 d:45:6@6",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by(Pattern.begin("middle1").where(named("a")).followed_by("middle2").where(named("b")))
            .one_or_more()
            .optional()
            .followed_by("end")
            .where(named("d"))
        ),
        ["0 5", "0 1 2 5", "0 1 2 3 4 5"],
    ),
    Case(
        "GroupITCase.testGroupFollowedByAnyTimesCombinations",
        "c:40:1@1 a:41:2@2 b:42:3@3 a:43:4@4 b:44:5@5 a:45:4@6 b:46:5@7 d:47:6@8",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any(Pattern.begin("middle1").where(named("a")).followed_by("middle2").where(named("b")))
            .times(2)
            .allow_combinations()
            .followed_by("end")
            .where(named("d"))
        ),
        ["0 1 2 3 4 7", "0 1 2 5 6 7", "0 3 4 5 6 7"],
    ),
    Case(
        "GroupITCase.testGroupFollowedByAnyTimesOptional",
        "c:40:1@1 a:41:2@2 b:42:3@3 a:43:4@4 b:44:5@5 a:45:4@6 b:46:5@7 d:47:6@8",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any(Pattern.begin("middle1").where(named("a")).followed_by("middle2").where(named("b")))
            .times(2)
            .optional()
            .followed_by("end")
            .where(named("d"))
        ),
        ["0 7", "0 1 2 3 4 7", "0 3 4 5 6 7"],
    ),
    Case(
        "GroupITCase.testGroupFollowedByAnyOneOrMore",
        "c:40:1@1 a:41:2@2 b:42:3@3 a:43:4@4 b:44:5@5 a:45:4@6 b:46:5@7 d:47:6@8",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any(Pattern.begin("middle1").where(named("a")).followed_by("middle2").where(named("b")))
            .one_or_more()
            .followed_by("end")
            .where(named("d"))
        ),
        ["0 1 2 7", "0 3 4 7", "0 5 6 7", "0 1 2 3 4 7", "0 3 4 5 6 7", "0 1 2 3 4 5 6 7"],
    ),
    Case(
        "GroupITCase.testGroupNextZeroOrMore",
        "c:40:1@1 a:41:2@3 b:42:3@4 a:43:3@5 b:44:3@6 a:45:4@7 b:46:3@8 d:47:1@9",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .next(Pattern.begin("middle1").where(named("a")).followed_by("middle2").where(named("b")))
            .one_or_more()
            .optional()
            .consecutive()
            .followed_by("end")
            .where(named("d"))
        ),
        ["0 7", "0 1 2 7", "0 1 2 3 4 7", "0 1 2 3 4 5 6 7"],
    ),
    Case(
        "GroupITCase.testGroupNotFollowedBy",
        "c:40:1@1 a:41:2@2 b:42:3@3 d:43:3@4 a:44:4@5 b:45:5@6 e:46:6@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any(Pattern.begin("middle1").where(named("a")).followed_by("middle2").where(named("b")))
            .not_followed_by("notPattern")
            .where(named("d"))
            .followed_by("end")
            .where(named("e"))
        ),
        ["0 4 5 6"],
    ),
    Case(
        "GroupITCase.testGroupNotNext",
        "c:40:1@1 a:41:2@2 b:42:3@3 d:43:3@4 a:44:4@5 b:45:5@6 e:46:6@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any(Pattern.begin("middle1").where(named("a")).followed_by("middle2").where(named("b")))
            .not_next("notPattern")
            .where(named("d"))
            .followed_by("end")
            .where(named("e"))
        ),
        ["0 4 5 6"],
    ),
    Case(
        "GroupITCase.testGroupNest",
        "d:40:1@1 a:41:2@2 b:42:3@3 c:43:4@4 b:44:5@5 c:45:4@6 e:46:6@7",
        lambda: (
            Pattern.begin("start")
            .where(named("d"))
            .followed_by(
                Pattern.begin("middle1")
                .where(named("a"))
                .followed_by(Pattern.begin("middle2").where(named("b")).followed_by("middle3").where(named("c")))
                .one_or_more()
                .optional()
            )
            .optional()
            .followed_by("end")
            .where(named("e"))
        ),
        ["0 6", "0 1 6", "0 1 2 3 6", "0 1 2 3 4 5 6"],
    ),
    Case(
        "GroupITCase.testGroupNestTimes",
        "d:40:1@1 a:41:2@2 b:42:3@3 c:43:4@4 b:44:5@5 c:45:4@6 b:46:5@7 c:47:4@8 a:48:2@9 b:49:3@10 c:50:4@11 b:51:5@12 c:52:4@13 b:53:5@14 c:54:4@15 e:55:6@16",
        lambda: (
            Pattern.begin("start")
            .where(named("d"))
            .followed_by_any(
                Pattern.begin("middle1")
                .where(named("a"))
                .followed_by(Pattern.begin("middle2").where(named("b")).followed_by("middle3").where(named("c")))
                .times(3)
            )
            .times(0, 2)
            .followed_by("end")
            .where(named("e"))
        ),
        ["0 15", "0 1 2 3 4 5 6 7 15", "0 8 9 10 11 12 13 14 15", "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15"],
    ),
    Case(
        "GroupITCase.testGroupNestTimesConsecutive",
        "d:40:1@1 a:41:2@2 b:42:3@3 c:43:4@4 b:44:5@5 c:45:4@6 b:46:5@7 c:47:4@8 a:48:2@9 b:49:3@10 c:50:4@11 breaking:0:99@12 b:51:5@13 c:52:4@14 b:53:5@15 c:54:4@16 e:55:6@17",
        lambda: (
            Pattern.begin("start")
            .where(named("d"))
            .followed_by_any(
                Pattern.begin("middle1")
                .where(named("a"))
                .followed_by(Pattern.begin("middle2").where(named("b")).followed_by("middle3").where(named("c")))
                .times(3)
                .consecutive()
            )
            .times(0, 2)
            .consecutive()
            .followed_by("end")
            .where(named("e"))
        ),
        ["0 16", "0 1 2 3 4 5 6 7 16"],
    ),
    Case(
        "GroupITCase.testGroupBegin",
        "a:41:2@1 b:42:3@2 a:43:4@3 b:44:5@4 d:45:6@5",
        lambda: (
            Pattern.begin(Pattern.begin("middle1").where(named("a")).followed_by("middle2").where(named("b")))
            .times(1, 2)
            .followed_by("end")
            .where(named("d"))
        ),
        ["0 1 4", "2 3 4", "0 1 2 3 4"],
    ),
    Case(
        "GroupITCase.testGroupFollowedByOneOrMoreWithUntilCondition",
        "c:40:1@1 a:41:2@2 b:42:3@3 a:43:4@4 b:44:5@5 d:45:6@6",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by(Pattern.begin("middle1").where(named("a")).followed_by("middle2").where(named("b")))
            .one_or_more()
            .until(named("d"))
            .followed_by("end")
            .where(named("d"))
        ),
        ["0 1 2 5", "0 1 2 3 4 5"],
    ),
    Case(
        "GroupITCase.testGroupStartsWithOptionalPattern",
        "a:40:1@1 c:41:2@2 d:42:3@3",
        lambda: (
            Pattern.begin("start")
            .where(named("a"))
            .next(Pattern.begin("middle1").where(named("b")).optional().next("middle2").where(named("c")))
            .next("d")
            .where(named("d"))
        ),
        ["0 1 2"],
    ),
    Case(
        "GroupITCase.testFollowedByOptionalGroupPattern",
        "a:40:1@1 d:41:2@2 d:42:3@3",
        lambda: (
            Pattern.begin("start")
            .where(named("a"))
            .followed_by(Pattern.begin("middle1").where(named("b")).next("middle2").where(named("c")))
            .optional()
            .next("d")
            .where(named("d"))
        ),
        ["0 1"],
    ),
    Case(
        "IterativeConditionsITCase.testIterativeWithBranchingPatternEager",
        "start:40:1@1 foo1:41:1:10@2 foo2:42:2:10@3 start:40:2@4 foo3:43:3:10@5 foo4:43:1:10@5 next-one:44:1@6 end:46:1@8",
        lambda: (
            Pattern.begin("start")
            .where(named("start"))
            .followed_by("middle")
            .where(is_sub)
            .where(lambda row, match: row.name.startswith("foo") and total(match["middle"]) + row.price < 5.0)
            .one_or_more()
            .followed_by("end")
            .where(named("end"))
        ),
        ["0 1 7", "3 4 7", "0 1 2 7", "3 4 5 7", "0 1 2 5 7"],
    ),
    Case(
        "IterativeConditionsITCase.testIterativeWithBranchingPatternCombinations",
        "start:40:1@1 foo1:41:1:10@2 foo2:42:2:10@3 start:40:2@4 foo3:43:3:10@5 foo4:43:1:10@5 next-one:44:1@6 end:46:1@8",
        lambda: (
            Pattern.begin("start")
            .where(named("start"))
            .followed_by("middle")
            .where(is_sub)
            .where(lambda row, match: row.name.startswith("foo") and total(match["middle"]) + row.price < 5.0)
            .one_or_more()
            .allow_combinations()
            .followed_by("end")
            .where(named("end"))
        ),
        ["0 1 7", "3 4 7", "0 1 2 7", "0 1 4 7", "0 1 5 7", "3 4 5 7", "0 1 2 5 7"],
    ),
    Case(
        "IterativeConditionsITCase.testIterativeWithLoopingStartingEager",
        "start:40:1@1 start:40:2@2 start:40:3@3 end:46:1@4",
        lambda: (
            Pattern.begin("start")
            .where(lambda row, match: row.name == "start" and total(match["start"]) + row.price < 5.0)
            .one_or_more()
            .optional()
            .followed_by("end")
            .where(named("end"))
        ),
        ["3", "0 3", "1 3", "2 3", "0 1 3"],
    ),
    Case(
        "IterativeConditionsITCase.testIterativeWithLoopingStartingCombination",
        "start:40:1@1 start:40:2@2 start:40:3@3 end:46:1@4",
        lambda: (
            Pattern.begin("start")
            .where(lambda row, match: row.name == "start" and total(match["start"]) + row.price < 5.0)
            .one_or_more()
            .allow_combinations()
            .optional()
            .followed_by("end")
            .where(named("end"))
        ),
        ["3", "0 3", "1 3", "2 3", "0 1 3", "0 2 3"],
    ),
    Case(
        "IterativeConditionsITCase.testIterativeWithPrevPatternDependency",
        "start:40:1@1 start:40:2@2 end:46:1@4",
        lambda: (
            Pattern.begin("start")
            .where(named("start"))
            .one_or_more()
            .followed_by("end")
            .where(lambda row, match: row.name == "end" and total(match["start"]) >= 2.0)
        ),
        ["1 2", "0 1 2"],
    ),
    Case(
        "IterativeConditionsITCase.testIterativeWithABACPattern",
        "start:40:1@1 foo1:41:1:10@2 start:40:2@2 start:40:3@2 foo2:42:2:10@2 start:40:4@2 foo3:43:3:10@2 foo4:43:1:10@2 end:46:1@4",
        lambda: (
            Pattern.begin("start")
            .where(named("start"))
            .followed_by_any("middle1")
            .where(is_sub)
            .where(lambda row: row.name.startswith("foo"))
            .followed_by("middle2")
            .where(lambda row, match: row.name == "start" and total(match["middle2"]) + row.price <= 5.0)
            .one_or_more()
            .followed_by("end")
            .where(named("end"))
        ),
        ["0 1 2 8", "0 4 5 8", "2 4 5 8", "3 4 5 8", "0 1 2 3 8"],
    ),
    Case(
        "IterativeConditionsITCase.testIterativeWithPrevPatternDependencyAfterBranching",
        "start:40:1@1 start:40:2@2 foo1:41:1:10@4 start:40:3@5 foo2:42:2:10@6 end:46:1@7",
        lambda: (
            Pattern.begin("start")
            .where(named("start"))
            .one_or_more()
            .followed_by_any("middle1")
            .where(is_sub)
            .where(lambda row: row.name.startswith("foo"))
            .followed_by_any("end")
            .where(lambda row, match: row.name == "end" and total(match["start"]) >= 2.0)
        ),
        ["1 2 5", "1 4 5", "3 4 5", "0 1 2 5", "0 1 4 5", "1 3 4 5", "0 1 3 4 5"],
    ),
    Case(
        "NFAITCase.testNoConditionNFA",
        "a:40:1@1 b:41:2@2 c:42:3@3 d:43:4@4 e:44:5@5",
        lambda: Pattern.begin("start").followed_by("end"),
        ["0 1", "1 2", "2 3", "3 4"],
    ),
    Case(
        "NFAITCase.testNoConditionLoopingNFA",
        "a:40:1@1 b:41:2@2 c:42:3@3 d:43:4@4 e:44:5@5",
        lambda: Pattern.begin("start").followed_by("end").one_or_more(),
        ["0 1", "1 2", "2 3", "3 4", "0 1 2", "1 2 3", "2 3 4", "0 1 2 3", "1 2 3 4", "0 1 2 3 4"],
    ),
    Case(
        "NFAITCase.testAnyWithNoConditionNFA",
        "a:40:1@1 b:41:2@2 c:42:3@3 d:43:4@4 e:44:5@5",
        lambda: Pattern.begin("start").followed_by_any("end"),
        ["0 1", "0 2", "0 3", "0 4", "1 2", "1 3", "1 4", "2 3", "2 4", "3 4"],
    ),
    Case(
        "NFAITCase.testSimplePatternNFA",
        "start:41:1@1 foobar:43:1@2 barfoo:41:1:5@3 foo:42:1:10@3 start:43:1@4 end:43:1@5",
        lambda: (
            Pattern.begin("start")
            .where(named("start"))
            .followed_by("middle")
            .where(is_sub)
            .where(lambda row: row.volume > 5.0)
            .followed_by("end")
            .where(named("end"))
        ),
        ["0 3 5"],
    ),
    Case(
        "NFAITCase.testStrictContinuityWithResults",
        "a:41:2@3 b:42:4@5",
        lambda: Pattern.begin("middle").where(named("a")).next("end").where(named("b")),
        ["0 1"],
    ),
    Case(
        "NFAITCase.testStrictContinuityNoResults",
        "a:41:2@3 c:42:3@4 b:43:4@5",
        lambda: Pattern.begin("middle").where(named("a")).next("end").where(named("b")),
        [],
    ),
    Case(
        "NFAITCase.testSimplePatternWithTimeWindowNFAWithinFirstAndLast",
        "start:1:1@1 start:2:1@2 middle:3:1@3 foobar:4:1@4 end:5:1@11 end:6:1@13",
        lambda: (
            Pattern.begin("start")
            .where(named("start"))
            .followed_by("middle")
            .where(named("middle"))
            .followed_by("end")
            .where(named("end"))
            .within(10)
        ),
        ["1 2 4"],
    ),
    Case(
        "NFAITCase.testSimplePatternWithTimeWindowNFAWithinPreviousAndCurrent",
        "start:1:1@1 start:2:1@2 middle:3:1@3 foobar:4:1@4 end:5:1@11 end:6:1@13",
        lambda: (
            Pattern.begin("start")
            .where(named("start"))
            .followed_by("middle")
            .where(named("middle"))
            .followed_by("end")
            .where(named("end"))
            .within(9, since="previous")
        ),
        ["0 2 4", "1 2 4"],
    ),
    Case(
        "NFAITCase.testBranchingPattern",
        "start:40:1@1 foo1:41:1:10@3 foo2:42:1:10@4 foo3:43:1:10@5 next-one:44:1:2@6 next-one:45:1:2@7 end:46:1@8",
        lambda: (
            Pattern.begin("start")
            .where(named("start"))
            .followed_by_any("middle-first")
            .where(is_sub)
            .where(lambda row: row.volume > 5.0)
            .followed_by_any("middle-second")
            .where(is_sub)
            .where(named("next-one"))
            .followed_by_any("end")
            .where(named("end"))
        ),
        ["0 1 4 6", "0 1 5 6", "0 2 4 6", "0 2 5 6", "0 3 4 6", "0 3 5 6"],
    ),
    Case(
        "NFAITCase.testComplexBranchingAfterZeroOrMore",
        "c:40:1@1 a:41:2@3 a:42:3@4 a:43:4@5 b:44:5@6 d:45:6@7 d:46:7@8 e:47:8@9",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .one_or_more()
            .allow_combinations()
            .optional()
            .followed_by_any("end1")
            .where(named("b"))
            .followed_by_any("end2")
            .where(named("d"))
            .followed_by_any("end3")
            .where(named("e"))
        ),
        [
            "0 4 5 7",
            "0 4 6 7",
            "0 1 4 5 7",
            "0 1 4 6 7",
            "0 2 4 5 7",
            "0 2 4 6 7",
            "0 3 4 5 7",
            "0 3 4 6 7",
            "0 1 2 4 5 7",
            "0 1 2 4 6 7",
            "0 1 3 4 5 7",
            "0 1 3 4 6 7",
            "0 2 3 4 5 7",
            "0 2 3 4 6 7",
            "0 1 2 3 4 5 7",
            "0 1 2 3 4 6 7",
        ],
    ),
    Case(
        "NFAITCase.testZeroOrMore",
        "c:40:1@1 a:41:2@3 a:42:3@4 b:44:5@6",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .one_or_more()
            .allow_combinations()
            .optional()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 3", "0 1 3", "0 2 3", "0 1 2 3"],
    ),
    Case(
        "NFAITCase.testEagerZeroOrMore",
        "c:40:1@1 a:41:2@3 a:42:3@4 d:50:6@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .one_or_more()
            .optional()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 5", "0 1 5", "0 1 2 5", "0 1 2 4 5"],
    ),
    Case(
        "NFAITCase.testBeginWithZeroOrMore",
        "a:40:2@3 a:41:3@4 a:41:3@5 b:42:4@6",
        lambda: Pattern.begin("middle").where(named("a")).one_or_more().optional().followed_by("end").where(named("b")),
        ["3", "0 3", "1 3", "1 3", "0 1 3", "1 1 3", "0 1 1 3"],
    ),
    Case(
        "NFAITCase.testZeroOrMoreAfterZeroOrMore",
        "c:40:1@1 a:41:2@3 d:42:3@4 d:43:4@5 e:44:4@6",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle-first")
            .where(named("a"))
            .one_or_more()
            .allow_combinations()
            .optional()
            .followed_by("middle-second")
            .where(named("d"))
            .one_or_more()
            .allow_combinations()
            .optional()
            .followed_by("end")
            .where(named("e"))
        ),
        ["0 4", "0 1 4", "0 2 4", "0 1 2 4", "0 2 3 4", "0 1 2 3 4"],
    ),
    Case(
        "NFAITCase.testZeroOrMoreAfterBranching",
        "c:40:1@1 a:41:2@3 a:42:3@4 f:42:3@5 d:43:4@6 d:44:4@7 e:45:4@8",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("branching")
            .where(named("a"))
            .followed_by_any("merging")
            .where(named("f"))
            .followed_by_any("kleene")
            .where(named("d"))
            .one_or_more()
            .allow_combinations()
            .optional()
            .followed_by("end")
            .where(named("e"))
        ),
        ["0 1 3 6", "0 2 3 6", "0 1 3 4 6", "0 1 3 5 6", "0 2 3 4 6", "0 2 3 5 6", "0 1 3 4 5 6", "0 2 3 4 5 6"],
    ),
    Case(
        "NFAITCase.testStrictContinuityNoResultsAfterZeroOrMore",
        "d:40:2@1 a:41:2@2 a:42:2@3 c:43:3@4 b:44:4@5",
        lambda: (
            Pattern.begin("start")
            .where(named("d"))
            .followed_by("middle")
            .where(named("a"))
            .one_or_more()
            .optional()
            .next("end")
            .where(named("b"))
        ),
        [],
    ),
    Case(
        "NFAITCase.testStrictContinuityResultsAfterZeroOrMore",
        "d:40:2@1 a:41:2@2 a:42:2@3 b:43:4@5",
        lambda: (
            Pattern.begin("start")
            .where(named("d"))
            .followed_by_any("middle")
            .where(named("a"))
            .one_or_more()
            .optional()
            .allow_combinations()
            .next("end")
            .where(named("b"))
        ),
        ["0 2 3", "0 1 2 3"],
    ),
    Case(
        "NFAITCase.testAtLeastOne",
        "c:40:1@1 a:41:2@3 a:42:3@4 b:44:5@6",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .one_or_more()
            .allow_combinations()
            .followed_by_any("end1")
            .where(named("b"))
        ),
        ["0 1 3", "0 2 3", "0 1 2 3"],
    ),
    Case(
        "NFAITCase.testBeginWithAtLeastOne",
        "a:41:2@3 a:42:3@4 a:42:4@5 b:44:5@6",
        lambda: (
            Pattern.begin("start")
            .where(named("a"))
            .one_or_more()
            .allow_combinations()
            .followed_by("end")
            .where(named("b"))
        ),
        ["0 3", "1 3", "2 3", "0 1 3", "0 2 3", "1 2 3", "0 1 2 3"],
    ),
    Case(
        "NFAITCase.testNextZeroOrMore",
        "start:40:1@1 event:1:1@2 middle:40:2@3 middle:40:3@4 middle:40:4@5 end:46:1@6",
        lambda: (
            Pattern.begin("start")
            .where(named("start"))
            .next("middle")
            .where(named("middle"))
            .one_or_more()
            .optional()
            .consecutive()
            .followed_by("end")
            .where(named("end"))
        ),
        ["0 5"],
    ),
    Case(
        "NFAITCase.testAtLeastOneEager",
        "c:40:1@1 a:41:2@3 a:42:3@4 a:43:4@5 b:44:5@6",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .one_or_more()
            .followed_by_any("end1")
            .where(named("b"))
        ),
        ["0 1 4", "0 2 4", "0 3 4", "0 1 2 4", "0 2 3 4", "0 1 2 3 4"],
    ),
    Case(
        "NFAITCase.testOptional",
        "c:40:1@1 a:43:4@5 b:44:5@6",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .optional()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 2", "0 1 2"],
    ),
    Case(
        "NFAITCase.testTimes",
        "c:40:1@1 a:41:2@2 a:42:3@3 a:43:4@4 b:44:5@6",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .next("middle")
            .where(named("a"))
            .times(2)
            .allow_combinations()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 1 2 4", "0 1 3 4"],
    ),
    Case(
        "NFAITCase.testStartWithTimes",
        "a:41:2@2 a:42:3@3 a:43:4@4 b:44:5@6",
        lambda: Pattern.begin("middle").where(named("a")).times(2).consecutive().followed_by("end1").where(named("b")),
        ["0 1 3", "1 2 3"],
    ),
    Case(
        "NFAITCase.testTimesNonStrictWithNext",
        "c:40:1@1 a:41:2@2 f:23:1@3 a:42:3@4 f:23:1@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .next("middle")
            .where(named("a"))
            .times(2)
            .allow_combinations()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 1 3 6", "0 1 5 6"],
    ),
    Case(
        "NFAITCase.testTimesNotStrictWithFollowedByEager",
        "c:40:1@1 a:41:2@2 a:42:3@4 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .times(2)
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 1 2 4"],
    ),
    Case(
        "NFAITCase.testTimesNotStrictWithFollowedByNotEager",
        "c:40:1@1 a:41:2@2 a:42:3@4 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .times(2)
            .allow_combinations()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 1 2 4", "0 1 3 4", "0 2 3 4"],
    ),
    Case(
        "NFAITCase.testTimesStrictWithNextAndConsecutive",
        "c:40:1@1 a:41:2@2 f:23:1@3 a:42:3@4 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .next("middle")
            .where(named("a"))
            .times(2)
            .consecutive()
            .followed_by("end1")
            .where(named("b"))
        ),
        [],
    ),
    Case(
        "NFAITCase.testStartWithOptional",
        "c:40:1@1 b:44:5@6",
        lambda: Pattern.begin("start").where(named("c")).optional().followed_by("end1").where(named("b")),
        ["1", "0 1"],
    ),
    Case(
        "NFAITCase.testEndWithZeroOrMore",
        "c:40:1@1 a:41:2@3 a:42:3@4 a:43:4@5",
        lambda: (
            Pattern.begin("start").where(named("c")).followed_by("middle").where(named("a")).one_or_more().optional()
        ),
        ["0", "0 1", "0 1 2", "0 1 2 3"],
    ),
    Case(
        "NFAITCase.testStartAndEndWithZeroOrMore",
        "c:40:1@1 a:41:2@3 a:42:3@4 a:43:4@5 d:44:5@6 d:45:5@6 d:46:5@6",
        lambda: Pattern.begin("start").where(named("a")).one_or_more().optional(),
        ["1", "2", "3", "1 2", "2 3", "1 2 3"],
    ),
    Case(
        "NFAITCase.testEndWithOptional",
        "c:40:1@1 a:41:2@3",
        lambda: Pattern.begin("start").where(named("c")).followed_by("middle").where(named("a")).optional(),
        ["0", "0 1"],
    ),
    Case(
        "NFAITCase.testEndWithOneOrMore",
        "c:40:1@1 a:41:2@3 a:42:3@4 a:43:4@5",
        lambda: Pattern.begin("start").where(named("c")).followed_by("middle").where(named("a")).one_or_more(),
        ["0 1", "0 1 2", "0 1 2 3"],
    ),
    Case(
        "NFAITCase.testTimesNonStrictOptional1",
        "c:40:1@1 f:23:1@2 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .times(3)
            .optional()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 2"],
    ),
    Case(
        "NFAITCase.testTimesNonStrictOptional2",
        "c:40:1@1 f:23:1@2 a:41:2@3 f:23:1@4 a:42:3@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .times(2)
            .allow_combinations()
            .optional()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 6", "0 2 4 6", "0 2 5 6", "0 4 5 6"],
    ),
    Case(
        "NFAITCase.testTimesNonStrictOptional3",
        "c:40:1@1 f:23:1@2 a:41:2@3 f:23:1@4 a:42:3@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .times(2)
            .optional()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 6", "0 2 4 6", "0 4 5 6"],
    ),
    Case(
        "NFAITCase.testTimesStrictOptional",
        "c:40:1@1 f:23:1@2 a:41:2@3 f:23:1@4 a:42:3@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .times(2)
            .consecutive()
            .optional()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 6", "0 4 5 6"],
    ),
    Case(
        "NFAITCase.testOneOrMoreStrictOptional",
        "c:40:1@1 f:23:1@2 a:41:2@3 f:23:1@4 a:42:3@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .one_or_more()
            .consecutive()
            .optional()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 6", "0 2 6", "0 4 6", "0 5 6", "0 4 5 6"],
    ),
    Case(
        "NFAITCase.testTimesStrictOptional1",
        "c:40:1@1 a:41:2@3 a:42:3@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .next("middle")
            .where(named("a"))
            .times(2)
            .consecutive()
            .optional()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 4", "0 1 2 4"],
    ),
    Case(
        "NFAITCase.testOptionalTimesNonStrictWithNext",
        "c:40:1@1 a:41:2@2 f:23:1@3 a:42:3@4 f:23:1@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .next("middle")
            .where(named("a"))
            .times(2)
            .allow_combinations()
            .optional()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 6", "0 1 3 6", "0 1 5 6"],
    ),
    Case(
        "NFAITCase.testStrictOneOrMore",
        "c:40:1@1 d:50:6@2 a:41:2@3 a:42:3@4 a:43:4@4 d:50:6@5 a:43:5@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .one_or_more()
            .consecutive()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 2 7", "0 2 3 7", "0 2 3 4 7"],
    ),
    Case(
        "NFAITCase.testSkipTillNextOneOrMore",
        "c:40:1@1 d:50:6@2 a:41:2@3 a:42:3@4 a:43:4@4 d:50:6@5 a:43:5@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .one_or_more()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 2 7", "0 2 3 7", "0 2 3 4 7", "0 2 3 4 6 7"],
    ),
    Case(
        "NFAITCase.testSkipTillAnyOneOrMore",
        "c:40:1@1 d:50:6@2 a:41:2@3 a:42:3@4 a:43:4@4 d:50:6@5 a:43:5@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .one_or_more()
            .allow_combinations()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 2 7", "0 2 3 7", "0 2 4 7", "0 2 6 7", "0 2 3 4 7", "0 2 3 6 7", "0 2 4 6 7", "0 2 3 4 6 7"],
    ),
    Case(
        "NFAITCase.testStrictEagerZeroOrMore",
        "c:40:1@1 d:50:6@2 a:41:2@3 a:42:3@4 a:43:4@4 d:50:6@5 a:43:5@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .one_or_more()
            .optional()
            .consecutive()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 7", "0 2 7", "0 2 3 7", "0 2 3 4 7"],
    ),
    Case(
        "NFAITCase.testSkipTillAnyZeroOrMore",
        "c:40:1@1 d:50:6@2 a:41:2@3 a:42:3@4 a:43:4@4 d:50:6@5 a:43:5@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .one_or_more()
            .optional()
            .allow_combinations()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 7", "0 2 7", "0 2 3 7", "0 2 4 7", "0 2 6 7", "0 2 3 4 7", "0 2 3 6 7", "0 2 4 6 7", "0 2 3 4 6 7"],
    ),
    Case(
        "NFAITCase.testSkipTillNextZeroOrMore",
        "c:40:1@1 d:50:6@2 a:41:2@3 a:42:3@4 a:43:4@4 d:50:6@5 a:43:5@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .one_or_more()
            .optional()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 7", "0 2 7", "0 2 3 7", "0 2 3 4 7", "0 2 3 4 6 7"],
    ),
    Case(
        "NFAITCase.testTimesStrict",
        "c:40:1@1 f:23:1@2 a:41:2@3 f:23:1@4 a:42:3@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .times(2)
            .consecutive()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 4 5 6"],
    ),
    Case(
        "NFAITCase.testTimesNonStrict",
        "c:40:1@1 f:23:1@2 a:41:2@3 f:23:1@4 a:42:3@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .times(2)
            .allow_combinations()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 2 4 6", "0 2 5 6", "0 4 5 6"],
    ),
    Case(
        "NFAITCase.testStartWithZeroOrMoreStrict",
        "c:40:1@1 a:41:2@3 c:40:1@4 a:42:3@5 a:43:4@6",
        lambda: Pattern.begin("start").where(named("a")).one_or_more().optional().consecutive(),
        ["1", "3", "4", "3 4"],
    ),
    Case(
        "NFAITCase.testStartWithOneOrMoreStrict",
        "c:40:1@1 a:41:2@3 c:40:1@4 a:42:3@5 a:43:4@6",
        lambda: Pattern.begin("start").where(named("a")).one_or_more().consecutive(),
        ["1", "3", "4", "3 4"],
    ),
    Case(
        "NFAITCase.testBranchingPatternSkipTillNext",
        "start:40:1@1 foo1:41:1:10@3 foo2:42:1:10@4 foo3:43:1:10@5 next-one:44:1:2@6 next-one:45:1:2@7 end:46:1@8",
        lambda: (
            Pattern.begin("start")
            .where(named("start"))
            .followed_by("middle-first")
            .where(is_sub)
            .where(lambda row: row.volume > 5.0)
            .followed_by("middle-second")
            .where(is_sub)
            .where(named("next-one"))
            .followed_by_any("end")
            .where(named("end"))
        ),
        ["0 1 4 6"],
    ),
    Case(
        "NFAITCase.testBranchingPatternMixedFollowedBy",
        "start:40:1@1 foo1:41:1:10@3 foo2:42:1:10@4 foo3:43:1:10@5 next-one:44:1:2@6 next-one:45:1:2@7 end:46:1@8",
        lambda: (
            Pattern.begin("start")
            .where(named("start"))
            .followed_by_any("middle-first")
            .where(is_sub)
            .where(lambda row: row.volume > 5.0)
            .followed_by("middle-second")
            .where(is_sub)
            .where(named("next-one"))
            .followed_by_any("end")
            .where(named("end"))
        ),
        ["0 1 4 6", "0 2 4 6", "0 3 4 6"],
    ),
    Case(
        "NFAITCase.testMultipleTakesVersionCollision",
        "c:40:1@1 a:41:2@3 a:41:3@4 a:41:4@5 a:41:5@6 a:41:6@7 b:44:5@10",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle1")
            .where(named("a"))
            .one_or_more()
            .allow_combinations()
            .followed_by("middle2")
            .where(named("a"))
            .one_or_more()
            .allow_combinations()
            .followed_by("end")
            .where(named("b"))
        ),
        [
            "0 1 2 6",
            "0 1 2 3 6",
            "0 1 2 3 6",
            "0 1 2 4 6",
            "0 1 2 5 6",
            "0 1 3 4 6",
            "0 1 4 5 6",
            "0 1 2 3 4 6",
            "0 1 2 3 4 6",
            "0 1 2 3 4 6",
            "0 1 2 3 5 6",
            "0 1 2 3 5 6",
            "0 1 2 4 5 6",
            "0 1 2 4 5 6",
            "0 1 3 4 5 6",
            "0 1 3 4 5 6",
            "0 1 2 3 4 5 6",
            "0 1 2 3 4 5 6",
            "0 1 2 3 4 5 6",
            "0 1 2 3 4 5 6",
        ],
    ),
    Case(
        "NotPatternITCase.testNotNext",
        "a:40:1@1 c:41:2@2 b:42:3@3 c:43:4@4 d:43:4@5",
        lambda: (
            Pattern.begin("start")
            .where(named("a"))
            .not_next("notPattern")
            .where(named("b"))
            .followed_by_any("middle")
            .where(named("c"))
            .followed_by("end")
            .where(named("d"))
        ),
        ["0 1 4", "0 3 4"],
    ),
    Case(
        "NotPatternITCase.testNotNextNoMatches",
        "a:40:1@1 b:42:3@2 c:41:2@3 c:43:4@4 d:43:4@5",
        lambda: (
            Pattern.begin("start")
            .where(named("a"))
            .not_next("notPattern")
            .where(named("b"))
            .followed_by("middle")
            .where(named("c"))
            .followed_by("end")
            .where(named("d"))
        ),
        [],
    ),
    Case(
        "NotPatternITCase.testNotNextNoMatchesAtTheEnd",
        "a:40:1@1 c:41:2@2 c:43:4@3 d:43:4@4 b:42:3@5",
        lambda: (
            Pattern.begin("start")
            .where(named("a"))
            .followed_by_any("middle")
            .where(named("c"))
            .followed_by_any("end")
            .where(named("d"))
            .not_next("notPattern")
            .where(named("b"))
        ),
        [],
    ),
    Case(
        "NotPatternITCase.testNotFollowedBy",
        "a:40:1@1 c:41:2@2 b:42:3@3 c:43:4@4 d:43:4@5",
        lambda: (
            Pattern.begin("start")
            .where(named("a"))
            .not_followed_by("notPattern")
            .where(named("b"))
            .followed_by_any("middle")
            .where(named("c"))
            .followed_by("end")
            .where(named("d"))
        ),
        ["0 1 4"],
    ),
    Case(
        "NotPatternITCase.testNotFollowedByBeforeOptional",
        "a:40:1@1 c:41:2@2 b:42:3@3 c:43:4@4 d:43:4@5",
        lambda: (
            Pattern.begin("start")
            .where(named("a"))
            .not_followed_by("notPattern")
            .where(named("b"))
            .followed_by_any("middle")
            .where(named("c"))
            .optional()
            .followed_by("end")
            .where(named("d"))
        ),
        ["0 1 4"],
    ),
    Case(
        "NotPatternITCase.testTimesWithNotFollowedBy",
        "a:40:1@1 b:41:2@2 c:42:3@3 b:43:4@4 d:43:4@5",
        lambda: (
            Pattern.begin("start")
            .where(named("a"))
            .followed_by_any("middle")
            .where(named("b"))
            .times(2)
            .not_followed_by("notPattern")
            .where(named("c"))
            .followed_by("end")
            .where(named("d"))
        ),
        [],
    ),
    Case(
        "NotPatternITCase.testIgnoreStateOfTimesWithNotFollowedBy",
        "a:40:1@1 d:45:6@2 e:41:2@3 b:43:4@4 c:42:3@5 c:44:5@6 d:46:7@7",
        lambda: (
            Pattern.begin("start")
            .where(named("a"))
            .not_followed_by("notPattern")
            .where(named("b"))
            .followed_by_any("middle")
            .where(named("c"))
            .times(2)
            .optional()
            .followed_by("end")
            .where(named("d"))
        ),
        ["0 1"],
    ),
    Case(
        "NotPatternITCase.testTimesWithNotFollowedByAfter",
        "a:40:1@1 d:46:7@2 e:41:2@3 b:43:4@4 b:44:5@5 c:42:3@6 d:47:8@7",
        lambda: (
            Pattern.begin("start")
            .where(named("a"))
            .followed_by_any("middle")
            .where(named("b"))
            .times(2)
            .not_followed_by("notPattern")
            .where(named("c"))
            .followed_by("end")
            .where(named("d"))
        ),
        [],
    ),
    Case(
        "NotPatternITCase.testNotFollowedByBeforeOptionalAtTheEnd",
        "a:40:1@1 c:41:2@2 b:42:3@3 c:43:4@4",
        lambda: (
            Pattern.begin("start")
            .where(named("a"))
            .not_followed_by("notPattern")
            .where(named("b"))
            .followed_by_any("end")
            .where(named("c"))
            .optional()
        ),
        ["0", "0 1"],
    ),
    Case(
        "NotPatternITCase.testNotFollowedByBeforeOptionalTimes",
        "a:40:1@1 c:41:2@2 b:42:3@3 c:43:4@4 d:43:4@5",
        lambda: (
            Pattern.begin("start")
            .where(named("a"))
            .not_followed_by("notPattern")
            .where(named("b"))
            .followed_by_any("middle")
            .where(named("c"))
            .times(2)
            .optional()
            .followed_by("end")
            .where(named("d"))
        ),
        ["0 1 3 4"],
    ),
    Case(
        "NotPatternITCase.testNotFollowedByWithBranchingAtStart",
        "a:40:1@1 b:42:3@2 c:41:2@3 a:41:4@4 c:43:5@5 d:43:6@6",
        lambda: (
            Pattern.begin("start")
            .where(named("a"))
            .not_followed_by("notPattern")
            .where(named("b"))
            .followed_by("middle")
            .where(named("c"))
            .followed_by("end")
            .where(named("d"))
        ),
        ["3 4 5"],
    ),
    Case(
        "NotPatternITCase.testNotNextAfterOneOrMoreSkipTillNext",
        "a:40:1@1 b:41:2@2 c:43:5@3 b:42:3@4 d:43:9@5",
        lambda: (
            Pattern.begin("a")
            .where(named("a"))
            .followed_by("b*")
            .where(named("b"))
            .one_or_more()
            .not_next("not c")
            .where(named("c"))
            .followed_by("d")
            .where(named("d"))
        ),
        [],
    ),
    Case(
        "NotPatternITCase.testNotNextAfterOneOrMoreSkipTillAny",
        "a:40:1@1 b:41:2@2 c:43:5@3 b:42:3@4 d:43:9@5",
        lambda: (
            Pattern.begin("a")
            .where(named("a"))
            .followed_by_any("b*")
            .where(named("b"))
            .one_or_more()
            .not_next("not c")
            .where(named("c"))
            .followed_by("d")
            .where(named("d"))
        ),
        ["0 3 4"],
    ),
    Case(
        "NotPatternITCase.testNotFollowedByNextAfterOneOrMoreEager",
        "a:40:1@1 b:41:2@2 b:42:3@3 b:42:4@4 c:43:5@5 b:42:6@6 b:42:7@7 b:42:8@8 d:43:9@8",
        lambda: (
            Pattern.begin("a")
            .where(named("a"))
            .followed_by("b*")
            .where(named("b"))
            .one_or_more()
            .not_followed_by("not c")
            .where(named("c"))
            .followed_by("d")
            .where(named("d"))
        ),
        [],
    ),
    Case(
        "NotPatternITCase.testNotFollowedByAnyAfterOneOrMoreEager",
        "a:40:1@1 b:41:2@2 b:42:3@3 b:42:4@4 c:43:5@5 b:42:6@6 b:42:7@7 b:42:8@8 d:43:9@8",
        lambda: (
            Pattern.begin("a")
            .where(named("a"))
            .followed_by_any("b*")
            .where(named("b"))
            .one_or_more()
            .not_followed_by("not c")
            .where(named("c"))
            .followed_by("d")
            .where(named("d"))
        ),
        ["0 5 8", "0 6 8", "0 7 8", "0 5 6 8", "0 6 7 8", "0 5 6 7 8"],
    ),
    Case(
        "NotPatternITCase.testNotFollowedByNextAfterOneOrMoreCombinations",
        "a:40:1@1 b:41:2@2 b:42:3@3 b:42:4@4 c:43:5@5 b:42:6@6 b:42:7@7 b:42:8@8 d:43:9@8",
        lambda: (
            Pattern.begin("a")
            .where(named("a"))
            .followed_by("b*")
            .where(named("b"))
            .one_or_more()
            .allow_combinations()
            .not_followed_by("not c")
            .where(named("c"))
            .followed_by("d")
            .where(named("d"))
        ),
        [],
    ),
    Case(
        "NotPatternITCase.testNotFollowedByAnyAfterOneOrMoreCombinations",
        "a:40:1@1 b:41:2@2 b:42:3@3 b:42:4@4 c:43:5@5 b:42:6@6 b:42:7@7 b:42:8@8 d:43:9@8",
        lambda: (
            Pattern.begin("a")
            .where(named("a"))
            .followed_by_any("b*")
            .where(named("b"))
            .one_or_more()
            .allow_combinations()
            .not_followed_by("not c")
            .where(named("c"))
            .followed_by("d")
            .where(named("d"))
        ),
        ["0 5 8", "0 6 8", "0 7 8", "0 5 6 8", "0 5 7 8", "0 6 7 8", "0 5 6 7 8"],
    ),
    Case(
        "NotPatternITCase.testNotFollowedByAnyBeforeOneOrMoreEager",
        "a:40:1@1 b:41:2@2 c:43:5@3 b:42:6@4 b:42:7@5 b:42:8@6 d:43:9@6",
        lambda: (
            Pattern.begin("a")
            .where(named("a"))
            .not_followed_by("not c")
            .where(named("c"))
            .followed_by_any("b*")
            .where(named("b"))
            .one_or_more()
            .followed_by("d")
            .where(named("d"))
        ),
        ["0 1 6", "0 1 3 6", "0 1 3 4 6", "0 1 3 4 5 6"],
    ),
    Case(
        "NotPatternITCase.testNotFollowedByAnyBeforeOneOrMoreCombinations",
        "a:40:1@1 b:41:2@2 c:43:5@3 b:42:6@4 b:42:7@5 b:42:8@6 d:43:9@6",
        lambda: (
            Pattern.begin("a")
            .where(named("a"))
            .not_followed_by("not c")
            .where(named("c"))
            .followed_by_any("b*")
            .where(named("b"))
            .one_or_more()
            .allow_combinations()
            .followed_by("d")
            .where(named("d"))
        ),
        ["0 1 6", "0 1 3 6", "0 1 4 6", "0 1 5 6", "0 1 3 4 6", "0 1 3 5 6", "0 1 4 5 6", "0 1 3 4 5 6"],
    ),
    Case(
        "NotPatternITCase.testNotFollowedByBeforeOneOrMoreEager",
        "a:40:1@1 b:41:2@2 c:43:5@3 b:42:6@4 b:42:7@5 b:42:8@6 d:43:9@6",
        lambda: (
            Pattern.begin("a")
            .where(named("a"))
            .not_followed_by("not c")
            .where(named("c"))
            .followed_by("b*")
            .where(named("b"))
            .one_or_more()
            .followed_by("d")
            .where(named("d"))
        ),
        ["0 1 6", "0 1 3 6", "0 1 3 4 6", "0 1 3 4 5 6"],
    ),
    Case(
        "NotPatternITCase.testNotFollowedByBeforeOneOrMoreCombinations",
        "a:40:1@1 b:41:2@2 c:43:5@3 b:42:6@4 b:42:7@5 b:42:8@6 d:43:9@6",
        lambda: (
            Pattern.begin("a")
            .where(named("a"))
            .not_followed_by("not c")
            .where(named("c"))
            .followed_by("b*")
            .where(named("b"))
            .one_or_more()
            .allow_combinations()
            .followed_by("d")
            .where(named("d"))
        ),
        ["0 1 6", "0 1 3 6", "0 1 4 6", "0 1 5 6", "0 1 3 4 6", "0 1 3 5 6", "0 1 4 5 6", "0 1 3 4 5 6"],
    ),
    Case(
        "NotPatternITCase.testNotFollowedByBeforeZeroOrMoreEagerSkipTillNext",
        "a:40:1@1 b:41:2@2 c:43:5@3 b:42:6@4 b:42:7@5 b:42:8@6 d:43:9@6",
        lambda: (
            Pattern.begin("a")
            .where(named("a"))
            .not_followed_by("not c")
            .where(named("c"))
            .followed_by("b*")
            .where(named("b"))
            .one_or_more()
            .optional()
            .followed_by("d")
            .where(named("d"))
        ),
        ["0 1 6", "0 1 3 6", "0 1 3 4 6", "0 1 3 4 5 6"],
    ),
    Case(
        "NotPatternITCase.testNotFollowedByBeforeZeroOrMoreCombinationsSkipTillNext",
        "a:40:1@1 b:41:2@2 c:43:5@3 b:42:6@4 b:42:7@5 b:42:8@6 d:43:9@6",
        lambda: (
            Pattern.begin("a")
            .where(named("a"))
            .not_followed_by("not c")
            .where(named("c"))
            .followed_by("b*")
            .where(named("b"))
            .one_or_more()
            .optional()
            .allow_combinations()
            .followed_by("d")
            .where(named("d"))
        ),
        ["0 1 6", "0 1 3 6", "0 1 4 6", "0 1 5 6", "0 1 3 4 6", "0 1 3 5 6", "0 1 4 5 6", "0 1 3 4 5 6"],
    ),
    Case(
        "NotPatternITCase.testNotFollowedByBeforeZeroOrMoreEagerSkipTillAny",
        "a:40:1@1 b:41:2@2 c:43:5@3 b:42:6@4 b:42:7@5 b:42:8@6 d:43:9@6",
        lambda: (
            Pattern.begin("a")
            .where(named("a"))
            .not_followed_by("not c")
            .where(named("c"))
            .followed_by_any("b*")
            .where(named("b"))
            .one_or_more()
            .optional()
            .followed_by("d")
            .where(named("d"))
        ),
        ["0 1 6", "0 1 3 6", "0 1 3 4 6", "0 1 3 4 5 6"],
    ),
    Case(
        "NotPatternITCase.testNotFollowedByBeforeZeroOrMoreCombinationsSkipTillAny",
        "a:40:1@1 b:41:2@2 c:43:5@3 b:42:6@4 b:42:7@5 b:42:8@6 d:43:9@6",
        lambda: (
            Pattern.begin("a")
            .where(named("a"))
            .not_followed_by("not c")
            .where(named("c"))
            .followed_by_any("b*")
            .where(named("b"))
            .one_or_more()
            .optional()
            .allow_combinations()
            .followed_by("d")
            .where(named("d"))
        ),
        ["0 1 6", "0 1 3 6", "0 1 4 6", "0 1 5 6", "0 1 3 4 6", "0 1 3 5 6", "0 1 4 5 6", "0 1 3 4 5 6"],
    ),
    Case(
        "NotPatternITCase.testNotFollowedByWithinFirstAndLastAtEnd",
        "a:40:1@1 b:41:2@2 a:42:3@4 c:43:4@5 b:44:5@10 a:45:7@11 b:46:8@13",
        lambda: Pattern.begin("a").where(named("a")).not_followed_by("b").where(named("b")).within(3),
        ["2"],
    ),
    Case(
        "NotPatternITCase.testNotFollowedByWithinPreviousAndCurrentAtEnd",
        "a:40:1@1 b:41:2@2 a:42:3@4 c:43:4@5 b:44:5@10 a:45:7@11 b:46:8@13",
        lambda: Pattern.begin("a").where(named("a")).not_followed_by("b").where(named("b")).within(3, since="previous"),
        ["2"],
    ),
    Case(
        "NotPatternITCase.testNotFollowByBeforeTimesWithin",
        "a:40:1@1 b:41:2@2 a:42:3@10 c:43:4@11 c:44:5@12 a:45:7@20 c:46:8@21 c:47:8@24",
        lambda: (
            Pattern.begin("a")
            .where(named("a"))
            .not_followed_by("b")
            .where(named("b"))
            .followed_by("c")
            .where(named("c"))
            .times(0, 2)
            .within(3)
        ),
        ["0", "2", "5", "2 3", "5 6", "2 3 4"],
    ),
    Case(
        "NotPatternITCase.testNotFollowedByWithinAtEndAfterMatch",
        "a:40:1@1 a:41:2@2 a:42:3@3 c:43:4@4 c:44:5@10",
        lambda: (
            Pattern.begin("a", after_match=AfterMatchSkipStrategy.skip_past_last_event())
            .where(named("a"))
            .one_or_more()
            .allow_combinations()
            .followed_by("c")
            .where(named("c"))
            .not_followed_by("b")
            .where(named("b"))
            .within(5)
        ),
        ["0 1 2 3"],
    ),
    Case(
        "SameElementITCase.testEagerZeroOrMoreSameElement",
        "c:40:1@1 a:41:2@3 a:41:2@3 a:41:2@3 a:42:3@4 d:50:6@5 a:43:4@6 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .one_or_more()
            .optional()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 8", "0 1 8", "0 1 1 8", "0 1 1 1 8", "0 1 1 1 4 8", "0 1 1 1 4 6 8", "0 1 1 1 4 6 6 8"],
    ),
    Case(
        "SameElementITCase.testClearingBuffer",
        "a:40:1@1 b:41:2@2 c:41:2@2 d:41:2@2",
        lambda: (
            Pattern.begin("a")
            .where(named("a"))
            .followed_by("b")
            .where(named("b"))
            .followed_by("c")
            .where(named("c"))
            .followed_by("d")
            .where(named("d"))
        ),
        ["0 1 2 3"],
    ),
    Case(
        "SameElementITCase.testClearingBufferWithUntilAtTheEnd",
        "a:40:1@1 d:41:2@2 d:41:2@2 d:41:2@2 d:41:2@4",
        lambda: (
            Pattern.begin("a")
            .where(named("a"))
            .followed_by("d")
            .where(named("d"))
            .one_or_more()
            .until(lambda _, match: len(match["d"]) == 3)
        ),
        ["0 1", "0 1 1", "0 1 1 1"],
    ),
    Case(
        "SameElementITCase.testZeroOrMoreSameElement",
        "c:40:1@1 a:41:2@3 a:41:2@3 a:42:3@4 d:50:6@5 a:43:4@6 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .one_or_more()
            .optional()
            .allow_combinations()
            .followed_by_any("end1")
            .where(named("b"))
        ),
        [
            "0 7",
            "0 1 7",
            "0 1 7",
            "0 3 7",
            "0 5 7",
            "0 5 7",
            "0 1 1 7",
            "0 1 3 7",
            "0 1 3 7",
            "0 1 5 7",
            "0 1 5 7",
            "0 1 5 7",
            "0 1 5 7",
            "0 3 5 7",
            "0 3 5 7",
            "0 5 5 7",
            "0 1 1 3 7",
            "0 1 1 5 7",
            "0 1 1 5 7",
            "0 1 3 5 7",
            "0 1 3 5 7",
            "0 1 3 5 7",
            "0 1 3 5 7",
            "0 1 5 5 7",
            "0 1 5 5 7",
            "0 3 5 5 7",
            "0 1 1 3 5 7",
            "0 1 1 3 5 7",
            "0 1 1 5 5 7",
            "0 1 3 5 5 7",
            "0 1 3 5 5 7",
            "0 1 1 3 5 5 7",
        ],
    ),
    Case(
        "SameElementITCase.testSimplePatternWSameElement",
        "c:40:1@1 a:41:2@3 a:41:2@3 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 1 3", "0 1 3"],
    ),
    Case(
        "SameElementITCase.testIterativeConditionWSameElement",
        "c:40:1@1 a:41:2@3 a:41:2@3 a:41:2@3 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .one_or_more()
            .optional()
            .allow_combinations()
            .followed_by("end")
            .where(lambda _, match: total(match["middle"]) == 4.0)
        ),
        ["0 1 1 1", "0 1 1 4", "0 1 1 4"],
    ),
    Case(
        "SameElementITCase.testEndWLoopingWSameElement",
        "c:40:1@1 a:41:2@3 a:41:2@3 a:41:2@3 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .one_or_more()
            .optional()
        ),
        ["0", "0 1", "0 1", "0 1", "0 1 1", "0 1 1", "0 1 1 1"],
    ),
    Case(
        "SameElementITCase.testRepeatingPatternWSameElement",
        "c:40:1@1 a:40:2@3 a:40:2@3 a:40:3@3 d:40:6@5 b:40:5@6 a:40:4@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle1")
            .where(named("a"))
            .one_or_more()
            .optional()
            .followed_by("middle2")
            .where(named("b"))
            .optional()
            .followed_by("end")
            .where(named("a"))
        ),
        ["0 1", "0 1 1", "0 5 6", "0 1 1 3", "0 1 5 6", "0 1 1 3 6", "0 1 1 5 6", "0 1 1 3 5 6"],
    ),
    Case(
        "TimesOrMoreITCase.testTimesOrMore",
        "c:40:1@1 a:41:2@2 a:42:3@3 a:43:4@4 b:44:5@6",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .times_or_more(2)
            .allow_combinations()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 1 2 4", "0 1 3 4", "0 1 2 3 4"],
    ),
    Case(
        "TimesOrMoreITCase.testTimesOrMoreNonStrict",
        "c:40:1@1 f:23:1@2 a:41:2@3 f:23:1@4 a:42:3@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .times_or_more(2)
            .allow_combinations()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 2 4 6", "0 2 5 6", "0 4 5 6", "0 2 4 5 6"],
    ),
    Case(
        "TimesOrMoreITCase.testTimesOrMoreStrict",
        "c:40:1@1 f:23:1@2 a:41:2@3 f:23:1@4 a:42:3@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .times(2)
            .consecutive()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 4 5 6"],
    ),
    Case(
        "TimesOrMoreITCase.testTimesOrMoreStrictOptional",
        "c:40:1@1 f:23:1@2 a:41:2@3 f:23:1@4 a:42:3@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .times_or_more(2)
            .consecutive()
            .optional()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 6", "0 4 5 6"],
    ),
    Case(
        "TimesOrMoreITCase.testTimesOrMoreStrictOptional2",
        "c:40:1@1 a:41:2@3 a:42:3@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .next("middle")
            .where(named("a"))
            .times_or_more(2)
            .consecutive()
            .optional()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 4", "0 1 2 4", "0 1 2 3 4"],
    ),
    Case(
        "TimesOrMoreITCase.testTimesOrMoreNonStrictOptional",
        "c:40:1@1 f:23:1@2 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .times_or_more(2)
            .optional()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 2"],
    ),
    Case(
        "TimesOrMoreITCase.testTimesOrMoreNonStrictOptional2",
        "c:40:1@1 f:23:1@2 a:41:2@3 f:23:1@4 a:42:3@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .times_or_more(2)
            .allow_combinations()
            .optional()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 6", "0 2 4 6", "0 2 5 6", "0 4 5 6", "0 2 4 5 6"],
    ),
    Case(
        "TimesOrMoreITCase.testTimesOrMoreNonStrictOptional3",
        "c:40:1@1 f:23:1@2 a:41:2@3 f:23:1@4 a:42:3@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .times_or_more(2)
            .optional()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 6", "0 2 4 6", "0 4 5 6", "0 2 4 5 6"],
    ),
    Case(
        "TimesOrMoreITCase.testTimesOrMoreNonStrictWithNext",
        "c:40:1@1 a:41:2@2 f:23:1@3 a:42:3@4 f:23:1@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .next("middle")
            .where(named("a"))
            .times_or_more(2)
            .allow_combinations()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 1 3 6", "0 1 5 6", "0 1 3 5 6"],
    ),
    Case(
        "TimesOrMoreITCase.testTimesOrMoreNotStrictWithFollowedBy",
        "c:40:1@1 a:41:2@2 a:42:3@4 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .times_or_more(2)
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 1 2 4", "0 1 2 3 4"],
    ),
    Case(
        "TimesOrMoreITCase.testTimesOrMoreNotStrictWithFollowedByAny",
        "c:40:1@1 a:41:2@2 a:42:3@4 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .times_or_more(2)
            .allow_combinations()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 1 2 4", "0 1 3 4", "0 2 3 4", "0 1 2 3 4"],
    ),
    Case(
        "TimesOrMoreITCase.testTimesOrMore[3]",
        "c:40:1@1 a:41:2@2 a:42:3@3 a:43:4@4 b:44:5@6",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .times_or_more(2, within=3)
            .allow_combinations()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 1 2 4", "0 1 3 4", "0 1 2 3 4"],
    ),
    Case(
        "TimesOrMoreITCase.testTimesOrMoreNonStrict[3]",
        "c:40:1@1 f:23:1@2 a:41:2@3 f:23:1@4 a:42:3@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .times_or_more(2, within=3)
            .allow_combinations()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 2 4 6", "0 2 4 5 6"],
    ),
    Case(
        "TimesOrMoreITCase.testTimesOrMoreStrict[3]",
        "c:40:1@1 f:23:1@2 a:41:2@3 f:23:1@4 a:42:3@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .times(2)
            .consecutive()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 4 5 6"],
    ),
    Case(
        "TimesOrMoreITCase.testTimesOrMoreStrictOptional[3]",
        "c:40:1@1 f:23:1@2 a:41:2@3 f:23:1@4 a:42:3@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .times_or_more(2, within=3)
            .consecutive()
            .optional()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 6", "0 4 5 6"],
    ),
    Case(
        "TimesOrMoreITCase.testTimesOrMoreStrictOptional2[3]",
        "c:40:1@1 a:41:2@3 a:42:3@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .next("middle")
            .where(named("a"))
            .times_or_more(2, within=3)
            .consecutive()
            .optional()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 4", "0 1 2 4", "0 1 2 3 4"],
    ),
    Case(
        "TimesOrMoreITCase.testTimesOrMoreNonStrictOptional[3]",
        "c:40:1@1 f:23:1@2 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .times_or_more(2, within=3)
            .optional()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 2"],
    ),
    Case(
        "TimesOrMoreITCase.testTimesOrMoreNonStrictOptional2[3]",
        "c:40:1@1 f:23:1@2 a:41:2@3 f:23:1@4 a:42:3@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .times_or_more(2, within=3)
            .allow_combinations()
            .optional()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 6", "0 2 4 6", "0 4 5 6", "0 2 4 5 6"],
    ),
    Case(
        "TimesOrMoreITCase.testTimesOrMoreNonStrictOptional3[3]",
        "c:40:1@1 f:23:1@2 a:41:2@3 f:23:1@4 a:42:3@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .times_or_more(2, within=3)
            .optional()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 6", "0 2 4 6", "0 4 5 6", "0 2 4 5 6"],
    ),
    Case(
        "TimesOrMoreITCase.testTimesOrMoreNonStrictWithNext[3]",
        "c:40:1@1 a:41:2@2 f:23:1@3 a:42:3@4 f:23:1@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .next("middle")
            .where(named("a"))
            .times_or_more(2, within=3)
            .allow_combinations()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 1 3 6", "0 1 3 5 6"],
    ),
    Case(
        "TimesOrMoreITCase.testTimesOrMoreNotStrictWithFollowedBy[3]",
        "c:40:1@1 a:41:2@2 a:42:3@4 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .times_or_more(2, within=3)
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 1 2 4", "0 1 2 3 4"],
    ),
    Case(
        "TimesOrMoreITCase.testTimesOrMoreNotStrictWithFollowedByAny[3]",
        "c:40:1@1 a:41:2@2 a:42:3@4 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .times_or_more(2, within=3)
            .allow_combinations()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 1 2 4", "0 1 2 3 4"],
    ),
    Case(
        "TimesRangeITCase.testTimesRange",
        "c:40:1@1 a:41:2@2 a:42:3@3 a:43:4@4 b:44:5@6",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .next("middle")
            .where(named("a"))
            .times(1, 3)
            .allow_combinations()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 1 4", "0 1 2 4", "0 1 3 4", "0 1 2 3 4"],
    ),
    Case(
        "TimesRangeITCase.testTimesRangeFromZero",
        "c:40:1@1 a:41:2@2 a:42:3@3 a:43:4@4 b:44:5@6",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .next("middle")
            .where(named("a"))
            .times(0, 2)
            .allow_combinations()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 4", "0 1 4", "0 1 2 4", "0 1 3 4"],
    ),
    Case(
        "TimesRangeITCase.testTimesRangeNonStrict",
        "c:40:1@1 f:23:1@2 a:41:2@3 f:23:1@4 a:42:3@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .times(1, 3)
            .allow_combinations()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 2 6", "0 4 6", "0 5 6", "0 2 4 6", "0 2 5 6", "0 4 5 6", "0 2 4 5 6"],
    ),
    Case(
        "TimesRangeITCase.testTimesRangeStrict",
        "c:40:1@1 f:23:1@2 a:41:2@3 f:23:1@4 a:42:3@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .times(0, 3)
            .consecutive()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 6", "0 2 6", "0 4 6", "0 5 6", "0 4 5 6"],
    ),
    Case(
        "TimesRangeITCase.testTimesRangeStrictOptional",
        "c:40:1@1 f:23:1@2 a:41:2@3 f:23:1@4 a:42:3@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .times(1, 3)
            .consecutive()
            .optional()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 6", "0 2 6", "0 4 6", "0 5 6", "0 4 5 6"],
    ),
    Case(
        "TimesRangeITCase.testTimesRangeStrictOptional1",
        "c:40:1@1 a:41:2@3 a:42:3@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .next("middle")
            .where(named("a"))
            .times(1, 3)
            .consecutive()
            .optional()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 4", "0 1 4", "0 1 2 4", "0 1 2 3 4"],
    ),
    Case(
        "TimesRangeITCase.testTimesRangeNonStrictOptional1",
        "c:40:1@1 f:23:1@2 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .times(1, 3)
            .optional()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 2"],
    ),
    Case(
        "TimesRangeITCase.testTimesRangeNonStrictOptional2",
        "c:40:1@1 f:23:1@2 a:41:2@3 f:23:1@4 a:42:3@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .times(2, 3)
            .allow_combinations()
            .optional()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 6", "0 2 4 6", "0 2 5 6", "0 4 5 6", "0 2 4 5 6"],
    ),
    Case(
        "TimesRangeITCase.testTimesRangeNonStrictOptional3",
        "c:40:1@1 f:23:1@2 a:41:2@3 f:23:1@4 a:42:3@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .times(2, 3)
            .optional()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 6", "0 2 4 6", "0 4 5 6", "0 2 4 5 6"],
    ),
    Case(
        "TimesRangeITCase.testTimesRangeNonStrictWithNext",
        "c:40:1@1 a:41:2@2 f:23:1@3 a:42:3@4 f:23:1@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .next("middle")
            .where(named("a"))
            .times(2, 3)
            .allow_combinations()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 1 3 6", "0 1 5 6", "0 1 3 5 6"],
    ),
    Case(
        "TimesRangeITCase.testTimesRangeNotStrictWithFollowedBy",
        "c:40:1@1 a:41:2@2 a:42:3@4 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .times(2, 3)
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 1 2 4", "0 1 2 3 4"],
    ),
    Case(
        "TimesRangeITCase.testTimesRangeNotStrictWithFollowedByAny",
        "c:40:1@1 a:41:2@2 a:42:3@4 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .times(2, 3)
            .allow_combinations()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 1 2 4", "0 1 3 4", "0 2 3 4", "0 1 2 3 4"],
    ),
    Case(
        "TimesRangeITCase.testTimesRange[3]",
        "c:40:1@1 a:41:2@2 a:42:3@3 a:43:4@4 b:44:5@6",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .next("middle")
            .where(named("a"))
            .times(1, 3, within=3)
            .allow_combinations()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 1 4", "0 1 2 4", "0 1 3 4", "0 1 2 3 4"],
    ),
    Case(
        "TimesRangeITCase.testTimesRangeFromZero[3]",
        "c:40:1@1 a:41:2@2 a:42:3@3 a:43:4@4 b:44:5@6",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .next("middle")
            .where(named("a"))
            .times(0, 2, within=3)
            .allow_combinations()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 4", "0 1 4", "0 1 2 4", "0 1 3 4"],
    ),
    Case(
        "TimesRangeITCase.testTimesRangeNonStrict[3]",
        "c:40:1@1 f:23:1@2 a:41:2@3 f:23:1@4 a:42:3@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .times(1, 3, within=3)
            .allow_combinations()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 2 6", "0 2 4 6", "0 2 5 6", "0 2 4 5 6"],
    ),
    Case(
        "TimesRangeITCase.testTimesRangeStrict[3]",
        "c:40:1@1 f:23:1@2 a:41:2@3 f:23:1@4 a:42:3@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .times(0, 3, within=3)
            .consecutive()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 6", "0 2 6", "0 4 6", "0 5 6", "0 4 5 6"],
    ),
    Case(
        "TimesRangeITCase.testTimesRangeStrictOptional[3]",
        "c:40:1@1 f:23:1@2 a:41:2@3 f:23:1@4 a:42:3@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .times(1, 3, within=3)
            .consecutive()
            .optional()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 6", "0 2 6", "0 4 6", "0 5 6", "0 4 5 6"],
    ),
    Case(
        "TimesRangeITCase.testTimesRangeStrictOptional1[3]",
        "c:40:1@1 a:41:2@3 a:42:3@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .next("middle")
            .where(named("a"))
            .times(1, 3, within=3)
            .consecutive()
            .optional()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 4", "0 1 4", "0 1 2 4", "0 1 2 3 4"],
    ),
    Case(
        "TimesRangeITCase.testTimesRangeNonStrictOptional1[3]",
        "c:40:1@1 f:23:1@2 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .times(1, 3, within=3)
            .optional()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 2"],
    ),
    Case(
        "TimesRangeITCase.testTimesRangeNonStrictOptional2[3]",
        "c:40:1@1 f:23:1@2 a:41:2@3 f:23:1@4 a:42:3@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .times(2, 3, within=3)
            .allow_combinations()
            .optional()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 6", "0 2 4 6", "0 4 5 6", "0 2 4 5 6"],
    ),
    Case(
        "TimesRangeITCase.testTimesRangeNonStrictOptional3[3]",
        "c:40:1@1 f:23:1@2 a:41:2@3 f:23:1@4 a:42:3@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .times(2, 3, within=3)
            .optional()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 6", "0 2 4 6", "0 4 5 6", "0 2 4 5 6"],
    ),
    Case(
        "TimesRangeITCase.testTimesRangeNonStrictWithNext[3]",
        "c:40:1@1 a:41:2@2 f:23:1@3 a:42:3@4 f:23:1@5 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .next("middle")
            .where(named("a"))
            .times(2, 3, within=3)
            .allow_combinations()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 1 3 6", "0 1 3 5 6"],
    ),
    Case(
        "TimesRangeITCase.testTimesRangeNotStrictWithFollowedBy[3]",
        "c:40:1@1 a:41:2@2 a:42:3@4 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .times(2, 3, within=3)
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 1 2 4", "0 1 2 3 4"],
    ),
    Case(
        "TimesRangeITCase.testTimesRangeNotStrictWithFollowedByAny[3]",
        "c:40:1@1 a:41:2@2 a:42:3@4 a:43:4@6 b:44:5@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .times(2, 3, within=3)
            .allow_combinations()
            .followed_by("end1")
            .where(named("b"))
        ),
        ["0 1 2 4", "0 1 2 3 4"],
    ),
    Case(
        "UntilConditionITCase.testUntilConditionFollowedByOneOrMore",
        "c:40:1@1 a:41:2@3 a:42:3@4 a:44:5@6 a:45:6@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .one_or_more()
            .until(lambda row: row.price == 5.0)
            .followed_by("end")
            .where(lambda row: row.price == 5.0)
        ),
        ["0 1 3", "0 1 2 3"],
    ),
    Case(
        "UntilConditionITCase.testUntilConditionFollowedByOneOrMoreCombinations",
        "c:40:1@1 a:41:2@3 a:42:3@4 a:43:4@5 a:44:5@6 a:45:6@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .one_or_more()
            .allow_combinations()
            .until(lambda row: row.price == 5.0)
            .followed_by("end")
            .where(lambda row: row.price == 5.0)
        ),
        ["0 1 4", "0 1 2 4", "0 1 3 4", "0 1 2 3 4"],
    ),
    Case(
        "UntilConditionITCase.testUntilConditionFollowedByOneOrMoreConsecutive",
        "c:40:1@1 a:41:2@3 a:42:3@4 a:45:5@7 a:46:6@8",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .one_or_more()
            .consecutive()
            .until(lambda row: row.price == 5.0)
            .followed_by("end")
            .where(lambda row: row.price == 5.0)
        ),
        ["0 1 3", "0 1 2 3"],
    ),
    Case(
        "UntilConditionITCase.testUntilConditionFollowedByOneOrMoreConsecutive2",
        "c:40:1@1 a:41:2@3 b:42:3@4 a:43:4@5 a:45:5@7 a:46:6@8",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .one_or_more()
            .consecutive()
            .until(lambda row: row.price == 5.0)
            .followed_by("end")
            .where(lambda row: row.price == 5.0)
        ),
        ["0 1 4"],
    ),
    Case(
        "UntilConditionITCase.testUntilConditionFollowedByZeroOrMore",
        "c:40:1@1 a:41:2@3 a:42:3@4 a:44:5@6 a:45:6@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .one_or_more()
            .optional()
            .until(lambda row: row.price == 5.0)
            .followed_by("end")
            .where(lambda row: row.price == 5.0)
        ),
        ["0 3", "0 1 3", "0 1 2 3"],
    ),
    Case(
        "UntilConditionITCase.testUntilConditionFollowedByZeroOrMoreCombinations",
        "c:40:1@1 a:41:2@3 a:42:3@4 a:43:4@5 a:44:5@6 a:45:6@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .one_or_more()
            .optional()
            .allow_combinations()
            .until(lambda row: row.price == 5.0)
            .followed_by("end")
            .where(lambda row: row.price == 5.0)
        ),
        ["0 4", "0 1 4", "0 1 2 4", "0 1 3 4", "0 1 2 3 4"],
    ),
    Case(
        "UntilConditionITCase.testUntilConditionFollowedByZeroOrMoreConsecutive",
        "c:40:1@1 a:41:2@3 a:42:3@4 a:45:5@7 a:46:6@8",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .where(named("a"))
            .one_or_more()
            .optional()
            .consecutive()
            .until(lambda row: row.price == 5.0)
            .followed_by("end")
            .where(lambda row: row.price == 5.0)
        ),
        ["0 3", "0 1 3", "0 1 2 3"],
    ),
    Case(
        "UntilConditionITCase.testUntilConditionFollowedByAnyOneOrMore",
        "c:40:1@1 a:41:2@3 a:42:3@4 a:44:5@6 a:45:6@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .one_or_more()
            .until(lambda row: row.price == 5.0)
        ),
        ["0 1", "0 2", "0 4", "0 1 2"],
    ),
    Case(
        "UntilConditionITCase.testUntilConditionFollowedByAnyZeroOrMore",
        "c:40:1@1 a:41:2@3 a:42:3@4 a:44:5@6 a:45:6@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by_any("middle")
            .where(named("a"))
            .one_or_more()
            .optional()
            .until(lambda row: row.price == 5.0)
        ),
        ["0", "0 1", "0 2", "0 4", "0 1 2"],
    ),
    Case(
        "UntilConditionITCase.testUntilConditionWithEmptyWhere",
        "c:40:1@1 a:41:2@3 a:42:3@4 d:40:1@5 a:44:5@6 a:45:6@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .one_or_more()
            .until(lambda row: row.price == 5.0)
        ),
        ["0 1", "0 1 2", "0 1 2 3"],
    ),
    Case(
        "UntilConditionITCase.testIterativeUntilConditionOneOrMore",
        "c:40:1@1 a:41:2@3 a:42:3@4 d:40:1@5 a:44:5@6 a:45:6@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .one_or_more()
            .until(lambda row, match: total(match["middle"]) == 6.0)
        ),
        ["0 1", "0 1 2", "0 1 2 3"],
    ),
    Case(
        "UntilConditionITCase.testIterativeUntilConditionZeroOrMore",
        "c:40:1@1 a:41:2@3 a:42:3@4 d:40:1@5 a:44:5@6 a:45:6@7",
        lambda: (
            Pattern.begin("start")
            .where(named("c"))
            .followed_by("middle")
            .one_or_more()
            .optional()
            .until(lambda row, match: total(match["middle"]) == 6.0)
        ),
        ["0", "0 1", "0 1 2", "0 1 2 3"],
    ),
]
