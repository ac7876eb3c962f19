"""All matches of a pattern by definition: every choice of rows is tried, in a few lines for each operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import attrs

from keyed.patterns import AfterMatchSkipStrategy, Pattern

#: A choice of rows: the step and the position of each, in order.
Choice = tuple[tuple[str, int], ...]


@attrs.frozen
class Forbidden:
    """Letters that rows must not have until the next row is chosen.

    Attributes:
        letters: The letters.
        start: The first row; ``None`` is the row that is chosen.
        end: The row after the last one; ``None`` is the row that is chosen.
        by: ``"not_next"``, ``"not_followed_by"`` or ``"greedy"``.
    """

    letters: str
    start: int | None
    end: int | None
    by: str


@attrs.frozen
class Defined:
    """A step: the letters that it accepts, and how it is repeated. Attributes as in `keyed.patterns.steps.Step`."""

    name: str
    contiguity: str
    letters: str
    least: int = 1
    most: int | None = 1
    inner: str = "followed_by"
    is_optional: bool = False
    is_greedy: bool = False
    until: str = ""
    group: tuple[Defined, ...] = ()
    group_until: str = ""
    since_previous_ms: int | None = None
    loop_ms: int | None = None
    #: The limit of its first row, as the head of a group.
    head_ms: int | None = None

    @property
    def is_negative(self) -> bool:
        return self.contiguity.startswith("not_")


def pattern_of(
    steps: Sequence[Defined], within: int | None, after_match: AfterMatchSkipStrategy | None = None
) -> Pattern:
    """Return the pattern that the steps define."""
    pattern: Any = Pattern
    for number, step in enumerate(steps):
        add = getattr(pattern, step.contiguity if number else "begin")
        options: dict[str, Any] = {} if number else {"after_match": after_match}
        if step.group:
            pattern = add(pattern_of(step.group, None), **options)
        else:
            pattern = add(step.name, where=lambda row, *, letters=step.letters: row[0] in letters, **options)
        if (step.least, step.most) != (1, 1):
            if step.most is None:
                pattern = pattern.times_or_more(step.least, within=step.loop_ms)
            else:
                pattern = pattern.times(step.least, step.most, within=step.loop_ms)
            if step.inner == "next":
                pattern = pattern.consecutive()
            if step.inner == "followed_by_any":
                pattern = pattern.allow_combinations()
            if step.is_greedy:
                pattern = pattern.greedy()
            if step.until:
                pattern = pattern.until(lambda row, *, letters=step.until: row[0] in letters)
        if step.is_optional:
            pattern = pattern.optional()
        if step.since_previous_ms is not None:
            pattern = pattern.within(step.since_previous_ms, since="previous")
    made: Pattern = pattern if within is None else pattern.within(within)
    return made


def matches_by_definition(steps: Sequence[Defined], rows: Sequence[tuple[int, str]], within: int) -> Iterator[Choice]:
    """Yield the matches of a pattern in rows (time, letter) that are sorted by time."""
    letters = [letter for _, letter in rows]

    def is_free(start: int, end: int, forbidden: str) -> bool:
        return not any(letter in forbidden for letter in letters[start:end])

    def follows(contiguity: str, accepted: str, before: int, row: int) -> bool:
        """Return whether a row may be the next one after another, as far as the rows between them say."""
        if contiguity == "next":
            return row == before + 1
        return contiguity == "followed_by_any" or is_free(before + 1, row, accepted)

    def choose(at: int, chosen: Choice, forbidden: list[Forbidden]) -> Iterator[Choice]:
        """Yield the matches that continue a choice with the steps from ``at`` on.

        ``forbidden`` holds until the next row is chosen.
        """
        if at == len(steps):
            if chosen and all(ends_well(chosen, each) for each in forbidden):
                yield chosen
            return
        step = steps[at]
        last = chosen[-1][1] if chosen else -1
        if step.is_negative:
            gaps = list(gaps_of_loop(steps[at - 1], chosen, step))
            if not all(is_free(row + 1, min(end, last), step.letters) for row, end in gaps):
                return
            if gaps and gaps[-1][1] > last and letters[last] in step.letters:
                # Flink ends the partial match with such a row of the loop, but the row may complete a match.
                if may_be_last(at, last):
                    yield chosen
            else:
                end = last + 2 if step.contiguity == "not_next" else None
                more = Forbidden(step.letters, last + 1, end, step.contiguity)
                yield from choose(at + 1, chosen, [*forbidden, more])
        else:
            if step.is_optional:
                # Flink's loop without a bound is not greedy before its first row, if a negative step comes before it.
                is_greedy = not (step.most is None and any(negative_before(at)))
                yield from choose(
                    at + 1, chosen, forbidden_by_greed(step, chosen, forbidden) if is_greedy else forbidden
                )
            yield from repeat(at, 0, chosen, forbidden)

    def negative_before(at: int) -> Iterator[str]:
        """Yield the letters of each `not_followed_by` before a step: directly, or before optional steps."""
        for step in reversed(steps[:at]):
            if step.contiguity == "not_followed_by":
                yield step.letters
            elif not step.is_optional:
                return

    def gaps_of_loop(loop: Defined, chosen: Choice, negative: Defined) -> Iterator[tuple[int, int]]:
        """Yield the rows of a loop but for the last, each with the end of those that a negative step after it tests.

        In Flink the negative step holds between the rows of the loop, too. `not_next` tests the row directly after each
        row with which the loop might end, and so does `not_followed_by` if the loop has a bound.
        """
        taken = [row for name, row in chosen if name == loop.name]
        for count, (row, after) in enumerate(pairwise(taken), 1):
            may_end = count >= loop.least
            if negative.contiguity == "not_followed_by":
                yield row, row + 2 if may_end and loop.most is not None else after + 1
            elif may_end:
                yield row, row + 2

    def repeat(at: int, count: int, chosen: Choice, forbidden: list[Forbidden]) -> Iterator[Choice]:
        """Yield the matches in which the step takes one more row."""
        step = steps[at]
        last = chosen[-1][1] if chosen else -1
        contiguity = step.inner if count else step.contiguity
        limits = [step.since_previous_ms, step.loop_ms if count else step.head_ms] if chosen else []
        for row in range(last + 1, len(rows)):
            if (
                letters[row] in step.letters
                and letters[row] not in (step.until or "-")
                and (not chosen or rows[row][0] - rows[chosen[0][1]][0] < within)
                and all(limit is None or rows[row][0] - rows[last][0] < limit for limit in limits)
                and (not chosen or follows(contiguity, step.letters, last, row))
                and (not count or is_free(last + 1, row, step.until))
                and is_free(last + 1 if chosen else row, row + 1, step.group_until)
                and all(allows(each, row) for each in forbidden)
            ):
                taken = (*chosen, (step.name, row))
                if any(
                    each.by == "not_followed_by" and letters[row] in each.letters and row >= (each.start or 0)
                    for each in forbidden
                ):
                    # Flink ends the partial match with such a row, but the row may complete a match.
                    if count + 1 >= step.least and may_be_last(at + 1, row):
                        yield taken
                    continue
                if count + 1 >= step.least:
                    yield from choose(at + 1, taken, forbidden_by_greed(step, taken, []))
                if step.most is None or count + 1 < step.most:
                    yield from repeat(at, count + 1, taken, skipped_in_loop(at, count + 1, row))

    def allows(each: Forbidden, row: int) -> bool:
        """Return whether a row may be chosen, as far as forbidden letters say."""
        end = row if each.by == "not_followed_by" else row + 1 if each.end is None else min(row + 1, each.end)
        return is_free(row if each.start is None else each.start, end, each.letters)

    def may_be_last(at: int, row: int) -> bool:
        """Return whether a match may end with a row, before the step ``at``.

        Flink tests the row itself for `not_next`, if only optional steps come after that.
        """
        rest = steps[at:]
        return not (rest and rest[-1].is_negative) and all(
            each.is_optional
            or each.contiguity == "not_followed_by"
            or (each.contiguity == "not_next" and letters[row] not in each.letters)
            for each in rest
        )

    def skipped_in_loop(at: int, count: int, row: int) -> list[Forbidden]:
        """Return the letters that Flink forbids between the rows of a loop that may end, once it has skipped a row.

        They are those of the negative steps before the loop.
        """
        step = steps[at]
        may_end = step.most is not None and count >= step.least
        return [Forbidden(no, row + 2, None, "not_followed_by") for no in negative_before(at)] if may_end else []

    def forbidden_by_greed(step: Defined, chosen: Choice, forbidden: list[Forbidden]) -> list[Forbidden]:
        """Return the letters that must not come until the next step: those that a greedy loop would have taken."""
        if not step.is_greedy or step.least == step.most:
            return forbidden
        if not chosen:
            return [*forbidden, Forbidden("".join(set(step.letters) - set(step.until)), None, None, "greedy")]
        last = chosen[-1][1]
        limit = min((each for each in (step.since_previous_ms, step.loop_ms) if each is not None), default=within)
        ends = (
            row
            for row in range(last + 1, len(rows))
            if letters[row] in step.until or rows[row][0] - rows[last][0] >= limit
        )
        return [*forbidden, Forbidden(step.letters, last + 1, next(ends, len(rows)), "greedy")]

    def ends_well(chosen: Choice, each: Forbidden) -> bool:
        """Return whether a negative step after the last row holds."""
        if not steps[-1].is_negative:
            return each.by != "not_next" or letters[chosen[-1][1]] not in each.letters
        if each.start is None:
            return True
        in_time = sum(time < rows[chosen[0][1]][0] + within for time, _ in rows)
        if each.end is not None:
            return each.start < in_time and letters[each.start] not in each.letters
        return is_free(each.start, in_time, each.letters)

    return choose(0, (), [])


def expanded(steps: Sequence[Defined], most: int) -> Iterator[tuple[Defined, ...]]:
    """Yield the patterns without groups that a pattern stands for: one for each number of repetitions of each group.

    Args:
        steps: The steps.
        most: The most repetitions of a group without a limit: the number of rows.
    """
    if not steps:
        yield ()
        return
    step, *others = steps
    rest = list(expanded(others, most))
    if not step.group:
        yield from ((step, *each) for each in rest)
        return
    counts = range(step.least, (most if step.most is None else step.most) + 1)
    for count in (0, *counts) if step.is_optional else counts:
        taken: tuple[Defined, ...] = ()
        for number in range(count):
            first = attrs.evolve(
                step.group[0],
                contiguity=step.inner if number else step.contiguity,
                head_ms=min(
                    (each for each in (step.since_previous_ms, step.loop_ms if number else None) if each is not None),
                    default=None,
                ),
                # Flink's head of a group is repeated as the group is.
                inner=step.inner,
            )
            taken += tuple(attrs.evolve(each, group_until=step.until) for each in (first, *step.group[1:]))
        yield from ((*taken, *each) for each in rest)


def is_emitted(
    found: Sequence[Choice], matches: Sequence[Choice], oldest_kept: Callable[[Choice], int], *, at_time_out: bool
) -> bool:
    """Return whether these are the matches that a strategy after a match leaves, in an order in which they may come.

    Matches are emitted by their first rows. Those of the first row of all are emitted as they complete; others may wait
    for a partial match that began before them, and come in any order then, as from Flink's queue.

    Args:
        found: What was emitted.
        matches: All matches.
        oldest_kept: Returns the first row from which on matches are kept after a match.
        at_time_out: True if they complete when their time is over.
    """
    left = list(matches)
    for match in found:
        first = min((each[0][1] for each in left), default=None)
        if match not in left or match[0][1] != first:
            return False
        may_wait = first or at_time_out
        if not may_wait and match[-1][1] > min(each[-1][1] for each in left if each[0][1] == first):
            return False
        left.remove(match)
        oldest = oldest_kept(match)
        left = [each for each in left if each[0][1] >= oldest]
    return not left
