"""Functions that are subtly wrong, each as one may be written, and what a reader would say of it."""

from __future__ import annotations

import datetime as dt
import functools
import random
import time
import uuid
from typing import Any, ClassVar

from keyed import KeyedProcessFunction, ListState, MapState, StateTtl, ValueState

FIRST: dict[str, int] = {}


class LastAmount(KeyedProcessFunction):
    """Order-dependence: keeps the amount that came last, and not the one of the highest time."""

    last = ValueState(int)

    def process_element(self, value, ctx):
        self.last.update(value["amount"])


class SeenUsers(KeyedProcessFunction):
    """Leak: the mark of a key that was seen stays for ever."""

    seen = ValueState(bool, default=False)

    def process_element(self, value, ctx):
        if not self.seen.value():
            self.seen.update(True)
            yield value["user"]


class Sampled(KeyedProcessFunction):
    """Non-determinism: draws who is shown."""

    def process_element(self, value, ctx):
        if random.random() < 0.5:
            yield value["user"]


class Reminder(KeyedProcessFunction):
    """A timer in the past: set at the beginning of the minute, so it fires with the next row and not after it."""

    total = ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.total.update(self.total.value() + value["amount"])
        ctx.timer_service().register_event_time_timer(ctx.timestamp() // 60_000 * 60_000)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), self.total.value()
        self.total.clear()


class Distinct(KeyedProcessFunction):
    """A mutable attribute of the class: all keys, and all runs of a process, share the set."""

    known: ClassVar[set[Any]] = set()

    def process_element(self, value, ctx):
        if value["amount"] not in self.known:
            self.known.add(value["amount"])
            yield value["user"], value["amount"]


class CountOnSelf(KeyedProcessFunction):
    """State on ``self``: the count begins again when the process does."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def process_element(self, value, ctx):
        self.counts[value["user"]] = self.counts.get(value["user"], 0) + 1
        yield value["user"], self.counts[value["user"]]


class DropsLate(KeyedProcessFunction):
    """Late rows are passed over without a word, though each should be counted."""

    count = ValueState(int, default=0)

    def process_element(self, value, ctx):
        if ctx.timestamp() <= ctx.timer_service().current_watermark():
            return
        self.count.update(self.count.value() + 1)
        yield value["user"], self.count.value()


class Minutes(KeyedProcessFunction):
    """A window off by one: a row at the very start of a minute counts for the one before."""

    counts = MapState(int, int)

    def process_element(self, value, ctx):
        end = -(-ctx.timestamp() // 60_000) * 60_000
        self.counts[end] = self.counts.get(end, 0) + 1
        ctx.timer_service().register_event_time_timer(end - 1)

    def on_timer(self, timestamp, ctx):
        end = timestamp + 1
        if end in self.counts:
            yield ctx.get_current_key(), end, self.counts[end]
            del self.counts[end]


class Sessions(KeyedProcessFunction):
    """A wrong merge: of two sessions that a row joins, the count of one is lost."""

    sessions = ListState(tuple[int, int, int])

    def process_element(self, value, ctx):
        first = last = ctx.timestamp()
        count, apart = 1, []
        for start, end, n in self.sessions.get():
            if start - 1000 <= last and first <= end + 1000:
                first, last, count = min(first, start), max(last, end), n + 1
            else:
                apart.append((start, end, n))
        self.sessions.update([*apart, (first, last, count)])
        ctx.timer_service().register_event_time_timer(last + 1000)

    def on_timer(self, timestamp, ctx):
        for session in self.sessions.get():
            if session[1] + 1000 == timestamp:
                yield ctx.get_current_key(), *session
        self.sessions.update([session for session in self.sessions.get() if session[1] + 1000 != timestamp])


class Prices(KeyedProcessFunction):
    """Float keys: a sum of floats is nearly, and not quite, the key that it was before."""

    counts = MapState(float, int)
    total = ValueState(float, default=0.0)

    def process_element(self, value, ctx):
        self.total.update(self.total.value() + value["amount"] * 0.1)
        self.counts[self.total.value()] = self.counts.get(self.total.value(), 0) + 1
        yield value["user"], self.counts[self.total.value()]


class FirstAmount(KeyedProcessFunction):
    """A cache on the class, filled by key: two runs fill it alike, and a new process begins without it."""

    first: ClassVar[dict[str, int]] = {}

    def process_element(self, value, ctx):
        yield value["user"], self.first.setdefault(value["user"], value["amount"])


class FirstAmountOfModule(KeyedProcessFunction):
    """The same in a global of the module, behind a function."""

    def process_element(self, value, ctx):
        yield value["user"], remembered(value["user"], value["amount"])


def remembered(user, amount):
    return FIRST.setdefault(user, amount)


class FirstAmountOfDefault(KeyedProcessFunction):
    """The same in the default of an argument."""

    def process_element(self, value, ctx, first={}):  # noqa: B006 - what is wrong with it
        yield value["user"], first.setdefault(value["user"], value["amount"])


def numbering():
    """Return a function that numbers rows with a variable of a closure."""
    count = 0

    class Numbered(KeyedProcessFunction):
        def process_element(self, value, ctx):
            nonlocal count
            count += 1
            yield value["user"], count

    return Numbered


Numbered = numbering()


class Purse:
    """An amount that is equal to all others: a cache by user keeps the first."""

    def __init__(self, amount):
        self.amount = amount

    def __eq__(self, other):
        return isinstance(other, Purse)

    def __hash__(self):
        return 0


@functools.cache
def first_amount(user, purse):
    return purse.amount


class FirstAmountOfCache(KeyedProcessFunction):
    """The same in a cache of `functools`."""

    def process_element(self, value, ctx):
        yield value["user"], first_amount(value["user"], Purse(value["amount"]))


class Registry:
    """An object that the process holds."""

    def __init__(self):
        self.first: dict[str, int] = {}


class Slotted:
    """The same with slots."""

    __slots__ = ("last",)
    last: int


REGISTRY = Registry()


class FirstOfRegistry(KeyedProcessFunction):
    """The same in an object of a module."""

    def process_element(self, value, ctx):
        yield value["user"], REGISTRY.first.setdefault(value["user"], value["amount"])


class LastOfObject(KeyedProcessFunction):
    """The same in an object of the class, with slots."""

    held: ClassVar[Slotted] = Slotted()

    def process_element(self, value, ctx):
        yield value["user"], getattr(self.held, "last", None)
        self.held.last = value["amount"]


class SeenAt(KeyedProcessFunction):
    """Reads the machine's clock, so a batch that runs again has another state."""

    at = ValueState(int)

    def process_element(self, value, ctx):
        self.at.update(time.time_ns())


class EverSince(KeyedProcessFunction):
    """A timer that sets itself again, and never ends."""

    def process_element(self, value, ctx):
        ctx.timer_service().set_timer("again", ctx.timestamp() + 60_000)

    def on_timer(self, timestamp, ctx):
        ctx.timer_service().set_timer("again", timestamp + 60_000)


class Collected(KeyedProcessFunction):
    """A list that is read and never cleared."""

    amounts = ListState(int)

    def process_element(self, value, ctx):
        self.amounts.add(value["amount"])
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 1_000)

    def on_timer(self, timestamp, ctx):
        yield sum(self.amounts.get())


