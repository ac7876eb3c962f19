"""Flink's TtlStateTestBase over its test contexts, in both time domains of keyed.

An entry is expired when last update + ttl <= clock. Where Flink gives an expired entry once more under
``ReturnExpiredIfNotCleanedUp``, keyed gives it to the end of the batch in which it expires (stated in the docs).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import pytest

import keyed
from keyed.errors import DefinitionError, StateSchemaChanged
from tests.acceptance.steps import Case, as_data
from tests.acceptance.support import EVENT, PROCESSING, Harness, Told, both_domains
from tests.support.data_files import read_data

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


class Context(NamedTuple):
    """A TtlStateTestContextBase: how a kind of state is updated and read, and what three updates show."""

    declare: Callable[..., Any]
    update: tuple[Any, ...]
    read: tuple[Any, ...]
    updates: tuple[Any, ...] = ("updateEmpty", "updateUnexpired", "updateExpired")
    values: tuple[Any, ...] | None = None
    empty: Any = None


ENTRIES = ([[3, "3"], [5, "5"], [10, "10"], [23, None]], [[7, "7"], [12, "12"], [24, None]], [[4, "4"], [25, None]])
CONTEXTS = {
    "Values": Context(partial(keyed.ValueState, str), ("update",), ("value",)),
    "Lists": Context(partial(keyed.ListState, int), ("add_all",), ("get",), ([5, 7, 10], [8, 9, 11], [1, 4]), empty=[]),
    "Texts": Context(partial(keyed.ListState, str), ("add_all",), ("get",), (["5", "7"], ["8", "9"], ["1"]), empty=[]),
    "Maps": Context(partial(keyed.MapState, int, str), ("put_all",), ("items",), ENTRIES, empty=[]),
    "Elements": Context(partial(keyed.MapState, int, str), ("put", 9), ("get", 9)),
    "NullElements": Context(
        partial(keyed.MapState, int, str), ("put", 9), ("get", 9, "nothing"), (None, None, None), empty="nothing"
    ),
    "Sums": Context(partial(keyed.ReducingState, add, int), ("add",), ("get",), (5, 7, 6), (5, 12, 6)),
    "Aggregates": Context(
        partial(keyed.AggregatingState, LongSum(), int), ("add",), ("get",), (5, 7, 6), ("8", "15", "9")
    ),
}
every_context = pytest.mark.parametrize("context", CONTEXTS)


class Ttl(Case):
    """A case with one state, driven by a clock as the Flink tests drive their time provider."""

    def __init__(self, context, domain, case=None, store="memory", ttl=TTL, update=WRITE, visibility=EXACT):
        self.context = CONTEXTS[context]
        config = keyed.StateTtl(ttl, time_domain=domain, update=update, visibility=visibility)
        function = type("WithTtl", (Told,), {"state": self.context.declare(ttl=config)})
        super().__init__(case or {}, function, store=store, domain=domain)
        self.do_clock(0)

    def call(self, function, ctx, name, *arguments):
        if name == "update":
            number, *namespace = arguments
            method, *values = (*self.context.update, self.context.updates[number])
        elif name == "get":
            namespace = list(arguments)
            method, *values = self.context.read
        else:
            return super().call(function, ctx, name, *arguments)
        return as_data(getattr(function.state.namespace(*namespace or [None]), method)(*values))

    def expect(self, expected):
        values = self.context.values or self.context.updates
        names = {"empty": self.context.empty, "first": values[0], "second": values[1], "third": values[2]}
        return names.get(expected, expected) if isinstance(expected, str) else expected


@pytest.mark.parametrize(
    ("case", "context", "store"),
    [
        pytest.param(case, context, store, id=f"{case['name']}-{context}-{store}")
        for case in read_data("acceptance/flink_state_ttl.json")
        for context in case.get("contexts", CONTEXTS)
        for store in case.get("stores", ["memory"])
    ],
)
@both_domains
def test_a_case_holds(case, context, store, domain):
    update = keyed.UpdateType[case.get("update", WRITE.name)]
    visibility = keyed.StateVisibility[case.get("visibility", EXACT.name)]
    Ttl(context, domain, case, store, update=update, visibility=visibility).run()


@every_context
@both_domains
@pytest.mark.parametrize("visibility", [EXACT, RELAXED])
@pytest.mark.parametrize("update", [WRITE, READ])
def test_the_expiry_boundary(context, domain, update, visibility):
    """TtlUtils.expired: expirationTimestamp <= currentTimestamp, for every configuration."""
    ttl = Ttl(context, domain, update=update, visibility=visibility)
    ttl.run([["clock", 7], ["k", "update", 0], ["clock", 7 + TTL - 1], ["some_entries"]])
    entries = ttl.harness.state_entries()
    ttl.run([["clock", 7 + TTL], ["entries", "->", 0], ["k", "get", "->", "empty"]])
    assert ttl.harness.metrics()["entries_expired"] == entries


@every_context
@both_domains
@pytest.mark.parametrize("visibility", [EXACT, RELAXED])
def test_relaxed_expiration_on_write(context, domain, visibility):
    """TtlStateTestBase.testRelaxedExpirationOnWrite: expired and not cleaned up is visible, then it is gone."""
    ttl = Ttl(context, domain, {"on_timer": {"120": [["get"]]}}, visibility=visibility)
    ttl.run(
        [["k", "update", 0], ["k", "register", 120], ["clock", 120], ["k", "get", "->", "empty"], ["entries", "->", 0]]
    )
    assert ttl.results == [ttl.expect("first" if visibility is RELAXED else "empty")]
    ttl.run([["k", "get", "->", "empty"], ["entries", "->", 0]])


@every_context
@both_domains
@pytest.mark.parametrize("ttl_ms", [keyed.MAX_TIMESTAMP, keyed.MAX_TIMESTAMP - 5, keyed.MAX_TIMESTAMP // 2])
def test_expiration_timestamp_overflow(context, domain, ttl_ms):
    """TtlStateTestBase.testExpirationTimestampOverflow: last update + ttl is no more than Long.MAX_VALUE.

    Here it is one less: what is due at `MAX_TIMESTAMP` never is.
    """
    ttl = Ttl(context, domain, ttl=ttl_ms)
    ttl.run([["clock", 10], ["k", "update", 0], ["again", 1], ["clock", 50], ["k", "get", "->", "first"]])
    ttl.do_clock(keyed.MAX_TIMESTAMP - 2)
    if ttl_ms > keyed.MAX_TIMESTAMP // 2:
        ttl.run([["k", "get", "->", "first"]])
    ttl.run(
        [["late", "update", 0], ["late", "get", "->", "first"], ["clock", keyed.MAX_TIMESTAMP], ["entries", "->", 0]]
    )


@every_context
@both_domains
def test_many_keys_are_cleaned_up_without_being_touched(context, domain):
    """TtlStateTestBase.testIncrementalCleanupWholeState: no access is needed for the state to be empty."""
    ttl = Ttl(context, domain)
    ttl.run([[key, "update", 0] for key in range(0, 60, 2)])
    ttl.do_clock(50)
    ttl.run([[key, "update", 0] for key in range(0, 60, 6)])
    ttl.do_clock(100)
    per_key = ttl.harness.state_entries() // 10
    assert ttl.harness.state_entries() == 10 * per_key > 0
    ttl.run([["clock", 150], ["entries", "->", 0]])


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
