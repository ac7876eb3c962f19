"""Declared migrations: states renamed and fields added while a changelog is restored; all else is refused."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keyed
from keyed.errors import DefinitionError, StateSchemaChanged
from keyed.recovery import verify
from keyed.testing import KeyedTestHarness, MemoryChangelog

TTL = keyed.StateTtl(milliseconds=1_000, time_domain=keyed.TimeDomain.EVENT_TIME)


@attrs.frozen
class Order:
    amount: int


@attrs.frozen
class Priced:
    amount: int
    currency: str
    note: str | None


class Largest:
    """Keeps the largest order."""

    def create_accumulator(self) -> Order:
        return Order(0)

    def add(self, value, accumulator):
        return value if value.amount > accumulator.amount else accumulator

    def get_result(self, accumulator):
        return accumulator.amount

    def merge(self, a, b):
        return self.add(a, b)


class Before(keyed.KeyedProcessFunction):
    """Orders (key, amount) kept in all ways."""

    last = keyed.ValueState(Order)
    orders = keyed.ListState(Order, ttl=TTL)
    by_amount = keyed.MapState(int, Order | None)
    plain = keyed.MapState(int, Order, ttl=TTL)
    largest = keyed.AggregatingState(Largest(), Order)
    versions = keyed.VersionedState(Order, history=2_000)

    def process_element(self, value, ctx):
        order = Order(value[1])
        self.last.namespace("n").update(order)
        self.orders.add(order)
        self.by_amount[value[1]] = None
        self.plain[value[1]] = order
        self.largest.add(order)
        self.versions.put(order, value[1])
        self.versions.delete(4)
        ctx.timer_service().set_timer("t", 500)
        return ()

    def on_timer(self, timestamp, ctx):
        return ()


class After(keyed.KeyedProcessFunction):
    """The same, with a renamed state and a class with more fields. Shows all that it has."""

    latest = keyed.ValueState(Priced)
    orders = keyed.ListState(Priced, ttl=TTL)
    by_amount = keyed.MapState(int, Order | None)
    plain = keyed.MapState(int, Priced, ttl=TTL)
    largest = keyed.AggregatingState(Largest(), Order)
    versions = keyed.VersionedState(Priced, history=3_000)
    added = keyed.ValueState(int)

    def process_element(self, value, ctx):
        return ()

    def on_timer(self, timestamp, ctx):
        yield (
            self.latest.namespace("n").value(),
            list(self.orders),
            dict(self.by_amount.items()),
            dict(self.plain.items()),
            self.largest.get(),
            [(record.value, record.valid_to) for record in self.versions.get_range()],
        )


FIELDS = {"currency": "EUR", "note": None}
MIGRATION = keyed.StateMigration(
    renamed={"last": "latest"}, added={"latest": FIELDS, "orders": FIELDS, "plain": FIELDS, "versions": FIELDS}
)


def of_key(element: Any) -> Any:
    return element[0]


@pytest.fixture
def log():
    log = MemoryChangelog()
    with KeyedTestHarness(Before(), key=of_key, parallelism=2, changelog=log) as harness:
        for key in "abcdef":
            for amount in (3, 5):
                harness.process((key, amount), 10)
    return log


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_a_state_is_renamed_and_fields_are_added(log, parallelism):
    new = MemoryChangelog()
    point = keyed.RestorePoint(log, migrate=MIGRATION)
    with KeyedTestHarness(After(), key=of_key, parallelism=parallelism, changelog=new, restore_from=point) as harness:
        harness.advance_watermark(500)
        three, five = Priced(3, "EUR", None), Priced(5, "EUR", None)
        expected = five, [three, five], {3: None, 5: None}, {3: three, 5: five}, 5, [(three, 4), (five, None)]
        assert [record.value for record in harness.take_output()] == [expected] * 6
        # The times to live go on: 10 + 1000.
        entries = harness.state_entries()
        harness.advance_watermark(1_010)
        assert entries - harness.state_entries() == 6 * 4
    assert [found.problem for found in verify(new) if found.problem] == []


def test_without_the_migration_it_is_refused_and_both_are_printed(log):
    with pytest.raises(
        StateSchemaChanged, match=r"(?s)the state 'last' .*no longer declared.*stored: .*declared: nothing"
    ):
        KeyedTestHarness(After(), key=of_key, restore_from=log)
    renamed = keyed.RestorePoint(log, migrate=keyed.StateMigration(renamed={"last": "latest"}))
    match = r"(?s)stored: +value state 'latest' of Order\(amount: int\).*declared: .*Priced\(amount: int, currency: str"
    with pytest.raises(StateSchemaChanged, match=match):
        KeyedTestHarness(After(), key=of_key, restore_from=renamed)


@pytest.mark.parametrize(
    ("migrate", "match"),
    [
        (keyed.StateMigration(renamed={"last": "orders"}), "two states would be named 'orders'"),
        (keyed.StateMigration(added={"last": {"amount": 1}}), "the field amount exists already"),
        (keyed.StateMigration(added={"by_amount": {"x": 1}}), "values of a class"),
        (keyed.StateMigration(added={"last": {"x": object()}}), "the field x cannot be given <object"),
        (keyed.StateMigration(added={"last": {"x": []}}), "the field x cannot be given"),
    ],
)
def test_a_migration_that_does_not_fit_is_refused_with_what_is_stored(log, migrate, match):
    with pytest.raises(StateSchemaChanged, match=match) as caught:
        KeyedTestHarness(After(), key=of_key, restore_from=keyed.RestorePoint(log, migrate=migrate))
    assert "  value state 'last' of Order(amount: int)" in str(caught.value)


@pytest.mark.parametrize(
    ("migrate", "match"),
    [
        (keyed.StateMigration(renamed={"lost": "latest"}), "renamed=.*there is no state 'lost'"),
        (keyed.StateMigration(added={"latest": {"x": 1}}), "added=.*there is no state 'latest'"),
        (keyed.StateMigration(dropped=["lost"]), "dropped=.*there is no state 'lost'"),
        (keyed.StateMigration(converted={"lost": float}), "converted=.*there is no state 'lost'"),
        (keyed.StateMigration(dropped=["last"], converted={"last": float}), "converted=.*there is no state 'last'"),
    ],
)
def test_a_name_that_nothing_is_stored_under_is_refused(log, migrate, match):
    with pytest.raises(DefinitionError, match=match) as caught:
        KeyedTestHarness(After(), key=of_key, restore_from=keyed.RestorePoint(log, migrate=migrate))
    assert "  value state 'last' of Order(amount: int)" in str(caught.value)


def test_names_may_be_exchanged():
    class Two(keyed.KeyedProcessFunction):
        one = keyed.ValueState(int)
        other = keyed.ValueState(int)

        def process_element(self, value, ctx):
            yield self.one.value(), self.other.value()
            self.one.update(1)
            self.other.update(2)

    log = MemoryChangelog()
    KeyedTestHarness(Two(), key=of_key, changelog=log).process("a", 1)
    point = keyed.RestorePoint(log, migrate=keyed.StateMigration(renamed={"one": "other", "other": "one"}))
    harness = KeyedTestHarness(Two(), key=of_key, restore_from=point)
    harness.process("a", 1)
    assert [record.value for record in harness.take_output()] == [(2, 1)]


@attrs.frozen
class Wide:
    amount: float
    currency: str = "EUR"


class Summed(keyed.KeyedProcessFunction):
    """Keeps numbers in all ways."""

    total = keyed.ValueState(int)
    numbers = keyed.ListState(int, ttl=TTL)
    by_number = keyed.MapState(int, int | None)
    order = keyed.ValueState(Order)
    last = keyed.MapState(str, int)

    def process_element(self, value, ctx):
        self.total.namespace("n").update(value[1])
        self.numbers.add(value[1])
        self.by_number.put_all({value[1]: value[1], 0: None})
        self.order.update(Order(value[1]))
        self.last["last"] = value[1]
        ctx.timer_service().set_timer("t", 500)

    def on_timer(self, timestamp, ctx):
        return ()


def converted_from(number: int) -> MemoryChangelog:
    log = MemoryChangelog()
    with KeyedTestHarness(Summed(), key=of_key, parallelism=2, changelog=log) as harness:
        for key in "abcdef":
            harness.process((key, number), 10)
    return log


class Averaged(keyed.KeyedProcessFunction):
    total = keyed.ValueState(float)
    numbers = keyed.ListState(float, ttl=TTL)
    by_number = keyed.MapState(int, float | None)
    order = keyed.ValueState(Wide)

    def process_element(self, value, ctx):
        return ()

    def on_timer(self, timestamp, ctx):
        yield self.total.namespace("n").value(), self.numbers.get(), dict(self.by_number.items()), self.order.value()


CONVERTED = keyed.StateMigration(
    dropped=["last"], converted={"total": float, "numbers": float, "by_number": float | None, "order": Wide}
)


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@given(number=st.integers(-(2**53), 2**53))
def test_states_are_dropped_and_values_are_converted(parallelism, number):
    log, new = converted_from(number), MemoryChangelog()
    point = keyed.RestorePoint(log, migrate=CONVERTED)
    with KeyedTestHarness(
        Averaged(), key=of_key, parallelism=parallelism, changelog=new, restore_from=point
    ) as harness:
        harness.advance_watermark(500)
        by_number = {number: float(number), 0: None}
        expected = repr((float(number), [float(number)], dict(sorted(by_number.items())), Wide(float(number))))
        assert [repr(record.value) for record in harness.take_output()] == [expected] * 6
        entries = harness.state_entries()
        assert entries == 6 * (3 + len(by_number))
        harness.advance_watermark(1_010)
        assert harness.state_entries() == entries - 6
    assert [found.problem for found in verify(new) if found.problem] == []
    # What was migrated is restored without the migration.
    with KeyedTestHarness(Averaged(), key=of_key, restore_from=new) as harness:
        assert harness.state_entries() == entries - 6


@pytest.mark.parametrize(
    ("migrate", "match"),
    [
        (keyed.StateMigration(converted={"total": str}), "int as str: only int and float are converted"),
        (keyed.StateMigration(converted={"total": object}), "int as .*with and without a declared type"),
    ],
)
def test_a_conversion_that_does_not_fit_is_refused(migrate, match):
    with pytest.raises(StateSchemaChanged, match=match):
        KeyedTestHarness(Averaged(), key=of_key, restore_from=keyed.RestorePoint(converted_from(1), migrate=migrate))


@pytest.mark.parametrize(
    ("options", "match"),
    [({"dropped": "last"}, "is a text"), ({"dropped": ["a"], "renamed": {"a": "b"}}, "in dropped= and in renamed=")],
)
def test_a_contradictory_migration_is_refused(options, match):
    with pytest.raises(DefinitionError, match=match):
        keyed.StateMigration(**options)
