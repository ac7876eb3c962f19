"""Scripts over Spark DataFrames write the same records as in this process."""

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from keyed import sql
from keyed.errors import CheckpointError, DefinitionError
from keyed.sql.bound_streams import check_executors
from tests.keyed.sql.random_scripts import check
from tests.keyed.sql.test_planner import Detect
from tests.support.data_files import read_data
from tests.support.sql_files import read_scripts

SCRIPTS = read_scripts(Path(__file__).with_name("scripts.sql"))
#: Scripts with the columns and rows of their inputs, options of the run in this process, and the rows that are skipped
#: on Spark and here.
CASES = read_data("keyed/sql/spark_scripts.json")


def frames_of(spark, case):
    return {name: spark.createDataFrame(rows, columns).coalesce(1) for name, (columns, rows) in case["inputs"].items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_scripts_write_the_records_that_they_write_in_this_process(spark, name):
    case, text = CASES[name], "\n".join(CASES[name]["script"])
    functions = {"detect": Detect()} if "detect(" in text else None
    found = sql.script(text, frames_of(spark, case), functions=functions)
    rows = {}
    for source, (columns, values) in case["inputs"].items():
        names = [column.split()[0] for column in columns.split(", ")]
        rows[source] = [dict(zip(names, row, strict=True)) for row in values]
    expected = sql.script(text, rows, functions=functions, **case["options"])
    assert found.records.keys() == expected.records.keys()
    for output in expected.records:
        # The order holds for each key.
        assert sorted(map(str, found[output])) == sorted(map(str, expected[output])) != [], output
        of_one = [[each for each in result[output] if each.key == "Big"] for result in (found, expected)]
        assert of_one[0] == of_one[1]
    assert [found.skipped, expected.skipped] == case.get("skipped", [{}, {}])


@pytest.mark.slow
def test_dataframes_that_do_not_fit_are_refused(spark):
    case = CASES["each kind of query"]
    text, frames = "\n".join(case["script"]), frames_of(spark, case)
    with pytest.raises(DefinitionError, match="films, which a query reads, has no rows"):
        sql.script(text, {"sales": frames["sales"]})
    with pytest.raises(DefinitionError, match="without topics= and without INSERT"):
        sql.script(text, frames | {"films": []})
    with pytest.raises(DefinitionError, match="the DataFrame of sales has no column 'tickets'"):
        sql.script(text, frames | {"sales": frames["films"]})


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(6, 100))])
def test_random_scripts_write_what_duckdb_computes_over_all_rows(spark, seed):
    assert check(seed, spark) is None


#: A declaration; its columns as expressions of Spark with the declared types (``exact``), with others that have the
#: same values (``alike``), and with values that make the row a bad one (``bad``); and types, with a time and none.
CONVERSIONS = read_data("keyed/sql/spark_conversions.json")


@pytest.mark.slow
def test_columns_are_converted_to_the_declared_types_and_bad_rows_are_counted(spark):
    one = {
        "b": 2,
        "d": 1.5,
        "e": Decimal("1.25"),
        "t": "a",
        "y": b"a",
        "f": True,
        "day": (dt.date(2026, 1, 2) - dt.date(1970, 1, 1)).days,
        "at": 1_767_323_045_678,
        "l": [1, 2],
        "m": {"a": 1},
        "c": {"X": 1, "y": [1000]},
    }
    exact, wrong = CONVERSIONS["exact"], CONVERSIONS["bad"]
    columns = {"exact": exact, "alike": CONVERSIONS["alike"]}
    columns |= {name: exact | {name: expression} for name, expression in wrong.items()}
    frames = {
        name: spark.range(1).selectExpr(*(f"{expression} AS {column}" for column, expression in each.items()))
        for name, each in columns.items()
    }
    declared = CONVERSIONS["declared"] + "CREATE STREAM o_{0} AS SELECT * FROM s_{0};"
    text = "".join(map(declared.format, frames))
    found = sql.script(text, {f"s_{name}": frame for name, frame in frames.items()})
    assert [(each.key, each.value, each.timestamp) for each in found["o_exact"]] == [(1, one, 0)]
    assert [(each.key, each.value) for each in found["o_alike"]] == [(1, one | {"c": {"X": 1, "y": [0]}})]
    assert {name: len(found[f"o_{name}"]) for name in wrong} == dict.fromkeys(wrong, 0)
    assert found.skipped == {f"o_{name}": {"bad rows": 1} for name in wrong}
    assert found.run is not None
    assert {name: found.run.metrics[f"o_{name}"]["rows_bad"] for name in wrong} == dict.fromkeys(wrong, 1)


@pytest.mark.slow
def test_times_of_each_type_are_the_times_of_rows_and_rows_without_one_are_counted(spark):
    cases, timed = CONVERSIONS["times"], "CREATE STREAM o_{0} AS SELECT k, at FROM s_{0};"
    timed = "CREATE STREAM s_{0} (k STRING KEY, at {1}) WITH (FORMAT = 'JSON', TIMESTAMP = 'at');" + timed
    text = "".join(timed.format(number, declared) for number, (declared, *_) in enumerate(cases))
    frames = {
        f"s_{number}": spark.range(2).selectExpr("'a' AS k", f"IF(id = 0, {good}, {bad}) AS at")
        for number, (_, good, bad) in enumerate(cases)
    }
    found = sql.script(text, frames)
    for number, case in enumerate(cases):
        assert [each.timestamp for each in found[f"o_{number}"]] == [1000], case
        assert found.skipped[f"o_{number}"] == {"bad rows": 1}, case


