"""The features of the support matrix: a small job for each, and the runtimes that support it.

`docs/generate.py` writes `docs/reference/support.md` from the table, and `tests/test_support.py` runs each job in each
column. So every claim of the page is tested.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import attrs
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import keyed
from examples.sqlite_changelog import SqliteChangelog
from keyed import windows as w
from keyed.formats.declared_formats import Format
from keyed.joins import AsOfJoin, EnrichmentJoin, IntervalJoin, TableJoin, WindowCoGroup, WindowJoin, lookup_join
from tests.support.s3 import S3Server

#: The columns: runtimes, and uses of a changelog; the last three are tested in the local runtime.
COLUMNS = ("local", "Spark", "Connect", "tables", "time travel", "rescale")
ROWS = [("a", 1_000, 1), ("b", 2_000, 2), ("a", 3_000, 3), ("b", 5_000, 5), ("a", 70_000, 4), ("c", 71_000, 6)]
OTHERS = [("a", 500, 10), ("b", 1_500, 20), ("a", 69_000, 30), ("c", 70_500, 40)]
SCHEMA = "k string, at bigint, v bigint"
OUTPUT = "k string, n bigint"
OUTPUT_ALSO = "n bigint, k string"
#: Returns a stream of rows of the schema.
Streams = Callable[[Sequence[tuple[str, int, int]]], keyed.Stream]
Options = Mapping[str, Any]
Chain = Callable[[Streams, Options], keyed.Output]


@attrs.frozen
class Feature:
    """A row of the matrix.

    Attributes:
        name: Its name on the page.
        link: Page that explains it, from `docs/reference`.
        chain: The job: a chain over streams, whose operator has the options.
        missing: For each column in which it is not supported, the reason on the page.
    """

    name: str
    link: str
    chain: Chain
    missing: Mapping[str, str] = attrs.field(factory=dict)


def table_of(rows: Sequence[tuple[str, int, int]]) -> pa.Table:
    """Return rows as an Arrow table."""
    columns = list(zip(*rows, strict=True))
    return pa.table({"k": columns[0], "at": columns[1], "v": columns[2]})


def local(rows: Sequence[tuple[str, int, int]]) -> keyed.Stream:
    """Return a stream of the local runtime."""
    return keyed.stream(table_of(rows), timestamp="at")


class Values(keyed.KeyedProcessFunction):
    """A sum for each key."""

    total = keyed.ValueState(int, default=0)

    def process_element(self, value: Any, ctx: keyed.Context) -> Iterator[Any]:
        self.total.update(self.total.value() + value.v)
        yield value.k, self.total.value()


class Lists(keyed.KeyedProcessFunction):
    values = keyed.ListState(int)

    def process_element(self, value: Any, ctx: keyed.Context) -> Iterator[Any]:
        self.values.add(value.v)
        yield value.k, sum(self.values.get())


class Maps(keyed.KeyedProcessFunction):
    times = keyed.MapState(int, int)

    def process_element(self, value: Any, ctx: keyed.Context) -> Iterator[Any]:
        self.times[value.v] = value.at
        yield value.k, sum(self.times)


class Reducing(keyed.KeyedProcessFunction):
    total: Any = keyed.ReducingState(operator.add, int)

    def process_element(self, value: Any, ctx: keyed.Context) -> Iterator[Any]:
        self.total.add(value.v)
        yield value.k, self.total.get()


class Aggregating(Reducing):
    total = keyed.AggregatingState(w.Count(), int)


class Versioned(keyed.KeyedProcessFunction):
    version = keyed.VersionedState(int, history=86_400_000)

    def process_element(self, value: Any, ctx: keyed.Context) -> Iterator[Any]:
        self.version.put(value.v, value.at)
        found = self.version.get(as_of=value.at)
        yield value.k, found.value if found else None


class Expiring(Values):
    total = keyed.ValueState(int, default=0, ttl=keyed.StateTtl(hours=1, time_domain=keyed.TimeDomain.EVENT_TIME))


class Columns(keyed.vectorized.VectorizedFunction):
    totals = keyed.vectorized.TableState(OUTPUT, key="k")

    def process_batch(self, table: Any, ctx: keyed.vectorized.BatchContext) -> None:
        self.totals.merge(pa.table({"k": table["k"], "n": table["v"]}), {"n": "sum"})

    def on_watermark(self, watermark: int, ctx: keyed.vectorized.BatchContext) -> None:
        if watermark == keyed.MAX_TIMESTAMP:
            ctx.emit(self.totals.take(("n", ">=", 0)))


class Timers(keyed.KeyedProcessFunction):
    """An event-time timer and a named one in processing time."""

    total = keyed.ValueState(int, default=0)

    def process_element(self, value: Any, ctx: keyed.Context) -> None:
        self.total.update(self.total.value() + value.v)
        ctx.timer_service().register_event_time_timer(value.at + 10_000)
        never = ctx.timer_service().current_processing_time() + 86_400_000
        ctx.timer_service().set_timer("day", never, keyed.TimeDomain.PROCESSING_TIME)

    def on_timer(self, timestamp: int, ctx: keyed.OnTimerContext) -> Iterator[Any]:
        yield ctx.get_current_key(), self.total.value()


RULES = keyed.MapState(str, int, name="rules")


class Broadcast(keyed.KeyedBroadcastProcessFunction):
    total = keyed.ValueState(int, default=0)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.total.update(self.total.value() + value.v)
        yield value.k, self.total.value() + sum(rule for _, rule in ctx.get_broadcast_state(RULES).items())

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(RULES).put(value.k, value.v)


def prices() -> pa.Table:
    """Return a table that hardly changes."""
    return pa.table({"k": ["a", "b"], "price": [10, 20]})


PRICES = keyed.MapState(str, dict, name="prices")


class Priced(keyed.KeyedProcessFunction):
    total = keyed.ValueState(int, default=0)

    def process_element(self, value: Any, ctx: keyed.Context) -> Iterator[Any]:
        price = ctx.get_broadcast_state(PRICES).get(value.k)
        self.total.update(self.total.value() + value.v * (price["price"] if price else 0))
        yield value.k, self.total.value()


def process(function: Callable[[], Any]) -> Chain:
    """Return the job of a function."""
    return lambda streams, options: streams(ROWS).key_by("k").process(function(), output=OUTPUT, **options)


def doubled(row: Any) -> tuple[str, int, int]:
    """Return a row with twice its value."""
    return row.k, row.at, 2 * row.v


def is_small(row: Any) -> bool:
    """Return whether the value of a row is small."""
    return bool(row.v < 4)


def repeated(row: Any) -> Iterator[tuple[str, int, int]]:
    """Yield a row as often as its value modulo 3."""
    yield from [(row.k, row.at, row.v)] * (row.v % 3)


def capitals(table: pa.Table) -> pa.Table:
    """Return a table with its keys in capital letters."""
    return table.set_column(table.column_names.index("k"), "k", pc.utf8_upper(table["k"]))


def before(change: Callable[[keyed.Stream], keyed.Stream]) -> Chain:
    """Return the job of a change of rows before their keys."""
    return lambda streams, options: change(streams(ROWS)).key_by("k").process(Values(), output=OUTPUT, **options)


def after(streams: Streams, options: Options) -> keyed.Output:
    """Return the job of changes of an output."""
    return process(Values)(streams, options).filter(lambda row: row.n > 2).map(lambda row: (row.n, row.k), OUTPUT_ALSO)


def broadcast(streams: Streams, options: Options) -> keyed.Output:
    """Return the job of broadcast state."""
    rows = streams(ROWS).key_by("k").connect(streams(OTHERS[:2]).broadcast(RULES))
    return rows.process(Broadcast(), output=OUTPUT, **options)


def priced(streams: Streams, options: Options) -> keyed.Output:
    """Return the job of a global table."""
    table = keyed.global_table(prices, PRICES, key="k")
    return streams(ROWS).key_by("k").connect(table).process(Priced(), output=OUTPUT, **options)


def window(assigner: Any, **chosen: Any) -> Chain:
    """Return the job of a kind of windows."""

    def chain(streams: Streams, options: Options) -> keyed.Output:
        made = streams(ROWS).key_by("k").window(assigner)
        if "trigger" in chosen:
            made = made.trigger(chosen["trigger"])
        return made.path(chosen.get("path", "auto")).aggregate({"n": w.Sum("v")}, **options)

    return chain


def gap_of(row: Any) -> int:
    """Return the gap of a session after a row."""
    return 1_000 * row.v


def continuous(streams: Streams, options: Options) -> keyed.Output:
    """Return the job of aggregates without windows."""
    return w.aggregate(streams(ROWS).key_by("k"), {"n": w.Sum("v"), "rows": w.Count()}, **options)


def pair(left: Any, right: Any) -> tuple[str, int]:
    """Return the row of a pair."""
    return (left or right).k, (left.v if left else 0) + (right.v if right else 0)


def changed_pair(left: Any, right: Any, change: int) -> tuple[str, int]:
    """Return the row of a change of a pair."""
    return left.k, change * right.v


def groups(start: int, end: int, lefts: list[Any], rights: list[Any]) -> Iterator[tuple[str, int]]:
    """Yield the row of two groups."""
    yield (lefts or rights)[0].k, sum(row.v for row in (*lefts, *rights))


def table_join() -> TableJoin:
    """Return a join of two tables."""
    return TableJoin(changed_pair, how="inner", left_table=True)


def join(function: Callable[[], Any]) -> Chain:
    """Return the job of a join."""

    def chain(streams: Streams, options: Options) -> keyed.Output:
        both = streams(ROWS).connect(streams(OTHERS)).key_by("k")
        return both.process(function(), output=OUTPUT, **options)

    return chain


def lengths(keys: Iterable[str]) -> dict[str, tuple[int]]:
    """Return the values of keys in another system."""
    return {key: (ord(key),) for key in keys}


def looked_up(streams: Streams, options: Options) -> keyed.Output:
    """Return the job of a look-up."""
    return lookup_join(streams(ROWS).key_by("k"), lengths, "n bigint", input=SCHEMA, **options)


MAP = "../how-to/graphs.md"
STATE = "../explanation/state.md"
WINDOWS = "../explanation/windows.md"
JOINS = "../how-to/joins.md"
#: The features by the heading of their table.
FEATURES: dict[str, list[Feature]] = {
    "Rows without keys": [
        Feature("`map`", MAP, before(lambda stream: stream.map(doubled, SCHEMA))),
        Feature("`filter`", MAP, before(lambda stream: stream.filter(is_small))),
        Feature("`flat_map`", MAP, before(lambda stream: stream.flat_map(repeated, SCHEMA))),
        Feature("`map_batches`", MAP, before(lambda stream: stream.map_batches(capitals))),
        Feature("`map` and `filter` of an output", MAP, after),
    ],
    "State": [
        Feature("`ValueState`", STATE, process(Values)),
        Feature("`ListState`", STATE, process(Lists)),
        Feature("`MapState`", STATE, process(Maps)),
        Feature("`ReducingState`", STATE, process(Reducing)),
        Feature("`AggregatingState`", STATE, process(Aggregating)),
        Feature("`VersionedState`", "../how-to/ttl-and-versions.md#versions-of-a-value", process(Versioned)),
        Feature("`TableState`, vectorized functions", "../how-to/when-rows-are-too-slow.md", process(Columns)),
        Feature("time to live", "../how-to/ttl-and-versions.md", process(Expiring)),
        Feature("timers on both clocks", "../how-to/timers.md", process(Timers)),
        Feature("broadcast state", "../how-to/enrich.md", broadcast),
        Feature("global table", "../how-to/enrich.md#a-table-that-hardly-changes", priced),
    ],
    "Windows and aggregates": [
        Feature("`TumblingEventTimeWindows`", WINDOWS, window(w.TumblingEventTimeWindows.of(60_000))),
        Feature("`HoppingEventTimeWindows`", WINDOWS, window(w.HoppingEventTimeWindows.of(60_000, 30_000))),
        Feature("`EventTimeSessionWindows`", WINDOWS, window(w.EventTimeSessionWindows.with_gap(30_000))),
        Feature("sessions with a dynamic gap", WINDOWS, window(w.EventTimeSessionWindows.with_dynamic_gap(gap_of))),
        Feature("`CalendarWindows`", WINDOWS, window(w.CalendarWindows.days("Europe/Paris"))),
        Feature("`TumblingProcessingTimeWindows`", WINDOWS, window(w.TumblingProcessingTimeWindows.of(60_000))),
        Feature("`CountWindows`", WINDOWS, window(w.CountWindows.of(2))),
        Feature("`GlobalWindows` with a trigger", WINDOWS, window(w.GlobalWindows.create(), trigger=w.CountTrigger(1))),
        Feature("windows row by row", WINDOWS, window(w.TumblingEventTimeWindows.of(60_000), path="row")),
        Feature("`aggregate` without windows", "../how-to/windows.md#aggregate-without-windows", continuous),
    ],
    "Joins": [
        Feature("`IntervalJoin`", JOINS, join(lambda: IntervalJoin(pair, lower=-2_000, upper=2_000, how="left"))),
        Feature("`AsOfJoin`", JOINS, join(lambda: AsOfJoin(pair))),
        Feature("`WindowJoin`", JOINS, join(lambda: WindowJoin(pair, size=60_000))),
        Feature("`WindowCoGroup`", JOINS, join(lambda: WindowCoGroup(groups, size=60_000))),
        Feature("`TableJoin`", JOINS, join(lambda: TableJoin(pair))),
        Feature("`TableJoin(left_table=True)`", JOINS, join(table_join)),
        Feature("`EnrichmentJoin`", JOINS, join(lambda: EnrichmentJoin(pair, timeout=60_000))),
        Feature("`lookup_join`", "../how-to/enrich.md#look-ups", looked_up),
    ],
}


@attrs.frozen
class SinkKind:
    """A kind of sink: how it is created over a folder or a broker, and how its rows are read.

    Attributes:
        name: Its name on the page.
        link: Page that explains it, from `docs/reference`.
        make: Returns a sink over a folder or a broker.
        read: Returns the rows in a folder, or in the sink.
    """

    name: str
    link: str
    make: Callable[[Path, str], Any]
    read: Callable[[Path, Any], list[tuple[Any, ...]]]


def write_rows(folder: Path, broker: str) -> Callable[[Any, int], None]:
    """Return a sink that writes one file per batch."""

    def sink(batch: Any, batch_id: int) -> None:
        rows = batch.collect() if hasattr(batch, "collect") else batch
        (folder / f"{batch_id}.json").write_text(json.dumps([list(row) for row in rows]))

    return sink


def read_rows(folder: Path, sink: Any) -> list[tuple[Any, ...]]:
    """Return the rows that `write_rows` has written."""
    return [tuple(row) for file in folder.glob("*.json") for row in json.loads(file.read_text())]


def read_parquet(folder: Path, sink: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a Parquet folder."""
    return [tuple(row.values()) for file in folder.rglob("*.parquet") for row in pq.read_table(file).to_pylist()]


