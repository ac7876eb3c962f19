"""A brute-force oracle: what a window operator outputs, computed from the whole history with nothing incremental.

It keeps every pane as the list of its elements and goes through all panes at every step. It is Flink's algorithm in the
fewest words, not in few steps; it shares no code with `windows` but the assigners' arithmetic, which it has its own of.
"""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import attrs

MAX = 2**63 - 1
HOUR = 3_600_000
ZONE = ZoneInfo("Europe/Berlin")
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@attrs.frozen
class Program:
    """A window definition and what happens to it.

    Attributes:
        kind: ``tumbling``, ``hopping``, ``session``, ``dynamic`` (sessions with a gap of 1 to ``size`` units that the
            value gives), ``calendar`` (days in Berlin), ``global``, ``count`` or ``sliding-count``.
        size: Size, the gap, or the number of elements.
        slide: For hopping and sliding-count.
        offset: For tumbling and hopping.
        lateness: Allowed lateness.
        trigger: ``default``, ``count`` (every two), ``purging`` (count, then purge), ``continuous`` and
            ``continuous-clock`` (every 4 units of event and of processing time), ``timeout`` (count, or 5 units of
            processing time after an element) or ``never``.
        steps: ``("row", key, timestamp, value)``, ``("watermark", time)``, ``("clock", time)`` or ``("crash",)``.
        event_time: Whether the windows are in event time.
        unit: Length of a unit, milliseconds.
    """

    kind: str
    size: int
    slide: int
    offset: int
    lateness: int
    trigger: str
    steps: tuple
    event_time: bool = True
    unit: int = 1


class Pane:
    """The contents of a window, the state of its trigger, and its timers by domain."""

    def __init__(self) -> None:
        self.values: list = []
        self.count = 0
        self.next: int | None = None
        self.timeout: int | None = None
        self.event: set[int] = set()
        self.clock: set[int] = set()


