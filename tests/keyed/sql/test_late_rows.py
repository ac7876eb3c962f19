"""Late rows of windows are those of Kafka Streams, and results do not depend on how batches are cut."""

from collections import Counter
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from keyed import sql

ROWS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 120)), min_size=1, max_size=25)
DECLARED = """
    CREATE STREAM l (k STRING KEY, v INT) WITH (KAFKA_TOPIC = 'l', VALUE_FORMAT = 'JSON');
    CREATE STREAM r (k STRING KEY, v INT) WITH (KAFKA_TOPIC = 'r', VALUE_FORMAT = 'JSON');
    CREATE TABLE t (k STRING PRIMARY KEY, v INT) WITH (KAFKA_TOPIC = 't', VALUE_FORMAT = 'JSON');
"""
WINDOWS = {"TUMBLING": "SIZE 20", "HOPPING": "SIZE 20 MILLISECONDS, ADVANCE BY 5", "SESSION": "20"}


def processed(kind, grace, rows):
    """The counts of windows, and the number of windows that rows were late for.

    As in `KStreamWindowAggregate` and `KStreamSessionWindowAggregate`.
    """
    counts: Counter[tuple[Any, ...]] = Counter()
    late, stream = 0, 0
    for key, time in rows:
        stream = max(stream, time)
        if kind == "SESSION":
            close = stream - grace - 20
            joined = [each for each in counts if each[0] == key and each[1] - 20 <= time <= each[2] + 20]
            joined = [each for each in joined if each[2] >= close]
            start, end = (pick([time, *(each[place] for each in joined)]) for place, pick in ((1, min), (2, max)))
            if end < close:
                late += 1
            else:
                counts[key, start, end] = 1 + sum(counts.pop(each) for each in joined)
            continue
        step = 5 if kind == "HOPPING" else 20
        for start in range(time - time % step, max(time - 20, -1), -step):
            if start + 20 + grace <= stream:
                late += 1
            else:
                counts[key, start, start + 20] += 1
    return counts, late


@given(st.sampled_from([*WINDOWS]), st.sampled_from([0, 1, 15]), ROWS, st.integers(1, 30))
@example("SESSION", 0, [("a", 0), ("b", 60), ("a", 0)], 2)
@example("SESSION", 0, [("a", 91), ("b", 110), ("a", 85)], 3)
@example("SESSION", 0, [("a", 40), ("b", 65), ("a", 80), ("a", 60)], 3)
def test_late_rows_are_those_of_kafka_streams(kind, grace, rows, rows_per_batch):
    script = (
        f"CREATE TABLE o AS SELECT k, COUNT(*) AS n FROM l WINDOW {kind} ({WINDOWS[kind]} MILLISECONDS, "
        f"GRACE PERIOD {grace} MILLISECONDS) GROUP BY k;"
    )
    records = [("l", key, {"v": 1}, time) for key, time in rows]
    result = sql.script(DECLARED + script, topics=records, rows_per_batch=rows_per_batch)
    counts: dict[tuple[Any, ...], int] = {}
    for record in result["o"]:
        assert record.window is not None
        place = (record.key, *record.window)
        if record.value is None:
            del counts[place]
        else:
            counts[place] = record.value["n"]
    assert (counts, sum(result.skipped.get("o", Counter()).values())) == processed(kind, grace, rows)


RECORDS = st.lists(
    st.tuples(st.sampled_from("lr"), st.sampled_from("ab"), st.integers(0, 120)), min_size=1, max_size=25
)


