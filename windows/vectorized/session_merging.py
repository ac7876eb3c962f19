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

from bisect import bisect_left, bisect_right
from collections import defaultdict
from operator import attrgetter
from typing import Any

import attrs
import numpy as np

from keyed import MIN_TIMESTAMP
from keyed.windows.vectorized.row_groups import ordered
from keyed.windows.vectorized.window_tables import clamped

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

    @property
    def columns(self) -> tuple[list[int], ...]:
        """Keys, starts and ends as lists."""
        return self.keys.tolist(), self.starts.tolist(), self.ends.tolist()

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


_START, _END = attrgetter("start"), attrgetter("end")
#: The watermark that cleans up no session within a batch.
NEVER = Clock(MIN_TIMESTAMP, MIN_TIMESTAMP, 1, 0)


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


@attrs.define(eq=False)
class _Session:
    """A session that grows row by row, or has been merged into another one."""

    key: int
    start: int
    end: int
    into: _Session | None = None

    @property
    def last(self) -> _Session:
        """The session that this one has become."""
        session = self
        while session.into is not None:
            # Halves the way of later look-ups.
            session.into = session.into.into or session.into
            session = session.into
        return session


def merged_by_arrival(open_: Spans, rows: Spans, over: Any) -> tuple[Spans, Any, Any]:
    """Merge rows into sessions in the order in which they come, as Kafka Streams does.

    A row joins no session that was over when it came; it is late if it could only open such a one. Keys with a row that
    is old enough for that are merged row by row, the others over whole columns.

    Args:
        open_: The open sessions.
        rows: The rows, each as the session that it would open, in the order of their arrival.
        over: For each row, the greatest end of the sessions that were over when it came.

    Returns:
        The sessions, and the number of each open session's and of each row's, −1 for rows that are late.
    """
    near = rows.starts <= over
    if not near.any():
        merge = merged(open_, rows, NEVER)
        return merge.sessions, merge.numbers[: len(open_)], merge.numbers[len(open_) :]
    is_old = np.zeros(int(max(open_.keys.max(initial=-1), rows.keys.max(initial=-1))) + 1, dtype=bool)
    is_old[rows.keys[near]] = True
    old_open, old_rows = is_old[open_.keys], is_old[rows.keys]
    merge = merged(open_.of(~old_open), rows.of(~old_rows), NEVER)
    old, *of_old = _merged_row_by_row(open_.of(old_open), rows.of(old_rows), over[old_rows])
    numbers = []
    split = np.split(merge.numbers, [np.count_nonzero(~old_open)])
    for places, of_others, of_own in zip((old_open, old_rows), split, of_old, strict=True):
        numbers.append(np.empty(len(places), dtype=np.int64))
        numbers[-1][~places] = of_others
        numbers[-1][places] = np.where(of_own < 0, -1, of_own + len(merge.sessions))
    both = zip(attrs.astuple(merge.sessions), attrs.astuple(old), strict=True)
    return Spans(*map(np.concatenate, both)), numbers[0], numbers[1]


def _merged_row_by_row(open_: Spans, rows: Spans, over: Any) -> tuple[Spans, Any, Any]:
    """Do what `merged_by_arrival` does, for each key."""
    sessions: list[_Session | None] = [*map(_Session, *open_.columns)]
    # Those of a key that are not over ascend: they do not touch.
    of_keys = defaultdict[int, list[_Session]](list)
    for each in sorted(filter(None, sessions), key=_START):
        of_keys[each.key].append(each)
    for key, start, end, limit in zip(*rows.columns, over.tolist(), strict=True):
        live = of_keys[key]
        del live[: bisect_right(live, limit, key=_END)]
        first, after = bisect_left(live, start, key=_END), bisect_right(live, end, key=_START)
        session = live[first] if first < after else _Session(key, start, end)
        if first == after and end <= limit:
            sessions.append(None)
            continue
        session.start, session.end = min(session.start, start), max(live[after - 1].end if first < after else end, end)
        for each in live[first + 1 : after]:
            each.into = session
        live[first:after] = [session]
        sessions.append(session)
    numbers = {each: number for number, each in enumerate(dict.fromkeys(each.last for each in sessions if each))}
    columns = ([getattr(each, name) for each in numbers] for name in ("key", "start", "end"))
    spans = Spans(*(np.array(column, dtype=np.int64) for column in columns))
    of_items = np.array([-1 if each is None else numbers[each.last] for each in sessions], dtype=np.int64)
    return spans, of_items[: len(open_)], of_items[len(open_) :]


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
