"""A function that uses every kind of state and timer, and rows for it: what simulations are made of."""

from __future__ import annotations

from random import Random

from keyed import (
    KeyedProcessFunction,
    ListState,
    MapState,
    ReducingState,
    StateTtl,
    TimeDomain,
    ValueState,
    VersionedState,
)
from keyed.testing import Record


class Exercise(KeyedProcessFunction):
    """Elements are (key, call, number)."""

    total = ValueState(int, default=0)
    elements = ListState(int)
    names = MapState(str, int)
    sums = ReducingState(lambda a, b: a + b, int)
    past = VersionedState(int, history=50)
    brief = MapState(int, int, ttl=StateTtl(milliseconds=20, time_domain=TimeDomain.EVENT_TIME))

    def process_element(self, value, ctx):
        key, call, number = value
        timers, time = ctx.timer_service(), ctx.timestamp()
        self.total.update(self.total.value() + number)
        if call == "list":
            self.elements.add(number)
        elif call == "map":
            self.names.put(str(number), self.total.value())
        elif call == "remove":
            self.names.remove(str(number))
        elif call == "sum":
            self.sums.add(number)
        elif call == "version":
            self.past.put(number, time - number)
        elif call == "brief":
            self.brief.put(number, time)
        elif call == "clear":
            self.elements.clear()
            self.total.clear()
        elif call == "event":
            timers.register_event_time_timer(time + number * 5)
        elif call == "named":
            timers.set_timer("n", time + number * 7, TimeDomain.EVENT_TIME)
        elif call == "processing":
            timers.register_processing_time_timer(timers.current_processing_time() + number * 10 + 1)
        elif call == "window":
            self.total.namespace(number).update(time)
        yield key, call, self.total.value(), len(self.names), len(self.brief)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), "timer", timestamp, self.total.value(), list(self.elements.get())
        if timestamp % 3 == 0:
            self.names.clear()


CALLS = ("list", "map", "remove", "sum", "version", "brief", "clear", "event", "named", "processing", "window", "total")


def rows(random: Random) -> list[Record]:
    """Return rows nearly in order, of few keys, so that calls meet."""
    now, found = 0, []
    for _ in range(random.choice([5, 15, 25])):
        now += random.choice([0, 1, 3, 20])
        value = random.choice("abcd"), random.choice(CALLS), random.randrange(5)
        found.append(Record(value, max(0, now - random.choice([0, 0, 0, 4]))))
    return found


def key(element):
    return element[0]
