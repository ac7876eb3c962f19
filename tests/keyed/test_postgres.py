"""Tables of PostgreSQL as sinks, on a server of this machine."""

from __future__ import annotations

import datetime as dt
import os
import pickle
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import keyed
from keyed.errors import DefinitionError, SinkError
from keyed.postgres import postgres_sink
from keyed.testing.sink_conformance import CopyConformance, SinkConformance
from tests.keyed.runtimes.local.table_sinks import run_killed
from tests.keyed.runtimes.spark.functions import count, files_source, write_file
from tests.support.postgres import PASSWORD

if os.environ.get("CI") != "true":
    pytest.importorskip("psycopg", reason="psycopg is not installed: make setup")

import psycopg

pytestmark = pytest.mark.slow


@pytest.fixture
def name():
    return f"t-{uuid.uuid4().hex}"


def rows(postgres, name, columns="*"):
    with psycopg.connect(postgres) as connection:
        return sorted(connection.execute(f'SELECT {columns} FROM "{name}"').fetchall())


class TestPostgresSink(SinkConformance, CopyConformance):
    @pytest.fixture(autouse=True)
    def _server(self, postgres):
        self.server, self.tables = postgres, {}

    def make_sink(self, path):
        table = self.tables.setdefault(path, f"t-{uuid.uuid4().hex}")
        return postgres_sink(table, key="name", conninfo=self.server)

    def read(self, path):
        return rows(self.server, self.tables[path], "name, n")


class Change(keyed.KeyedProcessFunction):
    def process_element(self, value: Any, ctx: keyed.Context) -> Any:
        yield value["k"], value["n"], value.get("gone", False)


Writer = keyed.postgres._PostgresWriter


def sink_of(folder, **options):
    """Return the sink of the program that is killed."""
    return postgres_sink(os.environ["KEYED_TABLE"], key=options["key"])


def changes(source):
    return keyed.stream(source).key_by("k").process(Change(), 'k string, `sum "of" n` bigint, gone boolean')


def row(k, n, *, gone=False):
    return {"k": k, "n": n, "gone": gone}


def test_rows_are_replaced_and_deleted_by_their_key_and_names_are_quoted(postgres, tmp_path):
    name = 's"t; DROP'
    sink = postgres_sink(name, key="k", deleted="gone", conninfo=postgres)
    source = [row("a", 1), row("b", 2), row("a", 3), row("b", 4, gone=True), row("c", 5), row("a", 6)]
    for size in (1, 6):
        changes(source).run(sink, checkpoint=tmp_path / f"c{size}", rows_per_batch=size, drain=False)
        with psycopg.connect(postgres) as connection:
            found = connection.execute(psycopg.sql.SQL("SELECT * FROM {}").format(psycopg.sql.Identifier(name)))
            assert sorted(found.fetchall()) == [("a", 6), ("c", 5)]


def test_types_are_those_of_the_columns(postgres, name):
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, dt.UTC)
    values = ("a", Decimal("1.50"), at, dt.date(2026, 1, 2), b"\0x", 1.5, True, None)

    class Emit(keyed.KeyedProcessFunction):
        def process_element(self, value: Any, ctx: keyed.Context) -> Any:
            yield values

    columns = "k string, d decimal(9,2), at timestamp, day date, raw binary, x double, yes boolean, nothing int"
    keyed.stream([{"k": 1}]).key_by("k").process(Emit(), columns).run(postgres_sink(name, key="k", conninfo=postgres))
    assert rows(postgres, name) == [values]


def test_a_table_with_other_columns_or_without_the_key_is_refused(postgres, name):
    with psycopg.connect(postgres) as connection:
        connection.execute(f'CREATE TABLE "{name}" (k text PRIMARY KEY, "sum ""of"" n" text)')
        connection.execute(f'CREATE TABLE "{name}-2" (k text)')
    with pytest.raises(SinkError, match="is text in the table and bigint in the output"):
        changes([row("a", 1)]).run(postgres_sink(name, key="k", conninfo=postgres))
    with pytest.raises(SinkError, match="no unique or exclusion constraint"):
        changes([row("a", 1)]).run(postgres_sink(f"{name}-2", key="k", conninfo=postgres))
    output = keyed.stream([{"k": 1}]).key_by("k").process(Change(), "x double, n bigint, gone boolean")
    with pytest.raises(SinkError, match="column 'x' of the key is of type double"):
        output.run(postgres_sink(name, key="x", conninfo=postgres))
    with pytest.raises(SinkError, match="the output has no column 'x', only k"):
        changes([row("a", 1)]).run(postgres_sink(name, key="x", conninfo=postgres))


ODD = [("k string", (None,), "a null in the key"), ("k string, s string", ("a", "x\0y"), "a NUL in 's'")]


