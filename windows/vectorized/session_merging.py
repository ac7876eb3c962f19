"""Merging of sessions over whole columns, by sorting and running maxima, with the results of the row path.

Elements and open sessions of a key, sorted by start, are one session as long as the next one starts at or before the
greatest end so far. Three things are as on the row path, where elements are added in the order of their times and the
watermark is at ``max(W, t − delay − 1)`` before one at ``t`` (W: the watermark before the batch):

- An element whose own session ``[t, t + gap)`` is past (its cleanup time at or below W) is late unless it touches an
  open session, or a session of the batch that was open when it arrived: it may bridge existing sessions, but not later
  ones.
- A session that ends exactly at ``t`` and was already cleaned up does not continue, within a batch and between two.
- With allowed lateness, each element that joins a session whose end is past W makes it fire with its current elements;
  and a session that ends exactly at ``t``, is still kept, and was not past W fires before it continues.

All that follows from the elements, the open sessions and the watermarks; the functions are pure.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from keyed.windows.vectorized.row_groups import ordered
from keyed.windows.vectorized.slices import clamped

_MOST_CODES = 2**62


@attrs.frozen(eq=False)
class Spans:
    """Time spans of keys.

    Attributes:
        keys: The number of each span's key.
        starts: Its start.
        ends: Its end, exclusive.
    """

    keys: Any
    starts: Any
    ends: Any

    def __len__(self) -> int:
        return len(self.keys)

    def of(self, rows: Any) -> Spans:
        """Return the spans at some positions."""
        return Spans(self.keys[rows], self.starts[rows], self.ends[rows])


@attrs.frozen
class Clock:
    """The watermark during a batch.

    Attributes:
        before: Before the batch.
        after: After it.
        lag: Its distance from the time of the next element: delay + 1.
        lateness: Allowed lateness.
    """

    before: int
    after: int
    lag: int
    lateness: int

    def at(self, times: Any) -> Any:
        """Return the watermark before elements at ``times`` are added."""
        behind = np.minimum(times - clamped(self.lag), clamped(self.after))
        return np.maximum(behind, clamped(self.before))

    def are_gone(self, ends: Any) -> Any:
        """Return a mask of the sessions that are cleaned up before the batch."""
        return ends <= clamped(self.before + 1 - self.lateness)


def accepted(open_: Spans, rows: Spans, clock: Clock) -> Any:
    """Return a mask of the elements that are not late.

    Args:
        open_: The open sessions.
        rows: The elements, each as the session that it would open, in the order in which they are added.
        clock: The watermarks.
    """
    is_accepted = np.ones(len(rows), dtype=bool)
    past = np.flatnonzero(clock.are_gone(rows.ends))
    if not len(past):
        return is_accepted
    late = rows.of(past)
    order = ordered(late.keys, late.starts)
    late, past = late.of(order), past[order]
    joins = touches(open_, late)
    # Elements that follow each other within the gap are one run. Once one of them joins a session, the later ones of
    # the run join it too.
    is_first = np.ones(len(late), dtype=bool)
    is_first[1:] = (late.keys[1:] != late.keys[:-1]) | (late.starts[1:] > late.ends[:-1])
    before_run = (np.cumsum(joins) - joins)[is_first]
    run = np.cumsum(is_first) - 1
    is_accepted[past] = np.cumsum(joins) > before_run[run]
    return is_accepted


def touches(open_: Spans, rows: Spans) -> Any:
    """Return a mask of the rows that overlap or touch an open session of their key.

    Open sessions of a key do not overlap.
    """
    if not len(open_):
        return np.zeros(len(rows), dtype=bool)
    # Both sorted by key and start; a session comes before rows with the same start.
    keys = np.concatenate([open_.keys, rows.keys])
    starts = np.concatenate([open_.starts, rows.starts])
    is_row = np.arange(len(keys)) >= len(open_)
    order = ordered(keys, starts)
    ends = np.concatenate([open_.ends, rows.ends])[order]
    keys, starts, is_open = keys[order], starts[order], ~is_row[order]
    before = len(keys) - 1 - _next(is_open[::-1])[::-1]
    touches = is_open[before] & (keys[before] == keys) & (ends[before] >= starts)
    after = _next(is_open)
    touches |= is_open[after] & (keys[after] == keys) & (starts[after] <= ends)
    result = np.empty(len(keys), dtype=bool)
    result[order] = touches
    return result[len(open_) :]


def _next(is_wanted: Any) -> Any:
    """Return, for each position, the next wanted one at or after it; the last position if there is none."""
    positions = np.where(is_wanted, np.arange(len(is_wanted)), len(is_wanted) - 1)
    return np.minimum.accumulate(positions[::-1])[::-1]


def spans_of(rows: Spans, gap: int, clock: Clock) -> tuple[Spans, Any]:
    """Return elements that follow each other within the gap, as one span each, so that fewer have to be sorted.

    An element that may cause its session to fire is a span of its own, and so is one that may follow a firing.

    Args:
        rows: Elements that are not late, in the order of their times.
        gap: The gap.
        clock: The watermarks.

    Returns:
        The spans, and the number of each element's span.
    """
    order = np.argsort(rows.keys, kind="stable")
    keys, times = rows.keys[order], rows.starts[order]
    is_first = np.ones(len(keys), dtype=bool)
    is_first[1:] = (keys[1:] != keys[:-1]) | (times[1:] >= times[:-1] + gap)
    if clock.lateness:
        is_first |= times + gap <= clamped(clock.before + 1)
        is_first[1:] |= times[:-1] + gap <= clamped(clock.before + 1)
    first = np.flatnonzero(is_first)
    last = np.append(first[1:], len(keys)) - 1
    numbers = np.empty(len(keys), dtype=np.int64)
    numbers[order] = np.cumsum(is_first) - 1
    return Spans(keys[first], times[first], times[last] + gap), numbers


@attrs.frozen(eq=False)
class Merged:
    """Open sessions and spans, merged.

    Attributes:
        sessions: The sessions afterwards, in order of key and start.
        numbers: The session of each open session and, after those, of each span.
        order: Positions of open sessions and spans (numbered consecutively) by session and start.
        fires: Positions in ``order`` after which a session fires at once, ascending.
        fired: Start and end of the session at that moment.
        ahead: The open session later in ``order`` with which it has been merged; −1 if none.
    """

    sessions: Spans
    numbers: Any
    order: Any
    fires: Any
    fired: Spans
    ahead: Any


def merged(open_: Spans, spans: Spans, clock: Clock) -> Merged:
    """Merge spans into open sessions.

    Args:
        open_: The open sessions.
        spans: Spans of elements that are not late.
        clock: The watermarks.
    """
    keys = np.concatenate([open_.keys, spans.keys])
    starts = np.concatenate([open_.starts, spans.starts])
    ends = np.concatenate([open_.ends, spans.ends])
    is_new = np.arange(len(keys)) >= len(open_)
    # Open sessions come before elements with the same start.
    order = ordered(keys, starts)
    keys, starts, ends, is_new = keys[order], starts[order], ends[order], is_new[order]
    reached = _running_maximum(keys, ends)
    watermarks = clock.at(starts)
    is_first = np.ones(len(keys), dtype=bool)
    touches = is_new[1:] & (starts[1:] == reached[:-1])
    is_cleaned = reached[:-1] <= watermarks[1:] + 1 - clamped(clock.lateness)
    is_first[1:] = (keys[1:] != keys[:-1]) | (starts[1:] > reached[:-1]) | (touches & is_cleaned)
    session = np.cumsum(is_first) - 1
    first = np.flatnonzero(is_first)
    last = np.append(first, len(keys))[1:] - 1
    sessions = Spans(keys[first], starts[first], reached[last])
    numbers = np.empty(len(keys), dtype=np.int64)
    numbers[order] = session
    fires = np.zeros(len(keys), dtype=bool)
    end = reached.copy()
    ahead = np.full(len(keys), -1, dtype=np.int64)
    if clock.lateness and len(keys):
        # An element joins an open session that it reaches, although the session comes later in this order.
        following = _next(~is_new)
        reaches = is_new & ~is_new[following] & (keys[following] == keys) & (starts[following] <= ends)
        end[reaches] = np.maximum(reached[reaches], ends[following[reaches]])
        ahead[reaches] = order[following[reaches]]
        past = clamped(clock.before + 1)
        fires = is_new & (end <= past)
        goes_on = touches & ~is_first[1:] & (reached[:-1] <= watermarks[1:] + 1) & (reached[:-1] > past)
        fires[:-1] |= goes_on
    at = np.flatnonzero(fires)
    return Merged(sessions, numbers, order, at, Spans(keys[at], starts[first][session[at]], end[at]), ahead[at])


def _running_maximum(keys: Any, values: Any) -> Any:
    """Return the greatest value so far within each key; keys ascend."""
    if not len(values):
        return values
    least = int(values.min())
    width = int(values.max()) - least + 1
    if width * (int(keys[-1]) + 1) < _MOST_CODES:
        return np.maximum.accumulate(keys * width + (values - least)) - keys * width + least
    distinct, ranks = np.unique(values, return_inverse=True)
    return distinct[np.maximum.accumulate(keys * len(distinct) + ranks) - keys * len(distinct)]
