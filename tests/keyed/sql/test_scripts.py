# ruff: noqa: E501 - statements stand on one line
"""Scripts, record by record: cases after ksqlDB's functional tests, and the rules of inputs and outputs."""

import operator
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from keyed import sql
from keyed.errors import DefinitionError, SqlError, TableOverflowError
from keyed.expressions import engine
from keyed.formats.sql_types import BIGINT
from keyed.metrics import Prometheus

READINGS = (
    "CREATE STREAM readings (id INT KEY, name STRING, amount BIGINT) WITH (KAFKA_TOPIC='in', VALUE_FORMAT='JSON');"
)
USERS = (
    "CREATE TABLE users (id INT PRIMARY KEY, region STRING, age INT) WITH (KAFKA_TOPIC='users', VALUE_FORMAT='JSON');"
)


def written(text, records, name="OUT", **options):
    """The records of an output as tuples: key, value, timestamp, and the window if there is one."""
    result = sql.script(text, topics=records, **({"rows_per_batch": 1} | options))
    return [
        (upper(each.key), upper(each.value), each.timestamp, *((each.window,) if each.window else ()))
        for each in result[name]
    ]


def upper(row):
    """A row with its names in upper case: names match in any."""
    return {name.upper(): upper(cell) for name, cell in row.items()} if isinstance(row, dict) else row


def reading(key, name, amount, time=0):
    return ("in", key, {"name": name, "amount": amount}, time)


def test_a_misspelt_column_of_a_row_is_refused():
    with pytest.raises(DefinitionError, match=r"no column 'amont'; did you mean amount\?"):
        sql.script(READINGS + "CREATE STREAM o AS SELECT id, name FROM readings;", streams={"readings": [{"amont": 2}]})


def test_nothing_runs_before_the_whole_script_is_checked():
    def records():
        raise AssertionError
        yield

    with pytest.raises(SqlError):
        sql.script(READINGS + "CREATE STREAM o AS SELECT id, nope FROM readings;", topics={"in": records()})


def test_the_first_record_that_cannot_be_read_is_logged(caplog):
    text = READINGS + "CREATE TABLE o AS SELECT id, COUNT(*) AS n FROM readings GROUP BY id;"
    records = [(1, "not JSON", 0), (1, "[]", 1), (1, '{"NAME": "a", "AMOUNT": 1}', 2)]
    found = sql.script(text, topics={"in": records}, rows_per_batch=1)
    assert [record.value for record in found["o"]] == [{"n": 1}]
    (said,) = [record.getMessage() for record in caplog.records if "skips a row" in record.getMessage()]
    assert said.startswith(
        "readings skips a row, as it will others: the format cannot read them: topic in, record 0: JSON is malformed"
    )


def test_skipped_records_are_an_exported_metric(tmp_path):
    text = READINGS + "CREATE STREAM out AS SELECT id, name FROM readings;"
    file = tmp_path / "script.prom"
    result = sql.script(
        text, topics=[("in", 1, b"{", 5), ("in", 1, b"[]", 5), reading(1, "a", 1)], metrics=Prometheus(file=file)
    )
    assert result.skipped == {"readings": {"the format cannot read them": 2}}
    assert 'keyed_rows_skipped_total{query="out"} 2' in file.read_text()


@pytest.mark.parametrize(
    ("window", "place"),
    [
        ("", ""),
        ("WINDOW TUMBLING (SIZE 10 SECONDS)", ", window from 10000 to 20000"),
        ("WINDOW SESSION (10 SECONDS)", ", window from 12000 to 13000"),
    ],
)
@pytest.mark.parametrize("emit", ["CHANGES", "FINAL"])
@pytest.mark.parametrize(
    ("type_", "value", "reason"),
    [
        ("BIGINT", 2**62, "the sum 9223372036854775809 does not fit into 64 bits"),
        ("DECIMAL(38, 0)", Decimal("9" * 38), "a sum of decimals has more than 38 digits"),
    ],
)
def test_a_sum_that_does_not_fit_ends_the_query_with_its_table_key_window_and_column(
    window, place, type_, value, reason, emit
):
    text = f"""
    CREATE STREAM s (k STRING KEY, v {type_}) WITH (KAFKA_TOPIC = 's', VALUE_FORMAT = 'JSON');
    CREATE TABLE o AS SELECT k, COUNT(*) AS n, SUM(v) AS total FROM s {window} GROUP BY k {f"EMIT {emit}" * bool(window)};
    """
    records = [(key, {"V": 1}, 12_000) for key in "abcdefgh"] + [("f", {"V": value}, 13_000)] * 2
    with pytest.raises(TableOverflowError) as caught:
        sql.script(text, topics={"s": records}, rows_per_batch=100)
    assert f"table o, key k = 'f'{place}, column total: {reason}" in str(caught.value)


