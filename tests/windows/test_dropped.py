"""What is said of rows that windows drop."""

import logging

import pytest

import keyed
from windows import Count, TumblingEventTimeWindows


@pytest.mark.parametrize("watermark", [None, keyed.bounded_out_of_orderness(5)])
def test_rows_dropped_without_a_delay_are_told_once_with_the_remedy(caplog, watermark):
    rows = [{"k": 1, "t": t} for t in (100, 3, 200, 4)]
    stream = keyed.stream(rows, timestamp="t", watermark=watermark).key_by("k")
    counts = stream.window(TumblingEventTimeWindows.of(10)).aggregate(n=Count())
    with caplog.at_level(logging.WARNING, "keyed"):
        keyed.run(counts.to(keyed.collect_sink()), rows_per_batch=1)
    told = [record.getMessage() for record in caplog.records if "dropped 2 rows as late" in record.getMessage()]
    assert len(told) == (watermark is None)
    assert all("keyed.bounded_out_of_orderness" in message for message in told)
