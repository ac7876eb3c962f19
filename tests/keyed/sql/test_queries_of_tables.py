"""Push queries over tables, the statements that ask, parameters, and registered functions."""

import datetime as dt
from decimal import Decimal
from pathlib import Path

import pyarrow.compute as pc
import pytest

import keyed
from keyed import sql
from keyed.errors import DefinitionError, SqlError
from tests.support.sql_files import read_scripts
from tests.support.states import Product

SCRIPTS = read_scripts(Path(__file__).with_name("scripts.sql"))
SALES = "CREATE STREAM sales (title STRING KEY, price INT) WITH (FORMAT = 'JSON');"
SOLD = SALES + "CREATE TABLE sold AS SELECT title, COUNT(*) AS n, SUM(price) AS income FROM sales GROUP BY title;"


def sale(title, price, time=0):
    return {"title": title, "price": price, "ROWTIME": time}


@pytest.fixture
def run(tmp_path):
    def run(rows, text=SOLD):
        return sql.script(
            text, {"sales": rows}, checkpoint=tmp_path / "state", tables=tmp_path / "tables", rows_per_batch=100
        )

    return run


def test_a_push_query_filters_computes_and_resumes_by_token(run):
    rows = [sale("Aliens", 5), sale("Aliens", 7), sale("Big", 3)]
    query = "SELECT UCASE(title) AS t, income / n AS mean FROM sold WHERE n >= ? EMIT CHANGES"
    with run(rows).run.tables as tables:
        first = sql.subscribe(tables, query, [2]).take(300)
    assert [(each.row, each.old) for each in first] == [({"t": "ALIENS", "mean": 6}, None)]
    with run([*rows, sale("Big", 9), sale("Aliens", 9), sale("Rio", 1)]).run.tables as tables:
        pushed = sql.subscribe(tables, query, [2], after=first[-1].token).take(300)
    assert {str(each.row): each.old for each in pushed} == {
        "{'t': 'ALIENS', 'mean': 7.0}": {"t": "ALIENS", "mean": 6.0},
        "{'t': 'BIG', 'mean': 6.0}": None,
    }


def test_a_push_query_counts_the_rows_in_which_an_expression_fails(run, caplog):
    query = "SELECT title, income / (n // (n - 1)) AS x FROM sold EMIT CHANGES"
    rows = [sale("Aliens", 5), sale("Aliens", 7), sale("Big", 3), sale("Rio", 1)]
    with run(rows).run.tables as tables:
        found = sql.subscribe(tables, query)
        assert [each.row and each.row["title"] for each in found.take(300)] == ["Aliens"]
    assert found.rows_bad == 2
    (message,) = [each.getMessage() for each in caplog.records if "leaves out a row" in each.getMessage()]
    assert message.startswith("a query of sold leaves out a row, as it will others: ")


def test_many_rows_are_taken_in_parts_and_none_is_left_out(run):
    with run([sale(str(number), number) for number in range(2500)]).run.tables as tables:
        query = sql.subscribe(tables, "SELECT title FROM sold EMIT CHANGES LIMIT 2400")
        parts = []
        while not query.is_done:
            parts.append(query.take(300))
        titles = [each.row["title"] for part in parts for each in part if each.row]
    assert (len(titles), len(set(titles))) == (2400, 2400)
    assert 1 < len(parts) < 10


def test_a_windowed_table_has_its_bounds(run):
    text = (
        SALES
        + "CREATE TABLE w AS SELECT title, COUNT(*) AS n FROM sales WINDOW TUMBLING (SIZE 1 SECOND) GROUP BY title;"
    )
    with run([sale("Big", 1, 1500), sale("Big", 1, 1600)], text).run.tables as tables:
        query = sql.subscribe(
            tables, "SELECT *, WINDOWSTART AS s, WINDOWEND AS e, ROWTIME AS t FROM w EMIT CHANGES LIMIT 1"
        )
        assert next(query).row == {
            "title": "Big",
            "WINDOWSTART": 1000,
            "WINDOWEND": 2000,
            "n": 2,
            "s": 1000,
            "e": 2000,
            "t": 1600,
        }
        assert query.is_done


def test_times_of_a_script_are_the_same_in_pull_and_push_queries(run):
    text = SALES.replace("price INT", "price INT, seen TIMESTAMP")
    text += "CREATE TABLE last AS SELECT title, LATEST_BY_OFFSET(seen) AS seen FROM sales GROUP BY title;"
    with run([{"title": "Big", "price": 1, "seen": "2026-01-02T03:04:05.678"}], text).run.tables as tables:
        [pulled] = tables.sql("SELECT seen, seen + INTERVAL 1 DAY AS next FROM last").to_pylist()
        [pushed] = sql.subscribe(tables, "SELECT seen, seen + INTERVAL 1 DAY AS next FROM last EMIT CHANGES").take(300)
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 678_000)
    assert pushed.row == pulled == {"seen": at, "next": at + dt.timedelta(days=1)}


