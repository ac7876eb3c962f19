"""`read_changelog` gives what functions wrote, in order, whatever the type, whoever has the class."""

import datetime as dt
import enum
from decimal import Decimal
from random import Random

import attrs
import msgspec
import pyarrow as pa
import pytest

import keyed
from keyed import ListState, MapState, ReducingState, StateTtl, ValueState
from keyed.changelog import DirectoryChangelog
from keyed.errors import ChangelogError, CorruptionError, HistoryCompacted, StateSchemaChanged
from keyed.recovery import read_changelog
from keyed.testing import KeyedTestHarness
from keyed.testing.changelog_conformance import SampleGroup
from keyed.vectorized import TableState

NEW_YEAR = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


class Color(enum.Enum):
    RED = "red"


@attrs.frozen
class Sale:
    amount: Decimal
    color: Color = Color.RED


class Shop(keyed.KeyedProcessFunction):
    total = ReducingState(lambda a, b: a + b, int)
    sales = ListState(Sale)
    stock = MapState(tuple[str, int], float)
    last = ValueState(dt.datetime, ttl=StateTtl(seconds=60))
    anything = ValueState()

    def process_element(self, row, ctx):
        _, amount = row
        self.total.add(amount)
        self.sales.add(Sale(Decimal(amount)))
        self.stock.namespace((0, 10)).put(("x", amount), amount / 2)
        self.last.update(NEW_YEAR)
        self.anything.update({1: (amount,)})
        if amount < 0:
            self.stock.namespace((0, 10)).clear()
            self.anything.clear()
        ctx.timer_service().register_processing_time_timer(10**9)
        return ()

    def on_timer(self, timestamp, ctx):
        return ()


class Totals(keyed.vectorized.VectorizedFunction):
    totals = TableState("user string, day date, amount decimal(9,2)", key=("user", "day"))

    def process_batch(self, table, ctx):
        self.totals.upsert(table)
        self.totals.delete(table.filter(pa.array([user == "gone" for user in table["user"].to_pylist()])))


def sold(path, *elements, **options):
    """The changelog of a shop after some sales, one a commit."""
    changelog = DirectoryChangelog(path / "log", compaction_lag=0, auto_compact=False)
    with KeyedTestHarness(Shop(), key=lambda row: row[0], changelog=changelog, **options) as harness:
        for element in elements:
            harness.process(element)
    return changelog


def brief(changes):
    return [(c.commit.batch, c.key, c.namespace, c.entry, c.value, c.removed) for c in changes]


def test_values_of_all_kinds_of_states(tmp_path):
    changelog = sold(tmp_path, ("ann", 5), ("bob", 7), ("ann", -1))
    assert brief(read_changelog(changelog, "total")) == [
        (0, "ann", None, None, 5, False),
        (1, "bob", None, None, 7, False),
        (2, "ann", None, None, 4, False),
    ]
    assert brief(read_changelog(changelog, "stock")) == [
        (0, "ann", (0, 10), ("x", 5), 2.5, False),
        (1, "bob", (0, 10), ("x", 7), 3.5, False),
        (2, "ann", (0, 10), ("x", 5), None, True),
    ]
    assert brief(read_changelog(changelog, "anything")) == [
        (0, "ann", None, None, {1: (5,)}, False),
        (1, "bob", None, None, {1: (7,)}, False),
        (2, "ann", None, None, None, True),
    ]
    assert [(c.value, c.expires) for c in read_changelog(changelog, "last")] == [(NEW_YEAR, 60_000)] * 2
    sales = list(read_changelog(changelog, "sales"))
    assert [(c.key, c.entry, c.value.amount, c.value.color) for c in sales] == [
        ("ann", (0, 0), Decimal(5), "red"),
        ("bob", (1, 0), Decimal(7), "red"),
        ("ann", (2, 0), Decimal(-1), "red"),
    ]
    assert isinstance(sales[0].value, msgspec.Struct)
    assert {c.state for c in read_changelog(changelog)} == {"total", "sales", "stock", "last", "anything"}


