"""Scripts over streams and outputs of the Python API."""

from pathlib import Path
from typing import Any, NamedTuple

import attrs
import pyarrow as pa
import pytest

import keyed
from keyed import sql
from keyed.errors import DefinitionError
from tests.support.sql_files import read_scripts

SCRIPTS = read_scripts(Path(__file__).with_name("scripts.sql"))
ROWS: list[dict[str, Any]] = [
    {"title": title, "price": price, "at": at}
    for title, price, at in [("a", 1, 0), ("b", 2, 1000), ("a", 3, 2000), ("a", 5, 3_700_000)]
]
DOUBLED = SCRIPTS["bound_streams"]
TIMED = SCRIPTS["timed_sales"]


class Doubled(keyed.KeyedProcessFunction):
    """Rows with the double price, with tags that are one list for all."""

    seen = keyed.ValueState(int, default=0)

    def __init__(self) -> None:
        self.tags: list[str] = []

    def process_element(self, value, ctx):
        self.seen.update(self.seen.value() + 1)
        self.tags.append(value["title"])
        del self.tags[:-1]
        yield {"title": value["title"], "price": value["price"] * 2, "tags": self.tags, "ROWTIME": ctx.timestamp()}


def doubled(rows=ROWS):
    return keyed.stream(rows, timestamp="at").key_by("title").process(Doubled())


@pytest.mark.parametrize("rows_per_batch", [1, 3])
def test_an_output_of_a_function_is_a_stream_of_a_script(rows_per_batch):
    titles = [{"title": "a", "name": "Aliens"}]
    found = sql.script(DOUBLED, {"doubled": doubled(), "titles": titles}, rows_per_batch=rows_per_batch)
    assert found.table("sold") == {"a": {"n": 3, "income": 18}, "b": {"n": 1, "income": 4}}
    assert found.table("hourly") == {("a", (0, 3_600_000)): {"n": 2}, ("b", (0, 3_600_000)): {"n": 1}}
    assert [each.value["price"] for each in found["sales"]] == [2, 4, 6, 10]
    assert [each.timestamp for each in found["sold"] if each.key == "a"][-1] == 3_700_000


def test_its_arrays_are_those_of_the_moment_of_the_emission():
    text = DOUBLED + "CREATE STREAM tags AS SELECT title, tags FROM doubled;"
    found = sql.script(text, {"doubled": doubled(), "titles": []}, rows_per_batch=100)
    assert [each.value for each in found["tags"]] == [{"tags": [each["title"]]} for each in ROWS]


def test_it_goes_on_where_its_checkpoint_ends(tmp_path):
    counts: list[Any] = []
    for end in (2, 4, 4):
        rows = keyed.stream(ROWS[:end], timestamp="at").filter(lambda row: row["price"] > 1)
        found = sql.script(TIMED, {"sales": rows}, checkpoint=tmp_path)
        counts.append([(each.key, each.value["n"], each.timestamp) for each in found["sold"]])
    assert counts == [[("b", 1, 1000)], [("a", 2, 3_700_000)], []]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda row: (row["title"], 1), "an element has named fields, and this one is .*name the columns"),
        (
            lambda row: {"titel": "a", "price": 1, "at": 0},
            "the stream of sales, in the element .*has no column 'title'; did you mean.*titel",
        ),
    ],
)
def test_elements_without_its_columns_are_refused(make, message):
    with pytest.raises(DefinitionError, match=message):
        sql.script(TIMED, {"sales": keyed.stream(ROWS).map(make)})


def test_rows_without_a_timestamp_or_readable_values_are_skipped():
    rows = [
        {"title": "a", "price": "x", "at": 1},
        {"title": "a", "price": 1, "at": -5},
        {"title": "a", "price": 1, "at": 5},
    ]
    found = sql.script(TIMED, {"sales": keyed.stream(rows)})
    assert [(each.value["n"], each.timestamp) for each in found["sold"]] == [(1, 5)]
    assert found.skipped == {"sold": {"the format cannot read them": 2}}
    assert found.run is not None
    assert found.run.metrics["sold"]["rows_bad"] == 2


@attrs.frozen
class Sale:
    title: str
    price: int
    at: int


@pytest.mark.parametrize("rows_per_batch", [1, 10])
@pytest.mark.parametrize(
    "rows",
    [
        [Sale(**row) for row in ROWS],
        pa.Table.from_pylist(ROWS),
        [{name.upper(): cell for name, cell in row.items()} for row in ROWS],
        [{**row, "price": str(row["price"])} for row in ROWS],
    ],
)
def test_elements_of_any_kind_are_converted_to_the_declared_columns(rows, rows_per_batch):
    timed = keyed.stream(
        rows, timestamp=(lambda row: row.AT) if isinstance(rows[0], dict) and "AT" in rows[0] else "at"
    )
    for stream in (timed, keyed.stream(rows)):
        found = sql.script(TIMED, {"sales": stream}, rows_per_batch=rows_per_batch)
        assert found.table("sold") == {"a": {"n": 3}, "b": {"n": 1}}
        assert [each.timestamp for each in found["sold"] if each.key == "a"][-1] == 3_700_000


