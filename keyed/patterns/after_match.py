"""Strategies that drop other matches and partial matches once a match was found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import attrs

from keyed.errors import DefinitionError, UserFunctionError

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
