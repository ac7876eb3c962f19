"""A job with everything that a crash could tear: two stages, both kinds of timers, both local stores, three sinks.

What it writes depends on its rows and the size of its batches alone: its clock is the number of rows that it has read.
Run as a program in a process that a test kills.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import keyed
from keyed import KeyedProcessFunction, ListState, MapState, OutputTag, StateTtl, ValueState

ROWS, ROWS_PER_BATCH = 3_000, 150
LATE = OutputTag("late", "i bigint, item string, ts bigint")


class Source:
    """Rows in some disorder, a few of them late, and the clock that counts them."""

    def __init__(self, rows: int = ROWS) -> None:
        self.count = rows
        self.read = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        random = Random(1)
        for i in range(self.count):
            self.read = i + 1
            late = random.random() < 0.01
            yield {"i": i, "item": f"item{random.randrange(9)}", "ts": max(0, i - random.randrange(20) - 400 * late)}

    def clock(self) -> int:
        return self.read


class Windows(KeyedProcessFunction):
    """Counts per item and window, and after some processing time what came since."""

    count = ValueState(int, default=0)
    since = ListState(int)
    seen = MapState(int, int, ttl=StateTtl(milliseconds=300))

    def process_element(self, value, ctx):
        timers = ctx.timer_service()
        if ctx.is_late():
            ctx.output(LATE, (value.i, value.item, value.ts))
        window = value.ts // 100
        count = self.count.namespace(window)
        count.update(count.value() + 1)
        self.since.add(value.i)
        self.seen[value.i % 7] = value.i
        timers.set_timer(window, window * 100 + 99)
        timers.set_timer("since", timers.current_processing_time() + 170, keyed.TimeDomain.PROCESSING_TIME)
        timers.register_processing_time_timer(timers.current_processing_time() // 40 * 40 + 310)
        return ()

    def on_timer(self, timestamp, ctx):
        item = ctx.get_current_key()
        if ctx.time_domain() is keyed.TimeDomain.EVENT_TIME:
            count = self.count.namespace(ctx.timer_name())
            yield item, "window", timestamp, count.value()
            count.clear()
        else:
            yield item, ctx.timer_name() or "tick", timestamp, sum(self.since) + sum(self.seen.values())
            self.since.clear()


class Totals(KeyedProcessFunction):
    """Adds up what the windows give, per kind."""

    total = ValueState(int, default=0)
    last = MapState(str, int)

    def process_element(self, value, ctx):
        self.total.update(self.total.value() + value.n)
        self.last[value.item] = value.n
        if ctx.timestamp() is not None:
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + 50)
        yield value.kind, value.item, value.at, self.total.value()

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), "total", timestamp, sum(self.last.values())


def outputs(source: Source, folder: Path) -> list[Any]:
    """The job's outputs with their sinks below ``folder``."""
    stream = keyed.stream(source, timestamp="ts", watermark=keyed.bounded_out_of_orderness(milliseconds=20))
    windows = stream.key_by("item").process(
        Windows(), "item string, kind string, at bigint, n bigint", parallelism=2, store="rocksdb"
    )
    totals = windows.key_by("kind").process(Totals(), "kind string, item string, at bigint, n bigint")
    return [totals.to(folder / "totals"), windows.to(folder / "windows"), windows.side_output(LATE).to(folder / "late")]


def run(folder: Path, rows: int = ROWS, *, drain: bool = True) -> Any:
    """Run the job to its end, or from where it stopped."""
    source = Source(rows)
    return keyed.run(
        *outputs(source, folder),
        checkpoint=folder / "checkpoint",
        rows_per_batch=ROWS_PER_BATCH,
        processing_time=source.clock,
        drain=drain,
    )


def written(folder: Path) -> dict[str, list[Any]]:
    """The rows of each sink, per file."""
    return files_of(folder, "totals", "windows", "late")


def files_of(folder: Path, *names: str) -> dict[str, list[Any]]:
    """The rows of the files of some folders."""
    import pyarrow.parquet as pq

    return {
        str(file.relative_to(folder)): list(map(tuple, (row.values() for row in pq.read_table(file).to_pylist())))
        for name in names
        for file in sorted((folder / name).rglob("*.parquet"))
    }
