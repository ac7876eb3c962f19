"""Likely mistakes are warned of on Spark as in the local runtime."""

import logging
from typing import Any

import pytest

import keyed
from keyed import KeyedProcessFunction, OutputTag
from keyed.windows import Count, TumblingEventTimeWindows
from tests.keyed.runtimes.spark.functions import COUNTED, files_source, write_file


class Later(KeyedProcessFunction):
    """Sets an event-time timer at each row."""

    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(value.t)
        return ()

    def on_timer(self, timestamp, ctx):
        return ()


class Diverts(KeyedProcessFunction):
    """Emits each row to a side output."""

    def process_element(self, value, ctx):
        ctx.output("late", value)


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize("streams", [True, pytest.param(False, marks=pytest.mark.long)])
def test_side_outputs_with_a_wrong_name_and_other_units_are_told(spark, tmp_path, caplog, streams):
    write_file(tmp_path / "in", 0, [("a", 1_700_000_000, 1)])
    source = files_source(spark, tmp_path / "in")
    if not streams:
        source = keyed.stream(spark.createDataFrame([("a", 1_700_000_000)], "k string, t bigint"), timestamp="t")
    output = source.key_by("k").process(Diverts(), COUNTED, name="f")
    options = {"checkpoint": tmp_path / "ck"} if streams else {}
    with caplog.at_level(logging.WARNING, "keyed"):
        keyed.run(output.side_output(OutputTag("lat")).to(tmp_path / "out"), **options)
    units, side = warnings(caplog)
    assert units.startswith("timestamp 't' is read as milliseconds: 1700000000 looks like seconds")
    assert side == (
        "operator 'f': the side output 'lat' got no rows, and 'late', which did, has no sink; check the names"
    )


@pytest.mark.long
def test_what_a_started_query_was_not_asked_about_is_told_when_it_stops(spark, tmp_path, caplog):
    bad_rows = OutputTag("bad", "k string, t bigint, v bigint")
    write_file(tmp_path / "in", 0, [("a", 5, 1), (None, 1, 1)])
    output = files_source(spark, tmp_path / "in", on_bad_row=bad_rows).key_by("k").process(Diverts(), COUNTED)
    with caplog.at_level(logging.WARNING, "keyed"):
        query: Any = keyed.start(
            output.side_output(OutputTag("lat")).to(tmp_path / "out"),
            output.side_output(bad_rows).to(tmp_path / "bad"),
            checkpoint=tmp_path / "ck",
        )
        query.query.processAllAvailable()
        query.stop()
    (side,) = warnings(caplog)
    assert "the side output 'lat' got no rows, and 'late'" in side


def test_microseconds_are_refused_with_their_unit(spark):
    frame = spark.createDataFrame([("a", 1_700_000_000_123_456)], "k string, t bigint")
    with pytest.raises(
        keyed.errors.TimestampError, match=r"looks like microseconds .* with the value // 1000; .*on_bad_row"
    ):
        keyed.stream(frame, timestamp="t").key_by("k").process(Diverts(), COUNTED).run()


@pytest.mark.long
def test_dropped_rows_are_told_once_and_timers_without_timestamps_refused(spark, tmp_path, caplog):
    for number, time in enumerate((100, 3, 200, 4)):
        write_file(tmp_path / "in", number, [("a", time, 1)])
    windows = files_source(spark, tmp_path / "in").key_by("k").window(TumblingEventTimeWindows.of(10))
    with caplog.at_level(logging.WARNING, "keyed"):
        windows.aggregate(n=Count()).run(tmp_path / "out", checkpoint=tmp_path / "ck")
    told = [text for text in map(logging.LogRecord.getMessage, caplog.records) if "rows as late" in text]
    assert len(told) == 1
    assert "keyed.bounded_out_of_orderness" in told[0]
    later = files_source(spark, tmp_path / "in", timestamp=None).key_by("k").process(Later(), COUNTED)
    with pytest.raises(keyed.KeyedError, match="would wait for ever"):
        later.run(checkpoint=tmp_path / "ck2")