def read_topic(folder: Path, sink: Any) -> list[tuple[Any, ...]]:
    """Return the rows of the committed records of a topic."""
    source = keyed.KafkaSource(sink.topic, bootstrap=sink.bootstrap, value=keyed.topics.Json(), bounded=True)
    return [(row["k"], row["n"]) for row in source if row is not keyed.PAUSE]


HOW_TO = "../how-to/"
SINKS = [
    SinkKind(
        "Parquet folder, each row once",
        f"{HOW_TO}sinks.md",
        lambda folder, broker: keyed.parquet_sink(folder),
        read_parquet,
    ),
    SinkKind(
        "function `(batch, batch_id)`; over Connect it runs on the server", f"{HOW_TO}sinks.md", write_rows, read_rows
    ),
    SinkKind(
        "`collect_sink()`",
        f"{HOW_TO}sinks.md",
        lambda folder, broker: keyed.collect_sink(),
        lambda folder, sink: [tuple(row) for row in sink.values],
    ),
    SinkKind(
        "Kafka topic `KafkaSink`, in transactions",
        f"{HOW_TO}sinks.md#kafka",
        lambda folder, broker: keyed.topics.KafkaSink(new_topic(broker), bootstrap=broker),
        read_topic,
    ),
]
#: Sinks whose libraries the newest Spark does not have: `make lakehouse` runs their tests on older ones.
LAKES = ("Delta table `delta_sink`", "Iceberg table `iceberg_sink`")
#: Kinds of changelogs: the name on the page, and a function that creates one from a folder and the address of a server.
CHANGELOGS: dict[str, tuple[str, Callable[[Path, str], Any]]] = {
    "`DirectoryChangelog`": (f"{HOW_TO}changelogs.md", lambda folder, broker: keyed.DirectoryChangelog(folder)),
    "the same with `export_interval`": (
        f"{HOW_TO}changelogs.md#fewer-files",
        lambda folder, broker: keyed.DirectoryChangelog(folder, export_interval=3_600_000),
    ),
    "`KafkaChangelog`": (
        f"{HOW_TO}kafka.md",
        lambda folder, broker: keyed.KafkaChangelog(new_topic(), bootstrap=broker, replication_factor=1),
    ),
    "`ObjectStoreChangelog`": (
        f"{HOW_TO}object-stores.md",
        lambda folder, url: keyed.ObjectStoreChangelog("s3://bucket/log", S3Server(url=url).options),
    ),
    "your own, such as `examples/sqlite_changelog.py`": (
        f"{HOW_TO}extending.md",
        lambda folder, broker: SqliteChangelog(str(folder)),
    ),
}


