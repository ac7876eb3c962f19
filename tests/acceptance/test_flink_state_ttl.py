"""Flink's TtlStateTestBase over its test contexts, in both time domains of keyed.

An entry is expired when last update + ttl <= clock. Where Flink gives an expired entry once more under
``ReturnExpiredIfNotCleanedUp``, keyed gives it to the end of the batch in which it expires (stated in the docs).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import keyed
from keyed.errors import DefinitionError, StateSchemaChanged
from tests.acceptance.support import (
    EVENT,
    PROCESSING,
    Harness,
    Told,
    advance,
    both_domains,
    both_stores,
    key_of,
    register,
)

TTL = 100
WRITE, READ = keyed.UpdateType.ON_CREATE_AND_WRITE, keyed.UpdateType.ON_READ_AND_WRITE
EXACT, RELAXED = keyed.StateVisibility.NEVER_RETURN_EXPIRED, keyed.StateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP


class LongSum:
    """TtlAggregatingStateTestContext's aggregate: a long that is shown as text."""

    def create_accumulator(self):
        return 3

    def add(self, value, accumulator):
        return accumulator + value

    def get_result(self, accumulator):
        return str(accumulator)

    def merge(self, a, b):
        return a + b


def add(a, b):
    return a + b


class Values:
    """A TtlStateTestContextBase: how a kind of state is updated and read, and what three updates show."""

    empty: object = None
    updates: tuple[Any, ...] = ("updateEmpty", "updateUnexpired", "updateExpired")
    gets: tuple[Any, ...] = updates

    def declare(self, ttl):
        return keyed.ValueState(str, ttl=ttl)

    def update(self, state, value):
        state.update(value)

    def get(self, state):
        return state.value()


class Lists(Values):
    empty: object = []
    updates: tuple[Any, ...] = ([5, 7, 10], [8, 9, 11], [1, 4])
    gets: tuple[Any, ...] = updates

    def declare(self, ttl):
        return keyed.ListState(int, ttl=ttl)

    def update(self, state, value):
        state.add_all(value)

    def get(self, state):
        return state.get()


class Texts(Lists):
    updates: tuple[Any, ...] = (["5", "7", "10"], ["8", "9", "11"], ["1", "4"])
    gets: tuple[Any, ...] = updates

    def declare(self, ttl):
        return keyed.ListState(str, ttl=ttl)


class Maps(Values):
    """TtlMapStateAllEntriesTestContext."""

    empty: object = {}
    updates: tuple[Any, ...] = (
        {3: "3", 5: "5", 23: None, 10: "10"},
        {12: "12", 24: None, 7: "7"},
        {15: "15", 25: None, 4: "4"},
    )
    gets: tuple[Any, ...] = updates

    def declare(self, ttl):
        return keyed.MapState(int, str, ttl=ttl)

    def update(self, state, value):
        state.put_all(value)

    def get(self, state):
        return dict(state.items())


class Elements(Values):
    """TtlMapStatePerElementTestContext."""

    def declare(self, ttl):
        return keyed.MapState(int, str, ttl=ttl)

    def update(self, state, value):
        state.put(9, value)

    def get(self, state):
        return state.get(9)


class NullElements(Elements):
    """TtlMapStatePerNullElementTestContext, told apart by contains()."""

    empty = "nothing"
    updates: tuple[Any, ...] = (None, None, None)
    gets: tuple[Any, ...] = updates

    def get(self, state):
        return state.get(9, "nothing")


class Sums(Values):
    """TtlReducingStateTestContext: what is expired is not added to."""

    updates: tuple[Any, ...] = (5, 7, 6)
    gets: tuple[Any, ...] = (5, 12, 6)

    def declare(self, ttl):
        return keyed.ReducingState(add, int, ttl=ttl)

    def update(self, state, value):
        state.add(value)

    def get(self, state):
        return state.get()


class Aggregates(Sums):
    """TtlAggregatingStateTestContext."""

    gets: tuple[Any, ...] = ("8", "15", "9")

    def declare(self, ttl):
        return keyed.AggregatingState(LongSum(), int, ttl=ttl)


CONTEXTS = (Values, Lists, Texts, Maps, Elements, NullElements, Sums, Aggregates)
every_context = pytest.mark.parametrize("context", CONTEXTS, ids=lambda context: context.__name__)


