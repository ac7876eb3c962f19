"""The cost of a row does not grow with what its batch has written for its key, nor with what the key has stored."""

from __future__ import annotations

from functools import partial

import pytest

import keyed
from tests.keyed.engine.groups import Group
from tests.support.steps import steps

ROWS = 100
LATER = 10**9

TTL = keyed.StateTtl(
    milliseconds=LATER, time_domain=keyed.TimeDomain.EVENT_TIME, update=keyed.UpdateType.ON_READ_AND_WRITE
)
BRIEF = keyed.StateTtl(milliseconds=1, time_domain=keyed.TimeDomain.EVENT_TIME)


class Total(keyed.AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + value

    def get_result(self, accumulator):
        return accumulator

    def merge(self, a, b):
        return a + b


class Calls(keyed.KeyedProcessFunction):
    """Runs one operation at each row."""

    value = keyed.ValueState(int, default=0)
    timed_value = keyed.ValueState(int, default=0, ttl=TTL)
    sum = keyed.ReducingState(lambda a, b: a + b, int)
    total = keyed.AggregatingState(Total(), int)
    list = keyed.ListState(int)
    copied_list = keyed.ListState(dict)
    timed_list = keyed.ListState(int, ttl=TTL)
    brief_list = keyed.ListState(int, ttl=BRIEF)
    map = keyed.MapState(int, int)
    timed_map = keyed.MapState(int, int, ttl=TTL)
    brief_map = keyed.MapState(int, int, ttl=BRIEF)
    versions = keyed.VersionedState(int, history=LATER)

    def process_element(self, value, ctx):
        _, operation, number = value
        operation(self, number, ctx)

    def on_timer(self, timestamp, ctx):
        return ()


def fill(f, i, ctx):
    """Store entries of each kind."""
    f.list.add_all(range(i))
    f.timed_list.add_all(range(i))
    f.copied_list.add_all({"v": each} for each in range(i))
    for each in range(i):
        f.map.put(LATER + each, each)
        f.timed_map.put(LATER + each, each)
        f.versions.put(each, each)
        ctx.timer_service().register_event_time_timer(LATER + each)
        ctx.timer_service().set_timer(-1 - each, LATER + each)


def values(f, i, ctx):
    for state in (f.value, f.timed_value):
        state.update(state.value() + i)
    for state in (f.sum, f.total):
        state.add(i)
        assert state.get() is not None


def namespaces(f, i, ctx):
    f.value.namespace(i).update(i)
    f.map.namespace(i).put(i, i)
    assert f.map.namespace(i)


def appended_list(f, i, ctx):
    f.list.add(i)
    f.copied_list.append({"v": i})
    f.timed_list.add_all([i])


def ends_of_a_list(f, i, ctx):
    for state, value in ((f.list, i), (f.copied_list, {"v": i})):
        state.add(value)
        assert state
        assert state[-1] == value
        assert state[0] == next(iter(state))


def first_of_a_list_with_a_time_to_live(f, i, ctx):
    f.timed_list.add(i)
    assert f.timed_list
    assert next(iter(f.timed_list)) == 0


def first_of_a_list_that_expires(f, i, ctx):
    assert not f.brief_list
    f.brief_list.add(i)


def growing_map(f, i, ctx):
    for state in (f.map, f.timed_map):
        state.put(i, i)
        assert state
        assert state.setdefault(i, 7) == i


def map_of_one(f, i, ctx):
    f.map.put(i, i)
    f.map.remove(i - 1)
    assert not f.map.is_empty()


def first_of_a_map(f, i, ctx):
    for state in (f.map, f.timed_map):
        state[-i] = i
        assert next(state.keys()) <= -i


def first_of_a_map_that_expires(f, i, ctx):
    assert not f.brief_map
    f.brief_map[i] = i


def from_a_key_of_a_map(f, i, ctx):
    for state in (f.map, f.timed_map):
        state[i] = i
        assert next(state.items_from(i))[0] == i


def newest_version(f, i, ctx):
    f.versions.put(i, LATER + i)
    assert f.versions.get().timestamp >= LATER + i


def timers(f, i, ctx):
    service = ctx.timer_service()
    service.register_event_time_timer(LATER + i)
    service.delete_event_time_timer(LATER + i - 1)
    service.set_timer(i, LATER + i)
    service.set_timer("moved", LATER + i)
    service.cancel_timer(i - 1)
    service.set_timer(i, 0, keyed.TimeDomain.PROCESSING_TIME)


def listed_timers(f, i, ctx):
    timers(f, i, ctx)
    assert len(ctx.timer_service().timers()) == 4


def counted(f, i, ctx):
    f.list.add(i)
    f.map.put(i, i)
    assert len(f.list) == len(f.map) == i + 1


def replaced(f, i, ctx):
    for state in (f.list, f.timed_list):
        state.update([i])
    for state in (f.map, f.timed_map, f.versions):
        state.clear()


#: Each costs the same, whatever its key has.
CALLS = [
    *(values, namespaces, appended_list, ends_of_a_list, growing_map, map_of_one, first_of_a_map),
    *(from_a_key_of_a_map, first_of_a_list_with_a_time_to_live, newest_version, timers),
]
#: Those whose first call of a batch costs as much as its key has stored.
PASSES = [listed_timers, counted, replaced]
#: Those that need the clock to move within a batch.
EXPIRING = [first_of_a_list_that_expires, first_of_a_map_that_expires]


def retained(rows):
    """Run rows in one batch, with state that is retained in memory."""
    keyed.stream(rows, timestamp=lambda row: 10 * row[2]).key_by(lambda row: row[0]).process(Calls()).run()


def stored(rows):
    """Run rows in one batch, with state in a local store."""
    Group(Calls()).run(*rows)


@pytest.mark.parametrize(
    ("operation", "run"),
    [*((each, retained) for each in CALLS + PASSES + EXPIRING), *((each, stored) for each in CALLS + PASSES)],
)
def test_the_cost_of_a_row_does_not_grow_with_the_rows_of_its_key(operation, run):
    few, many = (steps(partial(run, rows_of(operation, count))) for count in (ROWS, 4 * ROWS))
    assert many < 5 * few, f"{few:,} and {many:,} steps"


@pytest.mark.parametrize("operation", CALLS)
def test_the_cost_of_a_row_does_not_grow_with_what_its_key_has_stored(operation):
    few, many = (steps_of_a_full_key(operation, count) for count in (ROWS, 10 * ROWS))
    assert many < few + ROWS, f"{few:,} and {many:,} steps"


def steps_of_a_full_key(operation, count):
    """Return the steps of ten rows of a key with stored entries of each kind."""
    group = Group(Calls())
    group.run(("a", fill, count))
    # The store sorts the entries of a key at its first scan.
    group.run(*rows_of(operation, 10))
    return steps(partial(group.run, *rows_of(operation, 10)))


def rows_of(operation, count):
    return [("a", operation, i) for i in range(count)]
