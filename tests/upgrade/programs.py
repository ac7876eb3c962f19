"""Programs that wrote the fixtures of an earlier commit, and go on from them now.

They use only what both commits have: `make_fixtures` copies this module into the earlier one. What they write depends
on their rows and the size of their batches alone: the clock of the local runtime counts the rows that it has read.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

import keyed
from keyed import (
    AggregatingState,
    KeyedProcessFunction,
    ListState,
    MapState,
    OutputTag,
    ReducingState,
    StateTtl,
    TimeDomain,
    ValueState,
)
from keyed import windows as w
from keyed.vectorized import TIMESTAMP_COLUMN, TableState, VectorizedFunction

HALF, ROWS, ROWS_PER_BATCH = 160, 320, 40
FILES = 6
LATE = OutputTag("late", "i bigint, item string")
_PLACE = ZoneInfo("Europe/Amsterdam")
Options = Callable[[str], dict[str, Any]]

#: Keys of each type; some are the same key written in two ways.
KEYS: dict[str, list[Any]] = {
    "bool": [False, True],
    "int": [-1, 0, 2**62],
    "float": [float("nan"), 0.0, -0.0, 1.5, float("-inf")],
    "str": ["", "a\x00b", "ü"],
    "bytes": [b"", b"\x00\x01", b"\xff"],
    "date": [dt.date(1, 1, 1), dt.date(2026, 3, 29)],
    "datetime": [dt.datetime(2025, 10, 26, 12, 0, tzinfo=dt.UTC), dt.datetime(2025, 7, 1, 12, 0, tzinfo=_PLACE)],
    "decimal": [Decimal("1.10"), Decimal("-3E+5"), Decimal(0)],
    "uuid": [UUID(int=0), UUID(int=2**127)],
    "tuple": [("a", 1), ("a", 2), ("", -5)],
}


@attrs.frozen
class Reading:
    """A value of a class."""

    at: int
    amount: Decimal
    tags: tuple[str, ...] = ()


class Mean:
    """The mean of numbers."""

    def create_accumulator(self):
        return 0, 0

    def add(self, value, accumulator):
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator):
        return accumulator[0] // accumulator[1]

    def merge(self, a, b):
        return a[0] + b[0], a[1] + b[1]


class Everything(KeyedProcessFunction):
    """All kinds of states, with a time to live in both domains and under namespaces, and all kinds of timers."""

    count = ValueState(int, default=0)
    last: Any = ValueState(Reading)
    recent = ListState(int)
    seen = MapState(str, int)
    highest: Any = ReducingState(max, int)
    mean: Any = AggregatingState(Mean(), tuple[int, int])
    short = ValueState(int, ttl=StateTtl(milliseconds=70))
    queue = ListState(int, ttl=StateTtl(milliseconds=60, time_domain=TimeDomain.EVENT_TIME))
    places = MapState(int, str, ttl=StateTtl(milliseconds=50))

    def process_element(self, value, ctx):
        timers = ctx.timer_service()
        if ctx.is_late():
            ctx.output(LATE, (value.i, value.item))
        window = value.ts // 50
        count = self.count.namespace(window)
        count.update(count.value() + 1)
        self.last.update(Reading(value.ts, Decimal(value.i) / 4, (value.item,)))
        self.recent.add(value.i)
        self.seen.put(f"{value.i % 5}", value.i)
        self.highest.add(value.ts)
        self.mean.namespace((value.item, window)).add(value.i)
        self.short.update(value.i)
        self.queue.add(value.i)
        self.places.put(value.i % 3, value.item)
        timers.set_timer(window, window * 50 + 49)
        timers.register_event_time_timer(value.ts // 30 * 30 + 200)
        now = timers.current_processing_time()
        timers.set_timer("idle", now + 90, TimeDomain.PROCESSING_TIME)
        timers.register_processing_time_timer(now // 40 * 40 + 110)

    def on_timer(self, timestamp, ctx):
        item, name = ctx.get_current_key(), ctx.timer_name()
        if ctx.time_domain() is TimeDomain.PROCESSING_TIME:
            yield item, name or "tick", timestamp, sum(self.recent) + (self.short.value() or 0)
            self.recent.clear()
        elif name is None:
            left = sum(self.queue) + len(list(self.places.items())) + sum(self.seen.values())
            yield item, "left", timestamp, left + self.last.value().at + self.highest.get()
        else:
            count, mean = self.count.namespace(name), self.mean.namespace((item, name))
            yield item, "window", timestamp, count.value() * 10_000 + mean.get()
            count.clear()
            mean.clear()


class Buckets(VectorizedFunction):
    """Counts rows per item and bucket in a table with a time to live, and takes what the watermark has passed."""

    buckets = TableState("item string, bucket bigint, n bigint, amount decimal(20, 3)", key=("item", "bucket"))
    places = TableState(
        "item string, last timestamp",
        key=("item",),
        ttl=StateTtl(milliseconds=60, time_domain=TimeDomain.EVENT_TIME),
    )

    def process_batch(self, table, ctx):
        import pyarrow.compute as pc

        times = table.column(TIMESTAMP_COLUMN).combine_chunks()
        amounts = pc.multiply(table.column("i"), pa.scalar(Decimal("0.125"))).cast(pa.decimal128(20, 3))
        rows = pa.table(
            {
                "item": table.column("item"),
                "bucket": pc.divide(times, 50),
                "n": pa.array([1] * table.num_rows, pa.int64()),
                "amount": amounts,
            }
        )
        self.buckets.merge(rows, {"n": "sum", "amount": "sum"})
        last = table.group_by("item").aggregate([(TIMESTAMP_COLUMN, "max")])
        times = last.column(f"{TIMESTAMP_COLUMN}_max")
        stamps = times.cast(pa.timestamp("ms")).cast(pa.timestamp("us", tz="UTC"))
        self.places.upsert(pa.table({"item": last.column("item"), "last": stamps, TIMESTAMP_COLUMN: times}))

    def on_watermark(self, watermark, ctx):
        done = self.buckets.take(("bucket", "<", max(watermark, 0) // 50))
        if done.num_rows:
            ctx.emit(done.sort_by([("bucket", "ascending"), ("item", "ascending")]))


class OfKey(KeyedProcessFunction):
    """Counts per key, beside the key as a namespace, as a map key and as the name of a timer."""

    label = ValueState(str)
    count = ValueState(int, default=0)
    counts: Any = MapState(object, int)

    def process_element(self, value, ctx):
        key = ctx.get_current_key()
        if self.label.value() is None:
            self.label.update(value.label)
        count = self.count.namespace(key)
        count.update(count.value() + 1)
        self.counts.put(key, count.value())
        ctx.timer_service().set_timer(key, value.ts + 70)
        yield self.label.value(), "row", count.value()

    def on_timer(self, timestamp, ctx):
        key = ctx.get_current_key()
        yield self.label.value(), "timer", self.counts.get(key) + self.count.namespace(key).value()


class Source:
    """Rows in some disorder, a few of them late, and the clock that counts them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.read = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        random = Random(7)
        for i in range(self.count):
            self.read = i + 1
            late = random.random() < 0.02
            yield {"i": i, "item": f"item{random.randrange(7)}", "ts": max(0, i - random.randrange(9) - 120 * late)}

    def clock(self) -> int:
        return self.read