def test_rows_of_one_batch_may_have_values_of_different_types():
    rows = [
        {"title": "a", "price": 1, "at": 0},
        {"title": "a", "price": "2", "at": 1},
        {"title": "b", "at": 2, "price": 3.0},
    ]
    text = TIMED + "CREATE STREAM prices AS SELECT title, price FROM sales;"
    found = sql.script(text, {"sales": keyed.stream(rows)})
    assert [each.value["price"] for each in found["prices"]] == [1, 2, 3]


def test_a_function_of_the_user_may_change_its_arguments():
    def last(tags):
        return tags.pop()

    sql.register("last_tag", last, takes=["ARRAY<STRING>"], returns="STRING")
    text = SCRIPTS["a_function_called_twice"]
    found = sql.script(text, {"s": [{"k": "a", "tags": ["x", "y"]}]})
    for name in ("one", "two"):
        assert found[name][0].value == {"t": "y", "tags": ["x", "y"]}


class Gathered(keyed.AggregateFunction):
    """A list that is changed in place, and is the result itself."""

    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator):
        return accumulator

    def merge(self, a, b):
        return a + b


@pytest.mark.parametrize("rows_per_batch", [1, 10])
def test_the_row_before_a_change_is_not_that_after_it(rows_per_batch):
    sql.register("gathered", Gathered, takes=["INT"], returns="ARRAY<INT>")
    text = SCRIPTS["lists_and_their_sizes"]
    rows = [{"k": key, "a": number} for number, key in enumerate("abaa")]
    found = sql.script(text, {"s": rows}, rows_per_batch=rows_per_batch)
    assert found.table("sizes") == {1: {"n": 1}, 3: {"n": 1}}


@pytest.mark.slow
@pytest.mark.spark
def test_on_spark_outputs_and_streams_are_bound_with_data_frames(spark, tmp_path):
    rows = spark.createDataFrame([tuple(row.values()) for row in ROWS], "title string, price int, at long")
    timed = rows.selectExpr("title", "price", "timestamp_millis(at) AS at")
    columns = "title string, price int, tags array<string>, ROWTIME timestamp"
    output = keyed.stream(timed, timestamp="at").key_by("title").process(Doubled(), columns, parallelism=2)
    titles = spark.createDataFrame([("a", "Aliens")], "title string, name string")
    named = keyed.stream(titles.selectExpr("*", "timestamp_millis(0) AS at"), timestamp="at").filter(lambda row: True)
    found = sql.script(DOUBLED, {"doubled": output, "titles": named})
    assert found.table("sold") == {"a": {"n": 3, "income": 18}, "b": {"n": 1, "income": 4}}
    assert sorted(each.value["price"] for each in found["sales"]) == [2, 4, 6, 10]
    assert sql.script(DOUBLED, {"doubled": output, "titles": titles}).table("sold") == found.table("sold")
    with pytest.raises(DefinitionError, match=r"the stream of titles has no event time; give keyed\.stream"):
        sql.script(DOUBLED, {"doubled": output, "titles": keyed.stream(titles)})
    with pytest.raises(DefinitionError, match="a script runs on Spark if its streams are DataFrames"):
        sql.script(DOUBLED, {"doubled": output, "titles": [{"title": "a", "name": "Aliens"}]})


@attrs.frozen
class Untimed:
    title: str
    price: int
    at: int = 0


@attrs.frozen
class Timed:
    title: str
    price: int
    ROWTIME: int | None
    at: int = 0


class Pair(NamedTuple):
    price: int
    title: str
    at: int


class TimedPair(NamedTuple):
    price: int
    rowtime: int
    title: str
    at: int


@pytest.mark.parametrize("rows_per_batch", [1, 2, 100])
def test_each_element_has_its_own_columns_whatever_others_of_its_batch_have(rows_per_batch):
    elements = [
        Untimed("a", 1, 100),
        Timed("b", 2, 7, 100),
        Pair(3, "c", 100),
        TimedPair(4, 8, "d", 100),
        {"at": 100, "Price": 5, "title": "e"},
        {"at": 100, "price": 6, "ROWTIME": 9, "title": "f"},
        Timed("g", 7, None, 100),
    ]
    text = "CREATE STREAM s (title STRING KEY, price INT) WITH (FORMAT = 'JSON'); CREATE STREAM o AS SELECT * FROM s;"
    stream = keyed.stream(elements, timestamp=lambda each: each["at"] if isinstance(each, dict) else each.at)
    found = sql.script(text, {"s": stream}, rows_per_batch=rows_per_batch)
    rows = [(each.key, each.value["price"], each.timestamp) for each in found["o"]]
    times = [100, 7, 100, 8, 100, 9, 100]
    assert rows == [(title, place + 1, time) for place, (title, time) in enumerate(zip("abcdefg", times, strict=True))]
