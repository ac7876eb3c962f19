"""Scripts over Spark DataFrames write the same records as in this process."""

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pytest

import keyed
from keyed import sql
from keyed.errors import CheckpointError, DefinitionError
from keyed.sql.bound_streams import check_executors
from tests.keyed.sql.random_scripts import check
from tests.keyed.sql.test_planner import Detect

SCRIPT = """
CREATE STREAM sales (title STRING KEY, tickets INT, price DECIMAL(6, 2), tags ARRAY<STRING>) WITH (FORMAT = 'JSON');
CREATE TABLE films (title STRING PRIMARY KEY, genre STRING) WITH (FORMAT = 'JSON');
CREATE TABLE genres (genre STRING PRIMARY KEY, name STRING) WITH (FORMAT = 'JSON');
CREATE STREAM large AS SELECT title, tickets * 2 AS twice, price, tags FROM sales WHERE tickets > 1;
CREATE STREAM doubled AS SELECT twice, title FROM large PARTITION BY twice;
CREATE TABLE sold AS SELECT title, COUNT(*) AS n, SUM(price) AS income, COLLECT_LIST(tickets) AS each FROM sales
    GROUP BY title;
CREATE TABLE hourly AS SELECT tickets, COUNT(*) AS n FROM sales WINDOW TUMBLING (SIZE 1 HOUR) GROUP BY tickets;
CREATE STREAM by_genre AS SELECT sales.title AS title, genre, tickets FROM sales LEFT JOIN films
    ON sales.title = films.title;
CREATE TABLE named AS SELECT films.title AS title, name FROM films LEFT JOIN genres ON films.genre = genres.genre;
CREATE TABLE closed AS SELECT genre, COUNT(*) AS n FROM by_genre WINDOW TUMBLING (SIZE 1 HOUR, GRACE PERIOD 0 SECONDS)
    GROUP BY genre EMIT FINAL;
"""
SALES = [
    ("Aliens", 2, Decimal("1.50"), ["a", "b"], 1_000),
    ("Big", 5, Decimal("2.50"), [], 2_000),
    ("Aliens", 3, None, None, 3_500_000),
    ("Big", 1, Decimal("1.00"), ["c"], 3_700_000),
]
FILMS = [("Aliens", "horror", 0), ("Aliens", "action", 3_000_000)]
GENRES = [("action", "Action", 0)]


def _rows(columns, rows):
    return [dict(zip(columns, row, strict=True)) for row in rows]


@pytest.mark.slow
def test_each_kind_of_query_writes_the_records_that_it_writes_in_this_process(spark):
    sales, films = ("title", "tickets", "price", "tags", "rowtime"), ("title", "genre", "rowtime")
    genres = ("genre", "name", "rowtime")
    kinds = "title string, tickets int, price decimal(6,2), tags array<string>, rowtime bigint"
    frames = {
        "sales": spark.createDataFrame(SALES, kinds).coalesce(1),
        "films": spark.createDataFrame(FILMS, "title string, genre string, rowtime bigint").coalesce(1),
        "genres": spark.createDataFrame(GENRES, "genre string, name string, rowtime bigint").coalesce(1),
    }
    found = sql.script(SCRIPT, frames)
    expected = sql.script(
        SCRIPT,
        {"films": _rows(films, FILMS), "genres": _rows(genres, GENRES), "sales": _rows(sales, SALES)},
        drain=False,
    )
    assert found.records.keys() == expected.records.keys()
    for name in expected.records:
        # The order holds for each key.
        assert sorted(map(str, found[name])) == sorted(map(str, expected[name])) != [], name
        assert [each for each in found[name] if each.key == "Big"] == [
            each for each in expected[name] if each.key == "Big"
        ]
    assert (found.skipped, expected.skipped) == (
        {"closed": {"bad rows": 2}},
        {"closed": {"a part of the group is null": 2}},
    )
    with pytest.raises(DefinitionError, match="films, which a query reads, has no rows"):
        sql.script(SCRIPT, {"sales": frames["sales"]})
    with pytest.raises(DefinitionError, match="without topics= and without INSERT"):
        sql.script(SCRIPT, frames | {"films": []})
    with pytest.raises(DefinitionError, match="the DataFrame of sales has no column 'tickets'"):
        sql.script(SCRIPT, frames | {"sales": frames["films"]})


