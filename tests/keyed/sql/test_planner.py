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


PAIR = "CREATE {0} l (k INT {1}KEY, v INT) WITH (FORMAT = 'JSON'); CREATE {2} r (k INT {3}KEY, w INT) WITH (FORMAT = 'JSON');"


@pytest.mark.parametrize(
    ("kinds", "join", "made"),
    [
        (("STREAM", "", "STREAM", ""), "JOIN r WITHIN 1 SECOND", "STREAM"),
        (("STREAM", "", "TABLE", "PRIMARY "), "JOIN r", "STREAM"),
        (("TABLE", "PRIMARY ", "TABLE", "PRIMARY "), "LEFT JOIN r", "TABLE"),
    ],
)
@pytest.mark.parametrize("rows_per_batch", [1, 10])
def test_a_join_has_the_times_of_its_sources_and_its_own(kinds, join, made, rows_per_batch):
    text = (
        PAIR.format(*kinds)
        + f"CREATE {made} o AS SELECT l.k AS k, l.ROWTIME AS a, r.ROWTIME AS b, ROWTIME AS c FROM l {join} ON l.k = r.k;"
    )
    rows = {"l": [{"k": 1, "v": 1, "ROWTIME": 9}], "r": [{"k": 1, "w": 1, "ROWTIME": 5}]}
    assert sql.script(text, rows, rows_per_batch=rows_per_batch)["o"][-1].value == {"a": 9, "b": 5, "c": 9}


def test_the_next_join_has_the_times_of_the_first():
    text = (
        PAIR.format("STREAM", "", "TABLE", "PRIMARY ")
        + "CREATE TABLE t (k INT PRIMARY KEY, x INT) WITH (FORMAT = 'JSON');"
    )
    text += "CREATE STREAM o AS SELECT l.k AS k, r.rowtime AS a, t.ROWTIME AS b FROM l JOIN r ON l.k = r.k JOIN t ON l.k = t.k;"
    rows = {name: [{"k": 1, "ROWTIME": time}] for name, time in (("r", 2), ("t", 3), ("l", 4))}
    assert sql.script(text, rows)["o"][0].value == {"a": 2, "b": 3}


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
    ("source", "target"),
    [
        ("BIGINT", "INT"),
        ("INT", "DECIMAL(9, 0)"),
        ("DECIMAL(4, 2)", "DECIMAL(4, 1)"),
        ("DOUBLE", "BIGINT"),
        ("INT", "STRING"),
    ],
)
def test_inserted_columns_that_may_not_fit_need_a_cast(source, target):
    text = f"CREATE STREAM s (k INT KEY, v {source}) WITH (FORMAT = 'JSON'); CREATE STREAM t (k INT KEY, v {target}) WITH (FORMAT = 'JSON'); INSERT INTO t SELECT k, v FROM s;"
    with pytest.raises(SqlError, match=r"the same names, types and order; write CAST\(\.\.\. AS type\)"):
        sql.script(text, {"s": [], "t": []})


def test_elt_and_field_take_any_number_of_choices():
    text = (
        ORDERS
        + "CREATE STREAM o AS SELECT id, ELT(2, card, 'b', 'c', 'd') AS e, FIELD(total, 9, 4, 3) AS f, FIELD(card, 'x') AS g FROM orders;"
    )
    assert sql.script(text, {"orders": ROWS[:1]})["o"][0].value == {"e": "b", "f": 3, "g": 0}


@pytest.mark.parametrize("city", ["LATEST_BY_OFFSET(addr)->city", "(COLLECT_LIST(addr)[1])->city", "MAX(addr->city)"])
def test_the_field_of_an_aggregate_of_structs_is_a_column(city):
    """Found by reading: the type of the struct was asked for before the aggregate was replaced."""
    text = "CREATE STREAM s (id INT KEY, addr STRUCT<city STRING>) WITH (FORMAT = 'JSON');"
    text += f"CREATE TABLE o AS SELECT id, {city} AS city FROM s GROUP BY id HAVING {city} <> 'b';"
    found = sql.script(text, {"s": [{"id": 1, "addr": {"city": "a"}, "ROWTIME": 0}]})
    assert found["o"][0].value == {"city": "a"}


def test_the_choices_of_elt_after_aggregates_of_windows_are_one_list():
    """Found by reading: they were resolved twice, so that the result was the list."""
    text = (
        "CREATE STREAM s (id INT KEY) WITH (FORMAT = 'JSON'); CREATE TABLE o AS SELECT id, ELT(COUNT(*), 'x', 'y') AS e, "
        "windowend - 1 AS last FROM s WINDOW TUMBLING (SIZE 1 SECOND) GROUP BY id HAVING WindowStart >= 0;"
    )
    assert sql.script(text, {"s": [{"id": 1, "ROWTIME": 0}]})["o"][0].value == {"e": "x", "last": 999}


