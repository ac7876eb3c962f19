"""J3: windows that count and sum, as `windows` operators and as Spark's own aggregations.

Tumbling windows of 60 s, hopping ones of 60 s every 10 s, sessions with a gap of 5 s; and ``J3-open``, windows of 30
days, which stay open. ``continuous`` is the same without windows: a row for each user and batch. On Spark in append
mode (``continuous`` in update mode) with the RocksDB provider: ``python -m tests.benchmarks --only 'J3-*,jvm-*'``.
"""

from __future__ import annotations

from typing import Any

import keyed
from keyed import windows as w

CONTINUOUS = "continuous"
WINDOWS: dict[str, w.WindowAssigner] = {
    "J3-tumbling": w.TumblingEventTimeWindows.of(60_000),
    "J3-hopping": w.HoppingEventTimeWindows.of(60_000, 10_000),
    "J3-session": w.EventTimeSessionWindows.with_gap(5_000),
    "J3-open": w.TumblingEventTimeWindows.of(30 * 86_400_000),
}


def window_job(job: str, source: Any, path: Any = "auto", **options: Any) -> keyed.Output:
    """A job with or without windows over a source, 10 seconds of delay."""
    stream = keyed.stream(source, timestamp="ts", watermark=keyed.bounded_out_of_orderness(seconds=10))
    keyed_stream = stream.key_by("user_id")
    chosen = {"n": w.Count(), "total": w.Sum("amount")}
    if job == CONTINUOUS:
        return w.aggregate(keyed_stream, chosen, name=job, path=path, **options)
    return keyed_stream.window(WINDOWS[job]).path(path).aggregate(chosen, name=job, **options)


def spark_windows(job: str, source: Any) -> Any:
    """The same with Spark's own windows, as a streaming DataFrame."""
    from pyspark.sql import functions as sf

    if job == CONTINUOUS:
        return source.groupBy("user_id").agg(sf.count("*").alias("n"), sf.sum("amount").alias("total"))
    window = {
        "J3-tumbling": lambda: sf.window("ts", "60 seconds"),
        "J3-hopping": lambda: sf.window("ts", "60 seconds", "10 seconds"),
        "J3-session": lambda: sf.session_window("ts", "5 seconds"),
    }[job]()
    return (
        source.withWatermark("ts", "10 seconds")
        .groupBy("user_id", window)
        .agg(sf.count("*").alias("n"), sf.sum("amount").alias("total"))
    )