class Ttl:
    """A harness with one state, driven by a clock as the Flink tests drive their time provider."""

    def __init__(self, context, domain, update=WRITE, visibility=EXACT, ttl=TTL, store="memory"):
        self.context = context()
        self.domain = domain
        config = keyed.StateTtl(ttl, time_domain=domain, update=update, visibility=visibility)
        self.function = type("WithTtl", (Told,), {"state": self.context.declare(config)})()
        self.store = store
        self.harness = Harness(self.function, store=store)
        self.time(0)

    def time(self, now, harness=None):
        advance(harness or self.harness, self.domain, now)

    def restore(self, parallelism=1):
        """As TtlStateTestBase.takeAndRestoreSnapshot."""
        self.harness = Harness.restore(
            self.function, self.harness.snapshot(), key=key_of, store=self.store, parallelism=parallelism
        )

    def update(self, number, key="defaultKey", namespace=None):
        value = self.context.updates[number]
        self.harness.call(lambda f, _: self.context.update(f.state.namespace(namespace), value), key=key)

    def get(self, key="defaultKey", namespace=None):
        return self.harness.call(lambda f, _: self.context.get(f.state.namespace(namespace)), key=key)

    def gets(self, number):
        """The visible values after the given update, on top of those before it that have not expired."""
        return self.context.gets[number]


@every_context
@both_domains
def test_non_existent_value(context, domain):
    """TtlStateTestBase.testNonExistentValue."""
    ttl = Ttl(context, domain)
    assert ttl.get() == ttl.context.empty
    ttl.restore()
    assert ttl.get() == ttl.context.empty


@both_domains
def test_value_set_null(domain):
    """TtlStateTestBase.testValueSetNull."""
    ttl = Ttl(Values, domain, WRITE, RELAXED)
    ttl.update(1)
    assert ttl.get() == ttl.gets(1)
    ttl.harness.call(lambda f, _: f.state.update(None), key="defaultKey")
    assert ttl.get() is None
    assert ttl.harness.state_entries() == 0


@every_context
@both_domains
@both_stores
def test_exact_expiration_on_write(context, domain, store):
    """TtlStateTestBase.testExactExpirationOnWrite, with a snapshot and another parallelism at each step."""
    ttl = Ttl(context, domain, WRITE, EXACT, store=store)
    ttl.update(0)
    ttl.restore(2)
    ttl.time(20)
    assert ttl.get() == ttl.gets(0)
    ttl.time(50)
    ttl.update(1)
    ttl.restore()
    ttl.time(120)
    # In lists and maps each element has its own time: those of the first update are gone.
    assert ttl.get() == ttl.gets(1)
    ttl.time(170)
    assert ttl.get() == ttl.context.empty
    assert ttl.harness.state_entries() == 0
    ttl.update(2)
    ttl.restore(3)
    ttl.time(220)
    assert ttl.get() == ttl.gets(2)
    ttl.time(300)
    assert ttl.get() == ttl.context.empty
    assert ttl.harness.state_entries() == 0


@every_context
@both_domains
@pytest.mark.parametrize("visibility", [EXACT, RELAXED])
@pytest.mark.parametrize("update", [WRITE, READ])
def test_the_expiry_boundary(context, domain, update, visibility):
    """TtlUtils.expired: expirationTimestamp <= currentTimestamp, for every configuration."""
    ttl = Ttl(context, domain, update, visibility)
    ttl.time(7)
    ttl.update(0)
    ttl.time(7 + TTL - 1)
    entries = ttl.harness.state_entries()
    assert entries
    assert entries == ttl.harness.metrics()["live_entries"]
    ttl.time(7 + TTL)
    assert ttl.harness.state_entries() == 0
    assert ttl.get() == ttl.context.empty
    assert ttl.harness.metrics()["entries_expired"] == entries


@every_context
@both_domains
@pytest.mark.parametrize("visibility", [EXACT, RELAXED])
def test_relaxed_expiration_on_write(context, domain, visibility):
    """TtlStateTestBase.testRelaxedExpirationOnWrite: expired and not cleaned up is visible, then it is gone."""
    ttl = Ttl(context, domain, WRITE, visibility)
    seen = []

    def timer(f, ctx, timestamp):
        seen.append((timestamp, ttl.context.get(f.state)))
        return []

    ttl.harness = Harness(type(ttl.function)(timer))
    ttl.time(0)
    ttl.update(0)
    ttl.harness.timers(lambda t: register(t, domain, 120), key="defaultKey")
    ttl.time(120)
    assert seen == [(120, ttl.gets(0) if visibility is RELAXED else ttl.context.empty)]
    assert ttl.get() == ttl.context.empty
    assert ttl.harness.state_entries() == 0


