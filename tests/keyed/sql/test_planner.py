# ruff: noqa: E501 - statements stand on one line
"""Queries of scripts: functions of the user's in ``FROM``, times of joined sources, types that widen."""

from collections.abc import Iterator
from decimal import Decimal

import attrs
import pytest

import keyed
from keyed import sql
from keyed.errors import CheckpointError, DefinitionError, SqlError

ORDERS = "CREATE STREAM orders (id INT KEY, card STRING, total INT) WITH (FORMAT = 'JSON');"
RISING = "CREATE STREAM rising AS SELECT * FROM detect(orders PARTITION BY card) WHERE rise > 1;"


@attrs.frozen
class Rise:
    card: str
    rise: int


class Detect(keyed.KeyedProcessFunction):
    """The rise of a card's totals, and a mark when it has been silent."""

    last = keyed.ValueState(int, default=0)

    def process_element(self, value, ctx) -> Iterator[Rise]:
        if value.total > self.last.value():
            yield Rise(value.card, value.total - self.last.value())
        self.last.update(value.total)


ROWS = [
    {"id": n, "card": card, "total": total, "ROWTIME": n}
    for n, (card, total) in enumerate(zip("aabab", [3, 4, 1, 9, 7], strict=True))
]


@pytest.mark.parametrize("rows_per_batch", [1, 3])
def test_a_function_of_the_user_is_a_relation_with_its_declared_columns(rows_per_batch):
    text = ORDERS + RISING
    text += "CREATE TABLE sums AS SELECT d.card AS card, SUM(rise) AS s FROM detect(orders PARTITION BY card) d GROUP BY d.card;"
    found = sql.script(text, {"orders": ROWS}, functions={"detect": Detect()}, rows_per_batch=rows_per_batch)
    assert [(each.key, each.value, each.timestamp) for each in found["rising"]] == [
        ("a", {"rise": 3}, 0),
        ("a", {"rise": 5}, 3),
        ("b", {"rise": 6}, 4),
    ]
    assert found.table("sums") == {"a": {"s": 9}, "b": {"s": 7}}


def test_its_state_is_of_the_checkpoint(tmp_path):
    found = [
        sql.script(ORDERS + RISING, {"orders": ROWS[:end]}, functions={"Detect": Detect()}, checkpoint=tmp_path)[
            "rising"
        ]
        for end in (2, 5)
    ]
    assert [[each.value["rise"] for each in part] for part in found] == [[3], [5, 6]]


class Untyped(keyed.KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


@pytest.mark.parametrize(
    ("query", "functions", "message"),
    [
        ("detct(orders PARTITION BY card)", {"detect": Detect()}, "unknown function detct; did you mean detect?"),
        ("detect(orders PARTITION BY card)", {}, "unknown function detect; .*give it: functions="),
        ("detect(orders PARTITION BY card)", {"detect": Untyped()}, "declares its columns: annotate"),
        ("detect(orders PARTITION BY card)", {"detect": len}, "must be a keyed.KeyedProcessFunction"),
        ("detect(orders PARTITION BY crd)", {"detect": Detect()}, "is partitioned by columns of orders"),
        ("detect(orders)", {"detect": Detect()}, "one of your own is detect.orders PARTITION BY column"),
        ("detect(people PARTITION BY name)", {"detect": Detect()}, "detect takes a stream, and people is a table"),
    ],
)
def test_functions_that_are_unknown_or_do_not_fit_are_refused_at_their_place(query, functions, message):
    text = ORDERS + "CREATE TABLE people (id INT PRIMARY KEY, name STRING) WITH (FORMAT = 'JSON');"
    with pytest.raises(SqlError, match=message.replace("?", r"\?")) as error:
        sql.script(text + f"CREATE STREAM x AS SELECT * FROM {query};", {"orders": []}, functions=functions)
    assert error.value.line == 1


def test_a_function_that_no_query_calls_is_an_error():
    with pytest.raises(DefinitionError, match=r"functions=\{'detcet': ...\}: no query calls it; did you mean detect\?"):
        sql.script(ORDERS + RISING, {"orders": []}, functions={"detect": Detect(), "detcet": Detect()})


@pytest.mark.parametrize(
    ("source", "target", "value"),
    [
        ("INT", "BIGINT", 7),
        ("INT", "DECIMAL(12, 2)", Decimal("7.00")),
        ("BIGINT", "DECIMAL(19, 0)", Decimal(7)),
        ("DECIMAL(4, 1)", "DECIMAL(6, 2)", Decimal("7.00")),
        ("DECIMAL(4, 1)", "DOUBLE", 7.0),
        ("BIGINT", "DOUBLE", 7.0),
    ],
)
def test_inserted_columns_widen_without_a_cast(source, target, value):
    text = f"CREATE STREAM s (k INT KEY, v {source}) WITH (FORMAT = 'JSON'); CREATE STREAM t (k INT KEY, v {target}) WITH (FORMAT = 'JSON'); INSERT INTO t SELECT k, v FROM s; CREATE STREAM o AS SELECT k, v FROM t;"
    found = sql.script(text, {"s": [{"k": 1, "v": 7}], "t": []})["o"][0].value["v"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("old", "new", "records"),
    [
        ("age > 0", "age > 10", [(1, None), (3, {"age": 40})]),
        ("id, age FROM", "id, age + 1 AS age FROM", [(1, {"age": 5}), (3, {"age": 41})]),
        ("id, age FROM", "id, name, age FROM", [(1, {"name": "c", "age": 4}), (3, {"name": "d", "age": 40})]),
    ],
)
def test_a_table_goes_on_with_another_where_other_expressions_and_more_columns(tmp_path, old, new, records):
    text = "CREATE TABLE people (id INT PRIMARY KEY, age INT, name STRING) WITH (FORMAT = 'JSON');"
    text += "CREATE TABLE o AS SELECT id, age FROM people WHERE age > 0;"
    rows = [
        {"id": n, "age": age, "name": name} for n, age, name in ((1, 3, "a"), (2, 30, "b"), (1, 4, "c"), (3, 40, "d"))
    ]
    sql.script(text, {"people": rows[:2]}, checkpoint=tmp_path)
    found = sql.script(text.replace(old, new), {"people": rows}, checkpoint=tmp_path)
    assert [(each.key, each.value) for each in found["o"]] == records


COUNTED = """CREATE STREAM s (id INT KEY, v INT) WITH (FORMAT = 'JSON');
    CREATE TABLE o AS SELECT {0}, COUNT(*) AS n FROM s GROUP BY {0};"""
COUNTED_ROWS = {"s": [{"id": 1, "v": 2, "ROWTIME": 0}]}


def test_another_group_by_is_refused_with_the_remedy_of_scripts(tmp_path):
    sql.script(COUNTED.format("id"), COUNTED_ROWS, checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match=r"'o' .*GROUP BY from 'id' to 'v'") as caught:
        sql.script(COUNTED.format("v"), COUNTED_ROWS, checkpoint=tmp_path)
    assert "Define it as it was" in str(caught.value)
    assert "key_by" not in str(caught.value)


def test_a_checkpoint_with_another_format_of_states_is_refused_by_its_number(tmp_path, monkeypatch):
    sql.script(COUNTED.format("id"), COUNTED_ROWS, checkpoint=tmp_path)
    monkeypatch.setattr("keyed.sql.script_runs.FORMAT", "2")
    with pytest.raises(CheckpointError, match="has changed its format from '1' to '2'"):
        sql.script(COUNTED.format("id"), COUNTED_ROWS, checkpoint=tmp_path)
