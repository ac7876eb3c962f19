"""Rows of several inputs of one operator as one sequence of chunks, in the order in which they run."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

from keyed.base.durations import MIN_TIMESTAMP
from keyed.engine.batch import Chunk

#: Chunks of one input, and its side; ``None`` if the function has one side.
Part = tuple[Iterable[Chunk], int | None]


def merged_chunks(parts: Sequence[Part], *, by_time: bool, right_first: bool = False) -> Iterator[Chunk]:
    """Yield the rows of several inputs by time; rows of equal times in the order of the inputs.

    Args:
        parts: The inputs, each in the order in which it would run alone.
        by_time: True if rows run by time; all of them need a time then. Otherwise one input runs after the other.
        right_first: The inputs of the second side are before those of the first one.
    """
    if right_first:
        parts = sorted(parts, key=lambda part: -(part[1] or 0))
    if not by_time:
        for chunks, side in parts:
            yield from (_of_side(chunk, side) for chunk in chunks)
        return
    heads = [head for head in (_Head(iter(chunks), side) for chunks, side in parts) if head.fill()]
    while len(heads) > 1:
        # No later row of any input is before the end of the chunk that ends first.
        first = min(heads, key=lambda head: head.last)
        until, is_after = first.last, False
        pieces = []
        for head in heads:
            pieces.append(head.take(until, inclusive=not is_after))
            is_after = is_after or head is first
        yield merged_by_time(pieces)
        heads = [head for head in heads if head.fill()]
    for head in heads:
        yield head.take(None)
        yield from (_of_side(chunk, head.side) for chunk in head.chunks)


def _of_side(chunk: Chunk, side: int | None) -> Chunk:
    keys, times, values, _ = chunk
    return keys, times, values, None if side is None else [side] * len(keys)


class _Head:
    """The current chunk of an input, and the index of its first unread row."""

    def __init__(self, chunks: Iterator[Chunk], side: int | None) -> None:
        self.chunks, self.side = chunks, side
        self._keys: Sequence[Any] = ()
        self._times: Sequence[Any] = ()
        self._order: Sequence[int] = ()
        self._values: Sequence[Any] = ()
        self._start = 0

    def fill(self) -> bool:
        """Read the next chunk if the current one is used up. Returns true if there are rows."""
        while self._start == len(self._keys):
            chunk = next(self.chunks, None)
            if chunk is None:
                return False
            keys, times, values, _ = chunk
            assert times is not None
            self._keys, self._times, self._values, self._start = keys, times, list(values), 0
            self._order = order_of(times)
        return True

    @property
    def last(self) -> int:
        """Return the time of the chunk's last row."""
        return self._order[-1]

    def take(self, until: int | None, *, inclusive: bool = True) -> Chunk:
        """Remove and return the rows up to a time, or before it; all rows without a time."""
        start, end = self._start, len(self._keys)
        if until is not None:
            end = (bisect_right if inclusive else bisect_left)(self._order, until, start)
        self._start = end
        keys, times, values = self._keys[start:end], self._times[start:end], self._values[start:end]
        return keys, times, values, None if self.side is None else [self.side] * (end - start)


def order_of(times: Sequence[Any]) -> Sequence[int]:
    """Return the sort keys of times: rows of processing-time timers, which have none, come first."""
    return [MIN_TIMESTAMP if time is None else time for time in times] if None in times else times


def merged_by_time(chunks: Sequence[Chunk]) -> Chunk:
    """Return chunks as one, sorted by time; rows of equal times in the order of the chunks."""
    import numpy as np

    keys = [key for chunk in chunks for key in chunk[0]]
    times: list[Any] = [time for chunk in chunks for time in chunk[1] or ()]
    values = [value for chunk in chunks for value in chunk[2]]
    sides = None if chunks[0][3] is None else [side for chunk in chunks for side in chunk[3] or ()]
    if len(keys) < 2:
        return keys, times, values, sides
    order = np.argsort(np.array(order_of(times)), kind="stable").tolist()
    pick: Callable[[Any], tuple[Any, ...]] = itemgetter(*order)
    return pick(keys), pick(times), pick(values), None if sides is None else pick(sides)
