"""Names in SQL: tables whose names differ by case, and the columns of keys; and what a query sees of this machine."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import LifoQueue

import attrs
import pytest

import keyed
from keyed.tables import open_tables, sql
from keyed.tables.sql import run_sql
from keyed.testing import KeyedTestHarness
from tests.support.data_files import read_data
from tests.support.tables import entries_read


@attrs.frozen
class Value:
    page: str
    n: int


class Both(keyed.KeyedProcessFunction):
    n = keyed.ValueState(int)
    upper = keyed.ValueState(str, name="N")
    other = keyed.ValueState(int)

    def process_element(self, value, ctx):
        self.n.update(value[1])
        self.upper.update("upper")
        self.other.update(value[1])


def keeping(name):
    class Keeping(keyed.KeyedProcessFunction):
        state = keyed.ValueState(int, name=name)

        def process_element(self, value, ctx):
            self.state.update(value[1])

    return Keeping()


def opened(function, folder):
    log = keyed.DirectoryChangelog(folder / "log")
    with KeyedTestHarness(function, key=lambda value: value[0], changelog=log) as harness:
        harness.process(("a", 7))
        harness.advance_processing_time(1)
    tables = open_tables(log, folder / "tables")
    tables.poll()
    return tables


def test_tables_whose_names_differ_by_case_only_are_refused(tmp_path):
    with opened(Both(), tmp_path) as tables:
        for name in ("n", "N", '"n"', "main.N"):
            with pytest.raises(
                keyed.errors.DefinitionError, match="ignores the case of names, so it has no 'N' and 'n'"
            ):
                tables.sql(f"select * from {name}")
        assert tables.sql("select value as n from other").to_pylist() == [{"n": 7}]
        assert tables.sql("with n as (select 1 as one) select one from n").to_pylist() == [{"one": 1}]
        assert (tables["n"].get("a"), tables["N"].get("a")) == (7, "upper")


def test_a_connection_that_is_used_again_has_the_tables_of_the_query(tmp_path):
    """Case and all: the tables of one query were there, or missing, in the next."""
    names = {"both": Both(), "lower": keeping("n"), "upper": keeping("N")}
    tables = {name: opened(function, tmp_path / name) for name, function in names.items()}
    try:
        for first in (*names, *reversed(names), "lower", "upper", "lower"):
            found = tables[first].sql(
                "select count(*) as c from other" if first == "both" else "select value as c from n"
            )
            assert found.to_pylist() == [{"c": 1 if first == "both" else 7}]
        assert tables["upper"].sql("select value from N").to_pylist() == [{"value": 7}]
        assert tables["upper"].sql("select value from n").to_pylist() == [{"value": 7}]
    finally:
        for each in tables.values():
            each.close()


def test_few_connections_are_kept_however_many_threads_ask(tmp_path, monkeypatch):
    with opened(Both(), tmp_path) as tables, ThreadPoolExecutor(16) as threads:
        made = []
        connection = sql._Connection

        def counted():
            made.append(connection())
            return made[-1]

        monkeypatch.setattr(sql, "_Connection", counted)
        monkeypatch.setattr(sql, "_free", LifoQueue(sql._CONNECTIONS))

        def ask(number: int) -> bool:
            if number % 10 == 0:
                with pytest.raises(keyed.KeyedError):
                    run_sql({"other": tables["other"]}, "select nothing from other")
                return True
            return run_sql({"other": tables["other"]}, "select value from other").to_pylist() == [{"value": 7}]

        assert all(threads.map(ask, range(500)))
        kept = sql._free.queue
        assert len(kept) == len(set(kept)) <= 4
        for each in made:
            if each not in kept:
                with pytest.raises(Exception, match="closed"):
                    each._cursor.execute("select 1")


class Counts(keyed.KeyedProcessFunction):
    n = keyed.ValueState(int)
    row = keyed.ValueState(Value)
    by_day = keyed.MapState(str, int)

    def process_element(self, value, ctx):
        self.n.update((self.n.value() or 0) + value["n"])
        self.row.update(Value("of the value", 1))
        self.by_day.put("monday", 1)


ROWS = [{"page": "a", "Lang": "en", "n": 1}, {"page": "b", "Lang": "de", "n": 2}]


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Tables by page, and by page and language."""
    folder = tmp_path_factory.mktemp("columns")
    one = keyed.stream(ROWS).key_by("page").process(Counts()).run(tables=folder / "one").tables
    two = keyed.stream(ROWS).key_by("page", "Lang").process(Counts()).run(tables=folder / "two").tables
    with one, two:
        yield one, two