def test_values_have_the_type_that_is_given(tmp_path):
    changelog = sold(tmp_path, ("ann", 5))
    assert [c.value for c in read_changelog(changelog, "sales", value_type=Sale)] == [Sale(Decimal(5))]
    (change,) = read_changelog(changelog, "stock", value_type=float, map_key_type=tuple[str, int])
    assert (change.entry, change.value) == (("x", 5), 2.5)
    with pytest.raises(StateSchemaChanged, match="value_type"):
        list(read_changelog(changelog, "stock", value_type=str))
    with pytest.raises(StateSchemaChanged, match="map_key_type"):
        list(read_changelog(changelog, "stock", map_key_type=str))
    with pytest.raises(StateSchemaChanged, match="no such type"):
        list(read_changelog(changelog, "total", map_key_type=str))
    with pytest.raises(ChangelogError, match="state="):
        read_changelog(changelog, value_type=str)


def test_reading_begins_and_ends_where_it_is_told(tmp_path):
    changelog = sold(tmp_path, *[("ann", 1)] * 9)
    assert [c.value for c in read_changelog(changelog, "total", from_=3)] == [4, 5, 6, 7, 8, 9]
    assert [c.value for c in read_changelog(changelog, "total", from_=3, until=5)] == [4, 5, 6]
    assert list(read_changelog(changelog, from_=9)) == []
    changelog.compact()
    found = [(c.value, c.commit.snapshot) for c in read_changelog(changelog, "total")]
    assert found == [(8, True), (9, False)]
    with pytest.raises(HistoryCompacted):
        list(read_changelog(changelog, from_=3))


def test_batches_are_whole_over_all_key_groups(tmp_path):
    changelog = DirectoryChangelog(tmp_path / "log", compaction_lag=0, auto_compact=False)
    changelog.prepare("op", 3)
    samples = [SampleGroup(Random(group), group) for group in range(3)]
    for _ in range(4):
        for group, sample in enumerate(samples):
            changelog.writer(group).append(*sample.commit())
    for group in (0, 2):
        changelog.writer(group).append(*samples[group].commit())
    order = [(c.commit.batch, c.commit.group) for c in read_changelog(changelog)]
    assert order == sorted(order)
    assert {batch for batch, _ in order} == {0, 1, 2, 3}
    changelog.writer(1).append(*samples[1].commit())
    assert {c.commit.batch for c in read_changelog(changelog, from_=4)} == {4}


def test_a_group_without_a_commit_holds_all_back(tmp_path):
    changelog = DirectoryChangelog(tmp_path / "log")
    with pytest.raises(ChangelogError, match="nothing was written"):
        read_changelog(changelog)
    changelog.prepare("op", 2)
    changelog.writer(0).append(*SampleGroup(Random(1)).commit())
    assert list(read_changelog(changelog)) == []


def test_rows_of_tables(tmp_path):
    changelog = DirectoryChangelog(tmp_path / "log", compaction_lag=0, auto_compact=False)
    rows = pa.table({
        "user": ["ann", "gone", "bob"],
        "day": pa.array([1, 2, 3], pa.int32()).cast(pa.date32()),
        "amount": pa.array([Decimal("1.50"), None, None], pa.decimal128(9, 2)),
    })  # fmt: skip
    with KeyedTestHarness(Totals(), key="user", changelog=changelog) as harness:
        harness.process_batch(rows)
        harness.process_batch(rows.set_column(0, "user", pa.array(["ann", "bob", "gone"])))
    found = {(c.commit.sequence, c.key, c.entry): (c.value, c.removed) for c in read_changelog(changelog, "totals")}
    days = [(dt.date(1970, 1, day),) for day in (2, 3, 4)]
    assert found[1, "ann", days[0]] == ({"amount": Decimal("1.50")}, False)
    assert found[1, "bob", days[2]] == ({"amount": None}, False)
    assert found[2, "bob", days[1]] == ({"amount": None}, False)
    with pytest.raises(StateSchemaChanged, match="no such type"):
        list(read_changelog(changelog, "totals", value_type=dict))


def test_a_state_that_is_not_there(tmp_path):
    with pytest.raises(ChangelogError, match=r"'totals'.*anything, last, sales, stock, total"):
        list(read_changelog(sold(tmp_path, ("ann", 1)), "totals"))


@pytest.mark.parametrize("entry", [(b"", b"", b""), (b"\x01", b"", b""), (b"\x02\0\1\0", b"", b"short")])
def test_what_is_no_entry_is_corruption(tmp_path, entry):
    changelog = DirectoryChangelog(tmp_path / "log")
    changelog.prepare("op", 1)
    commit, _ = SampleGroup(Random(1)).commit(0)
    changelog.writer(0).append(commit, [[entry]])
    with pytest.raises(CorruptionError):
        list(read_changelog(changelog))
