"""Invalid arguments are refused, by a typed error that lists the valid ones: never an empty answer."""

from __future__ import annotations

from typing import Any

import pytest

import keyed
from keyed.tables import open_tables, read_tables
from keyed.tables.follower import Lag
from keyed.tables.server import serve
from keyed.testing import KeyedTestHarness
from tests.support.data_files import read_data
from tests.support.tables import poll_tables


class Kinds(keyed.KeyedProcessFunction):
    """Has a state of each kind that keys and entries are asked of."""

    value = keyed.ValueState(int)
    by_name = keyed.MapState(str, int)
    items = keyed.ListState(int)
    versions = keyed.VersionedState(int, history=1000)

    def process_element(self, element, ctx):
        self.value.update(1)
        self.by_name.put("x", 1)
        self.items.add(1)
        self.versions.put(1, 5)
        return ()


def log_of(folder, keys):
    """Write a changelog with a batch for these keys."""
    log = keyed.DirectoryChangelog(folder)
    with KeyedTestHarness(Kinds(), key=lambda key: key, changelog=log) as harness, harness.batch():
        for key in keys:
            harness.process(key)
    return log


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("asked")
    with poll_tables(log_of(folder / "log", ["a", "b"]), folder / "tables") as tables:
        yield tables


def test_a_key_is_in_a_table_if_it_has_a_value_or_entries(tables):
    for name in tables:
        assert "a" in tables[name]
        assert "c" not in tables[name]
    assert "a" not in tables.timers


@pytest.mark.parametrize(
    ("table", "name", "arguments", "options", "error", "message"), read_data("keyed/tables/asked_wrongly.json")
)
def test_what_fits_nothing_is_refused(tables, table, name, arguments, options, error, message):
    target = tables[table] if table else tables
    with pytest.raises(getattr(keyed.errors, error)) as refused:
        getattr(target, name)(*arguments, **options)
    assert message in str(refused.value)


@pytest.mark.parametrize("name", ["get", "scan", "subscribe"])
def test_a_key_of_a_tuple_is_refused(tables, name):
    key: Any = ("a",)
    with pytest.raises(keyed.errors.KeyTypeError, match="as in 'a'"):
        tables["value"].scan(prefix=key) if name == "scan" else getattr(tables["value"], name)(key)


def test_keys_that_are_not_there_are_not_of_another_type(tmp_path):
    table: Any
    with open_tables(log_of(tmp_path / "log", [(1, "a"), (1, "b")]), tmp_path / "tables") as tables:
        tables.poll()
        table = tables["value"]
        assert table.get((2, "x")) is None
        assert table.get_many([(2, "x"), (1, "b")]) == [None, 1]
        assert [entry.key for entry in table.scan(prefix=(1,), from_=(1, "ab"))] == [(1, "b")]
        assert table.history((3, "x")) == []
        with pytest.raises(keyed.errors.KeyTypeError):
            table.get((2,))
        with pytest.raises(keyed.errors.KeyTypeError):
            table.scan(from_=(1, 2, 3))
    with open_tables(log_of(tmp_path / "floats", [1.5, float("nan")]), tmp_path / "of-floats") as tables:
        tables.poll()
        assert tables["value"].get_many([float("nan"), 1.5, 2.5]) == [1, 1, None]


def test_types_of_states_that_there_are_none_of_are_refused_once_all_are_known(tmp_path, tables):
    log = keyed.DirectoryChangelog(tmp_path / "log")
    log.prepare("function", 1)
    with open_tables(log, tmp_path / "tables", types={"vaule": int}) as wrong:
        # There is no batch yet, and so no state is known.
        assert (wrong.poll(), wrong.lag()) == (0, Lag(0, 0.0))
        with KeyedTestHarness(Kinds(), key=lambda key: key, changelog=log) as harness:
            harness.process("a")
        for _ in range(2):
            with pytest.raises(keyed.errors.DefinitionError, match="no table 'vaule'; the tables are: value, by_name"):
                wrong.poll()
    with pytest.raises(keyed.errors.DefinitionError, match="no table 'vaule'"):
        read_tables(tmp_path / "tables", types={"vaule": int})
    wrong_types: Any
    for wrong_types in ("value", 5, ["value"]):
        with pytest.raises(keyed.errors.DefinitionError, match="give a dict of types by state"):
            open_tables(log, tmp_path / "tables", types=wrong_types)
    with (
        poll_tables(log, tmp_path / "tables", types={"function.value": str}) as named,
        pytest.raises(keyed.errors.StateSchemaChanged, match="int became str"),
    ):
        named["value"].get("a")


def test_folders_and_changelogs_that_are_none_are_refused(tmp_path):
    log = log_of(tmp_path / "log", ["a"])
    wrong: Any
    for wrong, says in ((str(tmp_path / "log"), "is not a changelog"), ([5], "5 is not a changelog")):
        with pytest.raises(keyed.errors.DefinitionError, match=says):
            open_tables(wrong, tmp_path / "tables")
    for wrong in (None, "", 5):
        with pytest.raises(keyed.errors.DefinitionError, match="is not the path of a folder"):
            open_tables(log, wrong)
    with pytest.raises(keyed.errors.DefinitionError, match="the changelog's own folder"):
        open_tables(log, tmp_path / "log" / ".." / "log")
    tables = open_tables(log, tmp_path / "tables")
    tables.poll()
    tables.close()
    for ask in (tables.poll, lambda: tables["value"], lambda: list(tables)):
        with pytest.raises(keyed.errors.StateAccessError, match="the tables are closed"):
            ask()
    other = keyed.DirectoryChangelog(tmp_path / "other")
    keyed.stream([1]).key_by(lambda value: value).process(Kinds(), name="other", changelog=other).run()
    with pytest.raises(
        keyed.errors.DefinitionError, match="holds tables of operator 'function', which this query does not"
    ):
        open_tables(other, tmp_path / "tables")


def test_what_sql_cannot_hold_is_said_without_a_traceback(tmp_path):
    with poll_tables(log_of(tmp_path / "log", [2**70]), tmp_path / "tables") as tables:
        assert tables["value"].get(2**70) == 1
        with pytest.raises(keyed.KeyedError, match="column 'key' of state 'value' cannot be int64") as refused:
            tables.sql("select * from value")
        assert "Traceback" not in str(refused.value)


@pytest.mark.parametrize("port", [-1, 65536, "x", True, 1.5])
def test_a_port_that_is_none_is_refused(tables, port):
    with pytest.raises(keyed.errors.DefinitionError, match=r"give a number from 0 \(any free port\) to 65535"):
        serve(tables, port=port)
