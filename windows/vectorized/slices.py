"""Slices of tumbling and hopping windows over columns of times.

A slice is a span of time between two neighbouring starts or ends of windows, as in `keyed.windows.packed_windows`. All
times are milliseconds in numpy arrays of int64, at most `MOST_TIME` from 1970, and windows are at most `MOST_LENGTH`
long, so that nothing here overflows. Limits are Python integers of any size.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from keyed.windows.assigning import HoppingWindows
from keyed.windows.definition import hopping_slice

#: The greatest distance of a time from 1970 on this path, in milliseconds: 146 million years.
MOST_TIME = 2**62
_BEYOND = 2**62 + 2**61


def clamped(limit: int) -> int:
    """Return a limit clamped to the range of times, so that it separates the same times and sums do not overflow."""
    return max(-_BEYOND, min(limit, _BEYOND))


class Slices:
    """The slices of an assigner.

    Attributes:
        size: Length of a window.
        slide: Distance between the starts of two windows.
        offset: Windows start at this time modulo the slide.
        step: Length of a slice.
        span: Length of the part of a slice, from its start, that has elements; less than ``step`` with gaps between
            windows.
    """

    def __init__(self, assigner: HoppingWindows) -> None:
        self.size, self.slide, self.offset = assigner.size_ms, assigner.slide_ms, assigner.offset_ms
        self.step = hopping_slice(assigner)
        self.span = min(self.step, self.size)

    def starts(self, times: Any) -> Any:
        """Return the start of the slice that each time is in."""
        return times - (times - self.offset) % self.step

    def last_windows(self, starts: Any) -> Any:
        """Return the start of the latest window that contains each slice."""
        return starts - (starts - self.offset) % self.slide

    def first_windows(self, starts: Any) -> Any:
        """Return the start of the earliest window that contains each slice."""
        earliest = starts + (self.span - self.size)
        return earliest + (self.offset - earliest) % self.slide

    def windows(self, starts: Any, after: int, until: int, previous: Any = None) -> tuple[Any, Any]:
        """Return the windows of slices whose last timestamp is in ``(after, until]``.

        Args:
            starts: The starts of the slices.
            after: The limit before the first last timestamp.
            until: The greatest last timestamp.
            previous: Another slice for each: only windows that start after it, which therefore do not contain it.

        Returns:
            Two arrays: the position of the slice, ascending, and the start of the window, descending by slice, which is
            the order in which windows fire for one element.
        """
        # The last timestamp of a window that starts at w is w + size − 1.
        low = np.maximum(self.first_windows(starts), clamped(after - self.size + 2))
        if previous is not None:
            low = np.maximum(low, previous + 1)
        low += (self.offset - low) % self.slide
        high = np.minimum(self.last_windows(starts), clamped(until - self.size + 1))
        high -= (high - self.offset) % self.slide
        counts = np.maximum((high - low) // self.slide + 1, 0)
        rows = np.repeat(np.arange(len(starts)), counts)
        place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return rows, high[rows] - place * self.slide
