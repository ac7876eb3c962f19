"""Scripts over Spark DataFrames write the same records as in this process."""

import json
import signal
import subprocess
import sys
from decimal import Decimal

import pytest

from keyed import sql
from keyed.errors import DefinitionError, StateSchemaChanged
from keyed.sql.compiler import Compiler
from keyed.sql.definitions import define
from keyed.sql.grammar import parse
from tests.keyed.sql.random_scripts import random_script, stored_on_spark, verify_on_spark

SCRIPT = """
CREATE STREAM sales (title STRING KEY, tickets INT, price DECIMAL(6, 2), tags ARRAY<STRING>) WITH (FORMAT = 'JSON');
CREATE TABLE films (title STRING PRIMARY KEY, genre STRING) WITH (FORMAT = 'JSON');
CREATE STREAM large AS SELECT title, tickets * 2 AS twice, price, tags FROM sales WHERE tickets > 1;
CREATE TABLE sold AS SELECT title, COUNT(*) AS n, SUM(price) AS income, COLLECT_LIST(tickets) AS each FROM sales
    GROUP BY title;
CREATE TABLE hourly AS SELECT tickets, COUNT(*) AS n FROM sales WINDOW TUMBLING (SIZE 1 HOUR) GROUP BY tickets;
CREATE STREAM by_genre AS SELECT sales.title AS title, genre, tickets FROM sales LEFT JOIN films
    ON sales.title = films.title;
"""
SALES = [
    ("Aliens", 2, Decimal("1.50"), ["a", "b"], 1_000),
    ("Big", 5, Decimal("2.50"), [], 2_000),
    ("Aliens", 3, None, None, 3_700_000),
    ("Big", 1, Decimal("1.00"), ["c"], 3_600_000),
]
FILMS = [("Aliens", "horror", 0), ("Aliens", "action", 3_000_000)]


def _rows(columns, rows):
    return [dict(zip(columns, row, strict=True)) for row in rows]


@pytest.mark.slow
def test_filters_aggregates_windows_and_a_join_with_a_table(spark):
    sales, films = ("title", "tickets", "price", "tags", "rowtime"), ("title", "genre", "rowtime")
    kinds = "title string, tickets int, price decimal(6,2), tags array<string>, rowtime bigint"
    frames = {
        "sales": spark.createDataFrame(SALES, kinds).coalesce(1),
        "films": spark.createDataFrame(FILMS, "title string, genre string, rowtime bigint").coalesce(1),
    }
    found = sql.script(SCRIPT, frames)
    expected = sql.script(SCRIPT, {"films": _rows(films, FILMS), "sales": _rows(sales, SALES)})
    assert found.records.keys() == expected.records.keys()
    for name in ("large", "sold", "hourly", "by_genre"):
        # The order holds for each key.
        assert sorted(map(str, found[name])) == sorted(map(str, expected[name])), name
        assert [each for each in found[name] if each.key == "Big"] == [
            each for each in expected[name] if each.key == "Big"
        ]

    for query, what in {
        "STREAM t AS SELECT a.title, b.tickets FROM large a LEFT JOIN sales b WITHIN 1 HOUR ON a.title = b.title": (
            "an outer join of streams without a grace period, which emits rows before their partners come; give WITHIN "
            "a GRACE PERIOD"
        ),
        "TABLE genres (genre STRING PRIMARY KEY, name STRING) WITH (FORMAT = 'JSON');"
        "CREATE TABLE t AS SELECT a.title, b.name FROM films a JOIN genres b ON a.genre = b.genre": (
            "joins of a table by a column of another one; give its tables as lists or files"
        ),
    }.items():
        with pytest.raises(DefinitionError, match=f"scripts over Spark DataFrames do not support {what}"):
            sql.script(f"{SCRIPT}CREATE {query};", frames)
    with pytest.raises(DefinitionError, match="no DataFrame for FILMS, which a query reads"):
        sql.script(SCRIPT, {"sales": frames["sales"]})
    with pytest.raises(DefinitionError, match="without topics= and without INSERT"):
        sql.script(SCRIPT, frames | {"films": []})
    with pytest.raises(DefinitionError, match="the DataFrame of SALES has no column 'TICKETS'"):
        sql.script(SCRIPT, frames | {"sales": frames["films"]})