def test_a_push_query_reads_a_table_of_a_python_job(tmp_path):
    class Total(keyed.KeyedProcessFunction):
        total = keyed.ValueState(int, default=0)

        def process_element(self, value, ctx):
            self.total.update(self.total.value() + value["n"])
            yield from ()

    job = keyed.stream([{"k": "a", "n": 1}, {"k": "b", "n": 5}]).key_by("k").process(Total(), output="k string")
    with job.run(tables=tmp_path).tables as tables:
        query = sql.subscribe(tables, "SELECT k, value * 2 AS double FROM total WHERE value > 1 EMIT CHANGES LIMIT 1")
        assert next(query).row == {"k": "b", "double": 10}


def test_statements_that_ask():
    text = SOLD + "SHOW STREAMS; SHOW TABLES; SHOW QUERIES; DESCRIBE sold; EXPLAIN sold; SHOW FUNCTIONS;"
    text += "EXPLAIN SELECT price, COUNT(*) FROM sales GROUP BY price; DROP TABLE sold; SHOW TABLES; LIST TYPES;"
    result = sql.script(text)
    found = {answer.statement: answer.rows for answer in result.answers[:-2]}
    assert [row["name"] for row in found["SHOW STREAMS"]] == ["sales"]
    assert found["SHOW TABLES"][0]["name"] == "sold"
    assert found["SHOW QUERIES"] == [{"name": "sold", "writes": "sold", "reads": "sales"}]
    assert found["DESCRIBE sold"] == [
        {"column": "title", "type": "STRING", "role": "PRIMARY KEY"},
        {"column": "n", "type": "BIGINT", "role": ""},
        {"column": "income", "type": "BIGINT", "role": ""},
    ]
    steps = {row["step"]: row["detail"] for row in found["EXPLAIN sold"]}
    assert steps["read"] == "STREAM sales, topic sales"
    assert steps["aggregate"] == "without windows, by title"
    assert {"step": "aggregate", "detail": "without windows, by price"} in found["EXPLAIN SELECT"]
    assert {"name": "TOPK", "is_aggregate": True} in found["SHOW FUNCTIONS"]
    assert [answer.rows for answer in result.answers[-2:]] == [[], []]
    with pytest.raises(SqlError, match="no query writes sodl; did you mean sold"):
        sql.script(SOLD + "EXPLAIN sodl;")


def test_parameters_are_values_and_never_text():
    text = SALES + "CREATE STREAM out AS SELECT title, $x AS x FROM sales WHERE title = $title;"
    hostile = "Big' OR '1' = '1"
    rows = [sale("Big", 1), sale(hostile, 2)]
    for value in (hostile, 1, 2**40, 1.5, True, Decimal("1.50"), b"a"):
        found = sql.script(text, {"sales": rows}, parameters={"title": hostile, "x": value})["out"]
        assert [each.key for each in found] == [hostile]
        assert found[0].value["x"] == value
    counted = SALES + "CREATE TABLE out AS SELECT price + ? AS p, COUNT(*) AS n FROM sales GROUP BY (price + ?), ?;"
    with pytest.raises(SqlError):
        sql.script(counted, {"sales": rows}, parameters=[1, 1])
    inserted = SALES + "CREATE STREAM out AS SELECT * FROM sales; INSERT INTO sales (title, price) VALUES (?, ?);"
    assert sql.script(inserted, parameters=["a;b", 3])["out"][0].key == "a;b"
    with pytest.raises(DefinitionError, match=r"sales has rows from two of streams=, .*; give all rows in one of them"):
        sql.script(inserted, {"sales": rows}, parameters=["a;b", 3])


