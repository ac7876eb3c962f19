"""J3: windows that count and sum, as `windows` operators and as Spark's own aggregations.

Tumbling windows of 60 s, hopping ones of 60 s every 10 s, sessions with a gap of 5 s; and ``J3-open``, windows of 30
days, which stay open. ``continuous`` is the same without windows: a row for each user and batch. On Spark in append
mode (``continuous`` in update mode) with the RocksDB provider, as ``python -m tests.benchmarks --only 'J3-*,jvm-*'``.
By itself, ``python -m tests.benchmarks.windows`` runs them beside J2 in this process, and tells the bytes of state too.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keyed
from keyed import windows as w
from tests.benchmarks.variants import WINDOW_JOBS

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure in this process, on the local runtime."""
    from tests.benchmarks.events import EVENTS, event_files
    from tests.benchmarks.functions import J2, OUTPUT

    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.windows", description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000, help="rows a batch")
    parser.add_argument("--batches", type=int, default=3, help="batches; the first is not counted")
    options = parser.parse_args(arguments)
    print("| job | keys | CPU µs a row | results a row | bytes of state | bytes a key with open windows |")
    print("|---|--:|--:|--:|--:|--:|")
    for keys in ("1k", "100k"):
        folder = Path(tempfile.mkdtemp(prefix="keyed-windows-"))
        try:
            paths = event_files(EVENTS[keys], 1 + options.rows * options.batches // 1_000_000, folder)
            table = _table(paths).slice(0, options.rows * options.batches)
        finally:
            shutil.rmtree(folder)
        for job in ("J2", CONTINUOUS, *WINDOW_JOBS):
            if job == "J2":
                stream = keyed.stream(table, timestamp="ts", watermark=keyed.bounded_out_of_orderness(seconds=10))
                output = stream.key_by("user_id").process(J2(), OUTPUT, name=job)
            else:
                output = window_job(job, table)
            print(f"| {job} | {keys} | {_measure(output, options.rows, job)} |", flush=True)
    return 0


def _table(paths: list[Path]) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pa.concat_tables([pq.read_table(path) for path in paths])


def _measure(output: keyed.Output, rows: int, job: str) -> str:
    """CPU a row after the first batch, results a row, and the state at the end."""
    marks: list[float] = []
    results: list[int] = []
    metrics: list[dict[str, int]] = []

    def show(progress: keyed.Progress) -> None:
        marks.append(time.process_time())
        metrics.append(progress.metrics[job])

    output.run(lambda values, batch_id: results.append(len(values)), rows_per_batch=rows, drain=False, on_progress=show)
    measured = (len(marks) - 1) * rows
    last = metrics[-1]
    cpu = (marks[-1] - marks[0]) / measured * 1e6
    per_key = last["live_bytes"] / max(1, last["live_entries"])
    return f"{cpu:.2f} | {sum(results[1:]) / measured:.2f} | {last['live_bytes']} | {per_key:.0f}"


if __name__ == "__main__":
    sys.exit(main())