SESSIONS = """
CREATE STREAM s (k STRING KEY, v INT) WITH (FORMAT = 'JSON');
CREATE STREAM r (k STRING KEY, w INT) WITH (FORMAT = 'JSON');
CREATE TABLE sums AS SELECT k, SUM(v) AS v FROM s WINDOW TUMBLING (SIZE 1 SECOND) GROUP BY k EMIT FINAL;
CREATE TABLE visits AS SELECT k, SUM(v) AS v FROM s WINDOW SESSION (1 SECOND) GROUP BY k;
CREATE TABLE ended AS SELECT k, SUM(v) AS v FROM s WINDOW SESSION (1 SECOND) GROUP BY k EMIT FINAL;
CREATE STREAM pairs AS SELECT s.k AS k, v, w FROM s JOIN r WITHIN 1 SECOND ON s.k = r.k;
CREATE STREAM both AS SELECT ROWKEY AS k, v, w FROM s FULL JOIN r WITHIN 1 SECOND GRACE PERIOD 1 SECOND ON s.k = r.k;
"""


@pytest.mark.slow
def test_sessions_final_results_and_joins_of_streams(spark):
    given = {
        "s": (("k", "v", "rowtime"), [("x", 1, 0), ("y", 2, 400), ("x", 3, 900), ("y", 5, 4000), ("x", 6, 9000)]),
        "r": (("k", "w", "rowtime"), [("x", 1, 100), ("y", 2, 1600), ("y", 7, 4200), ("z", 0, 9001)]),
    }
    frames = {
        name: spark.createDataFrame(rows, f"k string, {columns[1]} int, rowtime bigint").coalesce(1)
        for name, (columns, rows) in given.items()
    }
    found = sql.script(SESSIONS, frames)
    expected = sql.script(SESSIONS, {name: _rows(*each) for name, each in given.items()})
    for name in ("sums", "visits", "ended", "pairs", "both"):
        assert sorted(map(str, found[name])) == sorted(map(str, expected[name])) != [], name


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 50))])
def test_random_scripts(spark, tmp_path, seed):
    assert verify_on_spark(seed, spark, tmp_path) == [], random_script(seed, for_spark=True).text


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 3, 8])
def test_tables_of_a_script_that_was_killed_are_those_of_one_that_was_not(spark, tmp_path, seed):
    command = [sys.executable, "-m", "tests.keyed.sql.random_scripts", "--spark", "--seed", str(seed), "--kill-at", "2"]
    killed = subprocess.run([*command, "--folder", str(tmp_path / "killed")], check=False, start_new_session=True)
    assert killed.returncode == -signal.SIGKILL
    found = stored_on_spark(seed, spark, tmp_path / "killed")
    assert found == stored_on_spark(seed, spark, tmp_path / "whole")
    assert any(found.values())


