"""Functions that use every kind of state and timer, tables and two inputs, and rows for them: what is simulated."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow.compute as pc

import keyed
from keyed.testing import Record, SecondRecord
from keyed.vectorized import TableState, VectorizedFunction


class Exercise(keyed.KeyedProcessFunction):
    """Elements are (key, call, number)."""

    total = keyed.ValueState(int, default=0)
    elements = keyed.ListState(int)
    names = keyed.MapState(str, int)
    sums = keyed.ReducingState(lambda a, b: a + b, int)
    past = keyed.VersionedState(int, history=50)
    brief = keyed.MapState(int, int, ttl=keyed.StateTtl(milliseconds=20, time_domain=keyed.TimeDomain.EVENT_TIME))

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
            timers.set_timer("n", time + number * 7, keyed.TimeDomain.EVENT_TIME)
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


class Columns(VectorizedFunction):
    """Rows are (k, w, n): sums by key and window, last values by key, and windows that go with the watermark."""

    sums = TableState("k string, w bigint, n bigint", key=["k", "w"])
    last = TableState(
        "k string, n bigint", key="k", ttl=keyed.StateTtl(milliseconds=40, time_domain=keyed.TimeDomain.EVENT_TIME)
    )

    def process_batch(self, table, ctx):
        self.sums.merge(table, {"n": "sum"})
        self.last.upsert(table)
        self.last.delete(table.filter(pc.field("n") == 3))
        ctx.emit(self.sums.lookup(table.group_by(["k", "w"]).aggregate([])))

    def on_watermark(self, watermark, ctx):
        done = self.sums.take(("w", "<", watermark // 10))
        if done.num_rows:
            ctx.emit(done)


class Both(keyed.KeyedCoProcessFunction):
    """Elements of both sides meet by key in one state and one set of timers."""

    left = keyed.ListState(int)
    right = keyed.MapState(int, int)

    def process_element1(self, value, ctx):
        self.left.add(value[2])
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + value[2] * 5)
        yield value[0], 1, len(self.right)

    def process_element2(self, value, ctx):
        self.right[value[2]] = ctx.timestamp()
        ctx.timer_service().set_timer("n", ctx.timestamp() + 9, keyed.TimeDomain.EVENT_TIME)
        yield value[0], 2, sum(self.left.get())

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, list(self.left.get()), sorted(self.right.items())
        if timestamp % 3 == 0:
            self.left.clear()
            self.right.clear()


def rows_in_columns(random: Random) -> list[Record]:
    """Return rows for `Columns`."""
    return [Record({"k": value[0], "w": (time or 0) // 10, "n": value[2]}, time) for value, time in rows(random)]


def rows_of_both(random: Random) -> list[Record]:
    """Return rows for `Both`."""
    return [random.choice((Record, SecondRecord))(*row) for row in rows(random)]


def of_seed(seed: int) -> tuple[Any, Any, Any]:
    """Return a function, its rows and their key: the one with tables seldom, because it costs ten times as much."""
    if seed % 32 == 31:
        return Columns(), rows_in_columns, "k"
    return (Both(), rows_of_both, key) if seed % 4 == 1 else (Exercise(), rows, key)