PEOPLE = "CREATE TABLE people (id INT PRIMARY KEY, age INT, name STRING) WITH (FORMAT = 'JSON');"
ADULTS = PEOPLE + "CREATE TABLE o AS SELECT id, age FROM people WHERE age > 0;"
AGES = PEOPLE + "CREATE TABLE o AS SELECT age, COUNT(*) AS n FROM people WHERE id > 0 GROUP BY age;"
BEFORE = [{"id": 1, "age": 3, "name": "a"}, {"id": 2, "age": 30, "name": "b"}]
AFTER = [*BEFORE, {"id": 1, "age": 4, "name": "c"}, {"id": 3, "age": 40, "name": "d"}]


def changed(tmp_path, first, then):
    """The records of a script that goes on with the checkpoint of another one."""
    sql.script(first, {"people": BEFORE}, checkpoint=tmp_path)
    return [(each.key, each.value) for each in sql.script(then, {"people": AFTER}, checkpoint=tmp_path)["o"]]


@pytest.mark.parametrize(
    ("old", "new", "records"),
    [
        ("age > 0", "age > 10", [(1, None), (3, {"age": 40})]),
        ("id, age FROM", "id, age + 1 AS age FROM", [(1, {"age": 5}), (3, {"age": 41})]),
        ("id, age FROM", "id, name, age FROM", [(1, {"name": "c", "age": 4}), (3, {"name": "d", "age": 40})]),
    ],
)
def test_a_table_goes_on_with_another_where_other_expressions_and_more_columns(tmp_path, old, new, records):
    assert changed(tmp_path, ADULTS, ADULTS.replace(old, new)) == records


@pytest.mark.parametrize(
    ("text", "old", "new", "what"),
    [
        (ADULTS, "id, age FROM", "id, age AS years FROM", "'o' .*table no longer has the field age"),
        (ADULTS, "id, age FROM", "id AS i, age FROM", "'o' .*its key changed from id to i"),
        (ADULTS, "id, age FROM", "id, age + 0.5 AS age FROM", r"'o' .*age of table: int32 became decimal128\(12, 1\)"),
        (AGES, "AS n", "AS m", "'o' .*table no longer has the field n"),
        (AGES, "id > 0", "id > 1", """'o' .*has changed its WHERE from '"id" > 0' to '"id" > 1'"""),
    ],
)
def test_columns_that_the_rows_of_a_table_have_and_the_where_of_its_groups_do_not_change(
    tmp_path, text, old, new, what
):
    with pytest.raises(CheckpointError, match=what):
        changed(tmp_path, text, text.replace(old, new))


STEPS = "CREATE STREAM s (id INT KEY, v INT) WITH (FORMAT = 'JSON'); CREATE STREAM t (id INT KEY, w INT) WITH (FORMAT = 'JSON');"
WINDOWED = (
    STEPS
    + "CREATE TABLE o AS SELECT id, SUM(v) AS n FROM s WINDOW TUMBLING (SIZE 1 MINUTE) GROUP BY id HAVING SUM(v) > 1;"
)
JOINED = STEPS + "CREATE STREAM o AS SELECT s.id, v, w FROM s JOIN t WITHIN 1 MINUTE ON s.id = t.id;"


@pytest.mark.parametrize(
    ("text", "old", "new", "message"),
    [
        (WINDOWED, "> 1", "> 2", "'o' .*HAVING from 'sum [(] v [)] > 1' to 'sum [(] v [)] > 2'"),
        (
            WINDOWED,
            "1 M",
            "2 M",
            "'o' .*WINDOW from 'tumbling [(] size 1 minute [)]' to 'tumbling [(] size 2 minute [)]'",
        ),
        (
            WINDOWED,
            "WINDOW TUMBLING (SIZE 1 MINUTE)",
            "",
            "'o' .*WINDOW from 'tumbling [(] size 1 minute [)]' to 'none'",
        ),
        (JOINED, "1 M", "2 M", "FROM of o from 's INNER JOIN t within 1 minute ON id = id' to .* within 2 minute ON"),
    ],
)
def test_a_changed_clause_is_shown_as_it_is_written(tmp_path, text, old, new, message):
    rows = [{"id": 1, "v": 2, "ROWTIME": 0}, {"id": 1, "v": 3, "ROWTIME": 1}]
    sql.script(text, {"s": rows[:1], "t": []}, checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match=message):
        sql.script(text.replace(old, new), {"s": rows, "t": []}, checkpoint=tmp_path)