@every_context
@both_domains
def test_exact_expiration_on_read(context, domain):
    """TtlStateTestBase.testExactExpirationOnRead: a read is an update, and is stored as one."""
    ttl = Ttl(context, domain, READ, EXACT)
    ttl.update(0)
    ttl.restore()
    ttl.time(50)
    assert ttl.get() == ttl.gets(0)
    ttl.restore()
    ttl.time(120)
    assert ttl.get() == ttl.gets(0)
    ttl.restore()
    ttl.time(219)
    assert ttl.harness.state_entries()
    ttl.time(220)
    assert ttl.harness.state_entries() == 0
    ttl.time(250)
    assert ttl.get() == ttl.context.empty


@every_context
@both_domains
def test_a_read_is_no_update_where_writes_are(context, domain):
    """UpdateType.OnCreateAndWrite."""
    ttl = Ttl(context, domain, WRITE, EXACT)
    ttl.update(0)
    for now in (30, 60, 99):
        ttl.time(now)
        assert ttl.get() == ttl.gets(0)
    ttl.time(100)
    assert ttl.get() == ttl.context.empty


@every_context
@both_domains
def test_relaxed_expiration_on_read(context, domain):
    """TtlStateTestBase.testRelaxedExpirationOnRead."""
    ttl = Ttl(context, domain, READ, RELAXED)
    ttl.update(0)
    ttl.time(50)
    assert ttl.get() == ttl.gets(0)
    ttl.restore(2)
    ttl.time(149)
    assert ttl.harness.state_entries()
    ttl.time(170)
    assert ttl.get() == ttl.context.empty