@pytest.mark.parametrize("window", ["TUMBLING (SIZE 10 SECONDS{})", "SESSION (2 SECONDS{})"])
@pytest.mark.parametrize("rows_per_batch", [1, 100])
def test_a_final_window_is_a_row_of_the_table_from_its_end_for_its_retention_and_none_without(
    window, rows_per_batch, tmp_path
):
    def kept(retention, folder):
        text = f"""
        CREATE STREAM s (k STRING KEY, v INT) WITH (KAFKA_TOPIC = 's', VALUE_FORMAT = 'JSON');
        CREATE TABLE o AS SELECT k, SUM(v) AS total, COUNT_DISTINCT(v) AS values FROM s
        WINDOW {window.format(retention)} GROUP BY k HAVING SUM(v) > 1 EMIT FINAL;
        """
        records = [(key, {"V": at}, 1000 * at) for at in (1, 2, 31, 61, 62) for key in "ab"]
        result = sql.script(text, topics={"s": records}, rows_per_batch=rows_per_batch, tables=tmp_path / folder)
        found = sorted((each.timestamp, each.key, each.value["total"], each.value["values"]) for each in result["o"])
        wanted = ((2000, 3, 2), (31_000, 31, 1), (62_000, 123, 2))
        assert found == [(at, key, *of) for at, *of in wanted for key in "ab"]
        assert result.run is not None
        with result.run.tables as tables:
            return {name: [row.value["total"] for row in tables[name].scan()] for name in tables}

    assert kept("", "none") == {}
    assert sorted(kept(", RETENTION 40 SECONDS", "some")["o"]) == [31, 31, 123, 123]


def test_the_states_of_joins_are_no_tables(tmp_path):
    text = (
        USERS
        + """
    CREATE TABLE regions (name STRING PRIMARY KEY, size INT) WITH (KAFKA_TOPIC='regions', VALUE_FORMAT='JSON');
    CREATE TABLE o AS SELECT users.id AS id, size FROM users JOIN regions ON users.region = regions.name;
    """
    )
    topics = [("regions", "r", {"size": 3}, 0), ("users", 1, {"region": "r", "age": 2}, 1)]
    run = sql.script(text, topics=topics, tables=str(tmp_path)).run
    assert run is not None
    with run.tables as tables:
        assert sorted(tables) == ["o", "regions", "users"]


def test_a_forked_process_opens_databases_of_its_own_and_closes_none_of_its_parent():
    """Closing one there ends the process: threads of the database are in the parent alone."""
    text = READINGS + "CREATE STREAM out AS SELECT id, CAST(name AS INT) AS n FROM readings;"
    records = [reading(1, "7", 1), reading(2, "x", 1)]
    right = [(1, {"N": 7}, 0)]
    assert written(text, records, rows_per_batch=10) == right
    before = list(engine._databases.values())
    # As a thread of the parent may hold it.
    pool = ThreadPoolExecutor(1)
    pool.submit(engine._lock.acquire).result()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        status = 1
        with suppress(BaseException):
            kept = [each for held in engine._inherited if isinstance(held, dict) for each in held.values()]
            found = written(text, records, rows_per_batch=10)
            status = 0 if kept == before and len(kept) == 2 and found == right else 2
        os._exit(status)
    pool.submit(engine._lock.release).result()
    pool.shutdown()
    assert os.waitpid(child, 0)[1] == 0


def test_threads_that_begin_at_once_have_one_database(monkeypatch):
    """A function is registered in one, and the rows of queries in the other one would be skipped."""
    both, opened = threading.Barrier(2), engine._opened

    def open_at_once(*, tries):
        with suppress(threading.BrokenBarrierError):
            both.wait(0.5)
        return opened(tries=tries)

    monkeypatch.setattr(engine, "_databases", {})
    monkeypatch.setattr(engine, "_opened", open_at_once)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(engine._database), pool.submit(engine._database)
        assert first.result(30) is second.result(30)


def test_queries_in_two_threads_have_each_its_own_function_of_one_name(monkeypatch):
    table = pa.table({"n": [1]})
    functions = [engine.PythonFunction("TIMES", partial(operator.mul, by), (BIGINT,), BIGINT) for by in (2, 3)]
    steps = [engine.SqlStep((("n", "times(n)", BIGINT),), functions=(each,)) for each in functions]
    query, pool = engine.SqlStep._query, ThreadPoolExecutor(1)
    others: list[Any] = []

    def query_late(step, *arguments, **options):
        if step is steps[0] and not others:
            others.append(pool.submit(steps[1].run, table))
            wait(others, 0.5)
        return query(step, *arguments, **options)

    monkeypatch.setattr(engine.SqlStep, "_query", query_late)
    rows = [steps[0].run(table), others[0].result(30)]
    pool.shutdown()
    engine.forget("TIMES")
    assert [(found.to_pylist(), bad) for found, bad in rows] == [([{"n": 2}], []), ([{"n": 3}], [])]


def test_nan_is_one_key_of_a_table():
    text = (
        "CREATE STREAM s (k DOUBLE, j INT) WITH (FORMAT = 'JSON'); CREATE TABLE g AS SELECT {0}, COUNT(*) AS n FROM s"
    )
    for keys in ("k", "k, j"):
        rows = [{"k": float("nan"), "j": 1}] * 2
        found = sql.script(text.format(keys) + f" GROUP BY {keys};", {"s": rows}, rows_per_batch=1).table("g")
        assert list(found.values()) == [{"n": 2}]
