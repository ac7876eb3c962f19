"""Warnings about rows that windows drop."""

import logging
from typing import Any

import pytest

import keyed
from keyed.windows import Count, TumblingEventTimeWindows


@pytest.mark.parametrize("watermark", [None, keyed.bounded_out_of_orderness(0), keyed.bounded_out_of_orderness(5)])
@pytest.mark.parametrize("starts", [False, True])
def test_rows_dropped_without_a_delay_are_told_once_and_at_once(caplog, watermark, starts):
    rows = [{"k": 1, "t": t} for t in (100, 3, 200, 4)]
    stream = keyed.stream(rows, timestamp="t", watermark=watermark).key_by("k")
    counts = stream.window(TumblingEventTimeWindows.of(10)).aggregate(n=Count())

    def told():
        return [message for message in map(logging.LogRecord.getMessage, caplog.records) if "as late" in message]

    told_by = []
    options: Any = {"rows_per_batch": 1, "on_progress": lambda progress: told_by.append(len(told()))}
    with caplog.at_level(logging.WARNING, "keyed"):
        if starts:
            keyed.start(counts.to(keyed.collect_sink()), **options).await_termination()
        else:
            keyed.run(counts.to(keyed.collect_sink()), **options)
    assert told_by[:3] == ([0, 1, 1] if watermark is None else [0, 0, 0])
    assert len(told()) == (watermark is None)
    assert all("dropped 1 rows" in message and "keyed.bounded_out_of_orderness" in message for message in told())
