"""The steps of a pattern as data, and the rules that they keep."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import attrs

from keyed.errors import DefinitionError
from keyed.patterns.after_match import AfterMatchSkipStrategy
from keyed.patterns.pattern_conditions import ALWAYS, Condition

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
