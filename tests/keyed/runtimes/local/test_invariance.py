"""Independence of results from where batches are cut.

On input in event-time order it holds for every deterministic function; under disorder within the delay for functions
whose timer at ``t`` reads only what rows at or before ``t`` wrote, and whose result does not depend on the order of
rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyed
from keyed import KeyedProcessFunction, ListState, MapState, OutputTag, StateTtl, TimeDomain, ValueState
from keyed.runtimes.local import local_query as query
from keyed.runtimes.local.source import Arrivals, SourceReader
from keyed.testing import strategies
from tests.support.jobs import collect

LATE = OutputTag("late")
DELAY = 6


class Window(KeyedProcessFunction):
    """A tumbling window of 10 ms by hand: count, sum and least value."""

    parts = MapState(int, tuple[int, int, int])

    def process_element(self, value, ctx):
        if ctx.is_late():
            ctx.output(LATE, tuple(value))
            return
        start = ctx.timestamp() // 10 * 10
        count, total, least = self.parts.get(start, (0, 0, 1000))
        self.parts[start] = (count + 1, total + value.v, min(least, value.v))
        ctx.timer_service().register_event_time_timer(start + 9)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp - 9, *self.parts[timestamp - 9]
        self.parts.remove(timestamp - 9)


class Merge(KeyedProcessFunction):
    """A second stage: adds up windows of twice the size."""

    total = ValueState(int, default=0)

    def process_element(self, value, ctx):
        state = self.total.namespace(value.start // 20)
        state.update(state.value() + value.sum)
        ctx.timer_service().set_timer(value.start // 20, value.start // 20 * 20 + 19)

    def on_timer(self, timestamp, ctx):
        state = self.total.namespace(ctx.timer_name())
        yield ctx.get_current_key(), ctx.timer_name() * 20, state.value()
        state.clear()


class Everything(KeyedProcessFunction):
    """Depends on all it can see, but for the end of a batch: order, watermarks, lateness, timers, time to live."""

    n = ValueState(int, default=0)
    recent = ListState(int, ttl=StateTtl(milliseconds=7, time_domain=TimeDomain.EVENT_TIME))
    last = ValueState(int, ttl=StateTtl(milliseconds=12, time_domain=TimeDomain.EVENT_TIME))

    def process_element(self, value, ctx):
        service = ctx.timer_service()
        self.n.update(self.n.value() + 1)
        self.recent.add(value.v)
        yield ctx.get_current_key(), self.n.value(), ctx.timestamp(), value.v, str(self.recent.get()), self.last.value()
        self.last.update(value.v)
        service.register_event_time_timer(ctx.timestamp() + value.v % 9 - 2)
        service.set_timer(value.v % 3, ctx.timestamp() + 5)
        if value.v % 5 == 0:
            service.cancel_timer(value.v % 3)

    def on_timer(self, timestamp, ctx):
        yield (
            ctx.get_current_key(),
            -self.n.value(),
            timestamp,
            ctx.timer_name(),
            str(self.recent.get()),
            self.last.value(),
        )
        if timestamp % 4 == 0:
            self.recent.add(timestamp)
            ctx.timer_service().set_timer("again", timestamp + 3)


class Follow(KeyedProcessFunction):
    """A second stage that depends on the order of what it gets."""

    seen = ListState(str)

    def process_element(self, value, ctx):
        self.seen.add(str(tuple(value)))
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 2)
        yield ctx.get_current_key(), ctx.timestamp(), self.seen.get()

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, self.seen.get()
        self.seen.clear()


class Chained(Everything):
    """As `Everything`, but what it gives is in the order of its timestamps, so that a second stage is in order too."""

    def process_element(self, value, ctx):
        self.n.update(self.n.value() + 1)
        yield ctx.get_current_key(), self.n.value(), value.v, self.last.value()
        self.last.update(value.v)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + value.v % 9)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), -self.n.value(), timestamp, self.last.value()


def window_chain(stream: Any, parallelism: int) -> list[Any]:
    windows = stream.key_by("k").process(
        Window(), "k string, start bigint, count bigint, sum bigint, least bigint", parallelism=parallelism
    )
    return [windows.key_by("k").process(Merge(), parallelism=5 - parallelism), windows, windows.side_output(LATE)]


def everything_chain(stream: Any, parallelism: int) -> list[Any]:
    return [stream.key_by("k").process(Everything(), parallelism=parallelism)]


def follow_chain(stream: Any, parallelism: int) -> list[Any]:
    first = stream.key_by("k").process(Chained(), parallelism=parallelism)
    second = first.key_by(lambda value: value[0]).process(Follow(), parallelism=5 - parallelism)
    return [second.key_by(lambda value: value[0]).process(Follow(), name="third"), second, first]


def run(build: Any, rows: list[Any], sizes: list[int], parallelism: int, delay: int, *, drain: bool) -> list[Any]:
    """The values of each output when the rows come in batches of the given sizes, and the rest in one batch."""

    def cut(last: Any, position: Any, _batch: int, *, keeps: bool, limit_of: Any, **_: Any) -> Iterator[Any]:
        stage = last.chain[0]
        start = 0
        for size in (*sizes, len(rows)):
            size = min(size, len(rows) - start)
            at = attrs.evolve(position, rows=start)
            arrived = Arrivals()
            if size:
                [found] = next(SourceReader([stage], at, size, keeps, limit_of(stage.source)).batches())
                arrived = Arrivals({(stage.name, 0): found}, [found.read])
            yield arrived
            start += size

    stream = keyed.stream(rows, timestamp="ts", watermark=keyed.bounded_out_of_orderness(delay))
    outputs = build(stream, parallelism)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query, "arrivals", cut)
        return collect(*outputs, drain=drain)[0]


def per_key(values: list[Any]) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = {}
    for value in values:
        found.setdefault(value[0], []).append(tuple(value))
    return found


ROW = strategies.rows("k string, ts bigint, v bigint", k=strategies.skewed(*"abcd"), v=st.integers(0, 20))
SIZES = st.lists(st.integers(0, 12), max_size=8)


def rows_with(delay: int = 0, late: int = 0) -> st.SearchStrategy[list[Any]]:
    stream = strategies.streams(ROW, timestamp="ts", gap=2, max_size=40, delay=delay, late=late)
    return stream.map(lambda records: [record.value for record in records])


@settings(max_examples=settings().max_examples // 2)
@given(rows_with(), SIZES, SIZES, st.integers(1, 4), st.booleans(), st.sampled_from([0, DELAY]))
def test_every_function_on_input_in_event_time_order(rows, one, other, parallelism, drain, delay):
    (first,) = run(everything_chain, rows, one, parallelism, delay, drain=drain)
    (second,) = run(everything_chain, rows, other, parallelism, delay, drain=drain)
    (single,) = run(everything_chain, rows, [1] * len(rows), 5 - parallelism, delay, drain=drain)
    assert per_key(first) == per_key(second) == per_key(single)


@settings(max_examples=settings().max_examples // 3)
@given(rows_with(), SIZES, SIZES, st.integers(1, 4), st.booleans())
def test_stages_in_a_row_on_input_in_event_time_order(rows, one, other, parallelism, drain):
    first = run(follow_chain, rows, one, parallelism, 0, drain=drain)
    second = run(follow_chain, rows, other, parallelism, 0, drain=drain)
    assert list(map(per_key, first)) == list(map(per_key, second))


@settings(max_examples=settings().max_examples // 2)
@given(rows_with(delay=DELAY), SIZES, SIZES, st.integers(1, 4), st.booleans())
def test_windows_under_disorder_within_the_delay(rows, one, other, parallelism, drain):
    first = run(window_chain, rows, one, parallelism, DELAY, drain=drain)
    second = run(window_chain, rows, other, parallelism, DELAY, drain=drain)
    assert list(map(Counter, first)) == list(map(Counter, second))
    assert first[2] == []
    if drain:
        expected: dict[Any, list[int]] = {}
        for row in rows:
            expected.setdefault((row["k"], row["ts"] // 10 * 10), []).append(row["v"])
        windows = [(k, start, len(found), sum(found), min(found)) for (k, start), found in expected.items()]
        assert Counter(first[1]) == Counter(windows)
        assert sum(total for _, _, total in first[0]) == sum(row["v"] for row in rows)


@settings(max_examples=settings().max_examples // 4)
@given(rows_with(late=60), SIZES, st.integers(1, 4))
def test_no_row_is_lost_when_rows_are_late(rows, sizes, parallelism):
    _, windows, late = run(window_chain, rows, sizes, parallelism, 0, drain=True)
    assert sum(window[2] for window in windows) + len(late) == len(rows)