class KeySource(Source):
    """Rows with keys of one type."""

    def __init__(self, kind: str, count: int) -> None:
        super().__init__(count)
        self.keys = KEYS[kind]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for i in range(self.count):
            self.read = i + 1
            key = self.keys[i % len(self.keys)]
            yield {"k": key, "label": repr(key), "ts": i}


def windowed(assigner: Any, path: str, trigger: Any = None) -> Callable[[Any, Options], list[Any]]:
    """The outputs of a window job."""

    def build(stream: Any, options: Options) -> list[Any]:
        late = OutputTag("late", "i bigint, item string, ts bigint")
        stream = stream.key_by("item").window(assigner).path(path).side_output_late_data(late)
        if trigger is not None:
            stream = stream.trigger(trigger)
        output = stream.aggregate({"n": w.Count(), "total": w.Sum("i")}, **options("WindowOperator"))
        return [output, output.side_output("late")]

    return build


def _everything(stream: Any, options: Options) -> list[Any]:
    schema = "item string, kind string, at bigint, n bigint"
    output = stream.key_by("item").process(Everything(), schema, store="rocksdb", **options("Everything"))
    return [output, output.side_output(LATE)]


def _buckets(stream: Any, options: Options) -> list[Any]:
    schema = "item string, bucket bigint, n bigint, amount decimal(20, 3)"
    return [stream.key_by("item").process(Buckets(), schema, **options("Buckets"))]


def _counted(stream: Any, options: Options) -> list[Any]:
    counts = stream.key_by("item").window(w.CountWindows.of(17))
    return [counts.aggregate({"n": w.Count(), "total": w.Sum("i")}, **options("WindowOperator"))]


def _of_key(stream: Any, options: Options) -> list[Any]:
    return [stream.key_by("k").process(OfKey(), "label string, kind string, n bigint", **options("OfKey"))]


