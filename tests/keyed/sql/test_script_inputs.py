"""Inputs of scripts: bad rows and missing columns are counted once, and silent inputs hold nothing back."""

import json
import re

import pytest

import keyed
from keyed import sql
from keyed.errors import DefinitionError, SqlError
from keyed.expressions import engine
from keyed.sql.catalog import SqlSource
from keyed.sql.script_inputs import ScriptInput
from keyed.sql.script_runs import streams_of
from keyed.sql.topic_options import TopicOptions
from tests.support.data_files import read_data

SCRIPT = """
CREATE STREAM r (k STRING KEY, n INT) WITH (KAFKA_TOPIC = 'r', FORMAT = 'JSON');
CREATE STREAM o AS SELECT k, n FROM r;
"""
BAD = "the format cannot read them"
EXPRESSIONS = read_data("keyed/sql/expressions.json")


def line(row):
    return row if isinstance(row, str) else json.dumps(row)


@pytest.mark.parametrize("rows_per_batch", [1, 2, 100])
def test_bad_rows_that_an_earlier_run_has_counted_are_not_counted_again(tmp_path, rows_per_batch):
    path = tmp_path / "r.jsonl"
    given = [{"k": "a", "n": 1}, {"k": "a", "n": "x"}, {"k": "b", "n": 2}, "{"]
    counts, values = [], []
    for more in ([], [{"k": "c", "n": "y"}], [], ["[]", {"k": "d", "n": 3}, {"n": 2**40}]):
        given += more
        path.write_text("".join(line(each) + "\n" for each in given))
        found = sql.script(SCRIPT, {"r": path}, checkpoint=tmp_path / "state", rows_per_batch=rows_per_batch)
        counts.append(found.skipped.get("r", {}).get(BAD, 0))
        values.append([each.value["n"] for each in found["o"]])
    assert counts == [2, 1, 0, 2]
    assert values == [[1, 2], [], [], [3]]


def test_bad_records_of_topics_are_counted_once(tmp_path):
    records = [(b'"a"', b'{"n":1}', 0), (b'"a"', b"{", 0), (b'"a"', b'{"n":2}', None), (b'"a"', b'{"n":3}', 0)]
    first = sql.script(SCRIPT, topics={"r": records}, checkpoint=tmp_path / "state")
    second = sql.script(SCRIPT, topics={"r": [*records, (b"[", b"[", 0)]}, checkpoint=tmp_path / "state")
    assert sum(first.skipped["r"].values()) == 1
    assert sum(second.skipped["r"].values()) == 1


def test_a_column_that_no_json_row_has_is_no_skipped_row(tmp_path, caplog):
    path = tmp_path / "r.jsonl"
    path.write_text('{"k":"a"}\n{"k":"b","m":1}\n')
    found = sql.script(SCRIPT, {"r": path})
    assert (found.skipped, found.missing) == ({}, {"r": {"n": 2}})
    assert "no row of" in caplog.text
    assert "has the column n" in caplog.text


@pytest.mark.parametrize("kafka", [None, sql.Kafka("localhost:1")])
def test_where_topics_begin_is_checked_with_and_without_kafka(kafka):
    with pytest.raises(SqlError, match=r"line 2, column 1: 'auto.offset.reset'='x' must be 'earliest' or 'latest'"):
        sql.script("\nSET 'auto.offset.reset' = 'x';" + SCRIPT, {"r": []}, kafka=kafka)
    with pytest.raises(DefinitionError, match=r"properties: 'auto.offset.reset'='x' must be"):
        sql.script(SCRIPT, {"r": []}, kafka=kafka, properties={"auto.offset.reset": "x"})


def test_rows_hold_no_watermark_back_once_all_their_inputs_are_idle():
    def idleness(*times):
        inputs = {
            f"s{number}": ScriptInput(
                SqlSource(f"s{number}", "STREAM", (), (), "", topic_options=TopicOptions(idle_ms=time)), (), {}
            )
            for number, time in enumerate(times)
        }
        streams = streams_of([], inputs, has_places=False)
        return streams["s0"].inputs[0].source.watermark.idleness_ms

    assert [idleness(5), idleness(5, 7), idleness(5, None), idleness(None)] == [5, 7, None, None]


