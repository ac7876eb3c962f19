"""Key groups whose changes nothing reads: states and timers stay as they are, and look as if they had been stored."""

from __future__ import annotations

import enum
import gc
import tracemalloc
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import keyed
from keyed.engine.group_log import UnreadLog
from keyed.errors import KeyedError
from tests.keyed.engine.groups import Gather, Group


class UnreadGroup(Group):
    """A key group that leaves nothing behind."""

    _log: Any = None

    @property
    def log(self) -> Any:
        self._log = self._log or UnreadLog()
        return self._log


class Number(enum.IntEnum):
    ONE = 1


TYPES = [int, float, str, bytes, object, list, tuple[int, str], tuple[float, ...], list[str], int | None, datetime]
VALUES = [
    *(1, -(2**63), 2**70, True, Number.ONE, 1.5, float("nan"), "a", "\ud800", b"b", [], [1, "a", None], ["\ud800"]),
    *([[1]], (1, "a"), (Number.ONE, "a"), (1.5, 2), (1, "\ud800"), [Number.ONE], {"a": [1]}),
    datetime(2024, 1, 1, tzinfo=UTC),
    datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=2))),
]


def function_of(type_: Any) -> keyed.KeyedProcessFunction:
    class Keeps(keyed.KeyedProcessFunction):
        value = keyed.ValueState(type_)
        map = keyed.MapState(int, type_)
        elements = keyed.ListState(type_)
        reduced = keyed.ReducingState(lambda _, b: b, type_)
        gathered = keyed.AggregatingState(Gather(), list[type_])

        def process_element(self, value: Any, ctx: Any) -> Any:
            _, state, item = value
            if item is not None:
                {
                    "value": self.value.update,
                    "map": lambda item: self.map.put(len(list(self.map)), item),
                    "list": self.elements.add,
                    "reduced": self.reduced.add,
                    "gathered": self.gathered.add,
                }[state](item)
            yield shown((self.value.value(), list(self.map.items()), self.elements.get(), self.reduced.get()))
            yield shown(self.gathered.get())

    return Keeps()


def shown(value: Any) -> str:
    """A value and its classes, all the way down."""
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(shown, value))})"
    return f"{type(value)} {value!r}"


@settings(max_examples=settings().max_examples * 2)
@given(
    st.sampled_from(TYPES),
    st.lists(
        st.tuples(st.sampled_from(["value", "map", "list", "reduced", "gathered"]), st.sampled_from(VALUES)), max_size=4
    ),
)
def test_what_stays_is_what_would_have_been_read_back(type_: Any, puts: list[Any]) -> None:
    def outcome(group: Group) -> list[Any]:
        found: list[Any] = []
        for put in [*puts, ("value", None)]:
            try:
                found.append(group.run(("k", *put)).main.values)
            except KeyedError as error:
                return [*found, type(error), str(error).partition(":")[0]]
        return found

    assert outcome(UnreadGroup(function_of(type_))) == outcome(Group(function_of(type_)))


class Leaves(keyed.KeyedProcessFunction):
    """Elements are (key, round): all that can be set for a key, and taken back in the round after."""

    value = keyed.ValueState(int)
    map = keyed.MapState(int, int)
    elements = keyed.ListState(int)

    def process_element(self, value: Any, ctx: Any) -> Any:
        key, is_last = value
        timers = ctx.timer_service()
        if is_last:
            for state in (self.value, self.map, self.elements):
                state.clear()
                state.namespace(key).clear()
            timers.cancel_timer("far")
            timers.delete_event_time_timer(10**9 + key)
        else:
            for state in (self.value, self.value.namespace(key)):
                state.update(key)
            for state in (self.map, self.map.namespace(key)):
                state.put(key % 10, key)
            for state in (self.elements, self.elements.namespace(key)):
                state.add(key)
            # Earlier and earlier, so that it leaves where it was.
            timers.set_timer("far", 10**9 + key)
            timers.set_timer("far", 10**8 + key)
            timers.set_timer("near", key)
            timers.register_event_time_timer(10**9 + key)
            timers.register_event_time_timer(key)
            timers.timers()

    def on_timer(self, timestamp: int, ctx: Any) -> None:
        pass


def test_what_is_gone_takes_no_room() -> None:
    group = UnreadGroup(Leaves())
    room = []
    tracemalloc.start()
    try:
        for start in range(0, 1200, 100):
            keys = range(start, start + 100)
            group.run(*((key, False) for key in keys))
            result = group.run(*((key, True) for key in keys), watermark=start + 100)
            gc.collect()
            room.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert result.metrics["live_entries"] == result.metrics["timers_pending"] == 0
    # Other threads allocate, too, so a single reading may be higher.
    assert min(room[9:]) < max(room[:6]) + 10_000


def test_timers_are_counted_as_where_they_are_stored() -> None:
    counted = []
    for group in (Group(Leaves()), UnreadGroup(Leaves())):
        group.run(*((key, False) for key in range(5)))
        group.run((3, True), (4, True), watermark=2)
        metrics = group.run((1, False)).metrics
        counted.append({name: metrics[name] for name in ("timers_registered", "timers_fired", "timers_pending")})
    assert counted[0] == counted[1]


def test_nothing_is_written_but_the_meta_record() -> None:
    group = UnreadGroup(Leaves())
    metrics = group.run((1, False), (2, False)).metrics
    assert metrics["live_entries"] == 12
    assert metrics["live_bytes"] == metrics["log_bytes"] == metrics["log_rows"] == 0
    assert not list(group.store.items())