@pytest.mark.slow
def test_a_streaming_script_goes_on_from_its_checkpoint(spark, tmp_path):
    (tmp_path / "in").mkdir()
    text = """
    CREATE STREAM sales (title STRING KEY, tickets INT) WITH (FORMAT = 'JSON');
    CREATE TABLE sold AS SELECT title, SUM(tickets) AS n FROM sales GROUP BY title;
    """

    def run(number, title, tickets):
        row = json.dumps({"title": title, "tickets": tickets, "rowtime": number})
        (tmp_path / "in" / f"{number}.json").write_text(row + "\n")
        frame = spark.readStream.schema("title string, tickets int, rowtime bigint").json(str(tmp_path / "in"))
        return sql.script(text, {"sales": frame}, checkpoint=tmp_path / "state", tables=tmp_path / "tables")

    assert [each.value for each in run(0, "Big", 2)["sold"]] == [{"N": 2}]
    first = text
    for now, error in {
        text.replace("title, SUM(", "tickets AS title, SUM(").replace("BY title", "BY tickets"): "GROUP BY",
        text.replace("SUM(", "MAX("): "aggregates",
        text.replace(" GROUP BY", " WINDOW HOPPING (SIZE 2 DAYS, ADVANCE BY 1 DAY) GROUP BY"): "WINDOW",
    }.items():
        text = now
        with pytest.raises(StateSchemaChanged, match=f"what is stored: its definition has changed its {error}"):
            run(1, "Big", 3)
    text = first
    second = run(1, "Big", 3)
    assert [each.value for each in second["sold"]] == [{"N": 5}]
    assert second.run is not None
    with second.run.tables as tables:
        query = sql.subscribe(tables, "SELECT title, n FROM sold WHERE n > 4 EMIT CHANGES LIMIT 1")
        assert next(query).row == {"TITLE": "Big", "N": 5}


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_the_command_runs_files_on_spark(tmp_path, capsys):
    from keyed.cli.main import main

    (tmp_path / "a.sql").write_text(
        "CREATE STREAM s (a STRING KEY, b INT, at TIMESTAMP) WITH (TIMESTAMP = 'at');"
        "CREATE TABLE t AS SELECT a, SUM(b) AS b FROM s GROUP BY a;"
    )
    (tmp_path / "s.csv").write_text("a,b,at\nx,1,1970-01-01T00:00:01Z\nx,2,1970-01-01T00:00:02Z\n")
    command = ["run", str(tmp_path / "a.sql"), "--input", f"s={tmp_path / 's.csv'}", "--json"]
    assert main(command) == 0
    local = capsys.readouterr().out
    assert main([*command, "--runtime", "spark"]) == 0
    assert capsys.readouterr().out == local
    assert '"timestamp":2000' in local
    for options, error in {
        ("--checkpoint", str(tmp_path / "c")): "reads each file of a folder once; give the folder",
        ("--serve",): "reads each file of a folder once; give the folder",
        ("--tables", str(tmp_path / "t")): "keeps tables of a query with a checkpoint; give --checkpoint",
    }.items():
        assert main([*command, "--runtime", "spark", *options]) == 1
        assert error in capsys.readouterr().err
    # A folder, whose files are read once.
    (tmp_path / "in").mkdir()
    command[3] = f"s={tmp_path / 'in'}"
    command += ["--runtime", "spark", "--checkpoint", str(tmp_path / "state"), "--tables", str(tmp_path / "tables")]
    assert main(command) == 1
    assert "or a folder of files of one" in capsys.readouterr().err
    (tmp_path / "s.csv").rename(tmp_path / "in" / "0.csv")
    assert main(command) == 0
    assert capsys.readouterr().out == local
    (tmp_path / "in" / "1.csv").write_text("a,b,at\nx,4,1970-01-01T00:00:05Z\n")
    assert main(command) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {"output": "T", "key": "x", "value": {"B": 7}, "timestamp": 5000}
    assert main(["get", str(tmp_path / "tables"), "t", "x", "--json"]) == 0
    assert '"B":7' in capsys.readouterr().out


CHAINED = """
CREATE STREAM sales (title STRING KEY, genre STRING, tickets INT) WITH (FORMAT = 'JSON');
CREATE STREAM by_genre AS SELECT genre, tickets FROM sales PARTITION BY genre;
CREATE STREAM large AS SELECT genre, tickets * 2 AS twice FROM by_genre WHERE tickets > 3;
CREATE TABLE sold AS SELECT genre, COUNT(*) AS n, SUM(twice) AS twice FROM large GROUP BY genre;
"""
FURTHER = """
CREATE TABLE popular AS SELECT genre, n FROM sold WHERE n > 2;
CREATE TABLE by_number AS SELECT n, COUNT(*) AS genres FROM popular GROUP BY n;
EXPLAIN by_genre; EXPLAIN large; EXPLAIN sold; EXPLAIN popular; EXPLAIN by_number;
"""