class Oracle:
    """Runs a program. ``outputs`` are (key, start, end, sorted values, timestamp), ``late`` the dropped values."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.merges = program.kind in ("session", "dynamic")
        self.watermark = -(2**63)
        self.now = 0
        self.outputs: list = []
        self.late: list = []
        self.panes: dict[tuple, Pane] = {}

    # Windows ----------------------------------------------------------------------------------------------------

    def windows_of(self, time: int, value: int) -> list[tuple]:
        p = self.program
        if p.kind in ("global", "count", "sliding-count"):
            return [()]
        if p.kind == "session":
            return [(time, time + p.size)]
        if p.kind == "dynamic":
            return [(time, time + (1 + value % p.size) * p.unit)]
        if p.kind == "calendar":
            start = end = time - time % HOUR
            while date(start - 1) == date(time):
                start -= HOUR
            while date(end) == date(time):
                end += HOUR
            return [(start, end)]
        slide = p.size if p.kind == "tumbling" else p.slide
        starts = [s for s in range(time - p.size, time + 1) if (s - p.offset) % slide == 0 and s <= time < s + p.size]
        return [(start, start + p.size) for start in reversed(starts)]

    @staticmethod
    def last(window: tuple) -> int:
        return window[1] - 1 if window else MAX

    def cleanup(self, window: tuple) -> int:
        return min(self.last(window) + self.program.lateness * self.program.event_time, MAX)

    # Steps ------------------------------------------------------------------------------------------------------

    def row(self, key: str, time: int, value: int) -> None:
        p = self.program
        placed = False
        for window in self.windows_of(time if p.event_time else self.now, value):
            if self.merges:
                window = self.merge(key, window)
            if p.event_time and self.cleanup(window) <= self.watermark:
                assert (key, *window) not in self.panes
                continue
            placed = True
            pane = self.panes.setdefault((key, *window), Pane())
            pane.values.append(value)
            self.on_element(key, window, pane, time)
            if self.cleanup(window) < MAX:
                (pane.event if p.event_time else pane.clock).add(self.cleanup(window))
        if not placed and p.event_time and time + p.lateness <= self.watermark:
            self.late.append(value)
        self.fire_clock()

    def advance(self, watermark: int) -> None:
        if watermark <= self.watermark:
            return
        self.watermark = watermark
        while due := [(t, name) for name, pane in self.panes.items() for t in pane.event if t <= watermark]:
            time, name = min(due)
            pane, window = self.panes[name], name[1:]
            pane.event.discard(time)
            self.on_event_time(name[0], window, pane, time)
            if self.program.event_time and time == self.cleanup(window):
                del self.panes[name]
            self.fire_clock()

    def move_clock(self, now: int) -> None:
        self.now = max(self.now, now)
        self.fire_clock()

    def fire_clock(self) -> None:
        while due := [(t, name) for name, pane in self.panes.items() for t in pane.clock if t <= self.now]:
            time, name = min(due)
            pane, window = self.panes[name], name[1:]
            pane.clock.discard(time)
            self.on_processing_time(name[0], window, pane, time)
            if not self.program.event_time and time == self.cleanup(window):
                del self.panes[name]

    def merge(self, key: str, window: tuple) -> tuple:
        start, end = window
        joined = sorted(k for k in self.panes if k[0] == key and k[1] <= end and k[2] >= start)
        for _, s, e in joined:
            start, end = min(start, s), max(end, e)
        if not joined or joined == [(key, start, end)]:
            return start, end
        parts = [self.panes.pop(k) for k in joined]
        merged = self.panes[key, start, end] = Pane()
        merged.values = [value for part in parts for value in part.values]
        merged.count = sum(part.count for part in parts)
        merged.next = min((part.next for part in parts if part.next is not None), default=None)
        trigger = self.program.trigger
        if trigger == "default":
            clock = self.watermark if self.program.event_time else self.now
            if end - 1 > clock:
                (merged.event if self.program.event_time else merged.clock).add(end - 1)
        elif merged.next is not None:
            (merged.event if trigger == "continuous" else merged.clock).add(merged.next)
        return start, end

    # Triggers ---------------------------------------------------------------------------------------------------

    def on_element(self, key: str, window: tuple, pane: Pane, time: int) -> None:
        p, last, step = self.program, self.last(window), 4 * self.program.unit
        if p.kind in ("count", "sliding-count"):
            self.count(key, window, pane, p.size if p.kind == "count" else p.slide, purges=p.kind == "count")
        elif p.trigger in ("count", "purging", "timeout"):
            fired = self.count(key, window, pane, 2, purges=p.trigger == "purging")
            if fired:
                self.end_timeout(pane)
            elif p.trigger == "timeout" and pane.timeout is None:
                pane.timeout = self.now + 5 * p.unit
                pane.clock.add(pane.timeout)
        elif p.trigger == "continuous-clock":
            if pane.next is None:
                self.set_next(pane, last, self.now - self.now % step)
        elif p.trigger == "never" or (p.trigger == "default" and not window):
            pass
        elif p.trigger == "default" and not p.event_time:
            pane.clock.add(last)
        elif last <= self.watermark:
            self.fire(key, window, pane)
        else:
            pane.event.add(last)
            if p.trigger == "continuous" and pane.next is None:
                pane.next = time - time % step + step
                pane.event.add(pane.next)

    def on_event_time(self, key: str, window: tuple, pane: Pane, time: int) -> None:
        trigger = self.program.trigger
        if trigger == "timeout":
            # Whatever timer goes off, the cleanup's too, is taken for the timeout, as in Flink.
            self.expire(key, window, pane)
        elif trigger in ("default", "continuous") and time == self.last(window):
            self.fire(key, window, pane)
        elif trigger == "continuous" and time == pane.next:
            pane.next = time + 4 * self.program.unit
            pane.event.add(pane.next)
            self.fire(key, window, pane)

    def on_processing_time(self, key: str, window: tuple, pane: Pane, time: int) -> None:
        trigger = self.program.trigger
        if trigger == "timeout":
            self.expire(key, window, pane)
        elif trigger == "default" and self.program.kind not in ("count", "sliding-count"):
            self.fire(key, window, pane)
        elif trigger == "continuous-clock" and time == pane.next:
            pane.next = None
            if time < self.last(window):
                self.set_next(pane, self.last(window), time)
            self.fire(key, window, pane)

    def count(self, key: str, window: tuple, pane: Pane, most: int, *, purges: bool) -> bool:
        pane.count += 1
        if pane.count < most:
            return False
        pane.count = 0
        if self.program.kind == "sliding-count":
            pane.values = pane.values[-self.program.size :]
        self.fire(key, window, pane)
        if purges:
            pane.values = []
        return True

    def set_next(self, pane: Pane, last: int, time: int) -> None:
        pane.next = time + 4 * self.program.unit
        if time < last < pane.next:
            pane.next = last
        pane.clock.add(pane.next)

    def expire(self, key: str, window: tuple, pane: Pane) -> None:
        self.fire(key, window, pane)
        pane.count = 0
        self.end_timeout(pane)

    @staticmethod
    def end_timeout(pane: Pane) -> None:
        if pane.timeout is not None:
            pane.clock.discard(pane.timeout)
            pane.timeout = None

    def fire(self, key: str, window: tuple, pane: Pane) -> None:
        if pane.values:
            bounds = window or (None, None)
            self.outputs.append((key, *bounds, tuple(sorted(pane.values)), self.last(window)))


def date(time: int) -> dt.date:
    return (EPOCH + dt.timedelta(milliseconds=time)).astimezone(ZONE).date()
