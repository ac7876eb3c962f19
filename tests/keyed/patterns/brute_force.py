"""All matches of a pattern by definition: every choice of rows is tried, in a few lines for each operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs

from keyed.patterns import AfterMatchSkipStrategy, Pattern

#: A choice of rows: the step and the position of each, in order.
Choice = tuple[tuple[str, int], ...]
#: Letters that rows must not have, from a row to the one before another one. Without the first it is the next row that
#: is chosen, without the second the rows up to it.
Forbidden = tuple[int | None, int | None, str]


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
    since_previous_ms: int | None = None
    loop_ms: int | None = None

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
        if step.contiguity == "not_next":
            yield from choose(at + 1, chosen, [*forbidden, (last + 1, last + 2, step.letters)])
        elif step.contiguity == "not_followed_by":
            # The rows of a loop before it must not have them either, but for the first.
            first = next(row for name, row in chosen if name == chosen[-1][0])
            if is_free(first + 1, last + 1, step.letters):
                yield from choose(at + 1, chosen, [*forbidden, (last + 1, None, step.letters)])
        else:
            if step.is_optional:
                yield from choose(at + 1, chosen, forbidden_by_greed(step, chosen, forbidden))
            yield from repeat(at, 0, chosen, forbidden)

    def repeat(at: int, count: int, chosen: Choice, forbidden: list[Forbidden]) -> Iterator[Choice]:
        """Yield the matches in which the step takes one more row."""
        step = steps[at]
        last = chosen[-1][1] if chosen else -1
        contiguity = step.inner if count else step.contiguity
        limits = [step.since_previous_ms, step.loop_ms if count else None] if chosen else []
        for row in range(last + 1, len(rows)):
            if (
                letters[row] in step.letters
                and letters[row] not in (step.until or "-")
                and (not chosen or rows[row][0] - rows[chosen[0][1]][0] < within)
                and all(limit is None or rows[row][0] - rows[last][0] < limit for limit in limits)
                and (not chosen or follows(contiguity, step.letters, last, row))
                and (not count or is_free(last + 1, row, step.until))
                and all(
                    is_free(row if start is None else start, row + 1 if end is None else min(row + 1, end), no)
                    for start, end, no in forbidden
                )
            ):
                taken = (*chosen, (step.name, row))
                if count + 1 >= step.least:
                    yield from choose(at + 1, taken, forbidden_by_greed(step, taken, []))
                if step.most is None or count + 1 < step.most:
                    yield from repeat(at, count + 1, taken, [])

    def forbidden_by_greed(step: Defined, chosen: Choice, forbidden: list[Forbidden]) -> list[Forbidden]:
        """Return the letters that must not come until the next step: those that a greedy loop would have taken."""
        if not step.is_greedy or step.least == step.most:
            return forbidden
        if not chosen:
            return [*forbidden, (None, None, "".join(set(step.letters) - set(step.until)))]
        last = chosen[-1][1]
        limit = min((each for each in (step.since_previous_ms, step.loop_ms) if each is not None), default=within)
        ends = (
            row
            for row in range(last + 1, len(rows))
            if letters[row] in step.until or rows[row][0] - rows[last][0] >= limit
        )
        return [*forbidden, (last + 1, next(ends, len(rows)), step.letters)]

    def ends_well(chosen: Choice, each: Forbidden) -> bool:
        """Return whether a negative step at the end holds."""
        start, end, no = each
        if start is None or not steps[-1].is_negative:
            return True
        limit = rows[chosen[0][1]][0] + within
        in_time = sum(time < limit for time, _ in rows)
        if end is not None:
            return start < in_time and letters[start] not in no
        return is_free(start, in_time, no)

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
                since_previous_ms=min(
                    (each for each in (step.since_previous_ms, step.loop_ms if number else None) if each is not None),
                    default=None,
                ),
            )
            taken += (first, *step.group[1:])
        yield from ((*taken, *each) for each in rest)


def skipping(
    matches: Sequence[Choice], oldest_kept: Callable[[Choice], int], *, at_time_out: bool
) -> Iterator[list[Choice]]:
    """Yield the outcomes of a strategy after a match: several if matches complete with the same row.

    Matches are emitted by their first rows, those of a first row as they complete.

    Args:
        matches: All matches.
        oldest_kept: Returns the first row from which on matches are kept after a match.
        at_time_out: True if they complete when their time is over.
    """

    def completion(match: Choice) -> tuple[int, int]:
        return match[0][1], 0 if at_time_out else match[-1][1]

    def emit(left: list[Choice], emitted: list[Choice]) -> Iterator[list[Choice]]:
        if not left:
            yield emitted
            return
        soonest = min(map(completion, left))
        for match in {each for each in left if completion(each) == soonest}:
            after = list(left)
            after.remove(match)
            oldest = oldest_kept(match)
            yield from emit([each for each in after if each[0][1] >= oldest], [*emitted, match])

    return emit(list(matches), [])