def test_another_group_by_is_refused_with_the_remedy_of_scripts(tmp_path):
    rows = {"s": [{"id": 1, "v": 2, "ROWTIME": 0}]}
    text = STEPS + "CREATE TABLE o AS SELECT {0}, COUNT(*) AS n FROM s GROUP BY {0};"
    sql.script(text.format("id"), rows, checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match=r"'o' .*GROUP BY from 'id' to 'v'") as caught:
        sql.script(text.format("v"), rows, checkpoint=tmp_path)
    assert "Define it as it was" in str(caught.value)
    assert "key_by" not in str(caught.value)


CARDS = """
CREATE STREAM o (card STRING, total BIGINT) WITH (FORMAT = 'JSON');
CREATE STREAM p (card STRING, w BIGINT) WITH (FORMAT = 'JSON');
CREATE TABLE d (id STRING PRIMARY KEY, name STRING, ref STRING) WITH (FORMAT = 'JSON');
CREATE TABLE e (id STRING PRIMARY KEY, x STRING) WITH (FORMAT = 'JSON');
"""
CARD_ROWS = {
    "o": [{"card": "a", "total": n, "ROWTIME": n} for n in range(4)],
    "p": [{"card": "a", "w": 1, "ROWTIME": 1}],
    "d": [{"id": "a", "name": "x", "ref": "b"}],
    "e": [{"id": "b", "x": "y"}, {"id": "a", "x": "z"}],
}
TOP = (
    "CREATE TABLE t AS SELECT card, total, row_number() OVER (PARTITION BY card ORDER BY total) AS r FROM o "
    "QUALIFY row_number() OVER (PARTITION BY card ORDER BY total) <= 2;"
)
NEAR = (
    "CREATE STREAM t AS SELECT o.card, o.total, p.w FROM o JOIN p WITHIN 5 SECONDS GRACE PERIOD 1 SECONDS "
    "ON o.card = p.card EMIT CHANGES;"
)
TABLES_JOINED = "CREATE TABLE t AS SELECT d.id, d.name, e.x FROM d JOIN e ON d.ref = e.id EMIT CHANGES;"
SESSIONS = "CREATE TABLE t AS SELECT card, COUNT(*) AS n FROM o WINDOW SESSION (5 SECONDS) GROUP BY card EMIT CHANGES;"
MATCHES = (
    "CREATE STREAM t AS SELECT * FROM o MATCH_RECOGNIZE (PARTITION BY card ORDER BY ROWTIME MEASURES A.total AS a "
    "PATTERN (A B) WITHIN INTERVAL '5' SECOND DEFINE A AS total > 1) EMIT CHANGES;"
)


@pytest.mark.parametrize(
    ("query", "old", "new", "part"),
    [
        (TOP, "<= 2", "<= 3", "QUALIFY"),
        (TOP, "BY total", "BY total DESC", "QUALIFY"),
        (NEAR, "WITHIN 5", "WITHIN 6", "FROM of t"),
        (NEAR, "PERIOD 1", "PERIOD 2", "FROM of t"),
        (NEAR, "o JOIN", "o LEFT JOIN", "FROM of t"),
        (TABLES_JOINED, "d JOIN", "d LEFT JOIN", "FROM of t"),
        (TABLES_JOINED, "d.ref =", "d.name =", "FROM of t"),
        (TABLES_JOINED.replace(".ref", ".id"), "d JOIN", "d LEFT JOIN", "FROM of t"),
        (SESSIONS, "5", "6", "WINDOW"),
        (SESSIONS, "EMIT CHANGES", "EMIT FINAL", "EMIT"),
        (MATCHES, "A B", "A B C", "FROM of t"),
        (MATCHES, "'5'", "'6'", "FROM of t"),
        (MATCHES, "> 1", "> 2", "FROM of t"),
        (AGES, "id > 0", "id > 1", "WHERE"),
    ],
)
def test_a_changed_query_is_refused_at_the_start_also_without_a_new_row(tmp_path, query, old, new, part):
    given = {"people": BEFORE} if query is AGES else {name: CARD_ROWS[name] for name in "oped" if f" {name} " in query}
    text = query if query is AGES else CARDS + query
    sql.script(text, given, checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match=f"definition has changed its .*{part}"):
        sql.script(text.replace(old, new), given, checkpoint=tmp_path)


def test_a_checkpoint_with_another_format_of_states_is_refused_by_its_number(tmp_path, monkeypatch):
    given = {name: CARD_ROWS[name] for name in "oped" if f" {name} " in SESSIONS}
    sql.script(CARDS + SESSIONS, given, checkpoint=tmp_path)
    monkeypatch.setattr("keyed.sql.script_runs.FORMAT", "2")
    with pytest.raises(CheckpointError, match="has changed its format from '1' to '2'"):
        sql.script(CARDS + SESSIONS, given, checkpoint=tmp_path)
