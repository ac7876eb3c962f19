"""Versioned states as tables: pull as of a time, SQL with validity, push, the clock of the batch."""

from __future__ import annotations

import datetime as dt

import attrs
import pytest

import keyed
from keyed.job.state import VersionedRecord
from tests.support.tables import followed


@attrs.frozen
class Price:
    cents: int
    currency: str


class Prices(keyed.KeyedProcessFunction):
    price = keyed.VersionedState(Price, history=100)

    def process_element(self, value, ctx):
        _, cents, since = value
        if cents is None:
            self.price.delete(since)
        else:
            self.price.put(Price(cents, "EUR"), since)


@pytest.fixture
def harness_and_tables(tmp_path):
    with followed(Prices(), tmp_path, opened={"types": Prices()}, parallelism=2) as (harness, tables):
        with harness.batch():
            for row in (("tea", 100, 10), ("tea", 120, 30), ("tea", None, 40), ("tea", 90, 20), ("rum", 900, 5)):
                harness.process(row)
        tables.poll()
        yield harness, tables


def test_pull(harness_and_tables):
    harness, tables = harness_and_tables
    table = tables["price"]
    assert table.get("rum") == VersionedRecord(Price(900, "EUR"), 5)
    assert table.get("tea") is None
    expected = {9: None, 10: (100, 10, 20), 19: (100, 10, 20), 29: (90, 20, 30), 39: (120, 30, 40), 40: None}
    for as_of, version in expected.items():
        found = table.get("tea", as_of)
        assert (found and (found.value.cents, found.timestamp, found.valid_to)) == version
    assert [(e.key, e.entry, e.value and e.value.cents) for e in table.scan(prefix="t")] == [
        ("tea", 40, None),
        ("tea", 30, 120),
        ("tea", 20, 90),
        ("tea", 10, 100),
    ]
    assert [entry.expires for entry in table] == [None, 139, 139, 129, 119]
    with pytest.raises(keyed.errors.KeyTypeError):
        table.get(1)
    # By the clock of the batch, before anything was removed: 20 lies behind the history, 30 does not.
    harness.advance_watermark(125)
    tables.poll()
    assert table.get("tea", 20) is None
    assert table.get("tea", 30).value == Price(120, "EUR")
    assert table.get("tea", 30, as_of=0) == table.get("tea", 30)
    assert [version.value for version in table.history("tea", 20)] == [Price(90, "EUR")]
    harness.end_of_input()
    tables.poll()
    assert [(entry.key, entry.entry) for entry in table] == [("rum", 5)]
    assert table.get("rum").value == Price(900, "EUR")


def test_sql(harness_and_tables):
    _, tables = harness_and_tables
    rows = tables.sql("select * exclude namespace from price order by key, valid_from").to_pylist()

    def at(milliseconds):
        return dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(milliseconds=milliseconds)

    assert [tuple(row.values()) for row in rows] == [
        ("rum", at(5), None, 900, "EUR"),
        ("tea", at(10), at(20), 100, "EUR"),
        ("tea", at(20), at(30), 90, "EUR"),
        ("tea", at(30), at(40), 120, "EUR"),
    ]
    assert list(rows[0]) == ["key", "valid_from", "valid_to", "cents", "currency"]
    as_of = "select cents from price where key = 'tea' and valid_from <= $at and (valid_to > $at or valid_to is null)"
    assert tables.sql(as_of, {"at": at(25)}).to_pylist() == [{"cents": 90}]


def test_push_tells_of_values_and_not_of_when_they_expire(harness_and_tables):
    harness, tables = harness_and_tables
    subscription = tables["price"].subscribe("tea", after="now")
    # The version before gets another end, with the same value.
    harness.process(("tea", 110, 35))
    tables.poll()
    changes = subscription.take(timeout=300)
    assert [(c.entry, c.old, c.new and c.new.cents) for c in changes] == [(35, None, 110)]


def test_changes_of_a_changelog(harness_and_tables, tmp_path):
    found = list(keyed.recovery.read_changelog(keyed.DirectoryChangelog(tmp_path / "log"), "price", value_type=Price))
    told = {(change.key, change.entry): change.value and change.value.cents for change in found}
    assert told == {("tea", 40): None, ("tea", 30): 120, ("tea", 20): 90, ("tea", 10): 100, ("rum", 5): 900}
    assert not any(change.removed for change in found)


def test_null_in_a_map_of_classes_is_read_as_null(tmp_path):
    class Known(keyed.KeyedProcessFunction):
        prices = keyed.MapState(str, Price)

        def process_element(self, value, ctx):
            self.prices.put(value, None)  # type: ignore[arg-type]

    changelog = keyed.DirectoryChangelog(tmp_path / "log")
    with followed(Known(), tmp_path, key=lambda value: value, changelog=changelog) as (harness, tables):
        harness.process("tea")
        tables.poll()
        assert tables["prices"].get("tea") == {"tea": None}
    assert [change.value for change in keyed.recovery.read_changelog(changelog, "prices", value_type=Price)] == [None]
