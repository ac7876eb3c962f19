"""The steps of a pattern as data, the strategy after a match, and the rules that they keep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import attrs

from keyed.errors import DefinitionError, UserFunctionError
from keyed.patterns.pattern_conditions import ALWAYS, Condition

_Kind = Literal["no_skip", "skip_to_next", "skip_past_last_event", "skip_to_first", "skip_to_last"]


@attrs.frozen(repr=False)
class AfterMatchSkipStrategy:
    """Rule for the matches, partial or complete, that a match drops (Flink's `AfterMatchSkipStrategy`).

    All but ``no_skip`` emit matches in the order of their first rows.
    """

    _kind: _Kind
    step: str | None = None
    _raises: bool = False

    def __repr__(self) -> str:
        text = f"AfterMatchSkipStrategy.{self._kind}({'' if self.step is None else repr(self.step)})"
        return f"{text}.throw_exception_on_miss()" if self._raises else text

    @classmethod
    def no_skip(cls) -> AfterMatchSkipStrategy:
        """Emit every match: the default."""
        return cls("no_skip")

    @classmethod
    def skip_to_next(cls) -> AfterMatchSkipStrategy:
        """Drop those that started with the same row."""
        return cls("skip_to_next")

    @classmethod
    def skip_past_last_event(cls) -> AfterMatchSkipStrategy:
        """Drop those that started before the match ended."""
        return cls("skip_past_last_event")

    @classmethod
    def skip_to_first(cls, step: str) -> AfterMatchSkipStrategy:
        """Drop those that started before the first row of ``step``."""
        return cls("skip_to_first", step)

    @classmethod
    def skip_to_last(cls, step: str) -> AfterMatchSkipStrategy:
        """Drop those that started before the last row of ``step``."""
        return cls("skip_to_last", step)

    def throw_exception_on_miss(self) -> AfterMatchSkipStrategy:
        """Fail if a match has no row of the step, or begins with it, which would skip nothing.

        Raises:
            DefinitionError: The strategy has no step.
        """
        if self.step is None:
            raise DefinitionError(f"{self!r} names no step that a match could miss; use skip_to_first or skip_to_last")
        return attrs.evolve(self, raises=True)

    @property
    def skips(self) -> bool:
        """True if a match drops others."""
        return self._kind != "no_skip"

    def oldest_kept(self, path: Sequence[tuple[str, int]]) -> int:
        """Return the number of the first row with which a match has to start so that it is kept.

        Args:
            path: The step and the number of each row of the match that was found, in order.

        Raises:
            UserFunctionError: The match misses the step, and the strategy refuses that.
        """
        if self._kind == "skip_to_next":
            return path[0][1] + 1
        if self._kind == "skip_past_last_event":
            return path[-1][1] + 1
        events = [event for step, event in path if step == self.step]
        if not events:
            if self._raises:
                raise UserFunctionError(f"{self!r}: the match has no row of step {self.step!r}")
            return 0
        kept = events[0 if self._kind == "skip_to_first" else -1]
        if self._raises and kept == path[0][1]:
            raise UserFunctionError(f"{self!r}: the match begins with this row, so it would be found again")
        return kept


class WaitingMatches:
    """Complete matches by their first rows, in the order of Flink's queue, which decides between matches of one row.

    Flink keeps them in a Java ``PriorityQueue``. If a match can be read in several ways, as A A C or as A B C, the
    strategy keeps the one that this binary heap has at its front, which is not always the one that came first.

    Args:
        matches: The first row and the last node of each, in the order of the heap.
    """

    def __init__(self, matches: Iterable[tuple[int, int]]) -> None:
        self.heap = list(matches)

    def push(self, match: tuple[int, int]) -> None:
        """Add a match."""
        heap, place = self.heap, len(self.heap)
        heap.append(match)
        while place and match[0] < heap[parent := (place - 1) // 2][0]:
            heap[place], place = heap[parent], parent
        heap[place] = match

    def pop(self) -> tuple[int, int]:
        """Remove and return the first match."""
        first, last = self.heap[0], self.heap.pop()
        if self.heap:
            self._sift(0, last)
        return first

    def drop_before(self, oldest: int) -> list[int]:
        """Remove the matches that began before a row, and return their nodes."""
        dropped = [node for first, node in self.heap if first < oldest]
        if dropped:
            self.heap = [match for match in self.heap if match[0] >= oldest]
            for place in reversed(range(len(self.heap) // 2)):
                self._sift(place, self.heap[place])
        return dropped

    def _sift(self, place: int, match: tuple[int, int]) -> None:
        """Put a match in a place, or below it."""
        heap, size = self.heap, len(self.heap)
        while (child := 2 * place + 1) < size:
            child += child + 1 < size and heap[child + 1][0] < heap[child][0]
            if match[0] <= heap[child][0]:
                break
            heap[place], place = heap[child], child
        heap[place] = match


#: How rows that do not match are treated between a step and the one before it, or between the rows of a loop.
Contiguity = Literal["next", "followed_by", "followed_by_any", "not_next", "not_followed_by"]


@attrs.frozen(eq=False, kw_only=True)
class Step:
    """A step of a pattern.

    Attributes:
        name: Its name; that of a group is made of the names of its steps.
        contiguity: How it follows the step before it.
        condition: The condition on its rows; ``None`` accepts each row.
        group: The pattern that is repeated, if the step is a group.
        least: Least number of rows; a step that is optional as a whole has it too.
        most: Greatest number of rows; ``None`` is any number.
        is_quantified: True if the number was given.
        is_optional: True if the step may be left out.
        is_greedy: True if it takes as many rows as possible.
        inner: How the rows of a loop follow each other.
        until: The condition that ends a loop.
        since_previous_ms: Time within which each of its rows follows the row before it.
        loop_ms: The same between the rows of the loop.
    """

    name: str
    contiguity: Contiguity
    condition: Condition | None = None
    group: StepSequence | None = None
    least: int = 1
    most: int | None = 1
    is_quantified: bool = False
    is_optional: bool = False
    is_greedy: bool = False
    inner: Contiguity = "followed_by"
    until: Condition | None = None
    since_previous_ms: int | None = None
    loop_ms: int | None = None

    @property
    def is_negative(self) -> bool:
        """True if the step must not occur."""
        return self.contiguity.startswith("not_")

    @property
    def is_loop(self) -> bool:
        """True if the number of rows has no bound."""
        return self.most is None

    @property
    def needed(self) -> Condition:
        """The condition on its rows."""
        return ALWAYS if self.condition is None else self.condition

    def __str__(self) -> str:
        what = f"({self.group})" if self.group is not None else self.name
        text = f"{self.contiguity} {what}"
        if self.is_quantified:
            text += f" {self.least} to {'any' if self.most is None else self.most} times, inner {self.inner}"
        flags = {"optional": self.is_optional, "greedy": self.is_greedy, "until": self.until is not None}
        text += "".join(f" {flag}" for flag, is_set in flags.items() if is_set)
        times = {"since the previous row": self.since_previous_ms, "between its rows": self.loop_ms}
        return text + "".join(f" within {time} ms {what}" for what, time in times.items() if time is not None)


@attrs.frozen(eq=False, repr=False)
class StepSequence:
    """The data of a `keyed.patterns.Pattern`.

    Attributes:
        steps: The steps in order.
        after_match: The strategy after a match.
    """

    steps: tuple[Step, ...]
    after_match: AfterMatchSkipStrategy
    _limit_ms: int | None = None

    def __str__(self) -> str:
        text = ", ".join(map(str, self.steps))
        return text if self._limit_ms is None else f"{text}, within {self._limit_ms} ms"

    @property
    def within_ms(self) -> int | None:
        """The time in which a match has to end, since its first row; ``None`` if it is not limited."""
        times = [self._limit_ms, *(step.group.within_ms for step in self.steps if step.group is not None)]
        return min((time for time in times if time is not None), default=None)

    @property
    def step_names(self) -> tuple[str, ...]:
        """The names of all steps that match rows or must not, those of groups included."""
        return tuple(step.name for step in all_steps(self))


def all_steps(pattern: StepSequence) -> Iterator[Step]:
    """Yield the steps of a pattern, with those of a group in its place."""
    return (step for step in every_step(pattern) if step.group is None)


def check_pattern(pattern: StepSequence) -> None:
    """Check a definition before the first row.

    Raises:
        DefinitionError: It breaks a rule.
    """
    names = pattern.step_names
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise DefinitionError(f"two steps of the pattern have the name {double!r}; rename one")
    skip_to = pattern.after_match.step
    if skip_to is not None and skip_to not in names:
        raise DefinitionError(f"{pattern.after_match!r}: the pattern has no such step; it has {', '.join(names)}")
    within = pattern.within_ms
    for step in every_step(pattern):
        for time in (step.since_previous_ms, step.loop_ms):
            if time is not None and within is not None and time > within:
                raise DefinitionError(
                    f"step {step.name!r}: a row may follow the one before it within {time} ms, which is more than the "
                    f"{within} ms of the whole"
                )
        is_bounded = within is not None or step.until is not None
        if not is_bounded and (step.is_loop or step.contiguity == "followed_by_any"):
            raise DefinitionError(
                f"step {step.name!r} may wait for rows forever, so its state has no bound; add within(minutes=10) to "
                "the pattern, or to a loop until(condition)"
            )
        if step.group is not None and step.group.steps[-1].is_negative:
            raise DefinitionError(f"group {step.name!r} ends with a step that must not occur; end it with another one")
    last = pattern.steps[-1]
    if last.contiguity == "not_followed_by" and within is None and last.since_previous_ms is None:
        raise DefinitionError(f"not_followed_by({last.name!r}) at the end waits forever; add within(minutes=10)")
    for step in all_steps(pattern):
        if step.is_negative and step.condition is None and (step is not last or step.contiguity == "not_next"):
            raise DefinitionError(
                f"{step.contiguity}({step.name!r}) has no condition, so every row stops it and the pattern can never "
                "match; give where="
            )


def every_step(pattern: StepSequence) -> Iterator[Step]:
    """Yield the steps of a pattern, groups and the steps of groups."""
    for step in pattern.steps:
        yield step
        if step.group is not None:
            yield from every_step(step.group)