def test_a_python_stream_has_idleness_of_its_own():
    text = SCRIPT.replace("FORMAT =", "IDLE_TIMEOUT = '30 SECONDS', FORMAT =")
    assert len(sql.script(text, {"r": [{"k": "a", "n": 1}]})["o"]) == 1
    with pytest.raises(DefinitionError, match=r"r: IDLE_TIMEOUT is for .*with_idleness"):
        sql.script(text, {"r": keyed.stream([{"k": "a", "n": 1}])})


@pytest.mark.parametrize(("call", "result"), EXPRESSIONS["of a size that is a value"])
def test_a_value_that_would_fill_the_memory_is_a_bad_row(call, result):
    text = (
        "CREATE STREAM s (t STRING KEY, v BIGINT) WITH (FORMAT = 'JSON'); CREATE STREAM o AS SELECT t, {} AS x FROM s;"
    )
    rows = [{"t": "t", "v": 2}, {"t": "t", "v": 2_000_000_000}, {"t": "t", "v": None}]
    found = sql.script(text.format(call), {"s": rows})
    # Of nothing, DuckDB makes an empty list or nothing.
    assert [each.value["x"] for each in found["o"]] in ([result, None], [result, []])
    # Of constants DuckDB would compute it before the first row.
    constant = "length((" + re.sub(r"\bv\b", "2000000000", call) + ")::VARCHAR)"
    for each in (found, sql.script(text.format(constant), {"s": rows[:1]})):
        assert each.run is not None
        assert each.run.metrics["o"]["rows_bad"] == 1


@pytest.mark.parametrize("call", ["printf('%% %*d', v, 7)", "printf('%.*f', v, 0.5)", "format('{{ {:{}}', 7, v)"])
def test_a_width_that_is_a_value_is_a_bad_row(call, caplog):
    text = f"CREATE STREAM s (v INT KEY) WITH (FORMAT = 'JSON'); CREATE STREAM o AS SELECT v, {call} AS x FROM s;"
    assert sql.script(text, {"s": [{"v": 2}]})["o"] == []
    assert "a width is a number in the format, and not a value" in caplog.text


@pytest.mark.parametrize("limit", ["-5GB", "", "lots", "0", "0GB", "-1", "5", "1e400GB", "200%", "9" * 30 + "TB"])
def test_a_limit_of_memory_that_is_no_size_is_refused(limit, monkeypatch):
    monkeypatch.setattr(engine, "_databases", {})
    monkeypatch.setattr(engine, "_connections", engine.EngineConnections())
    monkeypatch.setenv("KEYED_SQL_MEMORY_LIMIT", limit)
    with pytest.raises(DefinitionError, match=f"KEYED_SQL_MEMORY_LIMIT={limit!r} must be a size such as '2GB'"):
        sql.script(
            "CREATE STREAM s (id INT KEY) WITH (FORMAT='JSON'); CREATE STREAM o AS SELECT id, 1 AS one FROM s;",
            {"s": []},
        )


@pytest.mark.parametrize("rows_per_batch", [1, 100])
def test_a_row_of_csv_that_is_written_in_pieces_is_read_once_it_is_whole(tmp_path, rows_per_batch):
    path, seen = tmp_path / "r.csv", []
    whole = 'k,n\na,1\n"b\n\nb",2\n"c""\n",3\n'
    for end in range(whole.index("a,1"), len(whole) + 1):
        path.write_text(whole[:end])
        found = sql.script(SCRIPT, {"r": path}, checkpoint=tmp_path / "state", rows_per_batch=rows_per_batch)
        seen += [(each.key, each.value["n"]) for each in found["o"]]
        assert not found.skipped
    assert seen == [("a", 1), ("b\n\nb", 2), ('c"\n', 3)]