#: Queries of the state tables of a `ValueState`: the name on the page, and whether one gives what it should.
TABLES: dict[str, Callable[[keyed.tables.StateTables], bool]] = {
    "`get`": lambda tables: bool(tables["total"].get("a") == 8),
    "`scan`": lambda tables: [each.value for each in tables["total"].scan(from_="b")] == [7, 6],
    "`sql`": lambda tables: tables.sql("select sum(value)::int as n from total").to_pylist() == [{"n": 21}],
    "`as_of`": lambda tables: bool(tables["total"].get("a", as_of=0) == 1),
    "`history`": lambda tables: [each.value for each in tables["total"].history("a")] == [8, 4, 1],
    "`subscribe`": lambda tables: [each.new for each in tables["total"].subscribe().take(timeout=10)] == [8, 7, 6],
}
#: Formats of Kafka values, which `tests/keyed/formats/test_topic_values.py` reads and writes.
FORMATS = [f"`{each.__name__}`" for each in get_args(Format)]


def names_by_group() -> dict[str, list[str]]:
    """Return the names on the page by the first word of their heading."""
    names = {heading.split()[0]: [each.name for each in group] for heading, group in FEATURES.items()}
    sinks = re.findall(r"^\| \[([^],;]+)", "\n".join(sink_lines()), re.MULTILINE)
    names["Sinks"] = [name for name in sinks if " " in name and not name.startswith("function")]
    return names | {"Tables": list(TABLES), "Formats": FORMATS}


