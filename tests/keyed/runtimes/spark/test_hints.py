"""What hardly anyone means is told on Spark as on the local runtime."""

import logging

import pytest

import keyed
from keyed import KeyedProcessFunction
from tests.keyed.runtimes.spark.functions import COUNTED, files_source, write_file
from windows import Count, TumblingEventTimeWindows


class Later(KeyedProcessFunction):
    """Sets an event-time timer at each row."""

    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(value.t)
        return ()

    def on_timer(self, timestamp, ctx):
        return ()


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