STREAMS = """
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
    found = sql.script(STREAMS, frames)
    expected = sql.script(STREAMS, {name: _rows(*each) for name, each in given.items()})
    for name in ("sums", "visits", "ended", "pairs", "both"):
        assert sorted(map(str, found[name])) == sorted(map(str, expected[name])) != [], name


RANKED = """
CREATE STREAM orders (id INT KEY, card STRING, total INT) WITH (FORMAT = 'JSON');
CREATE TABLE latest (id INT PRIMARY KEY, card STRING, total INT) WITH (FORMAT = 'JSON');
CREATE TABLE top AS SELECT card, id FROM orders
    QUALIFY row_number() OVER (PARTITION BY card ORDER BY total DESC) <= 2;
CREATE TABLE best AS SELECT card, id FROM latest QUALIFY row_number() OVER (PARTITION BY card ORDER BY total DESC) = 1;
CREATE STREAM rises AS SELECT * FROM detect(orders PARTITION BY card) WHERE rise > 0;
CREATE STREAM times AS SELECT o.id AS id, l.ROWTIME AS at FROM orders o JOIN latest l ON o.id = l.id;
"""


@pytest.mark.slow
def test_ranks_functions_and_times_of_joined_sources(spark):
    columns = ("id", "card", "total", "rowtime")
    orders = [(number, "ab"[number % 2], number * 7 % 5, 1000 + number) for number in range(9)]
    latest = [(number % 3, "ab"[number % 2], number * 3 % 5, number) for number in range(8)]
    kinds = "id int, card string, total int, rowtime bigint"
    frames = {
        name: spark.createDataFrame(rows, kinds).coalesce(1) for name, rows in (("orders", orders), ("latest", latest))
    }
    found = sql.script(RANKED, frames, functions={"detect": Detect()})
    given = {"orders": _rows(columns, orders), "latest": _rows(columns, latest)}
    expected = sql.script(RANKED, given, functions={"detect": Detect()}, drain=False)
    for name in expected.records:
        assert sorted(map(str, found[name])) == sorted(map(str, expected[name])) != [], name


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(6, 100))])
def test_random_scripts_write_what_duckdb_computes_over_all_rows(spark, seed):
    assert check(seed, spark) is None


CONVERTED = """
CREATE STREAM s_{0} (i INT KEY, b BIGINT, d DOUBLE, e DECIMAL(6, 2), t STRING, y BYTES, f BOOLEAN, day DATE,
    at TIMESTAMP, l ARRAY<INT>, m MAP<STRING, BIGINT>, c STRUCT<X INT, y ARRAY<TIMESTAMP>>) WITH (FORMAT = 'JSON');
