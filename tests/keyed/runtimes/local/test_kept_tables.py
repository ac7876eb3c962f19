"""Queries that keep tables of their state: while they run, when they have ended, and when they run again."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

import keyed
from keyed.base.background import Status
from keyed.errors import ChangelogDiverged
from keyed.tables import StateTables
from tests.support.waiting import until


@attrs.frozen
class Sale:
    title: str
    tickets: int


class Sold(keyed.KeyedProcessFunction):
    sold = keyed.ValueState(int, default=0)
    last = keyed.ValueState(Sale)

    def process_element(self, value, ctx):
        self.sold.update(self.sold.value() + value.tickets)
        self.last.update(value)
        yield {"title": value.title, "sold": self.sold.value()}


class Ranked(keyed.KeyedProcessFunction):
    best = keyed.ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.best.update(max(self.best.value(), value["sold"]))
        return ()


SALES = [Sale("Die Hard", 2), Sale("The Godfather", 1), Sale("Die Hard", 3)]


def sold(sales: Any, **options: Any) -> Any:
    return keyed.stream(sales).key_by(lambda sale: sale.title).process(Sold(), **options)


def test_tables_are_asked_while_the_query_runs(tmp_path):
    asked: list[Any] = []

    def sales() -> Iterator[Any]:
        yield SALES[0]
        # A source that waits: what came before it is in the tables.
        while not asked:
            yield keyed.PAUSE
            if query.tables.batch >= 0:
                asked.append(query.tables["sold"].get("Die Hard"))
        yield from SALES[1:]

    query = sold(sales()).start(tables=tmp_path / "tables")
    assert query.await_termination(300)
    with query.tables as tables:
        assert asked == [2]
        counters = query.metrics()["Sold"]
        assert (counters["query_status"], counters["tables_status"], counters["tables_failures"]) == (3, 1, 0)
        assert tables["sold"].get_many(["Die Hard", "The Godfather"]) == [5, 1]
        assert tables["last"].get("Die Hard") == SALES[2]


def test_a_run_leaves_tables_and_goes_on_in_them(tmp_path):
    options: dict[str, Any] = {"checkpoint": tmp_path / "checkpoint", "tables": tmp_path / "tables", "drain": False}
    first = sold(SALES[:2]).run(**options)
    assert len(first.values) == 2
    assert first.tables["sold"].get("Die Hard") == 2
    # Tables of an earlier run that are still open are in nobody's way.
    second = sold(SALES).run(**options)
    with second.tables as tables, first.tables:
        assert tables["sold"].get("Die Hard") == 5
        assert tables["last"].get("Die Hard") == SALES[2]
        assert [version.value for version in tables["sold"].history("Die Hard")] == [5, 2]
        assert second.tables is tables
        assert first.tables["sold"].get("Die Hard") == 2
        first.tables.poll()
        assert first.tables["sold"].get("Die Hard") == 5
        assert "tables" not in repr(second)


def test_all_operators_of_a_chain_have_tables_and_a_changelog_that_is_given_is_used(tmp_path):
    log = keyed.DirectoryChangelog(tmp_path / "log")
    ranked = sold(SALES, changelog=log).key_by(lambda value: len(value["title"])).process(Ranked())
    result = keyed.run(ranked.to(keyed.collect_sink()), tables=tmp_path / "tables", drain=False)
    with result.tables as tables:
        assert (tables["sold"].get("Die Hard"), tables["best"].get(8)) == (5, 5)
    assert log.header() is not None
    assert [path.parent.name for path in (tmp_path / "tables").glob("*/changelog")] == ["Ranked"]


def test_a_query_that_is_refused_leaves_no_tables(tmp_path):
    """The one that it was before has to be able to go on."""

    def run(rows, *names):
        sales = keyed.stream(SALES[:rows]).key_by(lambda sale: sale.title)
        outputs = [sales.process(Sold(), name=name).to(keyed.collect_sink()) for name in names]
        return keyed.run(*outputs, tables=tmp_path / "tables", checkpoint=tmp_path / "checkpoint")

    run(1, "Sold")
    with pytest.raises(keyed.errors.OperatorChanged, match="the query has"):
        run(2, "Sold", "Other")
    assert [folder.name for folder in (tmp_path / "tables").iterdir()] == ["Sold"]
    run(2, "Sold")
    assert (tmp_path / "tables" / "Sold" / "changelog").is_dir()


def test_what_cannot_be_kept_is_refused(tmp_path):
    tables = tmp_path / "tables"
    sold(SALES).run(tables=tables)
    with pytest.raises(
        keyed.errors.DefinitionError, match=r"holds tables of operator 'Sold', which this query does not have"
    ):
        keyed.stream(SALES).key_by(lambda sale: sale.title).process(Sold(), name="Other").run(tables=tables)
    with pytest.raises(ChangelogDiverged, match="its checkpoint is new, and its changelog"):
        sold(SALES).run(tables=tables, checkpoint=tmp_path / "new")
    with pytest.raises(keyed.errors.DefinitionError, match="holds the changelog that operator 'Sold' is restored from"):
        sold(SALES, restore_from=keyed.DirectoryChangelog(tables / "Sold" / "changelog")).run(tables=tables)
    for folder in ("", "s3://bucket/tables", "a\0b"):
        with pytest.raises(keyed.errors.DefinitionError, match="tables="):
            sold(SALES).run(tables=folder)
    with pytest.raises(keyed.errors.DefinitionError, match="give a sink for the output, or tables="):
        sold(SALES).start()
    query = sold(SALES).start(keyed.collect_sink())
    with pytest.raises(keyed.errors.DefinitionError, match="start it with tables="):
        query.tables  # noqa: B018 - it raises
    query.await_termination()
    with pytest.raises(keyed.errors.DefinitionError, match=r"give run\(\.\.\.\) tables="):
        sold(SALES).run().tables  # noqa: B018 - it raises


def test_a_folder_that_is_followed_is_refused_before_anything_runs(tmp_path):
    log = keyed.DirectoryChangelog(tmp_path / "log")
    sold(SALES, changelog=log).run()
    refused = pytest.raises(keyed.errors.LocalStoreError, match=r"read it with keyed.tables.read_tables")
    with keyed.tables.open_tables(log, tmp_path / "tables"), refused:
        sold(SALES).run(tables=tmp_path / "tables")
    assert not (tmp_path / "tables" / "Sold" / "changelog").exists()


@pytest.mark.parametrize("error", [OSError, SystemExit])
def test_a_query_that_fails_says_so_at_once_and_leaves_its_tables_to_the_next_one(tmp_path, caplog, error):
    options: dict[str, Any] = {
        "checkpoint": tmp_path / "checkpoint",
        "tables": tmp_path / "tables",
        "rows_per_batch": 1,
    }
    fails = [True]

    def sales() -> Iterator[Any]:
        yield from SALES
        if fails:
            raise error("no more sales")

    query = sold(sales()).start(**options)
    until(lambda: not query.is_active)
    assert query.status is Status.FAILED
    assert caplog.text.count("the query 'Sold' failed") == 1
    assert "no more sales" in caplog.text
    with query.tables as tables:
        assert tables["sold"].get("Die Hard") == 2
        # Nobody follows them, so another query may.
        fails.clear()
        again = sold(sales()).start(**options)
        assert again.await_termination(300)
        with again.tables as theirs:
            assert theirs["sold"].get("Die Hard") == 5


def test_a_query_whose_tables_the_program_has_closed_does_not_fail(tmp_path):
    closed = threading.Event()

    def sales() -> Iterator[Any]:
        yield from SALES
        assert closed.wait(30)

    query = sold(sales()).start(tables=tmp_path / "tables", checkpoint=tmp_path / "checkpoint")
    query.tables.close()
    closed.set()
    assert query.await_termination(300)


def test_a_query_that_fails_on_a_full_disk_leaves_its_tables_to_the_next_one(tmp_path, monkeypatch):
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    options: dict[str, Any] = {"checkpoint": tmp_path / "checkpoint", "tables": tmp_path / "tables"}
    with monkeypatch.context() as full:
        full.setattr(StateTables, "poll", fail)
        query = sold(SALES).start(fail, **options)
        until(lambda: not query.is_active)
    assert sold(SALES).start(**options).await_termination(300)


def test_an_error_that_someone_waits_for_is_raised_and_not_logged(caplog):
    queries: list[Any] = []

    def sales() -> Iterator[Any]:
        while not queries or not queries[0]._waiting:
            yield keyed.PAUSE
        raise OSError("no more sales")

    queries.append(sold(sales()).start(keyed.collect_sink()))
    with pytest.raises(keyed.errors.QueryFailed, match="no more sales"):
        queries[0].await_termination(300)
    assert not caplog.text


def test_a_second_run_without_a_checkpoint_is_refused_before_it_reads_with_a_way_on(tmp_path):
    folder = tmp_path / "tables"
    sold(SALES).run(tables=folder)

    def never() -> Iterator[Any]:
        raise AssertionError("the source is read")
        yield

    with pytest.raises(ChangelogDiverged, match="earlier run, up to batch 1, and a run without checkpoint=") as caught:
        sold(never()).run(tables=folder)
    (command,) = re.findall(r"shutil\.rmtree\(.*?\)", str(caught.value))
    exec(command, {"shutil": shutil})
    with sold(SALES).run(tables=folder).tables as tables:
        assert tables["sold"].get("Die Hard") == 5
    shutil.rmtree(folder)
    options = {"tables": folder, "checkpoint": tmp_path / "ck"}
    sold(SALES).run(**options)
    assert sold(SALES).run(**options).batches == 0


def test_notebooks_show_results_and_tables_as_escaped_and_bounded_tables(tmp_path):
    sales = [Sale(f"<b>{number:03d}" + "x" * 500, number) for number in range(100)]
    result = sold(sales, output="title string, sold bigint").run(tables=tmp_path / "tables")
    with result.tables as tables:
        pages = [each._repr_html_() for each in (result, tables, tables["sold"], tables["last"])]
    assert all("<table>" in page and len(page) < 10_000 for page in pages)
    assert all("<b>" not in page for page in pages)
    assert "<th>title</th><th>sold</th>" in pages[0]
    assert pages[0].count("<td>&lt;b&gt;") == pages[2].count("<td>&lt;b&gt;") == 20
    assert "<td>sold</td>" in pages[1]
    nowhere = sold(sales).run(lambda rows, batch: None)
    assert "<th>operator</th><th>rows in</th><th>rows out</th>" in nowhere._repr_html_()
    plain = keyed.stream([{"k": "a"}]).key_by("k").process(Plain()).run()
    assert "<th>value</th>" in plain._repr_html_()


class Plain(keyed.KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield 1
        yield "two"