def chains(text, frames, capsys):
    """The operators of a script on Spark that are chained, by their plan, and its queries by EXPLAIN."""
    found = define(*parse(text))
    compiled = Compiler(found, None, (), frames).build()
    compiled[-1][1].explain()
    planned = [line.partition(": chained to ") for line in capsys.readouterr().out.splitlines() if ": chained" in line]
    steps = {each.statement.split()[1]: {row["step"]: row["detail"] for row in each.rows} for each in found.answers}
    told = [(name.lower(), step["shuffle"]) for name, step in steps.items() if step["shuffle"].startswith("none: ")]
    return [(name, before) for name, _, before in planned], told


@pytest.mark.slow
def test_queries_with_the_key_of_the_one_before_are_chained_and_explain_says_so(spark, capsys):
    rows = [(f"title {n % 7}", f"genre {n % 5}", n % 9, 1_000 * n) for n in range(40)]
    columns = ("title", "genre", "tickets", "rowtime")
    frames = {"SALES": spark.createDataFrame(rows, "title string, genre string, tickets int, rowtime bigint")}
    planned, told = chains(CHAINED + FURTHER, frames, capsys)
    assert planned == [("sold", "large"), ("popular", "sold")]
    shared = "none: it has the key of {}, and is chained to it"
    assert told == [("sold", shared.format("LARGE")), ("popular", shared.format("SOLD"))]
    # With several key groups, a row whose key has changed is in the wrong one unless it is shuffled.
    frames["SALES"] = frames["SALES"].coalesce(1)
    found = sql.script(CHAINED, frames)
    expected = sql.script(CHAINED, {"sales": _rows(columns, rows)})
    for name in ("by_genre", "large"):
        assert sorted(map(str, found[name])) == sorted(map(str, expected[name])), name
    # Rows of different titles have no order among each other.
    assert found.table("sold") == expected.table("sold")


def test_explain_says_which_queries_are_chained():
    answers = sql.script(CHAINED + FURTHER).answers
    found = [next(row["detail"] for row in each.rows if row["step"] == "shuffle") for each in answers]
    shuffled = "on Spark; none in this process, which has one key group"
    assert [detail == shuffled for detail in found] == [True, True, False, False, True]


@pytest.mark.slow
def test_rows_that_cannot_be_read_are_counted(spark):
    text = """
    CREATE STREAM s (k STRING KEY, n INT) WITH (FORMAT = 'JSON');
    CREATE TABLE t AS SELECT k, SUM(n) AS n FROM s GROUP BY k;
    CREATE STREAM u AS SELECT k, n FROM s WHERE n > 1 PARTITION BY k;
    CREATE STREAM r (k STRING KEY, n INT) WITH (FORMAT = 'JSON');
    INSERT INTO s SELECT k, n + 1 AS n FROM r;
    """
    rows = [("a", "1", 0), ("a", "x", 1), ("a", "5", None), ("a", "7", -3), ("a", "2", 9)]
    frames = {
        name: spark.createDataFrame(given, "k string, n string, rowtime bigint").coalesce(1)
        for name, given in {"s": rows, "r": [("a", "7", 5), ("a", "1", None)]}.items()
    }
    found = sql.script(text, frames)
    assert found.run is not None
    assert found.table("t") == {"a": {"N": 11}}
    assert sorted(each.value["N"] for each in found["u"]) == [2, 8]
    assert {name: each["rows_bad"] for name, each in found.run.metrics.items()} == {"t": 3, "u": 3, "insert_2_s": 1}
    # Text that is not UTF-8, of a row that a query needs and of one that none does.
    odd = spark.range(4).selectExpr("CAST(IF(id % 2 = 0, X'61', X'FF61') AS STRING) AS k", "CAST(id AS INT) AS n")
    found = sql.script(
        "CREATE STREAM s (k STRING KEY, n INT) WITH (FORMAT = 'JSON'); CREATE STREAM u AS SELECT k, n + 1 FROM s"
        " WHERE n > 1;",
        {"s": odd.selectExpr("*", "CAST(0 AS BIGINT) AS rowtime").coalesce(1)},
    )
    assert found.run is not None
    assert [(each.key, each.value) for each in found["u"]] == [("a", {"KSQL_COL_0": 3})]
    assert found.run.metrics["u"]["rows_bad"] == 1