@pytest.mark.slow
def test_rows_in_which_an_expression_fails_or_that_are_late_are_counted_by_query(spark, tmp_path):
    text = SCRIPTS["failing_and_late"]
    (tmp_path / "in").mkdir()
    for at, key in ((9000, "a"), (100, "2")):
        (tmp_path / "in" / f"{at}.json").write_text(json.dumps({"k": key, "n": 1, "rowtime": at}) + "\n")
        frame = spark.readStream.schema("k string, n int, rowtime bigint").json(str(tmp_path / "in"))
        seen: list[Any] = []
        found = sql.script(text, {"s": frame}, checkpoint=tmp_path / "state", on_progress=seen.append)
    assert [each.value for each in found["u"]] == [{"n": 3}]
    assert found.skipped["t"] == {"late for its window": 1}
    assert seen[-1].metrics["t"]["rows_dropped"] == 1


@pytest.mark.slow
def test_a_streaming_script_goes_on_from_its_checkpoint(spark, tmp_path):
    (tmp_path / "in").mkdir()
    text = """
    CREATE STREAM sales (title STRING KEY, tickets INT) WITH (FORMAT = 'JSON');
    CREATE TABLE sold AS SELECT title, SUM(tickets) AS n FROM sales GROUP BY title;
    """

    def run(number, title, tickets, text=text):
        if title is not None:
            row = json.dumps({"title": title, "tickets": tickets, "rowtime": number})
            (tmp_path / "in" / f"{number}.json").write_text(row + "\n")
        frame = spark.readStream.schema("title string, tickets int, rowtime bigint").json(str(tmp_path / "in"))
        return sql.script(text, {"sales": frame}, checkpoint=tmp_path / "state", tables=tmp_path / "tables")

    assert [each.value for each in run(0, "Big", 2)["sold"]] == [{"n": 2}]
    changes = {
        "GROUP BY": text.replace("title, SUM(", "UCASE(title) AS title, SUM(").replace("BY title", "BY UCASE(title)"),
        "HAVING": text.replace("BY title", "BY title HAVING SUM(tickets) > 9"),
        "aggregates": text.replace("SUM(", "MAX("),
        "WINDOW": text.replace("sales GROUP", "sales WINDOW TUMBLING (SIZE 1 DAY) GROUP"),
    }
    # They are refused at the start, without a new row.
    for part, changed in changes.items():
        with pytest.raises(CheckpointError, match=f"'sold' .*has changed its .*{part}"):
            run(1, None, 0, changed)
    second = run(1, "Big", 3, text.replace("FROM sales", "FROM sales WHERE tickets > 0"))
    assert [each.value for each in second["sold"]] == [{"n": 5}]
    assert second.run is not None
    with second.run.tables as tables:
        query = sql.subscribe(tables, "SELECT title, n FROM sold WHERE n > 4 EMIT CHANGES LIMIT 1")
        assert next(query).row == {"title": "Big", "n": 5}


@pytest.mark.slow
def test_executors_without_duckdb_or_with_another_version_are_an_error_at_the_start(spark, monkeypatch):
    monkeypatch.setattr("keyed.sql.bound_streams.MAJOR", "9")
    with pytest.raises(DefinitionError, match="scripts need DuckDB 9 on Spark's executors, and one has 2"):
        check_executors(spark)


@pytest.mark.slow
def test_records_of_topics_are_decoded_by_the_workers(spark):
    text = SCRIPTS["decoded_by_workers"]
    columns = "key binary, value binary, partition int, offset bigint, timestamp timestamp"
    columns += ", headers array<struct<key: string, value: binary>>"
    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    kind = [("kind", b"web")]
    sales: list[tuple[Any, ...]] = [
        (b"7", b'{"title": "Big", "at": 5}', 3, 9, now, kind),
        (b"x", b"{}", 3, 10, now, None),
        (b"8", b"{", 3, 11, now, None),
        (b"9", b'{"title": "Rio", "at": 6}', 3, 12, now, None),
    ]
    films: list[tuple[Any, ...]] = [
        (b"Big", b'{"genre": "comedy"}', 0, 0, now.replace(year=1970)),
        (b"Rio", b'{"genre": "x"}', 0, 1, now),
    ]
    films += [(b"Rio", None, 0, 2, now)]
    frames = {
        "s": spark.createDataFrame(sales, columns).coalesce(1),
        "t": spark.createDataFrame([(*each, None) for each in films], columns).coalesce(1),
    }
    found = sql.script(text, frames)
    assert [(each.key, each.value, each.timestamp) for each in found["places"]] == [
        (7, {"kind": b"web", "part": 3, "place": 9}, 5),
        (9, {"kind": None, "part": 3, "place": 12}, 6),
    ]
    assert sorted((each.value["id"], each.value["genre"]) for each in found["named"]) == [(7, "comedy"), (9, None)]
    assert found.skipped == {"places": {"bad rows": 2}, "named": {"bad rows": 2}}


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
    assert json.loads(line) == {"output": "t", "batch": 1, "key": "x", "value": {"b": 7}, "timestamp": 5000}
    assert main(["get", str(tmp_path / "tables"), "t", "x", "--json"]) == 0
    assert '"b":7' in capsys.readouterr().out
