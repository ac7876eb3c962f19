"""Bad rows on Spark: what fails a query for good unless it is told apart from what a function can be given."""

from functools import reduce

import pytest
from pyspark.sql import DataFrame

import keyed
from keyed.errors import RowError, TimestampError
from tests.keyed.runtimes.spark.functions import (
    BAD,
    BIG,
    SCHEMA,
    CountColumns,
    CountKeys,
    count,
    files_source,
    write_file,
)
from tests.support.jobs import collect

#: 2^62 ms is not to be seen in a lifetime.
FAR = 2**62
POISON = {
    "text": "CAST(X'636166E9' AS STRING)",
    "part": "named_struct('a', array(CAST(X'FF' AS STRING)))",
    "at": "timestamp_micros(253402300800000000)",
    "day": "date_add(DATE'1970-01-01', 10000000)",
}


@pytest.fixture(scope="module")
def poisoned(spark):
    """A good row, and one for each kind of value that Python has not."""
    good = {
        "text": "'é'",
        "part": "named_struct('a', array('é'))",
        "at": "timestamp_millis(7)",
        "day": "DATE'2020-01-01'",
    }
    frames = []
    for number, bad in enumerate([None, *POISON]):
        columns = [f"{POISON[name] if name == bad else value} AS {name}" for name, value in good.items()]
        frames.append(spark.range(1).selectExpr(f"'{bad}' AS k", f"{number}L AS t", "1L AS v", *columns))
    return reduce(DataFrame.unionAll, frames)


def test_rows_with_what_python_has_no_value_for_are_bad(poisoned):
    counted = count(keyed.stream(poisoned, timestamp="t", on_bad_row=BAD))
    (good, bad), result = collect(counted, counted.side_output(BAD))
    assert good == [("None", 1, 1)]
    assert result.metrics["count"]["rows_bad"] == 4
    found = {row.k: row for row in bad}
    assert found["text"].text == "caf\\xe9"
    assert found["part"].part == ((["\\xff"]),)
    assert (found["at"].at, found["day"].day) == (253402300800000000, 10000000)
    with pytest.raises(RowError, match=r"operator 'count': column '(text|part|at|day)' holds text.*on_bad_row"):
        count(keyed.stream(poisoned, timestamp="t")).run()


def test_such_a_key_or_timestamp_is_bad_as_well(poisoned):
    for key in ("text", "at", "day"):
        stream = keyed.stream(poisoned, timestamp="at", on_bad_row=BAD, max_ahead=None)
        result = stream.key_by(key).process(CountKeys(timers=False), "k string, n bigint", name="keys").run()
        assert len(result.values) == 1
        assert result.metrics["keys"]["rows_bad"] == 4


@pytest.mark.parametrize("column", ["timestamp", pytest.param("bigint", marks=pytest.mark.long)])
def test_a_timestamp_in_the_far_future_is_bad_and_moves_no_watermark(spark, column):
    far = FAR if column == "bigint" else 250_000_000_000_000
    frame = spark.createDataFrame([("a", 1, 1), ("far", far, 1), ("b", 250, 1), ("a", 2, 1)], SCHEMA)
    if column == "timestamp":
        frame = frame.selectExpr("k", "timestamp_millis(t) AS t", "v")
    windows = (
        keyed.stream(frame, timestamp="t", on_bad_row=BAD)
        .key_by("k")
        .process(CountColumns(), "k string, start bigint, n bigint", name="windows")
    )
    (good, bad), result = collect(windows, windows.side_output(BAD))
    assert sorted(good) == [("a", 0, 2), ("b", 200, 1)]
    assert [row.k for row in bad] == ["far"]
    assert (result.metrics["windows"]["rows_bad"], result.metrics["windows"]["rows_late"]) == (1, 0)
    with pytest.raises(TimestampError, match=r"'far'.*further ahead of the batch's processing time.*max_ahead="):
        count(keyed.stream(frame, timestamp="t")).run()
    assert count(keyed.stream(frame, timestamp="t", max_ahead=None)).run().metrics["count"]["rows_in"] == 4


def test_a_stream_goes_on_past_them_and_its_watermark_is_that_of_the_others(spark, tmp_path):
    write_file(tmp_path / "in", 0, [("a", 10, 1), ("far", FAR, 1)])
    write_file(tmp_path / "in", 1, [("a", 11, 95), (None, 12, 1)])
    counted = count(files_source(spark, tmp_path / "in", on_bad_row=BAD))
    seen: list[keyed.Progress] = []
    keyed.run(
        counted.to(tmp_path / "out"),
        counted.side_output(BIG).to(tmp_path / "big"),
        checkpoint=tmp_path / "ck",
        on_progress=seen.append,
    )
    assert [(p.watermark, p.metrics["count"]["rows_bad"]) for p in seen] == [(9, 1), (10, 2)]


def test_the_reason_of_the_first_bad_row_is_logged_once_without_its_values(spark, caplog):
    frame = spark.createDataFrame([("secret", None, 7), ("a", None, 8), ("a", 1, 9)], SCHEMA)
    counted = count(keyed.stream(frame, timestamp="t", on_bad_row=BAD))
    assert counted.run().metrics["count"]["rows_bad"] == 2
    assert caplog.text.count("operator 'count': a bad row: its timestamp is null; further ones are counted") == 1
    assert "secret" not in caplog.text