def test_a_key_has_the_name_that_key_by_gave_it(tables):
    one, two = tables
    assert one["n"].dataset().schema.names == ["page", "namespace", "value"]
    assert two["n"].dataset().schema.names == ["page", "Lang", "namespace", "value"]
    assert one.sql("select page, value from n where page = 'b'").to_pylist() == [{"page": "b", "value": 2}]
    assert two.sql("select lang from n where page = 'b' and LANG = 'de'").to_pylist() == [{"Lang": "de"}]
    assert two.sql("select page, entry, value from by_day order by 1 limit 1").to_pylist() == [
        {"page": "a", "entry": "monday", "value": 1}
    ]


def test_it_is_key_too_where_a_query_uses_that_name(tables):
    one, two = tables
    assert one.sql("select key, value from n where key = 'b'").to_pylist() == [{"key": "b", "value": 2}]
    assert two.sql("select KEY_2 as l from n where key_1 = 'a' and page = 'a'").to_pylist() == [{"l": "en"}]
    assert one.sql("select * from n where page = 'a'").column_names == ["page", "namespace", "value"]
    # In turn, on one connection.
    assert one.sql("select page from n where key = 'a'").to_pylist() == [{"page": "a"}]
    assert one.sql("select * from n limit 1").column_names == ["page", "namespace", "value"]


@pytest.mark.parametrize("name", ["page", "key"])
def test_only_the_keys_that_are_asked_for_are_read(tables, name, monkeypatch):
    one, _ = tables
    one.sql(f"select value from n where {name} = 'b'")
    read = entries_read(one, monkeypatch)
    assert one.sql(f"select value from n where {name} = 'b'").num_rows == 1
    # The first entry of the table, and the one of the key.
    assert len(read) <= 2


def test_a_misspelt_column_is_answered_with_the_names_that_there_are(tables):
    with pytest.raises(keyed.errors.DefinitionError, match=r'Candidate bindings: .*"page"'):
        tables[0].sql("select pag from n")


@pytest.mark.parametrize(
    "query", ["show tables", "select table_name from information_schema.tables where table_schema = 'main'"]
)
def test_all_tables_are_listed_whatever_the_queries_before(tables, query):
    for each in tables:
        expected = sorted((name.lower(),) for name in each)
        for before in (query, f"select * from {expected[0][0]}"):
            each.sql(before)
            assert sorted(tuple(row.values()) for row in each.sql(query).to_pylist()) == expected


def test_a_key_whose_name_another_column_has_is_key(tables):
    one, two = tables
    assert one["row"].dataset().schema.names == ["key", "namespace", "page", "n"]
    assert one.sql("select key, page from row where key = 'a'").to_pylist() == [{"key": "a", "page": "of the value"}]
    assert two["row"].dataset().schema.names == ["key_1", "Lang", "namespace", "page", "n"]


@pytest.mark.parametrize("query", read_data("keyed/tables/hostile_queries.json")["listings"])
def test_no_listing_has_a_path_of_this_user(tables, query):
    try:
        shown = str(tables[0].sql(query).to_pylist())
    except keyed.KeyedError as error:
        shown = str(error)
    assert not [path for path in (Path.home(), Path.cwd(), tables[0].path) if str(path) in shown]