def new_topic(broker: str | None = None) -> str:
    """Return the name of a topic that is deleted after the tests; with a broker it exists."""
    from tests.keyed.changelog.kafka import topics

    name = topics.new_topic()
    if broker is not None:
        topics.create(broker, name, 2)
    return name


def sink_lines() -> list[str]:
    """Return the table of sinks; each cell is a test."""
    return [
        *("## Sinks", "", "| | local | Spark | Connect |", "|---|:-:|:-:|:-:|"),
        *(f"| [{sink.name}]({sink.link}) | yes | yes | yes |" for sink in SINKS),
        f"| [PostgreSQL table `postgres_sink`]({HOW_TO}sinks.md#postgresql) | yes | yes | no |",
        *(f"| [{name}]({HOW_TO}delta-and-iceberg.md) | yes | yes, on Spark 4.0 | no |" for name in LAKES),
        "",
        "On Spark an output is a DataFrame too, `output.df`, for",
        "[any sink of Spark's](../how-to/spark.md); that of Kafka writes at least once.",
        "",
        "State tables of a job on either are [replicated](../how-to/replicate-tables.md) to compacted Kafka topics and",
        "to sinks (`tests/keyed/tables/test_replication.py`, `test_sink_copies.py`).",
        "",
    ]


def changelog_lines() -> list[str]:
    """Return the list of changelogs; each is tested in each way."""
    return [
        *("## Changelogs", ""),
        *(f"- [{name}]({link})" for name, (link, _) in CHANGELOGS.items()),
        "",
        "Over Spark Connect a restore is refused if program and server do not share the folder of the checkpoint:",
        "[clusters](../how-to/clusters.md#over-spark-connect).",
        "",
    ]