CREATE STREAM o_{0} AS SELECT * FROM s_{0};
"""
EXACT = """CAST(1 AS INT) AS i, 2L AS b, 1.5D AS d, CAST(1.25 AS DECIMAL(6, 2)) AS e, 'a' AS t, X'61' AS y, true AS f,
    DATE'2026-01-02' AS day, TIMESTAMP'2026-01-02 03:04:05.678Z' AS at, array(1, 2) AS l, map('a', 1L) AS m,
    named_struct('X', 1, 'y', array(TIMESTAMP'1970-01-01 00:00:01Z')) AS c"""
#: Columns of other types with the same values.
ALIKE = """'1' AS I, 2 AS b, CAST(1.5 AS FLOAT) AS d, '1.25' AS e, 'a' AS t, 'YQ==' AS y, '1' AS f, '2026-01-02' AS day,
    TIMESTAMP_NTZ'2026-01-02 03:04:05.678999' AS at, array(1L, 2L) AS l, map('a', 1) AS m,
    named_struct('Y', array(DATE'1970-01-01'), 'x', '1') AS c"""
#: Columns of which each makes the row a bad one.
BAD = {
    "i": "3000000000L",
    "b": "1.5D",
    "d": "'x'",
    "e": "12345.6",
    "t": "CAST(X'FF' AS STRING)",
    "y": "'?'",
    "f": "2",
    "day": "'2026-13-01'",
    "at": "'soon'",
    "l": "array(3000000000L)",
    "m": "map('a', 'b')",
    "c": "named_struct('X', 1, 'x', 2, 'y', null)",
}


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
    exact = spark.sql(f"SELECT {EXACT}")
    frames = {"exact": exact, "alike": spark.sql(f"SELECT {ALIKE}")}
    for name, bad in BAD.items():
        frames[name] = exact.selectExpr(*(f"{bad} AS {name}" if each == name else each for each in exact.columns))
    text = "".join(map(CONVERTED.format, frames))
    found = sql.script(text, {f"s_{name}": frame for name, frame in frames.items()})
    assert [(each.key, each.value, each.timestamp) for each in found["o_exact"]] == [(1, one, 0)]
    assert [(each.key, each.value) for each in found["o_alike"]] == [(1, one | {"c": {"X": 1, "y": [0]}})]
    assert {name: len(found[f"o_{name}"]) for name in BAD} == dict.fromkeys(BAD, 0)
    assert found.skipped == {f"o_{name}": {"bad rows": 1} for name in BAD}
    assert found.run is not None
    assert {name: found.run.metrics[f"o_{name}"]["rows_bad"] for name in BAD} == dict.fromkeys(BAD, 1)


TIMED = """
CREATE STREAM s_{0} (k STRING KEY, at {1}) WITH (FORMAT = 'JSON', TIMESTAMP = 'at');
CREATE STREAM o_{0} AS SELECT k, at FROM s_{0};
"""


@pytest.mark.slow
def test_times_of_each_type_are_the_times_of_rows_and_rows_without_one_are_counted(spark):
    cases = [
        ("TIMESTAMP", "TIMESTAMP'1970-01-01 00:00:01Z'", "CAST(null AS TIMESTAMP)"),
        ("TIMESTAMP", "TIMESTAMP_NTZ'1970-01-01 00:00:01'", "TIMESTAMP_NTZ'1969-12-31 00:00:00'"),
        ("TIMESTAMP", "'1970-01-01T00:00:01Z'", "'soon'"),
        ("BIGINT", "1000L", "-1L"),
        ("BIGINT", "'1000'", "'x'"),
        ("BIGINT", "1000L", "4102444800000L"),
    ]
    text = "".join(TIMED.format(number, declared) for number, (declared, *_) in enumerate(cases))
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
    text = """
    CREATE STREAM s (k STRING KEY, n INT) WITH (FORMAT = 'JSON');
    CREATE STREAM u AS SELECT k, CAST(k AS INT) + n AS n FROM s;
    CREATE TABLE t AS SELECT k, COUNT(*) AS n FROM s WINDOW TUMBLING (SIZE 1 SECOND, GRACE PERIOD 0 SECONDS) GROUP BY k;
    """
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
    text = """
    CREATE STREAM s (id BIGINT KEY, title STRING, at BIGINT, kind BYTES HEADER('kind'))
        WITH (FORMAT = 'JSON', TIMESTAMP = 'at');
    CREATE TABLE t (title STRING PRIMARY KEY, genre STRING) WITH (VALUE_FORMAT = 'JSON');
    CREATE STREAM places AS SELECT id, kind, ROWPARTITION AS part, ROWOFFSET AS place FROM s;
    CREATE STREAM named AS SELECT s.title AS title, id, genre FROM s LEFT JOIN t ON s.title = t.title;
    """
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
def test_streams_and_outputs_are_bound_with_data_frames(spark):
    titles = spark.createDataFrame([("a", "Aliens"), ("b", "Big")], "title string, name string")
    timed = keyed.stream(titles.selectExpr("*", "timestamp_millis(0) AS at"), timestamp="at")
    text = """
    CREATE STREAM s (title STRING KEY, name STRING) WITH (FORMAT = 'JSON');
    CREATE TABLE t (title STRING PRIMARY KEY, name STRING) WITH (FORMAT = 'JSON');
    CREATE STREAM o AS SELECT s.title AS title, t.name AS name FROM s LEFT JOIN t ON s.title = t.title;
    """
    found = sql.script(text, {"s": titles, "t": timed.filter(lambda row: row.title == "a")})
    assert sorted((each.key, each.value["name"]) for each in found["o"]) == [("a", "Aliens"), ("b", None)]
    with pytest.raises(DefinitionError, match=r"the stream of t has no event time; give keyed\.stream"):
        sql.script(text, {"s": titles, "t": keyed.stream(titles)})


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
