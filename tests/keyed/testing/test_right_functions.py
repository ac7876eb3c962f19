"""The ready properties let functions pass that are right, though they look like those that are not."""

from __future__ import annotations

import datetime as dt
import functools
import os
import random
import time
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st

from keyed import KeyedProcessFunction, ListState, MapState, OutputTag, StateTtl, TimeDomain, ValueState
from keyed.testing import (
    assert_batch_split_invariant,
    assert_deterministic,
    assert_recovery_invisible,
    assert_rescale_invisible,
    assert_state_bounded,
    strategies,
)

RATES = {"ann": 2, "bob": 3}
NEGATIVE = OutputTag("negative")
ROW = strategies.rows("user string, amount bigint", user=strategies.skewed("ann", "bob"), amount=st.integers(-3, 9))
STREAM = strategies.streams(ROW, gap=60_000)


class Rated(KeyedProcessFunction):
    """Reads a table of the module."""

    def process_element(self, value, ctx):
        yield value["user"], value["amount"] * RATES[value["user"]]


class Cached(KeyedProcessFunction):
    """Remembers what depends on the key alone."""

    upper: ClassVar[dict[str, str]] = {}

    def process_element(self, value, ctx):
        user = value["user"]
        if user not in self.upper:
            self.upper[user] = user.upper()
        yield self.upper[user]


@functools.lru_cache
def squared(amount: int) -> int:
    return amount * amount


class Squared(KeyedProcessFunction):
    """Calls a function that remembers its results."""

    def process_element(self, value, ctx):
        yield squared(value["amount"])


class Scratch(KeyedProcessFunction):
    """Has a list on the object that it clears in each call."""

    def __init__(self) -> None:
        self.buffer: list[int] = []
        self.factor = 10

    def process_element(self, value, ctx):
        self.buffer.clear()
        self.buffer.extend([value["amount"]] * 2)
        yield sum(self.buffer) * self.factor


def above(limit):
    class Above(KeyedProcessFunction):
        """Reads a variable of a closure."""

        def process_element(self, value, ctx):
            if value["amount"] > limit:
                yield value["user"]
            else:
                ctx.output(NEGATIVE, value["amount"])

    return Above()


class Opened(KeyedProcessFunction):
    """Makes in `open` what it uses."""

    def open(self, runtime_context):
        self.names = {"ann": "Ann", "bob": "Bob"}

    def process_element(self, value, ctx):
        yield self.names[value["user"]]


class Alarm(KeyedProcessFunction):
    """Moves one timer, and clears what it has."""

    last = ValueState(int)

    def process_element(self, value, ctx):
        self.last.update(max(value["amount"], self.last.value() or 0))
        ctx.timer_service().set_timer("alarm", ctx.timestamp() + 60_000)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, self.last.value()
        self.last.clear()


class Recent(KeyedProcessFunction):
    """Has a time to live."""

    seen = ValueState(bool, ttl=StateTtl(milliseconds=90_000, time_domain=TimeDomain.EVENT_TIME))

    def process_element(self, value, ctx):
        if not self.seen.value():
            yield value["user"], ctx.timestamp()
        self.seen.update(True)


class Minutes(KeyedProcessFunction):
    """Counts by the minute."""

    counts = MapState(int, int)

    def process_element(self, value, ctx):
        end = ctx.timestamp() // 60_000 * 60_000 + 60_000
        self.counts[end] = self.counts.get(end, 0) + 1
        ctx.timer_service().register_event_time_timer(end - 1)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp + 1, self.counts[timestamp + 1]
        self.counts.remove(timestamp + 1)


class Median(KeyedProcessFunction):
    """Shows the median of a quiet time's rows, in the order of a set that is sorted."""

    amounts = ListState(int)

    def process_element(self, value, ctx):
        self.amounts.add(value["amount"])
        ctx.timer_service().set_timer("quiet", ctx.timestamp() + 1_000)

    def on_timer(self, timestamp, ctx):
        distinct = sorted(set(self.amounts.get()))
        yield distinct[len(distinct) // 2]
        self.amounts.clear()


class RunningTotal(KeyedProcessFunction):
    """Shows a total after each row: what it shows between rows of one time depends on their order, and the end not."""

    total = ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.total.update(self.total.value() + value["amount"])
        yield value["user"], self.total.value()


class Users(KeyedProcessFunction):
    """Yields a set, and text of one that is sorted."""

    def process_element(self, value, ctx):
        names = {"new", "old", value["user"]}
        yield frozenset(names)
        yield ",".join(sorted(names))


class Seeded(KeyedProcessFunction):
    """Draws with a seed of the row."""

    def process_element(self, value, ctx):
        yield random.Random(value["amount"]).random()


class Hashed(KeyedProcessFunction):
    """Finds values by their hashes, and samples by hashes of numbers and of times with a zone."""

    rates: ClassVar[dict[int, int]] = {hash("ann"): 2, hash(("bob", 1)): 3}

    def process_element(self, value, ctx):
        user = value["user"]
        yield self.rates.get(hash(user), 0) + self.rates.get(hash((user, 1)), 0)
        if hash((value["amount"], dt.datetime.fromtimestamp(ctx.timestamp() / 1_000, dt.UTC))) % 2:
            yield user


class Logged(KeyedProcessFunction):
    """Keeps the seconds of the machine's clock, in a form that has no time before 1970, and tells nobody."""

    def __init__(self) -> None:
        self.log: list[bytes] = []

    def process_element(self, value, ctx):
        yield value["user"]
        self.log.append(int(time.time()).to_bytes(6, "big"))


class Timed(KeyedProcessFunction):
    """Measures the time that a call takes, and tells nobody."""

    def __init__(self) -> None:
        self.took = 0.0

    def process_element(self, value, ctx):
        began = time.perf_counter()
        yield value["user"], dt.datetime.fromtimestamp(value["amount"], dt.UTC)
        self.took += time.perf_counter() - began


FUNCTIONS: list[Any] = [
    Rated(), Cached(), Squared(), Scratch(), above(3), Opened(), Alarm(), Recent(), Minutes(), Median(), RunningTotal(),
    Users(), Seeded(), Hashed(), Logged(), Timed(),
]  # fmt: skip

#: Those with state; a bound on the state of the others shows nothing, of which the property warns.
STATEFUL = (Alarm, Recent, Minutes, Median, RunningTotal)


@pytest.mark.long
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: type(function).__name__)
def test_no_property_fails(function):
    options: Any = {"key": "user", "examples": 100, "seed": int(os.environ.get("KEYED_FAULT_SEED", "1"))}
    for prove in (
        assert_batch_split_invariant,
        assert_recovery_invisible,
        assert_rescale_invisible,
        assert_deterministic,
    ):
        prove(function, STREAM, **options)
    if isinstance(function, STATEFUL):
        keeps = 1 if isinstance(function, RunningTotal) else 0
        assert_state_bounded(function, STREAM, silence=180_000, keeps=keeps, **options)
    else:
        with pytest.warns(UserWarning, match="no key had state or a timer"):
            assert_state_bounded(function, STREAM, silence=180_000, **options)