@pytest.mark.parametrize(
    ("text", "parameters", "message"),
    [
        ("$titel", {"title": 1}, "no value for \\$titel; did you mean title?|no value for \\$titel; known are title"),
        ("?", None, "no value for ?"),
        ("1", [1], "does not have"),
        ("?", "a", "must be a list"),
        ("?", [object()], "has no SQL type"),
        ("?", [dt.timedelta(1)], "has no SQL type"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(text, parameters, message):
    with pytest.raises((SqlError, DefinitionError), match=message):
        sql.script(SALES + f"CREATE STREAM out AS SELECT title, {text} AS x FROM sales;", parameters=parameters)


def test_python_functions_and_aggregates_have_names():
    sql.register("product", Product, takes=["INT"], returns="BIGINT")
    sql.register("shout", lambda text: text[0] + "!", takes=["STRING"], returns="STRING")
    text = SALES + (
        "CREATE TABLE out AS SELECT SHOUT(title) AS t, PRODUCT(price) AS p FROM sales "
        "WINDOW SESSION (1 SECOND) GROUP BY SHOUT(title);"
    )
    rows = [sale("Big", 3, 0), sale("Boo", 5, 1500), sale("Bar", 7, 800), sale("Bee", None, 800), sale("", 2, 800)]
    assert sql.script(text, {"sales": rows}).table("out") == {("B!", (0, 1500)): {"p": 105}}
    with pytest.raises(SqlError, match="PRODUCT does not take \\(STRING\\); it takes"):
        sql.script(text.replace("PRODUCT(price)", "PRODUCT(title)"))


def test_a_python_function_may_take_arrow_arrays_with_their_nulls():
    batches = []

    def plus_one(numbers):
        batches.append(len(numbers))
        return pc.add(pc.fill_null(numbers, 0), 1)

    sql.register("plus_one", plus_one, takes=["INT"], returns="INT", over_arrow=True)
    text = SALES + "CREATE STREAM out AS SELECT title, PLUS_ONE(price) AS p FROM sales;"
    found = sql.script(text, {"sales": [sale("a", 3, 0), sale("b", None, 1), sale("c", 5, 2)]})["out"]
    assert [each.value["p"] for each in found] == [4, 1, 6]
    assert 3 in batches


@pytest.mark.parametrize(
    ("name", "function", "message"),
    [
        ("count", Product, "COUNT is a built-in function"),
        ("a b", Product, "a name consists of letters"),
        ("other", 1, "is neither a function nor a keyed.AggregateFunction"),
    ],
)
def test_what_cannot_be_registered_is_refused(name, function, message):
    with pytest.raises(DefinitionError, match=message):
        sql.register(name, function, takes=["INT"], returns="BIGINT")
    with pytest.raises(SqlError, match="column 1: unknown type INTT"):
        sql.register("fine", Product, takes=["INTT"], returns="BIGINT")


@pytest.mark.parametrize(("grouped", "key"), [("title", "key"), ("title, price", "key_1, key_2")])
def test_key_namespace_and_expires_are_columns_of_a_table_that_star_leaves_out(tmp_path, grouped, key):
    query = f"SELECT {grouped}, COUNT(*) AS n FROM sales GROUP BY {grouped}"
    text = SALES + f"CREATE TABLE sold WITH (KEY_FORMAT = 'JSON') AS {query};"
    run = sql.script(text, {"sales": [sale("Big", 5), sale("Rio", 6)]}, tables=tmp_path).run
    assert run is not None
    with run.tables as tables:
        everything = tables.sql("SELECT * FROM sold").schema.names
        query = f"SELECT {key}, namespace, sold.expires FROM sold WHERE {key.split(',')[0]} = 'Rio' AND expires IS NULL"
        named = [list(each.values()) for each in tables.sql(query).to_pylist()]
        alone = tables.sql("SELECT Expires FROM sold").to_pylist()
    assert everything == [*grouped.split(", "), "n", "ROWTIME"]
    assert named == [[*["Rio", 6][: len(grouped.split(","))], None, None]]
    assert alone == [{"expires": None}] * 2


def test_times_of_a_day_are_times_in_pull_and_push_queries(tmp_path):
    text = SCRIPTS["times_of_a_day"]
    noon, quarter = dt.time(12), dt.time(1, 15, 2, 3000)
    times = [noon, None]
    parts = {"m": {"a": quarter}, "l": times}
    rows = [{"k": noon, "t": quarter, "u": parts}, {"k": dt.time(13), "t": None, "u": None}]
    given = [{"k": noon, "t": quarter}, {"k": dt.time(13), "t": None}]
    found = sql.script(text, {"s": rows, "given": given}, checkpoint=tmp_path / "state", tables=tmp_path / "tables")
    assert found.run is not None
    with found.run.tables as tables:
        for name in ("latest", "w", "first", "given", "copied"):
            query = f"SELECT t, t + INTERVAL 1 HOUR AS later FROM {name} WHERE k = TIME '12:00' OR t < TIME '00:30'"
            row = {"t": quarter, "later": dt.time(2, 15, 2, 3000)}
            assert tables.sql(query).to_pylist() == [row]
            assert [each.row for each in sql.subscribe(tables, query + " EMIT CHANGES").take(300)] == [row]
        ranked = sql.subscribe(tables, "SELECT rank, ROWTIME AS at FROM first EMIT CHANGES").take(300)
        assert [each.row for each in ranked] == [{"rank": 1, "at": 0}] * 2
        [pushed] = sql.subscribe(tables, "SELECT u, k FROM latest WHERE u IS NOT NULL EMIT CHANGES").take(300)
        assert pushed.row == {"u": parts, "k": noon}
        assert tables.sql("SELECT u.l AS l FROM latest WHERE k < TIME '12:30'").to_pylist() == [{"l": times}]