@given(st.sampled_from(["INNER", "LEFT", "FULL"]), st.sampled_from([0, 1, 15]), RECORDS, st.integers(2, 30))
@example("INNER", 0, [("l", "a", 0), ("l", "b", 60), ("r", "a", 1)], 3)
@example("LEFT", 20, [("l", "a", 100), ("r", "a", 160), ("l", "a", 100)], 2)
def test_joins_with_late_rows_do_not_depend_on_batches(how, grace, rows, rows_per_batch):
    key = "ROWKEY AS k, l.k AS lk" if how == "FULL" else "l.k AS k"
    script = (
        f"CREATE STREAM o AS SELECT {key}, l.v AS v, r.v AS w FROM l {how} JOIN r WITHIN 20 MILLISECONDS "
        f"GRACE PERIOD {grace} MILLISECONDS ON l.k = r.k;"
        "CREATE TABLE w AS SELECT k, COUNT(*) AS n FROM o WINDOW TUMBLING (SIZE 10 MILLISECONDS, GRACE PERIOD 5 "
        "MILLISECONDS) GROUP BY k;"
        "CREATE TABLE c AS SELECT k, COLLECT_LIST(v) AS vs, LATEST_BY_OFFSET(w) AS last FROM o GROUP BY k;"
    )
    records = [(topic, key, {"v": number}, time) for number, (topic, key, time) in enumerate(rows)]

    def joined(rows_per_batch):
        result = sql.script(DECLARED + script, topics=records, rows_per_batch=rows_per_batch)
        rows = Counter((each.key, str(each.value), each.timestamp) for each in result["o"])
        return rows, result.table("w"), result.table("c"), result.skipped

    assert joined(rows_per_batch) == joined(1)


@given(
    st.sampled_from(["", "JOIN", "LEFT JOIN"]),
    st.lists(st.tuples(st.sampled_from("lrt"), st.sampled_from("ab"), st.integers(0, 120)), min_size=1, max_size=25),
    st.integers(2, 30),
)
@example("", [("l", "a", 9), ("t", "a", 5), ("l", "a", 3)], 3)
@example("LEFT JOIN", [("t", "a", 43), ("l", "a", 0), ("t", "a", 90)], 3)
def test_a_row_of_a_stream_joins_the_row_of_the_table_that_came_last(how, rows, rows_per_batch):
    also = f"{how} r WITHIN 20 MILLISECONDS GRACE PERIOD 0 MILLISECONDS ON l.k = r.k" if how else ""
    script = f"CREATE STREAM o AS SELECT l.k AS k, l.v AS v, t.v AS w FROM l {also} LEFT JOIN t ON l.k = t.k;"
    records = [(topic, key, {"v": number}, time) for number, (topic, key, time) in enumerate(rows)]

    def joined(rows_per_batch):
        result = sql.script(DECLARED + script, topics=records, rows_per_batch=rows_per_batch)
        return Counter((each.key, each.value["v"], each.value["w"]) for each in result["o"])

    outputs = joined(rows_per_batch)
    assert outputs == joined(1)
    if not how:
        table: dict[str, int] = {}
        expected = []
        for number, (topic, key, _) in enumerate(rows):
            if topic == "l":
                expected.append((key, number, table.get(key)))
            elif topic == "t":
                table[key] = number
        assert outputs == Counter(expected)


@given(RECORDS, st.integers(2, 30))
def test_the_row_of_a_table_is_the_one_that_came_last(rows, rows_per_batch):
    script = (
        "CREATE TABLE o AS SELECT k, v FROM t WHERE v >= 0;"
        "CREATE TABLE n AS SELECT v % 2 AS odd, COUNT(*) AS n FROM t GROUP BY v % 2;"
    )
    records = [("t", key, {"v": number}, time) for number, (_, key, time) in enumerate(rows)]
    result = sql.script(DECLARED + script, topics=records, rows_per_batch=rows_per_batch)
    last = {key: value["v"] for _, key, value, _ in records}
    assert result.table("o") == {key: {"v": value} for key, value in last.items()}
    odd = Counter(value % 2 for value in last.values())
    assert result.table("n") == {key: {"n": number} for key, number in odd.items()}


@given(RECORDS, st.integers(1, 30))
def test_streams_that_are_written_into_one_keep_the_order_of_their_rows(rows, rows_per_batch):
    script = (
        "CREATE STREAM o AS SELECT * FROM r; INSERT INTO o SELECT * FROM l WHERE v >= 0;"
        "CREATE TABLE n AS SELECT k, COLLECT_LIST(v) AS vs FROM o GROUP BY k;"
    )
    records = [(topic, key, {"v": number}, time) for number, (topic, key, time) in enumerate(rows)]
    result = sql.script(DECLARED + script, topics=records, rows_per_batch=rows_per_batch)
    expected: dict[str, dict[str, list[int]]] = {}
    for _, key, value, _ in records:
        expected.setdefault(key, {"vs": []})["vs"].append(value["v"])
    assert result.table("n") == expected