@pytest.mark.parametrize(("columns", "values", "reason"), ODD)
def test_rows_that_no_table_holds_are_refused_before_their_commit(postgres, name, tmp_path, columns, values, reason):
    class Emit(keyed.KeyedProcessFunction):
        def process_element(self, value: Any, ctx: keyed.Context) -> Any:
            yield values if value["bad"] else ("a", *[None] * (len(values) - 1))

    def run(rows):
        output = keyed.stream(rows).key_by("n").process(Emit(), columns)
        output.run(postgres_sink(name, key="k", conninfo=postgres), checkpoint=tmp_path, rows_per_batch=1, drain=False)

    with pytest.raises(SinkError, match=reason):
        run([{"n": 1, "bad": False}, {"n": 2, "bad": True}])
    assert len(rows(postgres, name)) == 1
    # Nothing waits to be written: a run whose function leaves the row out goes on.
    run([{"n": 1, "bad": False}, {"n": 2, "bad": False}])


def test_a_time_that_no_table_holds_is_refused(postgres, name):
    times = pa.array([569_000_000_000_000], pa.timestamp("ms", "UTC"))
    far = keyed.stream(pa.table({"k": ["a"]})).map_batches(
        lambda table: table.append_column("at", times), "k string, at timestamp"
    )
    with pytest.raises(SinkError, match="a time in 'at' is not in the years 1 to 9999"):
        keyed.run(far.to(postgres_sink(name, key="k", conninfo=postgres)))
    assert rows(postgres, name) == []


def test_no_message_has_the_password(postgres, name, caplog):
    caplog.set_level("DEBUG")
    wrong = postgres.replace(PASSWORD, "wrong-secret")
    uris = [f"postgresql://u:{part}@127.0.0.1:1/db" for part in ("wrong-secret", "a/wrong-secret", "a?wrong-secret")]
    for conninfo in (wrong, *uris, "nonsense wrong-secret"):
        sink = postgres_sink(name, key="k", conninfo=conninfo)
        assert "secret" not in repr(sink) + repr(changes([]).to(sink))
        with pytest.raises(SinkError) as error:
            changes([row("a", 1)]).run(sink)
        assert "secret" not in str(error.value)
        assert "secret" not in str(error.value.__cause__)
    with pytest.raises(DefinitionError) as refused:
        postgres_sink(name, key="k", conninfo="postgresql://u:a@wrong-secret@h/db")
    assert "secret" not in str(refused.value) + caplog.text


@pytest.mark.parametrize("arguments", [{"key": ()}, {"key": "k", "deleted": "k"}, {"key": ["k", "k"]}])
def test_wrong_parameters_are_refused(arguments):
    with pytest.raises(DefinitionError, match="postgres_sink"):
        postgres_sink("t", **arguments)
    with pytest.raises(DefinitionError, match="the name of a table"):
        postgres_sink("a.b.c", key="k")
    assert pickle.loads(pickle.dumps(postgres_sink("t", key="k"))).table == "t"


def test_two_outputs_with_one_table_are_refused(postgres, name):
    output = changes([row("a", 1)])
    with pytest.raises(DefinitionError, match="two outputs go to postgres_sink"):
        keyed.run(*(output.to(postgres_sink(name, key="k", conninfo=postgres)) for _ in range(2)))


def test_a_query_that_is_killed_writes_each_row_once(postgres, name, tmp_path):
    """Counted by a trigger, because a row that is written twice is the same row."""
    with psycopg.connect(postgres) as connection:
        columns = 'k text PRIMARY KEY, "sum ""of"" n" bigint, gone boolean'
        connection.execute(f'CREATE TABLE "{name}" ({columns}); CREATE TABLE "{name}-w" (k text);')
        connection.execute(
            f'CREATE FUNCTION "{name}-f"() RETURNS trigger AS $$ BEGIN INSERT INTO "{name}-w" VALUES (NEW.k); '
            f'RETURN NEW; END $$ LANGUAGE plpgsql; CREATE TRIGGER w BEFORE INSERT OR UPDATE ON "{name}" FOR EACH ROW '
            f'EXECUTE FUNCTION "{name}-f"()'
        )
    parts = dict(part.split("=") for part in postgres.split())
    names = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "dbname": "PGDATABASE", "password": "PGPASSWORD"}
    environment = {names[part]: value for part, value in parts.items()}
    kills = [("commit", 0, 2), ("before", 0, 3), ("after", 1, 1), ("before", 2, 2)]
    run_killed(__name__, tmp_path, kills, KEYED_TABLE=name, **environment)
    assert [k for k, *_ in rows(postgres, name)] == [str(n) for n in range(9)]
    assert rows(postgres, f"{name}-w") == [(str(n),) for n in range(9)]


def test_spark_writes_each_row_once(spark, postgres, name, tmp_path):
    sink = postgres_sink(name, key=["k", "n"], conninfo=postgres)
    for number in range(2):
        write_file(tmp_path / "in", number, [("a", 1_000 * (number + 1), number), ("b", 1_500, 1)][: 2 - number])
        count(files_source(spark, tmp_path / "in"), parallelism=2).run(sink, checkpoint=tmp_path / "c")
    assert rows(postgres, name, "k, n, total") == [("a", 1, 0), ("a", 2, 1), ("b", 1, 1)]
    with psycopg.connect(postgres) as connection:
        found = connection.execute("SELECT batch FROM keyed_batches WHERE target = %s", [name]).fetchall()
    assert found == [(1,)]