#: Name that the path over whole columns has.
COLUMNS = "vectorized"
#: Job by name: its operator, and its outputs over a stream.
JOBS: dict[str, tuple[str, Callable[[Any, Options], list[Any]]]] = {
    "everything": ("Everything", _everything),
    "tables": ("Buckets", _buckets),
    "tumbling": ("WindowOperator", windowed(w.TumblingEventTimeWindows.of(50), "row")),
    "sessions": ("WindowOperator", windowed(w.EventTimeSessionWindows.with_gap(13), "row")),
    "sessions-triggered": (
        "WindowOperator",
        windowed(w.EventTimeSessionWindows.with_gap(13), "row", w.PurgingTrigger.of(w.EventTimeTrigger())),
    ),
    "count": ("WindowOperator", _counted),
    "tumbling-columns": ("WindowOperator", windowed(w.TumblingEventTimeWindows.of(50), COLUMNS)),
    "sessions-columns": ("WindowOperator", windowed(w.EventTimeSessionWindows.with_gap(13), COLUMNS)),
    **{f"keys-{kind}": ("OfKey", _of_key) for kind in KEYS},
}


def run(
    name: str,
    folder: Path,
    changelog: Any,
    *,
    rows: int,
    parallelism: int = 2,
    drain: bool = False,
    restore_from: Any = None,
    checkpoint: str = "checkpoint",
    sink: str = "sink",
) -> Any:
    """Run a job of the local runtime to the end of its rows, from where it stopped."""
    kind = name.removeprefix("keys-")
    source: Any = Source(rows) if kind == name else KeySource(kind, rows)
    data: Any = pa.Table.from_pylist(list(source)) if name.endswith("-columns") else source
    options = {"parallelism": parallelism, "changelog": changelog}
    if restore_from is not None:
        options["restore_from"] = restore_from
    stream = keyed.stream(data, timestamp="ts", watermark=keyed.bounded_out_of_orderness(milliseconds=10))
    return keyed.run(
        *(
            output.to(folder / f"{sink}-{number}")
            for number, output in enumerate(JOBS[name][1](stream, lambda _: options))
        ),
        checkpoint=folder / checkpoint,
        rows_per_batch=ROWS_PER_BATCH,
        processing_time=source.clock,
        drain=drain,
    )


def written(folder: Path, sink: str = "sink") -> list[list[str]]:
    """The rows of each sink as text, in order."""
    return [
        sorted(repr(tuple(row.values())) for file in sorted(each.glob("*.parquet")) for row in _rows(file))
        for each in sorted(folder.glob(f"{sink}-*"))
    ]


def _rows(file: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(file).to_pylist()
    return found


class ByEventTime(Everything):
    """As its base, whose timers in processing time write nothing."""

    def process_element(self, value, ctx):
        super().process_element(value, ctx)
        # Entries that expire by Spark's clock are not counted.
        self.places.clear()

    def on_timer(self, timestamp, ctx):
        if ctx.time_domain() is TimeDomain.EVENT_TIME:
            yield from super().on_timer(timestamp, ctx)


def _by_event_time(stream: Any, options: Options) -> list[Any]:
    schema = "item string, kind string, at bigint, n bigint"
    output = stream.key_by("item").process(ByEventTime(), schema, **options("ByEventTime"))
    return [output, output.side_output(LATE)]


#: Jobs on Spark. Their functions do not look at processing time, of which Spark has its own.
SPARK_JOBS: dict[str, tuple[str, Callable[[Any, Options], list[Any]]]] = {
    "everything": ("ByEventTime", _by_event_time),
    "sessions-columns": ("WindowOperator", windowed(w.EventTimeSessionWindows.with_gap(13), COLUMNS)),
}


def write_files(folder: Path, first: int, last: int) -> None:
    """Write files of a source from number ``first`` up to ``last``, which is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = list(Source(ROWS))
    size = ROWS // FILES
    for number in range(first, last):
        hidden = folder / f"_{number}"
        pq.write_table(pa.Table.from_pylist(rows[number * size : (number + 1) * size]), hidden)
        os.utime(hidden, (1_600_000_000 + number,) * 2)
        hidden.rename(folder / f"part-{number}.parquet")


def run_spark(
    spark: Any,
    name: str,
    folder: Path,
    changelog: Any,
    *,
    parallelism: int = 2,
    drain: bool = False,
    restore_from: Any = None,
    checkpoint: str = "checkpoint",
    sink: str = "sink",
) -> Any:
    """Run a job on Spark to the end of the files that there are, from where it stopped."""
    reader = spark.readStream.schema("i bigint, item string, ts bigint").option("maxFilesPerTrigger", 1)
    stream = keyed.stream(
        reader.parquet(str(folder / "in")),
        timestamp="ts",
        watermark=keyed.bounded_out_of_orderness(milliseconds=10),
    )
    options = {"parallelism": parallelism, "changelog": changelog}
    if restore_from is not None:
        options["restore_from"] = restore_from
    outputs = SPARK_JOBS[name][1](stream, lambda _: options)
    return keyed.run(
        *(output.to(folder / f"{sink}-{number}") for number, output in enumerate(outputs)),
        checkpoint=folder / checkpoint,
        drain=drain,
    )