class SilencesByClock(KeyedProcessFunction):
    """In processing time, the timer of a row stays when the next row comes."""

    count = ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.count.update(self.count.value() + 1)
        ctx.timer_service().register_processing_time_timer(ctx.timer_service().current_processing_time() + 1_000)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, self.count.value()
        self.count.clear()


class SeenTooLong(KeyedProcessFunction):
    """A time to live that ends a millisecond late."""

    seen = ValueState(bool, ttl=StateTtl(milliseconds=60_001))

    def process_element(self, value, ctx):
        if not self.seen.value():
            yield value["user"]
        self.seen.update(True)


class WindowsLeft(KeyedProcessFunction):
    """A leak beside the key: the count of each minute stays in a namespace."""

    count = ValueState(int, default=0)

    def process_element(self, value, ctx):
        count = self.count.namespace(ctx.timestamp() // 60_000)
        count.update(count.value() + 1)
        yield value["user"], count.value()


class Silences(KeyedProcessFunction):
    """The timer of a row stays when the next row comes, and tells of a silence that there was not."""

    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 60_000)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp


class SessionsTouch(KeyedProcessFunction):
    """Rows exactly a gap apart are one session, where they should be two."""

    last = ValueState(int)

    def process_element(self, value, ctx):
        last = self.last.value()
        if last is not None and ctx.timestamp() > last + 60_000:
            yield value["user"], last
        self.last.update(ctx.timestamp())
        ctx.timer_service().set_timer("end", ctx.timestamp() + 60_001)

    def on_timer(self, timestamp, ctx):
        if (last := self.last.value()) is not None:
            yield ctx.get_current_key(), last
            self.last.clear()


class TwiceIfLate(KeyedProcessFunction):
    """Late rows are counted twice."""

    count = ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.count.update(self.count.value() + 1 + ctx.is_late())
        yield value["user"], self.count.value()


class MinutesInclusive(KeyedProcessFunction):
    """The end of a window belongs to it: the row at the next minute's start is told with this one."""

    count = ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.count.update(self.count.value() + 1)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() // 60_000 * 60_000 + 60_000)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, self.count.value()
        self.count.clear()


class SumOfFloats(KeyedProcessFunction):
    """A sum of floats in the order of arrival: the last digits depend on it."""

    total = ValueState(float, default=0.0)

    def process_element(self, value, ctx):
        self.total.update(self.total.value() + value["amount"] / 3)


