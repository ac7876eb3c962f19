"""Latency of Nexmark queries of keyed on Spark: ``python -m tests.benchmarks.nexmark --latency``.

Events come in real time, in files of a tenth of a second. The latency of a result is the time from the event that
completes it to the end of the sink's batch: in q1 and q18 the event of the row itself, in windows the first event with
which the watermark passes the window's end. An event's time is its place in the schedule, so the figures include the
wait for its file.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import keyed
from examples.nexmark.catalog import QUERIES
from examples.nexmark.columns import milliseconds
from examples.nexmark.events import Events
from examples.nexmark.generator import BASE_TIME, Generator

_FILE_MS = 100
_DELAY_MS = 4_000
_SIZE_MS, _SLIDE_MS = 10_000, 2_000
#: Seconds before events count, and those for which they do.
_WARM, _SECONDS = 20.0, 40.0
#: Seconds between the start of the program that releases the files and the first event.
_LEAD = 5.0

LATENCY_QUERIES = ("q1", "q5", "q8", "q18")


def completed(query: str, staged: Path) -> Callable[[Any], list[int]]:
    """Return a function that returns the times of the events that complete the rows of a query's result.

    Args:
        query: Name of the query.
        staged: The folder of its events.
    """
    if query == "q8":
        return lambda rows: (milliseconds(rows["stime"]).to_numpy() + _SIZE_MS + _DELAY_MS).tolist()
    if query != "q5":
        return lambda rows: milliseconds(rows["dateTime"]).to_pylist()
    # Rows of q5 have no time. The windows in which an auction has a number of bids follow from the events.
    tables = [pq.read_table(path, columns=["bid"]) for path in sorted(staged.glob("*.parquet"))]
    bids: Any = pa.concat_tables(tables)["bid"].combine_chunks().drop_null()
    auctions, times = bids.field("auction").to_numpy(), milliseconds(bids.field("dateTime")).to_numpy()
    ends: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for end in range(int(times.min()) // _SLIDE_MS * _SLIDE_MS + _SLIDE_MS, int(times.max()) + _SIZE_MS, _SLIDE_MS):
        found, counts = np.unique(auctions[(times >= end - _SIZE_MS) & (times < end)], return_counts=True)
        for auction in found[counts == counts.max(initial=0)].tolist():
            ends[auction, int(counts.max())].append(end + _DELAY_MS)

    def of_rows(rows: Any) -> list[int]:
        pairs = zip(rows["auction"].to_pylist(), rows["num"].to_pylist(), strict=True)
        return [ends[pair].pop(0) for pair in pairs]

    return of_rows


def _latencies(spark: Any, query: str, trigger: str, rate: int) -> Sequence[float]:
    """Return the latencies of the rows of a query, in seconds and ascending.

    Args:
        spark: The session.
        query: Name of the query.
        trigger: The trigger.
        rate: Events a second.
    """
    with TemporaryDirectory(prefix="keyed-nexmark-") as name:
        folder, staged = Path(name, "events"), Path(name, "staged")
        length_ms = int((_WARM + _SECONDS) * 1000)
        Generator(rate * length_ms // 1000, rate, seed=7).write(staged, length_ms // _FILE_MS)
        complete = completed(query, staged)
        files = sorted(staged.glob("*.parquet"))
        folder.mkdir()
        # Of files with equal times a batch reads all that are there, not one.
        for path in files[:2]:
            os.utime(path, (0, 0))
            path.rename(folder / path.name)
        found: list[float] = []
        start = 0.0
        began = threading.Event()

        def sink(batch: Any, _: int) -> None:
            rows = batch.toArrow()
            now = time.time()
            since = [each - BASE_TIME for each in complete(rows)]
            found.extend(now - start - each / 1000 for each in since if each >= _WARM * 1000)
            began.set()

        output = QUERIES[query].output(Events(folder, spark))
        running = output.start(sink, checkpoint=Path(name, "checkpoint"), trigger=trigger)
        try:
            while not began.is_set():
                running.await_termination(0.1)
            start = time.time() + _LEAD
            release = multiprocessing.get_context("spawn").Process(
                target=_release, args=(files[2:], folder, start + 3 * _FILE_MS / 1000), daemon=True
            )
            release.start()
            try:
                running.await_termination(start + _WARM + _SECONDS - time.time())
            finally:
                release.terminate()
                release.join()
        finally:
            running.stop()
        return sorted(found)


def _release(files: Sequence[Path], folder: Path, first: float) -> None:
    """Move files to a folder, each at its time."""
    for number, path in enumerate(files):
        time.sleep(max(0.0, first + number * _FILE_MS / 1000 - time.time()))
        path.rename(folder / path.name)


def latency_table(rate: int, queries: Sequence[str], config: dict[str, str]) -> str:
    """Measure queries at triggers of 100 ms, 500 ms and 1 s, and return a table in Markdown."""
    triggers = ("100 milliseconds", "500 milliseconds", "1 second")
    lines = ["| | " + " | ".join(f"{each}: p50 | p99" for each in triggers) + " |", "|---|" + "--:|" * 6]
    spark = keyed.spark_session("nexmark", master="local[2]", parallelism=2, config=config)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        for query in queries:
            cells: list[str] = []
            for trigger in triggers:
                found = _latencies(spark, query, trigger, rate)
                at = [found[len(found) * percent // 100] for percent in (50, 99)] if found else []
                cells += [f"{each:.2f} s" for each in at] or ["no result", ""]
                print(f"# {query}, {trigger}: {cells[-2:]}, {len(found)} rows", flush=True)
            lines.append(f"| {query} | " + " | ".join(cells) + " |")
    finally:
        spark.stop()
    return "\n".join(lines)