@every_context
@both_domains
@pytest.mark.parametrize("ttl_ms", [keyed.MAX_TIMESTAMP, keyed.MAX_TIMESTAMP - 5, keyed.MAX_TIMESTAMP // 2])
def test_expiration_timestamp_overflow(context, domain, ttl_ms):
    """TtlStateTestBase.testExpirationTimestampOverflow: last update + ttl is no more than Long.MAX_VALUE.

    Here it is one less: what is due at `MAX_TIMESTAMP` never is.
    """
    ttl = Ttl(context, domain, ttl=ttl_ms)
    ttl.time(10)
    ttl.update(0)
    ttl.restore()
    ttl.time(50)
    assert ttl.get() == ttl.gets(0)
    ttl.time(keyed.MAX_TIMESTAMP - 2)
    if ttl_ms > keyed.MAX_TIMESTAMP // 2:
        assert ttl.get() == ttl.gets(0)
    ttl.update(1, key="late")
    assert ttl.get(key="late") == ttl.context.gets[1] if context not in (Sums, Aggregates) else True
    ttl.time(keyed.MAX_TIMESTAMP)
    assert ttl.harness.state_entries() == 0


@every_context
@both_domains
@pytest.mark.parametrize("by", ["key", "namespace"])
def test_multiple_keys_and_namespaces(context, domain, by):
    """TtlStateTestBase.testMultipleKeys and testMultipleNamespaces: each has its own times."""
    ttl = Ttl(context, domain)
    ttl.restore(2)
    ttl.update(0, **{by: "id2"})
    ttl.time(50)
    ttl.update(0, **{by: "id1"})
    ttl.update(1, **{by: "id2"})
    ttl.time(120)
    ttl.restore(3)
    assert ttl.get(**{by: "id1"}) == ttl.gets(0)
    assert ttl.get(**{by: "id2"}) == ttl.gets(1)
    ttl.time(170)
    ttl.restore(1)
    assert ttl.get(**{by: "id1"}) == ttl.context.empty
    ttl.update(2, **{by: "id2"})
    ttl.time(230)
    assert ttl.get(**{by: "id2"}) == ttl.gets(2)
    ttl.time(300)
    assert ttl.get(**{by: "id2"}) == ttl.context.empty
    assert ttl.harness.state_entries() == 0


@every_context
@both_domains
def test_snapshot_change_restore(context, domain):
    """TtlStateTestBase.testSnapshotChangeRestore: updates after the snapshot are not in what is restored."""
    ttl = Ttl(context, domain)
    ttl.update(0, key="k1")
    ttl.time(50)
    ttl.update(1, key="k1")
    ttl.time(100)
    ttl.update(0, key="k2")
    snapshot = ttl.harness.snapshot()
    ttl.time(170)
    ttl.update(2, key="k1")
    ttl.update(1, key="k2")
    ttl.harness = Harness.restore(ttl.function, snapshot, key=key_of, parallelism=2)
    ttl.time(180)
    assert ttl.get(key="k1") == ttl.context.empty
    assert ttl.get(key="k2") == ttl.gets(0)


@every_context
@both_domains
def test_many_keys_are_cleaned_up_without_being_touched(context, domain):
    """TtlStateTestBase.testIncrementalCleanupWholeState: no access is needed for the state to be empty."""
    ttl = Ttl(context, domain)
    for key in range(0, 60, 2):
        ttl.update(0, key=key)
    ttl.time(50)
    for key in range(0, 60, 6):
        ttl.update(0, key=key)
    ttl.time(100)
    per_key = ttl.harness.state_entries() // 10
    assert ttl.harness.state_entries() == 10 * per_key > 0
    ttl.time(150)
    assert ttl.harness.state_entries() == 0


@both_domains
@both_stores
def test_each_list_element_has_its_own_time(domain, store):
    """TtlListStateTestContextBase: elements of several updates expire one after the other, also in the middle."""
    ttl = Ttl(Lists, domain, store=store)
    for now in (0, 10, 20):
        ttl.time(now)
        ttl.harness.call(lambda f, _, now=now: f.state.add_all([now, now + 1]), key="k")
    for now, left in ((99, [0, 1, 10, 11, 20, 21]), (100, [10, 11, 20, 21]), (110, [20, 21]), (120, [])):
        ttl.time(now)
        assert ttl.get(key="k") == left
        assert ttl.harness.state_entries() == len(left)


@both_domains
def test_updating_a_list_gives_all_elements_a_new_time(domain):
    """TtlListState.update wraps every element with the current time."""
    ttl = Ttl(Lists, domain)
    ttl.harness.call(lambda f, _: f.state.add_all([1, 2]), key="k")
    ttl.time(60)
    ttl.harness.call(lambda f, _: f.state.update([*f.state.get(), 3]), key="k")
    ttl.time(159)
    assert ttl.get(key="k") == [1, 2, 3]
    ttl.time(160)
    assert ttl.get(key="k") == []


@both_domains
@both_stores
@pytest.mark.parametrize("update", [WRITE, READ])
def test_each_map_entry_has_its_own_time(domain, store, update):
    """TtlMapState: put and get touch one entry; what is expired is not contained, listed, or counted."""
    ttl = Ttl(Maps, domain, update, store=store)
    ttl.harness.call(lambda f, _: f.state.put_all({1: "a", 2: "b", 3: "c"}), key="k")
    ttl.time(60)

    def touch(f, _):
        f.state.put(1, "again")
        return f.state.get(2), f.state.contains(2)

    assert ttl.harness.call(touch, key="k") == ("b", True)
    ttl.time(100)
    expected = {1: "again"} if update is WRITE else {1: "again", 2: "b"}

    def read(f, _):
        return dict(f.state.items()), list(f.state), len(f.state), 3 in f.state, f.state.get(3, "no"), bool(f.state)

    assert ttl.harness.call(read, key="k") == (expected, list(expected), len(expected), False, "no", True)
    assert ttl.harness.state_entries() == len(expected)
    ttl.time(200 if update is READ else 160)
    assert ttl.get(key="k") == {}


def test_removing_and_writing_what_is_expired():
    """TtlMapState.remove and TtlValueState.update of an expired entry, before it was cleaned up."""

    class Both(Told):
        table = keyed.MapState(int, str, ttl=keyed.StateTtl(TTL))
        total = keyed.ReducingState(add, int, ttl=keyed.StateTtl(TTL))
        relaxed = keyed.ReducingState(add, int, ttl=keyed.StateTtl(TTL, visibility=RELAXED))

    def timer(f, ctx, timestamp):
        f.table.remove(1)
        f.table.put(2, "new")
        f.total.add(1)
        f.relaxed.add(1)
        return [(list(f.table.items()), f.total.get(), f.relaxed.get())]

    harness = Harness(Both(timer))

    def write(f, ctx):
        f.table.put_all({1: "a", 2: "b", 3: "c"})
        f.total.add(10)
        f.relaxed.add(10)
        ctx.timer_service().register_processing_time_timer(TTL)

    harness.call(write)
    harness.advance_processing_time(TTL)
    assert harness.values() == [([(2, "new")], 1, 11)]
    assert harness.state_entries() == 3
    harness.advance_processing_time(2 * TTL)
    assert harness.state_entries() == 0


def test_an_update_in_event_time_is_stamped_by_its_element():
    """Not in Flink, whose TTL is processing time: the later of watermark and element counts."""
    ttl = Ttl(Values, EVENT)
    ttl.time(1_000)
    for key, timestamp in (("ahead", 1_500), ("late", 10), ("none", None)):
        ttl.harness.call(lambda f, _: f.state.update("x"), key=key, timestamp=timestamp)
    for now, left in ((1_099, 3), (1_100, 1), (1_599, 1), (1_600, 0)):
        ttl.time(now)
        assert ttl.harness.state_entries() == left


@pytest.mark.parametrize("kind", [keyed.ValueState, keyed.ListState])
def test_the_domains_do_not_touch_each_other(kind):
    """Two states of one key on two clocks."""

    class Both(Told):
        slow = kind(int, ttl=keyed.StateTtl(TTL, time_domain=EVENT))
        fast = kind(int, ttl=keyed.StateTtl(TTL, time_domain=PROCESSING))

    def write(f, _):
        for state in (f.slow, f.fast):
            state.update(1 if kind is keyed.ValueState else [1])

    harness = Harness(Both())
    harness.advance_watermark(0)
    harness.call(write)
    harness.advance_processing_time(10_000)
    assert harness.state_entries() == 1
    harness.advance_watermark(99)
    assert harness.state_entries() == 1
    harness.advance_watermark(100)
    assert harness.state_entries() == 0


def test_clearing_and_writing_again():
    """TtlState.clear is for its own key; what is written afterwards has its own time, and the old one does not fire."""
    for context in CONTEXTS:
        ttl = Ttl(context, PROCESSING)
        ttl.update(0)
        ttl.update(0, key="other")
        ttl.time(50)
        ttl.harness.call(lambda f, _: f.state.clear(), key="defaultKey")
        assert (ttl.get(), ttl.get(key="other")) == (ttl.context.empty, ttl.gets(0))
        ttl.update(0)
        ttl.time(100)
        assert ttl.get() == ttl.gets(0)
        ttl.time(150)
        assert ttl.harness.state_entries() == 0


@pytest.mark.parametrize("duration", [0, -1, 1.5, "1s", None, True, 2**63, timedelta(microseconds=1)])
def test_durations_that_are_none(duration):
    """StateTtlConfig.Builder: TTL is expected to be positive."""
    with pytest.raises(DefinitionError):
        keyed.StateTtl(duration)


def test_durations():
    """StateTtlConfig.newBuilder(Duration); the default configuration is Flink's."""
    ttl = keyed.StateTtl(timedelta(hours=1))
    assert (
        ttl.milliseconds == keyed.StateTtl(hours=1).milliseconds == keyed.StateTtl(3_600_000).milliseconds == 3_600_000
    )
    assert (ttl.update, ttl.visibility, ttl.time_domain) == (WRITE, EXACT, PROCESSING)
    with pytest.raises(DefinitionError):
        keyed.StateTtl(1, seconds=1)
    assert keyed.StateTtl(milliseconds=2**63 - 1).milliseconds == keyed.StateTtl(2**63 - 1).milliseconds == 2**63 - 1
    for units in (
        {"milliseconds": 2**63},
        {"days": 1e12},
        {"hours": float("inf")},
        {"seconds": 1, "milliseconds": 2**62},
    ):
        with pytest.raises(DefinitionError, match="StateTtl"):
            keyed.StateTtl(**units)


@pytest.mark.parametrize(("before", "after"), [(None, 5), (5, None), (5, "event")])
def test_restore_ttl_and_register_without(before, after):
    """TtlStateTestBase.testRestoreTtlAndRegisterNonTtlStateCompatFailure; another length is no failure."""

    def function(ttl):
        config = keyed.StateTtl(5, time_domain=EVENT) if ttl == "event" else keyed.StateTtl(ttl) if ttl else None
        return type("F", (Told,), {"state": keyed.ValueState(int, ttl=config)})()

    harness = Harness(function(before))
    harness.call(lambda f, _: f.state.update(1))
    with pytest.raises(StateSchemaChanged, match="'state'"):
        harness.again(function(after)).call(lambda f, _: None)
    if before:
        longer = harness.again(function(7))
        assert longer.call(lambda f, _: f.state.value()) == 1
        longer.advance_processing_time(5)
        # It keeps the time that it was written with.
        assert longer.call(lambda f, _: f.state.value()) is None