class WatermarkSeen(KeyedProcessFunction):
    """Shows the watermark, which is another one in another batch."""

    def process_element(self, value, ctx):
        yield value["user"], ctx.timer_service().current_watermark()


class Tags(KeyedProcessFunction):
    """The order of a set of text, which is another one in another process."""

    def process_element(self, value, ctx):
        yield ",".join({"new", "old", value["user"]})


class Rarely(KeyedProcessFunction):
    """Chance in a small dose."""

    def process_element(self, value, ctx):
        if random.random() < 0.001:
            yield value["user"]


class Named(KeyedProcessFunction):
    """An identifier that is drawn."""

    def process_element(self, value, ctx):
        yield str(uuid.uuid4())


class Dated(KeyedProcessFunction):
    """Today, which is another day for a batch that runs again after midnight."""

    def process_element(self, value, ctx):
        yield value["user"], dt.date.today()


class AtHour(KeyedProcessFunction):
    """The hour of the machine's clock."""

    def process_element(self, value, ctx):
        yield value["user"], dt.datetime.now(dt.UTC).hour


class SampledByHash(KeyedProcessFunction):
    """A sample by the hash of a text, which is another one in another process."""

    def process_element(self, value, ctx):
        if hash(value["user"] + "x") % 2:
            yield value["user"], value["amount"]


class Aged(KeyedProcessFunction):
    """Compares rows with the machine's clock: rows of 1970 have been old for decades."""

    def process_element(self, value, ctx):
        yield value["user"], time.time() * 1_000 - ctx.timestamp() < 10 * 365 * 86_400_000


class Throttled(KeyedProcessFunction):
    """Waits for half a minute of the machine's clock, which no test takes."""

    def __init__(self) -> None:
        self.last: float | None = None

    def process_element(self, value, ctx):
        now = time.monotonic()
        if self.last is None or now - self.last > 30:
            self.last = now
            yield value["user"]


class LastOfTime(KeyedProcessFunction):
    """The last of several rows of one time wins, which may arrive in any order."""

    last = ValueState(int)
    at = ValueState(int, default=-1)

    def process_element(self, value, ctx):
        if ctx.timestamp() >= self.at.value():
            self.at.update(ctx.timestamp())
            self.last.update(value["amount"])


class FirstWins(KeyedProcessFunction):
    """The first of several rows of one time wins."""

    seen = ValueState(bool, default=False)

    def process_element(self, value, ctx):
        if not self.seen.value():
            self.seen.update(True)
            yield value["user"], value["amount"]


class SumOfTenths(KeyedProcessFunction):
    """A sum of floats of rows of one time: the last digits depend on their order."""

    total = ValueState(float, default=0.0)

    def process_element(self, value, ctx):
        self.total.update(self.total.value() + value["amount"] * 0.1)
        yield value["user"], self.total.value()


class ReadsLater(KeyedProcessFunction):
    """A timer that reads what a row after its time wrote, if that came before it fired."""

    last = ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.last.update(max(self.last.value(), ctx.timestamp()))
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 1_000)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, self.last.value()


class CountOfMinute(KeyedProcessFunction):
    """The same with a count, which rows of the next minute raise before the watermark passes the end of this one."""

    count = ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.count.update(self.count.value() + 1)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() // 60_000 * 60_000 + 59_999)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, self.count.value()


class Silent(KeyedProcessFunction):
    """The same with a timer that a later row moves, if it comes before the timer fires."""

    readings = ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.readings.update(self.readings.value() + 1)
        ctx.timer_service().set_timer("silent", ctx.timestamp() + 60_000)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), self.readings.value(), timestamp
        self.readings.clear()


class Idle(KeyedProcessFunction):
    """A timer of processing time that an element has replaced also fires, and nearly agrees with the state."""

    waits_until = ValueState(int)

    def process_element(self, value, ctx):
        now = ctx.timer_service().current_processing_time()
        self.waits_until.update(now + 1_000)
        ctx.timer_service().register_processing_time_timer(now + 1_000)

    def on_timer(self, timestamp, ctx):
        if self.waits_until.value() is not None:
            yield ctx.get_current_key(), timestamp
            self.waits_until.clear()


class IdleByClock(Idle):
    """The same with another condition."""

    def on_timer(self, timestamp, ctx):
        if (self.waits_until.value() or 0) <= max(timestamp, ctx.timer_service().current_processing_time()):
            yield ctx.get_current_key(), timestamp
            self.waits_until.clear()


class IdleByAMillisecond(Idle):
    """The same with another condition."""

    def on_timer(self, timestamp, ctx):
        if abs((self.waits_until.value() or 0) - timestamp) <= 1:
            yield ctx.get_current_key(), timestamp
            self.waits_until.clear()
