"""State tables against the changelog folded by hand: every kind of state, every batch, whatever happened in between."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyed
from keyed.changelog.directory.group_folder import GroupFolder
from keyed.job.context import Timer
from keyed.tables import StateTables, open_tables, read_tables
from keyed.tables.operator_view import Position
from keyed.testing import KeyedTestHarness
from keyed.testing.changelog_conformance import SampleGroup
from tests.support.states import Everything, Sale, Upserts
from tests.support.tables import followed, poll_tables


def folded(changelog: Any, until: int) -> dict[str, dict[Any, Any]]:
    """The entries after a batch, by state, as `read_changelog` has them."""
    states: dict[str, dict[Any, Any]] = {}
    for change in keyed.recovery.read_changelog(changelog, until=until):
        entries = states.setdefault(change.state, {})
        place = (change.key, change.namespace, change.entry)
        entries.pop(place, None)
        if not change.removed:
            entries[place] = (repr(change.value), change.expires)
    return states


def shown(tables: Any) -> dict[str, dict[Any, Any]]:
    return {
        name: {(entry.key, entry.namespace, entry.entry): (repr(entry.value), entry.expires) for entry in table}
        for name, table in tables.items()
    }


def expected(states: dict[str, dict[Any, Any]], now: int) -> dict[str, dict[Any, Any]]:
    return {
        name: {place: found for place, found in entries.items() if found[1] is None or found[1] > now}
        for name, entries in states.items()
    }


elements = st.tuples(
    st.sampled_from(["a", "b", "c", "d"]), st.sampled_from(["sell", "sell", "remove", "forget"]), st.integers(0, 9)
)


@settings(deadline=None)
@given(st.lists(st.lists(elements, max_size=4), min_size=1, max_size=6), st.integers(1, 3), st.data())
def test_tables_are_the_changelog_folded_at_every_batch(batches, parallelism, data):
    with TemporaryDirectory() as folder:
        changelog = keyed.DirectoryChangelog(f"{folder}/log", compaction_lag=0, auto_compact=False)
        states, clocks = {}, {}
        tables: StateTables | None = None
        with KeyedTestHarness(
            Everything(), key=lambda value: value[0], parallelism=parallelism, changelog=changelog
        ) as harness:
            try:
                for number, batch in enumerate(batches, 1):
                    with harness.batch():
                        for element in batch:
                            harness.process(element)
                    # Without elements no key group has a commit yet; with some, all of them have.
                    if data.draw(st.booleans()):
                        harness.advance_processing_time(20 * number)
                    newest = harness.metrics()["batches"] // parallelism - 1
                    states[newest], clocks[newest] = folded(changelog, newest), harness.current_processing_time
                    what = data.draw(st.sampled_from(["poll", "nothing", "compact", "reopen"]))
                    if what == "compact":
                        changelog.compact()
                    if what == "reopen" and tables is not None:
                        tables.close()
                        tables = None
                    if what != "nothing":
                        tables = tables or open_tables(changelog, f"{folder}/tables")
                        tables.poll()
                        assert tables.batch == newest
                        for past, entries in states.items():
                            try:
                                snapshot = tables.snapshot(past)
                            except keyed.errors.HistoryCompacted:
                                assert past < newest
                                continue
                            with snapshot:
                                found = shown(snapshot)
                                assert {name: found[name] for name in entries} == expected(entries, clocks[past])
                                assert not any(found[name] for name in found.keys() - entries.keys())
                        assert list(tables.timers) == sorted(harness.pending_timers(), key=_timer_order)
            finally:
                if tables is not None:
                    tables.close()


def _timer_order(timer: Timer) -> Any:
    return timer.domain.value, timer.key, timer.timestamp


@pytest.fixture
def job(tmp_path) -> Iterator[Any]:
    """A harness with a changelog, and the tables over it."""
    log = keyed.DirectoryChangelog(tmp_path / "log")
    opened = {"types": Everything()}
    with followed(Everything(), tmp_path, opened=opened, parallelism=2, changelog=log) as (harness, tables):
        harness.process(("a", "sell", 1))
        harness.process(("b", "sell", 2))
        tables.poll()
        yield harness, tables, log


def test_each_kind_of_state_is_given_as_the_function_sees_it(job):
    _, tables, _ = job
    assert tables["last"].get("a") == Sale(1, "title 1")
    assert tables["seen"].get("a") == [1]
    assert tables["by_title"].get("a") == {"title 1": 1}
    assert tables["by_title"].get("a", "title 1") == 1
    assert tables["by_title"].get("a", "title 2") is None
    assert tables["total"].get("b") == 2
    assert tables["total"].get("b", namespace=("window", 0)) == 2
    assert tables["average"].get("b") == 2.0
    assert tables["total"].get_many(["b", "nobody", "a"]) == [2, None, 1]
    assert tables["last"].get("nobody") is None
    assert len(tables["total"]) == 4
    assert [timer.timestamp for timer in tables.timers.get("b")] == [1_002, 10_002]


def test_tables_and_times_that_there_are_none_of(job):
    _, tables, _ = job
    assert "sales" not in tables
    assert "last" in tables
    assert tables.get("sales") is None
    with pytest.raises(keyed.errors.DefinitionError, match="no time zone"):
        tables["last"].get("a", as_of=datetime(2026, 1, 1))


def test_an_answer_names_the_state_that_it_was_taken_from(job):
    harness, tables, changelog = job
    result = tables["total"].query("a")
    markers = [changelog.reader(group).last() for group in range(2)]
    assert result.value == 1
    assert result.position == tables.positions["function"]
    assert result.position.batch == 1
    assert result.position.log_id == changelog.header().log_id
    total = sum(int(marker.hash, 16) for marker in markers) % 2**128
    assert result.position.hash == f"{total:032x}"
    harness.process(("a", "sell", 5))
    assert tables["total"].query("a") == result
    assert tables.wait_for(2, 300) == 2
    assert tables["total"].get("a") == 6
    assert tables["total"].get("a", as_of=1) == 1
    assert [(version.batch, version.value) for version in tables["total"].history("a")] == [(2, 6), (0, 1)]


def test_batches_that_are_followed_together_are_each_there_and_so_is_what_comes_before_damage(tmp_path, monkeypatch):
    with followed(Everything(), tmp_path) as (harness, tables):
        harness.process(("a", "sell", 1))
        tables.poll()
        token = tables["total"].subscribe(after="now")
        store = tables._operators["function"].source.pinned.store
        writes: list[Any] = []
        write = store._database.write

        def counted(batch: Any) -> None:
            writes.append(batch)
            write(batch)

        monkeypatch.setattr(store._database, "write", counted)
        for _ in range(2, 10):
            harness.process(("a", "sell", 1))
        segments = sorted((tmp_path / "log").glob("**/*.segment"))
        whole = segments[6].read_bytes()
        segments[6].write_bytes(whole[:40] + b"?" + whole[41:])
        with pytest.raises(keyed.KeyedError, match=r"damaged|checksum|malformed"):
            tables.poll()
        assert (tables.batch, len(writes)) == (5, 1)
        segments[6].write_bytes(whole)
        tables.poll()
        assert (tables.batch, len(writes)) == (8, 2)
        assert [tables["total"].get("a", as_of=batch) for batch in range(9)] == list(range(1, 10))
        assert [tables.snapshot(batch).positions["function"].batch for batch in (3, 8)] == [3, 8]
        changes = [change for _ in range(8) for change in token.take(0) if change.namespace is None]
        assert [(change.batch, change.old, change.new) for change in changes] == [
            (n - 1, n - 1, n) for n in range(2, 10)
        ]


def test_time_travel_by_time_takes_the_newest_batch_that_is_not_younger(job):
    harness, tables, _ = job
    harness.advance_processing_time(1_000)
    harness.process(("a", "sell", 5))
    tables.poll()
    assert tables["total"].get("a", as_of=datetime.fromtimestamp(0.999, UTC)) == 1
    assert tables["total"].get("a", as_of=datetime.fromtimestamp(1, UTC)) == 6
    with pytest.raises(keyed.errors.HistoryCompacted):
        tables["total"].get("a", as_of=datetime.fromtimestamp(-1, UTC))


def test_entries_expire_by_the_clock_of_the_batch_that_is_asked(job):
    harness, tables, _ = job
    harness.advance_processing_time(49)
    harness.advance_processing_time(50)
    tables.poll()
    assert tables["briefly"].get("a", as_of=2) == 1
    assert tables["briefly"].get("a") is None
    assert len(tables["briefly"]) == 0


def test_a_snapshot_stays_as_it_is_while_the_follower_goes_on(tmp_path):
    with followed(Everything(), tmp_path, opened={"history": 0}) as (harness, tables):
        harness.process(("a", "sell", 1))
        tables.poll()
        snapshot = tables.snapshot()
        for number in range(5):
            harness.advance_processing_time(1_000 * number)
            harness.process(("a", "sell", number))
            tables.poll()
        assert snapshot["seen"].get("a") == [1]
        assert tables["seen"].get("a") == [1, 0, 1, 2, 3, 4]
        assert tables["seen"].get("a", as_of=0) == [1]
        snapshot.close()
        harness.process(("a", "sell", 9))
        tables.poll()
        with pytest.raises(keyed.errors.HistoryCompacted):
            tables["seen"].get("a", as_of=0)


def test_scans_by_range_and_in_pages_give_each_entry_once(tmp_path):
    names = [f"user{number:02}" for number in range(25)] + ["visitor"]
    with followed(Everything(), tmp_path, parallelism=3) as (harness, tables):
        with harness.batch():
            for name in names:
                harness.process((name, "sell", 1))
        tables.poll()
        last = tables["last"]
        assert [entry.key for entry in last.scan()] == names
        assert [entry.key for entry in last.scan(prefix="user1")] == names[10:20]
        assert [entry.key for entry in last.scan(from_="user20", to="user23")] == names[20:23]
        assert [entry.key for entry in last.scan(prefix="user", from_="user24")] == ["user24"]
        pages, token = [], None
        while True:
            page = last.scan(limit=10, after=token)
            pages.append([entry.key for entry in page])
            token = page.token
            if token is None:
                break
            # A page goes on in the batch that the first one was taken from.
            harness.process(("user0", "sell", 1))
            tables.poll()
        assert pages == [names[:10], names[10:20], names[20:]]


def test_a_follower_that_was_away_for_too_long_is_built_anew_and_says_so(tmp_path, caplog):
    changelog = keyed.DirectoryChangelog(tmp_path / "log", compaction_lag=0, auto_compact=False)
    with KeyedTestHarness(Everything(), key=lambda value: value[0], changelog=changelog) as harness:
        harness.process(("a", "sell", 1))
        with poll_tables(changelog, tmp_path / "tables") as tables:
            reader = read_tables(tmp_path / "tables")
            held = tables.snapshot()
            for number in range(5):
                harness.advance_processing_time(1_000 * number)
                harness.process(("b", "sell", number))
            changelog.compact()
            # All entries of the base, and the changes of the newest commit.
            assert tables.lag().records == 41
            tables.poll()
            assert tables.rebuilds == 1
            assert "rebuilt: the changelog no longer has the batches after batch 0" in caplog.text
            assert tables["seen"].get("b") == [0, 1, 2, 3, 4]
            assert held["seen"].get("b") == []
            assert reader["seen"].get("b") == []
            reader.poll()
            assert reader["seen"].get("b") == [0, 1, 2, 3, 4]
            held.close()
            reader.close()


def test_waiting_for_what_does_not_come_ends(job):
    _, tables, _ = job
    with pytest.raises(TimeoutError, match="the tables are at batch 1"):
        tables.wait_for(2, timeout=0.1)
    tables.start(every=0.01)
    with pytest.raises(TimeoutError):
        tables.wait_for(Position("function", 2, 0, 0, "", 0, ""), timeout=0.1)


def test_folders_that_hold_no_tables_are_refused(tmp_path):
    with pytest.raises(keyed.errors.LocalStoreError, match="has no state tables"):
        read_tables(tmp_path)
    for path in ("", "s3://bucket/tables", "a\0b"):
        with pytest.raises(keyed.errors.DefinitionError, match="not the path of a folder"):
            read_tables(path)
    with pytest.raises(keyed.errors.ChangelogError, match="does not exist yet"):
        open_tables(keyed.DirectoryChangelog(tmp_path / "none"), tmp_path / "tables")


def test_what_is_closed_says_so(tmp_path):
    with followed(Everything(), tmp_path) as (harness, tables):
        for key in "abc":
            harness.process((key, "sell", 1))
        tables.poll()
        with tables.snapshot() as snapshot:
            held = snapshot["total"]
        with pytest.raises(keyed.errors.StateAccessError, match="the snapshot of batch 2 is closed"):
            held.get("a")
        live = tables["total"]
        scanned = live.scan()
        next(scanned)
        tables.close()
    with pytest.raises(keyed.errors.StateAccessError, match="the tables are closed"):
        list(scanned)
    with pytest.raises(keyed.errors.StateAccessError, match="the tables are closed"):
        live.get("a")


def test_rows_of_a_table_state_have_the_types_of_their_columns(tmp_path):
    day, seen, amount = dt.date(2026, 1, 31), datetime(2026, 1, 31, 12, tzinfo=UTC), Decimal("1.50")
    types: Any = [pa.string(), pa.date32(), pa.decimal128(10, 2), pa.timestamp("us", "UTC")]
    schema = pa.schema(list(zip(["shop", "day", "amount", "seen"], types, strict=True)))
    row = {"shop": "a", "day": day, "amount": amount, "seen": seen}
    function = Upserts("shop string, day date, amount decimal(10,2), seen timestamp", ("shop", "day"))
    with followed(function, tmp_path, key="shop") as (harness, tables):
        harness.process_batch(pa.Table.from_pylist([row], schema))
        tables.poll()
        totals = tables["rows"]
        assert totals.get("a") == {(day,): {"amount": amount, "seen": seen}}
        assert totals.get("a", day) == {"amount": amount, "seen": seen}
        assert [(entry.key, entry.entry) for entry in totals] == [("a", (day,))]
        assert totals.dataset().to_table().to_pylist() == [row]
        assert tables.sql("select amount from rows where shop = 'a'").to_pylist() == [{"amount": amount}]


def test_a_look_where_nothing_has_come_reads_no_commit_and_lists_no_folder(tmp_path, monkeypatch):
    log = keyed.DirectoryChangelog(tmp_path / "log", auto_compact=False)
    log.prepare("op", 3)
    samples = [SampleGroup(Random(group), group) for group in range(3)]
    writers = [log.writer(group) for group in range(3)]
    with open_tables(log, tmp_path / "tables") as tables:
        for batch in (0, 1):
            for writer, sample in zip(writers, samples, strict=True):
                assert tables.poll() == 0
                writer.append(*sample.commit())
            assert tables.poll() > 0
            assert tables.batch == batch
            with monkeypatch.context() as patch:
                patch.setattr(GroupFolder, "listing", lambda _: pytest.fail("a folder was listed"))
                assert tables.poll() == 0