def page() -> str:
    """Return the page of the reference."""
    lines = [
        "# Support matrix",
        "",
        "<!-- Written by docs/generate.py from tests/support/features.py; change that, not this page. -->",
        "",
        "A test runs a small job of each feature in each of these ways (`tests/test_support.py`). All pass, except as",
        "stated:",
        "",
        "- **local**, **Spark**, **Connect**: it runs there, and Spark and Connect give the rows of the local runtime;",
        "- **tables**: its changelog can be queried as [state tables](../how-to/state-tables.md);",
        "- **time travel**: its tables show an older batch as well;",
        "- **rescale**: restored from its changelog with another number of key groups, it gives the same results.",
        "",
    ]
    for heading, features in FEATURES.items():
        named = [f"[{feature.name}]({feature.link})" for feature in features]
        missing = [f"- {each.name}, not {where}: {why}" for each in features for where, why in each.missing.items()]
        lines += [f"## {heading}", "", ",\n".join(named) + ".", "", *missing, *([""] if missing else [])]
    parts = (
        ("Queries of state tables", f"{HOW_TO}state-tables.md", TABLES),
        ("Formats", f"{HOW_TO}sources.md", FORMATS),
    )
    for heading, link, names in parts:
        lines += [f"## {heading}", "", f"[{', '.join(names)}]({link}).", ""]
    return "\n".join([*lines, *sink_lines(), *changelog_lines()])
