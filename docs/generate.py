"""Writes the reference pages of the public names from their docstrings: ``python docs/generate.py``.

A page is a function of the docstrings and signatures alone (that of what is supported where, of the jobs in
`tests/support/features.py`), so `tests/test_docs.py` can compare what is there with what
should be. Pages of `docs/reference` that are not named here are written by hand.
"""
# ruff: noqa: INP001 - a program, not a package

from __future__ import annotations

import enum
import importlib
import inspect
import re
import sys
import typing
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ForwardRef

import attrs

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"

#: Introductions of the pages of `keyed`.
FUNCTIONS = """\
The classes to subclass, and the arguments of their methods.

```python
import keyed
from keyed.rows import row


class Silence(keyed.KeyedProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().set_timer("silent", ctx.timestamp() + 60_000)

    def on_timer(self, timestamp, ctx):
        yield f"{ctx.get_current_key()} has been silent since {timestamp - 60_000}"


readings = keyed.stream([row(sensor="a", at=1_000)], timestamp="at")
print(readings.key_by("sensor").process(Silence()).run().values)
```

```output
['a has been silent since 1000']
```"""
STATE = """\
Declarations of state and its operations; [state](../explanation/state.md) explains what happens below.

```python
import keyed
from keyed.rows import row


class Visits(keyed.KeyedProcessFunction):
    count = keyed.ValueState(int, 0)

    def process_element(self, value, ctx):
        self.count.update(self.count.value() + 1)
        yield value.user, self.count.value()


print(keyed.stream([row(user="u"), row(user="u")]).key_by("user").process(Visits()).run().values)
```

```output
[('u', 1), ('u', 2)]
```

Options of all states: `name` in logs and checkpoints, by default the attribute's, and `ttl`, a `StateTtl` or its
duration (`VersionedState` has none). Without a type, a state takes any plain encodable value."""
STREAMS = """\
The chain `stream → key_by → process → outputs`, and what runs it.

```python
import keyed
from keyed.rows import row


class Double(keyed.KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield 2 * value.amount


doubles = keyed.stream([row(shop="A", amount=2)]).key_by("shop").process(Double())
print(keyed.run(doubles.to(keyed.collect_sink())).values)
```

```output
[4]
```

Durations are `int` milliseconds, a `timedelta`, or keywords: `**units` are `days`, `hours`, `minutes`, `seconds` and
`milliseconds`. Options of runs: [options](options.md)."""
#: Page → title, introduction, and the modules whose names of `keyed` it holds; the last page has all others too.
#: A member that an earlier page has in the same words is a link to it.
KEYED = {
    "state.md": ("State and time to live", STATE, ("keyed.job.state", "keyed.job.ttl")),
    "functions.md": (
        "Functions, contexts and timers",
        FUNCTIONS,
        ("keyed.job.functions", "keyed.job.context"),
    ),
    "streams.md": ("Streams, sources, sinks and results", STREAMS, ()),
}
#: Page → title, and the packages that it is of.
DOORS = {
    "changelogs.md": ("Changelogs", ("keyed.changelog",)),
    "errors.md": ("Errors", ("keyed.errors",)),
    "extending.md": ("Extending", ("keyed.extending",)),
    "exported-metrics.md": ("Exported metrics", ("keyed.metrics",)),
    "joins.md": ("Joins", ("keyed.joins",)),
    "patterns.md": ("Patterns", ("keyed.patterns",)),
    "pyflink.md": ("PyFlink's names", ("keyed.pyflink",)),
    "postgres.md": ("PostgreSQL sink", ("keyed.postgres",)),
    "recovery.md": ("Recovery", ("keyed.recovery",)),
    "sql.md": ("SQL scripts", ("keyed.sql",)),
    "tables.md": ("State tables", ("keyed.tables", "keyed.tables.server")),
    "testing.md": ("Testing", ("keyed.testing",)),
    "topics.md": ("Kafka: formats and sink", ("keyed.topics",)),
    "vectorized.md": ("Vectorized functions and tables", ("keyed.vectorized",)),
    "windows.md": ("Windows", ("keyed.windows",)),
}
#: Page → the names that come first, in the order in which a reader needs them; the others follow by name.
FIRST = {
    "functions.md": "KeyedProcessFunction Context TimerService OnTimerContext Timer OutputTag OpenContext "
    "KeyedCoProcessFunction KeyedBroadcastProcessFunction BroadcastContext BroadcastState ReadOnlyBroadcastState",
    "state.md": "ValueState ListState MapState ReducingState AggregatingState AggregateFunction VersionedState "
    "VersionedRecord NOT_PUT StateTtl TimeDomain UpdateType StateVisibility",
    "streams.md": "stream Stream KeyedStream Output run start Query RunResult Progress bounded_out_of_orderness "
    "WatermarkStrategy KafkaSource SeekableSource PAUSE INGESTION_TIME collect_sink parquet_sink "
    "delta_sink iceberg_sink ConnectedStreams global_table GlobalTable BroadcastStream RestorePoint StateMigration "
    "Restored RestoreProgress spark_session Row",
    "changelogs.md": "DirectoryChangelog ObjectStoreChangelog KafkaChangelog Changelog",
    "errors.md": "KeyedError",
    "exported-metrics.md": "Prometheus OpenTelemetry export",
    "extending.md": "Sink SinkWriter SinkBatch Changelog",
    "joins.md": "IntervalJoin ProcessJoinFunction JoinContext Select AsOfJoin TableJoin EnrichmentJoin WindowJoin "
    "WindowCoGroup lookup_join AsyncLookup",
    "patterns.md": "Pattern Match PatternStream PatternProcessFunction PatternContext AfterMatchSkipStrategy",
    "pyflink.md": "StreamExecutionEnvironment DataStream KeyedStream KeyedProcessFunction",
    "recovery.md": "restore verify read_changelog StateChange Verified flush",
    "sql.md": "start script ScriptResult Answer OutputRecord subscribe PushQuery PushedRow Kafka register",
    "tables.md": "open_tables read_tables StateTables StateTable Entry QueryResult Scan Snapshot Subscription Change",
    "testing.md": "KeyedTestHarness Record assert_batch_split_invariant assert_deterministic assert_matches "
    "assert_recovery_invisible assert_rescale_invisible assert_runtimes_agree assert_state_bounded PropertyOptions",
    "topics.md": "Json Avro Protobuf KafkaSink UpsertTopic",
    "vectorized.md": "VectorizedFunction BatchContext TaskContext TIMESTAMP_COLUMN TableState VectorizedCoFunction",
    "windows.md": "WindowedStream TumblingEventTimeWindows TumblingProcessingTimeWindows HoppingEventTimeWindows "
    "HoppingProcessingTimeWindows EventTimeSessionWindows "
    "ProcessingTimeSessionWindows CalendarWindows "
    "CalendarProcessingTimeWindows CountWindows GlobalWindows aggregate Count Sum Mean Min Max ArgMin ArgMax First "
    "Latest TopK TopN MostFrequent ApproxMostFrequent CountDistinct ApproxCountDistinct CollectList CollectSet "
    "Variance Stddev aggregate_of Aggregate ProcessWindowFunction ProcessWindowContext TimeWindow GlobalWindow "
    "Window EventTimeTrigger ProcessingTimeTrigger ContinuousEventTimeTrigger ContinuousProcessingTimeTrigger "
    "CountTrigger PurgingTrigger ProcessingTimeoutTrigger Trigger TriggerResult TriggerContext "
    "OnMergeContext TimeEvictor CountEvictor DeltaEvictor Evictor EvictorContext TimestampedValue WindowAssigner "
    "MergingWindowAssigner",
}
#: The text before the tables of exported metrics.
METRICS = """\
All metrics have the label `query`: `query_name`, or the name of the last operator; of a replication, operator and
table. Those of an operator also have the label `operator`. A metric is missing as long as it has no value. Names that
end in `_total` are counters, the others gauges.

In OpenTelemetry the names have a dot after `keyed` and no `_total`: `keyed_rows_in_total` is `keyed.rows_in`. Labels
are attributes."""
#: The text on statuses and failures, with their names.
STATUSES = "Worry when the target is gone, a [status](metrics.md) is 2, or failures grow: {}."
METRICS_OF_OPERATORS = """\
Their meanings are those of the [counters](metrics.md) of these names; `keyed_busy_seconds_total` is
`busy_microseconds`, and `keyed_group_batches_total` is `batches`. When to worry:"""
METRICS_OF_REPLICATIONS = """\
Their meanings are those of the attributes of [`Replication`](tables.md#replication). When to worry:"""
#: What belongs on a page although it is not imported from `keyed` itself: things that a call hands out.
BESIDE = {
    "functions.md": (
        ("keyed.job.context", "BroadcastState"),
        ("keyed.job.context", "ReadOnlyBroadcastState"),
        ("keyed.job.context", "Timer"),
    ),
    "state.md": (("keyed.job.state", "VersionedRecord"),),
    "streams.md": (
        ("keyed.job.global_tables", "GlobalTable"),
        ("keyed.job.results", "Restored"),
        ("keyed.job.results", "RestoreProgress"),
        ("keyed.job.streams", "BoundOutput"),
        ("keyed.job.streams", "BroadcastStream"),
        ("keyed.job.streams", "ConnectedStreams"),
        ("keyed.rows", "row"),
        ("keyed.runtimes.local.local_query", "LocalQuery"),
        ("keyed.runtimes.spark.query.spark_query", "SparkQuery"),
    ),
    "changelogs.md": (
        ("keyed.changelog.model", "ChangelogReader"),
        ("keyed.changelog.model", "ChangelogWriter"),
        ("keyed.changelog.model", "Commit"),
        ("keyed.changelog.model", "LogHeader"),
        ("keyed.changelog.directory.compaction", "Compacted"),
    ),
    "joins.md": (("keyed.joins.interval", "JoinContext"),),
    "patterns.md": (
        ("keyed.patterns.pattern_operator", "PatternContext"),
        ("keyed.patterns.pattern", "PatternStream"),
    ),
    "recovery.md": (
        ("keyed.recovery.reading", "StateChange"),
        ("keyed.recovery.verification", "Verified"),
    ),
    "sql.md": (
        ("keyed.sql.definitions", "Answer"),
        ("keyed.sql.push_queries", "PushQuery"),
        ("keyed.sql.push_queries", "PushedRow"),
        ("keyed.sql.script_runs", "ScriptResult"),
    ),
    "tables.md": (
        ("keyed.tables.entries", "Entry"),
        ("keyed.tables.follower", "Lag"),
        ("keyed.tables.operator_view", "Position"),
        ("keyed.tables.replication", "Replication"),
        *(("keyed.tables.state_table", name) for name in ("History", "QueryResult", "Scan", "TimersTable", "Version")),
        ("keyed.tables.state_tables", "Snapshot"),
        ("keyed.tables.subscription", "Subscription"),
        ("keyed.tables.server.app", "make_app"),
        ("keyed.tables.server.http_server", "ServeOptions"),
    ),
    "testing.md": (
        ("keyed.testing.properties", "PropertyOptions"),
        ("keyed.testing.replaying", "Replayed"),
        *(
            ("keyed.testing.strategies", name)
            for name in ("batches", "rows", "skewed", "steps", "streams", "two_streams", "values")
        ),
        *(
            ("keyed.testing.scripts", name)
            for name in ("Crash", "End", "ProcessingTime", "Rescale", "Rows", "Watermark")
        ),
        ("keyed.testing.changelog_conformance", "ChangelogConformance"),
        ("keyed.testing.sink_conformance", "SinkConformance"),
        ("keyed.testing.sink_conformance", "CopyConformance"),
        ("keyed.testing.changelog_conformance", "StagingChangelogConformance"),
        ("keyed.testing.store_conformance", "LocalStoreConformance"),
    ),
    "windows.md": (
        ("keyed.windows.definition", "ProcessWindowContext"),
        ("keyed.windows.triggers", "TriggerContext"),
        ("keyed.windows.triggers", "OnMergeContext"),
        ("keyed.windows.evictors", "EvictorContext"),
        ("keyed.windows.evictors", "TimestampedValue"),
        ("keyed.windows.window", "Window"),
    ),
}
#: Modules whose objects come from calls of the API and not from their constructors.
MADE_BY_CALLS = {
    "keyed.job.graph",
    "keyed.job.streams",
    "keyed.job.results",
    "keyed.rows",
    "keyed.runtimes.local.local_query",
}
MADE_BY_CALLS |= {
    "keyed.runtimes.spark.query.spark_query",
    "keyed.testing.sink_conformance",
    "keyed.testing.store_conformance",
    "keyed.testing.changelog_conformance",
}
MADE_BY_CALLS |= {"keyed.tables.entries", "keyed.tables.operator_view", "keyed.tables.state_table"}
MADE_BY_CALLS |= {
    "keyed.recovery.verification",
    "keyed.sql.definitions",
    "keyed.sql.push_queries",
    "keyed.sql.script_runs",
    "keyed.tables.follower",
    "keyed.tables.replication",
    "keyed.tables.state_tables",
    "keyed.tables.subscription",
    "keyed.testing.replaying.Replayed",
    "keyed.job.global_tables",
    "keyed.joins.lookups",
    "keyed.windows.stream",
    "keyed.patterns.pattern_operator",
    "keyed.patterns.pattern",
    "keyed.job.watermarks",
    "keyed.changelog.model",
    "keyed.changelog.directory.compaction",
    "keyed.recovery.reading",
}
#: Methods that only the library calls.
# fmt: off
PLUMBING = {
    "add_note", "set_name", "replaced", "mistake", "no_attribute", "drop_late", "row_reason", "spans_ms",
    "explanation", "check_class", "operators", "address", "sides", "watermark_delay_ms", "on_spark",
    "skips", "oldest_kept", "matched", "within_ms", "step_names", "windowed", "gap_ms", "start_of",
    "Select.check", "LookupJoin.process_batch", "LocalQuery.start", "LocalQuery.run", "SparkQuery.wait",
    "SparkQuery.leave", "SparkQuery.has_drained",
    "KafkaSource.between", "KafkaSource.set_waits", "KafkaSource.open", "KafkaSource.fetch", "KafkaSource.take",
    "KafkaSource.has_more", "KafkaSource.wait_for_others", "KafkaSource.seconds_left", "KafkaSource.disconnect",
    "KafkaSource.is_ended", "open_copy", "last_copy", "digest_copy", "write_changes", "SinkWriter.is_transient",
    "UpsertTopic.open", "Owner.continues",
    "LocalQuery.status", "LocalQuery.is_active",
    "LocalQuery.tables", "LocalQuery.metrics", "LocalQuery.await_termination", "SparkQuery.status",
    "SparkQuery.is_active", "SparkQuery.tables", "SparkQuery.metrics", "SparkQuery.await_termination",
    "SparkQuery.progress", "SparkQuery.restored", "ColumnPathJoin.for_stream", "inputs", "broadcast_states",
    "global_tables", "GlobalTable.version",
}
# fmt: on
#: Methods of the server and of scripts that only the library calls.
PLUMBING |= {
    "number_of",
    "tables_of",
    "session_of",
    "number_of_session",
    "is_host",
    "is_origin",
    "stored",
    "lines",
    "do",
}
#: Rules of the state machine, which Hypothesis calls.
PLUMBING |= {"rows_come", "processing_time_moves", "process_dies", "key_groups_change", "teardown", "printed"}
#: Files of the constants that pages describe.
CONSTANTS = (
    "base/arguments.py",
    "base/sources.py",
    "job/execution_path.py",
    "job/state.py",
    "job/functions.py",
)
#: The parameters of `run` and `start` that the page of options describes.
OPTIONS = (
    r"(?m)^- `(?:checkpoint|drain|on_restore|local_dir|group_access|metrics|query_name|rows_per_batch|processing_time"
    r"|trigger|on_progress|tables|record)`:.*\n"
)
#: Class methods that users call instead of the class.
FACTORIES = {"of", "create", "begin", "days", "no_skip"}
#: Errors that mean the same wherever they are raised: the index of the reference has them.
COMMON_ERRORS = (
    "`DefinitionError`",
    "`StateDefinitionError`",
    "`OutputDefinitionError`",
    "`SqlError`",
    "`ExtraNotInstalled`",
    "`CorruptionError`",
    "`HistoryCompacted`",
    "`TimeoutError`",
    "`Falsified`",
)
LISTS = ("Args", "Attributes", "Raises")
SECTIONS = (*LISTS, "Returns", "Yields")
NOTE = "<!-- Written by docs/generate.py from docstrings. -->"
#: The text before the tables of SQL functions.
SQL_FUNCTIONS = """\
Expressions are DuckDB's: its [functions](https://duckdb.org/docs/stable/sql/functions/overview),
[types and casts](https://duckdb.org/docs/stable/sql/data_types/overview) and
[operators](https://duckdb.org/docs/stable/sql/expressions/overview). `SHOW FUNCTIONS` lists all names.

<!-- Written by docs/generate.py; change keyed/sql or keyed/expressions, not this page. -->"""
SQL_AGGREGATES = """\
`T` is the type of the argument. Each takes `FILTER (WHERE ...)`, and `COUNT` also `DISTINCT`. The second argument of
`LATEST_BY_OFFSET` and `EARLIEST_BY_OFFSET` is false if nulls count, that of `TOPK` the number of values. Aggregates
that are not over tables cannot undo a row that changes."""
#: A table with an aggregate.
SQL_TABLE = """\
CREATE {kind} s (k INT {role}, g INT, v {argument}) WITH (FORMAT = 'JSON');
CREATE TABLE t AS SELECT g, {call} AS x FROM s GROUP BY g; DESCRIBE t; DROP TABLE t;"""
#: Some functions of DuckDB that scripts refuse.
SQL_REFUSED = ("RANDOM", "UUID", "NOW", "TODAY", "GETVARIABLE", "GETENV", "READ_CSV", "GLOB", "MEDIAN", "ARG_MAX")
SQL_CALL = "CREATE STREAM s (v INT) WITH (FORMAT = 'JSON'); CREATE STREAM t AS SELECT {}(v) FROM s;"
#: Types whose aggregates are shown.
SQL_TYPES = ("INT", "BIGINT", "DOUBLE", "DECIMAL(6, 2)", "STRING")


#: A list of features in a page that is written by hand: its group, and the chosen ones.
MARKED = r"(<!--(\w+)(?::([\w,]+))?-->).*?<!--/-->"
#: Where the members of classes are: the page and the class, by their text.
_MEMBERS: dict[str, tuple[str, str]] = {}


def pages() -> dict[Path, str]:
    """Return the text of every page, by path."""
    made = {}
    _MEMBERS.clear()
    for page, (title, about, _) in KEYED.items():
        things = [(f"keyed.{name}", name, thing) for name, thing in _names("keyed") if _page_of(name) == page]
        made[page] = _page(page, title, about, "keyed", [*things, *_beside(page)])
    documented: set[type] = set()
    for page, (title, packages) in DOORS.items():
        # The map of the modules is for contributors.
        about = (inspect.getdoc(importlib.import_module(packages[0])) or "").partition("\n\nThe modules:")[0]
        named = [(f"{package}.{name}", name, thing) for package in packages for name, thing in _names(package)]
        # A class is on the first page of its packages.
        things = [each for each in named if not (isinstance(each[2], type) and each[2] in documented)]
        if (
            page == "errors.md"
        ):  # The others have nothing but their causes and remedies, on the page of troubleshooting.
            things = [each for each in things if each[1] == "KeyedError" or "__init__" in vars(each[2])]
        if page == "pyflink.md":
            made[page] = f"# {title}\n\n{NOTE}\n\n{_rendered(about)}\n\n{_pyflink(things)}\n"
            continue
        documented |= {thing for _, _, thing in named if isinstance(thing, type)}
        made[page] = _page(page, title, _rendered(about), packages[0], [*things, *_beside(page)])
    made["exported-metrics.md"] += "\n" + _metrics()
    made["sql-functions.md"] = _sql_functions()
    made["support.md"] = importlib.import_module("tests.support.features").page()
    return {REFERENCE / page: text for page, text in made.items()} | _comparisons()


def _comparisons() -> dict[Path, str]:
    """Return the pages that compare keyed with others, with the features that the support matrix runs.

    ``<!--Joins-->`` to ``<!--/-->`` holds the names of a group of the matrix, ``<!--Joins:AsOfJoin-->`` this one.
    """
    groups = importlib.import_module("tests.support.features").names_by_group()

    def named(marker: re.Match[str]) -> str:
        names = groups[marker[2]]
        chosen = marker[3].split(",") if marker[3] else names
        return f"{marker[1]}{', '.join(next(each for each in names if word in each) for word in chosen)}<!--/-->"

    texts = {path: path.read_text() for path in (ROOT / "docs").glob("*/*.md")}
    return {path: re.sub(MARKED, named, text) for path, text in texts.items() if "<!--/-->" in text}


def _pyflink(things: Iterable[tuple[str, str, Any]]) -> str:
    """Return the list of PyFlink's names: the class of keyed that each extends, differences, and own methods."""
    first = FIRST["pyflink.md"].split()
    lines = []
    for _, name, thing in sorted(things, key=lambda each: first.index(each[1]) if each[1] in first else len(first)):
        if thing.__name__ != name:
            lines.append(f"- `{name}`: {_link(thing, type)}.")
            continue
        about = _rendered(_own_doc(thing)).partition("\n\n")[2].partition("Fields:")[0].partition("- `")[0]
        bases_of = thing.__mro__ if isinstance(thing, type) else ()
        inside = [each for each in bases_of if each is thing or each.__qualname__.startswith("_")]
        own = {each: member for base in reversed(inside) for each, member in vars(base).items()}
        members = [each for each in own if not each.startswith("_") and _member(each, own[each])]
        bases = _bases(thing) if isinstance(thing, type) else []
        methods = [each for each in members if each not in PLUMBING and not any(hasattr(base, each) for base in bases)]
        parts = [f"Extends {_link(base, thing)}." for base in bases] + [" ".join(about.split())]
        parts.append(f"Methods: {', '.join(f'`{each}`' for each in methods)}." if methods else "")
        lines.append(f"- `{name}`: {' '.join(part for part in parts if part)}".removesuffix(": "))
    return "\n".join(lines)


def _metrics() -> str:
    """Return the lists of exported metrics: their meanings where no other page has them, and when to worry."""
    definitions = importlib.import_module("keyed.runtimes.job_metrics")
    parts = ["## The metrics", METRICS]
    parts += ["### Of the query", *_metric_lists(definitions.OF_QUERY, explained=True)]
    parts += ["### Of each operator", METRICS_OF_OPERATORS, *_metric_lists(definitions.OF_OPERATORS)]
    parts += ["### Of a replication", METRICS_OF_REPLICATIONS, *_metric_lists(definitions.OF_REPLICATIONS)]
    return "\n\n".join(parts) + "\n"


def _metric_lists(metrics: Sequence[Any], *, explained: bool = False) -> Iterator[str]:
    """Yield the list of metrics with a meaning or an alert, and the names of the others."""
    states = [each for each in metrics if each.name.endswith(("_status", "_failures"))]
    others = [each for each in metrics if each not in states]
    listed = [each for each in others if explained or each.alert]
    texts = [
        f"{each.meaning} *Worry:* {each.alert}"
        if explained and each.alert
        else each.meaning
        if explained
        else each.alert
        for each in listed
    ]
    yield "\n".join(f"- `{each.prometheus_name}`: {text.strip()}" for each, text in zip(listed, texts, strict=True))
    if quiet := ", ".join(f"`{each.prometheus_name}`" for each in others if each not in listed):
        yield f"The others: {quiet}."
    if states:
        yield STATUSES.format(", ".join(f"`{each.prometheus_name}`" for each in states))


def _sql_functions() -> str:
    """Return the page of SQL functions: what the tables of `keyed.sql` have, and what scripts answer."""
    macros = importlib.import_module("keyed.expressions.macros").MACROS
    aggregates = importlib.import_module("keyed.sql.sql_aggregates").AGGREGATES
    parts = ["# SQL functions", SQL_FUNCTIONS, "## Aggregates"]
    over = {name: "yes" if _result(name, "INT", "TABLE") else "" for name in aggregates}
    rows = [f"| `{name}` | {_results(name)} | {over[name]} |" for name in aggregates]
    parts += ["| name | result | over tables |\n|---|---|---|\n" + "\n".join(rows)]
    parts += [
        SQL_AGGREGATES,
        "## ksqlDB's names",
        "DuckDB lacks these names, so keyed defines them ([differences](../coming-from/ksqldb.md)):",
    ]
    heads = [head.replace("choices", "*choices").partition("(") for head in macros]
    parts += [", ".join(f"`{name.upper()}({arguments}`" for name, _, arguments in heads) + ".", _refused_functions()]
    return "\n\n".join(parts) + "\n"


def _result(aggregate: str, argument: str, kind: str = "STREAM") -> str:
    """Return the type of an aggregate's result; nothing if the script is refused."""
    role = "PRIMARY KEY" if kind == "TABLE" else "KEY"
    call = f"{aggregate}(v{', 2' if aggregate == 'TOPK' else ''})"
    text = SQL_TABLE.format(kind=kind, role=role, argument=argument, call=call)
    try:
        return str(importlib.import_module("keyed.sql").script(text).answers[0].rows[-1]["type"])
    except importlib.import_module("keyed.errors").SqlError:
        return ""


def _results(aggregate: str) -> str:
    """Return the types of an aggregate's results."""
    types = {each: _result(aggregate, each) for each in SQL_TYPES}
    for general, of in (("T", "{0}"), ("ARRAY<T>", "ARRAY<{0}>")):
        if all(found == of.format(each) for each, found in types.items()):
            return f"`{general}`"
    by_result: dict[str, list[str]] = {}
    for each, found in types.items():
        if found:
            by_result.setdefault(found, []).append(f"`{each}`")
    if len(by_result) == 1:
        return f"`{next(iter(by_result))}`" + ("" if all(types.values()) else ", of numbers")
    return "; ".join(f"`{found}` of {', '.join(of)}" for found, of in by_result.items())


def _refused_functions() -> str:
    """Return why scripts refuse functions, with some of each kind."""
    errors, sql = importlib.import_module("keyed.errors"), importlib.import_module("keyed.sql")
    by_reason: dict[str, list[str]] = {}
    for name in SQL_REFUSED:
        try:
            sql.script(SQL_CALL.format(name))
        except errors.SqlError as error:
            reason = str(error).partition(" is refused: ")[2].partition("\n")[0]
            by_reason.setdefault(reason, []).append(f"`{name}`")
    rows = [f"| {', '.join(names)}, … | {reason} |" for reason, names in by_reason.items()]
    return "## Refused\n\n| functions | why |\n|---|---|\n" + "\n".join(rows)


def _names(package: str) -> list[tuple[str, Any]]:
    """Return the public names of a package that are documented with it, and what they are."""
    found = importlib.import_module(package)
    named = [(name, getattr(found, name)) for name in found.__all__]
    if package != "keyed.pyflink":
        return named
    # Things of keyed are on its pages, except under other names.
    return [(name, thing) for name, thing in named if thing.__module__ == package or thing.__name__ != name]


@cache
def _page_of(name: str) -> str:
    """Return the page that a public name is on, nothing for others."""
    keyed = importlib.import_module("keyed")
    for page, (_, packages) in DOORS.items():
        for package in packages:
            door = importlib.import_module(package)
            if name not in door.__all__ or package == "keyed.pyflink":
                continue
            # `keyed.sql.start` is another than `keyed.start`.
            if name not in keyed.__all__ or getattr(door, name) is getattr(keyed, name):
                return page
    if name not in keyed.__all__:
        return ""
    module = getattr(getattr(keyed, name), "__module__", "")
    found = [page for page, (_, _, modules) in KEYED.items() if module in modules]
    return found[0] if found else list(KEYED)[-1]


def _beside(page: str) -> Iterator[tuple[str, str, Any]]:
    for module, name in BESIDE.get(page, ()):
        yield f"{module}.{name}", name, getattr(importlib.import_module(module), name)


def _page(page: str, title: str, about: str, package: str, things: Iterable[tuple[str, str, Any]]) -> str:
    """Return a page: its introduction and its names, the first ones first."""
    first = FIRST.get(page, "").split()
    ordered = sorted(things, key=lambda each: first.index(each[1]) if each[1] in first else len(first))
    shown: dict[Any, str] = {}
    entries = [_entry(page, path.removeprefix(f"{package}."), name, thing, shown) for path, name, thing in ordered]
    text = "\n\n".join(part for part in (f"# {title}", NOTE, about, *entries) if part) + "\n"
    return re.sub(r"\n\n *Raises (`\w+`: [^\n]*)", _other_errors, text)


def _other_errors(found: re.Match[str]) -> str:
    """Return the text on the errors that are raised, without those whose rule is in the index of the reference."""
    errors = [each for each in re.split(r" (?=`\w+`: )", found[1]) if not each.startswith(COMMON_ERRORS)]
    return f"{found[0].partition('`')[0]}{' '.join(errors)}" if errors else ""


def _entry(page: str, path: str, name: str, thing: Any, shown: dict[Any, str]) -> str:
    """Return a public name: its heading, signature, docstring and members.

    Args:
        page: Its page.
        path: Where it is imported from, without the page's package.
        name: Its name.
        thing: The class, function or value.
        shown: The page's members of private bases so far, and where they are. Updated.
    """
    parts = [f"## `{name}`"]
    if isinstance(thing, type):
        if thing in shown:
            return f"{parts[0]}\n\nAnother name of [`{shown[thing]}`](#{shown[thing].lower()})."
        shown[thing] = name
        constructed = _is_constructed(thing)
        bases = _bases(thing)
        signature = f"`{path}{_signature(thing)}`" if constructed else ""
        extends = f"Extends {' and '.join(_link(base, thing) for base in bases)}." if bases else ""
        parts.append(f"{signature}  {extends}".strip())
        doc = _own_doc(thing) if constructed else re.sub(r"\n\nArgs:\n(?: .*\n?|\n)*", "\n\n", _own_doc(thing))
        text = _rendered(doc)
        if not constructed:  # Parameters of a constructor are its users'.
            text = re.sub(rf"(?m)^- `(?:{'|'.join(PLUMBING)})`: .*\n?", "", text).strip()
        members = _members(page, thing, name, shown)
        if constructed and members and "\nArgs:\n" in doc:
            members = f"Members:\n\n{members}"
        *_, last = text.split("\n\n")
        joined = "\n" if last.startswith("- ") and members.startswith("- ") else "\n\n"
        parts.append(f"{text}{joined}{members}".strip())
    elif callable(thing):
        text = _rendered(_own_doc(thing))
        parts += [f"`{path}{_signature(thing)}`", _without_options(text) if path in ("run", "start") else text]
    else:
        parts += [f"`{path}` = {thing}" if f"{thing}".rpartition(".")[2] != name else "", _rendered(_comment_of(name))]
    return "\n\n".join(part for part in parts if part)


def _without_options(text: str) -> str:
    """Return the text of `run` or `start` with a link in place of the options that have a page."""
    return re.sub(OPTIONS, "", re.sub(OPTIONS, r"- `options`: [options](options.md).\n", text, count=1))


def _own_doc(thing: Any) -> str:
    """Return the docstring of the thing itself, not one that it inherits or that attrs or NamedTuple made."""
    doc = thing.__dict__.get("__doc__") if isinstance(thing, type) else thing.__doc__
    return inspect.cleandoc(doc or "")


def _is_constructed(cls: type) -> bool:
    """Return whether users call the class: neither only the library does, nor has it class methods for that."""
    if (
        {cls.__module__, f"{cls.__module__}.{cls.__name__}"} & MADE_BY_CALLS
        or issubclass(cls, enum.Enum)
        or typing.is_typeddict(cls)
        or getattr(cls, "_is_protocol", False)
        or "named" in inspect.signature(cls).parameters
        or cls.__name__.endswith("Context")
        or any(isinstance(inspect.getattr_static(cls, each, None), classmethod) for each in FACTORIES)
    ):
        return False
    if issubclass(cls, BaseException):
        return "__init__" in vars(cls)
    return cls.__init__ is not object.__init__ or cls.__new__ is not object.__new__


def _bases(cls: type) -> list[type]:
    """Return the nearest bases of a class that are documented; the tree of errors is drawn on their page."""
    if issubclass(cls, BaseException):
        return []
    public = [base for base in cls.__mro__[1:] if base.__module__.startswith("keyed.") and _page_of_class(base)]
    return [base for base in public if not any(base in each.__mro__[1:] for each in public)]


def _page_of_class(cls: type) -> str:
    """Return the page that a class is on, nothing for others."""
    if cls.__module__ == "keyed.pyflink":
        return "pyflink.md" if cls.__name__ in importlib.import_module("keyed.pyflink").__all__ else ""
    return _page_of(cls.__name__)


def _members(page: str, cls: type, name: str, shown: dict[Any, str]) -> str:
    """Return the methods, properties and enum members of a class that its documented bases do not have."""
    if issubclass(cls, enum.Enum):
        return ", ".join(f"`{member.name}`" for member in cls)
    lines: list[str] = []
    elsewhere: dict[str, list[str]] = {}
    seen: set[str] = set()
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] != "keyed":
            continue
        if base is not cls and _page_of(base.__name__):
            seen.update(each for above in base.__mro__ for each in vars(above))
            continue
        for member_name, member in vars(base).items():
            hidden = {member_name, f"{base.__name__}.{member_name}"} & PLUMBING
            if member_name.startswith(("_", "test_")) or member_name in seen or hidden:
                continue
            seen.add(member_name)
            if _only_overrides(member_name, member, cls.__mro__[cls.__mro__.index(base) + 1 :]):
                continue
            line = _member(member_name, member)
            before = _MEMBERS.get(line or "", (page, name))
            if line and ((base, member_name) in shown or before[0] != page):
                class_of = shown.get((base, member_name), before[1])
                link = f"[`{class_of}`]({'' if before[0] == page else before[0]}#{class_of.lower()})"
                elsewhere.setdefault(link, []).append(member_name)
            elif line:
                shown[base, member_name] = name
                lines.append(line)
                if page in KEYED and len(line.split()) > 6:
                    _MEMBERS.setdefault(line, (page, name))
    lines = _merged(lines)
    for link, names in elsewhere.items():
        lines.append(f"- {', '.join(f'`{each}`' for each in names)}: as in {link}.")
    return "\n".join(lines)


def _merged(lines: Sequence[str]) -> list[str]:
    """Return the lines of members, those with one text as one line."""
    heads: dict[str, list[str]] = {}
    for line in lines:
        head, _, text = line.partition("`: ")
        heads.setdefault(text or line, []).append(head)
    return [
        text if heads_of == [text] else f"- {', '.join(head.removeprefix('- ') + '`' for head in heads_of)}: {text}"
        for text, heads_of in heads.items()
    ]


def _only_overrides(name: str, member: Any, bases: Sequence[type]) -> bool:
    """Return whether a member is documented where it is declared, and adds nothing."""
    doc = getattr(member, "__doc__", None) or ""
    return doc.startswith("See `") or (not doc and any(name in vars(base) for base in bases))


def _link(base: type, cls: type) -> str:
    """Return a link to a public class, from the page of another one."""
    page = _page_of_class(base)
    return f"[`{base.__name__}`]({'' if page == _page_of_class(cls) else page}#{base.__name__.lower()})"


def _member(name: str, member: Any) -> str | None:
    if isinstance(member, property):
        return f"- `{name}`: {_inside(inspect.getdoc(member) or '')}"
    function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
    if not inspect.isfunction(function):
        return None
    head = f"- `{name}{_signature(function, method=not isinstance(member, staticmethod))}`"
    return f"{head}: {_inside(inspect.cleandoc(function.__doc__))}" if function.__doc__ else head


def _inside(doc: str) -> str:
    """Return a docstring inside a list item."""
    rendered = _rendered(doc)
    return rendered.replace("\n", "\n  ").replace("\n  \n", "\n\n")


def _signature(thing: Any, *, method: bool = False) -> str:
    is_class = inspect.isclass(thing)
    function = thing.__init__ if is_class else thing
    unwrapped = inspect.unwrap(function)
    method = method or (is_class and unwrapped is not function)
    # A function that shows its options in `help` has them as `**options` here: they are documented once.
    signature = inspect.signature(unwrapped if unwrapped is not function else thing)
    parts: list[str] = []
    kind: Any = None
    parameters = list(signature.parameters.values())[1 if method else 0 :]
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and kind not in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL):
            parts.append("*")
        kind = parameter.kind
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(kind, "")
        text = star + parameter.name
        if parameter.annotation is not parameter.empty and "Unpack[" not in str(parameter.annotation):
            text += "" if parameter.annotation in ("Any", Any) else f": {_annotation(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            text = text.removesuffix(" | None") if parameter.default is None else text
            text += f"{' = ' if ':' in text else '='}{_default(parameter.default)}"
        parts.append(text)
    result = ""
    if not isinstance(thing, type) and signature.return_annotation not in (
        signature.empty,
        "None",
        None,
        "Any",
        Any,
        "Self",
    ):
        result = f" -> {_annotation(signature.return_annotation)}"
        result = re.sub(r"hypothesis\.strategies\.|ForwardRef\('([^']*)'\)", r"\1", result)
    return f"({', '.join(parts)}){result}"


def _annotation(annotation: Any) -> str:
    if isinstance(annotation, ForwardRef):
        return annotation.__forward_arg__
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return annotation.__name__
    text = annotation.strip("'\"") if isinstance(annotation, str) else str(annotation).replace("typing.", "")
    return re.sub(r"(?<=\w)\[(?:\[Any(?:, Any)*\]|Any)(?:, Any)*\]", "", text)  # arguments that say nothing


def _default(default: Any) -> str:
    if default is attrs.NOTHING:
        return "..."
    if isinstance(default, enum.Enum):
        return f"{type(default).__name__}.{default.name}"
    if isinstance(default, type) or inspect.isroutine(default):
        return "..." if default.__name__.startswith("_") else str(default.__name__)
    text = repr(default)
    return "..." if " at 0x" in text else text


def _comment_of(name: str) -> str:
    """Return the ``#:`` comment of a constant."""
    source = "".join((ROOT / "keyed" / file).read_text() for file in CONSTANTS)
    found = re.search(rf"((?:^#: .*\n)+)^{name}(?:: Final)? = ", source, re.MULTILINE)
    return re.sub(r"^#: ", "", found[1], flags=re.MULTILINE).strip() if found else ""


def _rendered(doc: str) -> str:
    """Return a docstring of Google's form as Markdown."""
    out: list[str] = []
    section = ""
    held: list[str] = []

    def close() -> None:
        if section == "Raises":
            raised = " ".join(item.removeprefix("- ") for item in _items(held))
            out.append(f"Raises {raised}")
        elif section in LISTS:
            out.extend(_items(held))
        else:
            out.append(f"{section}: {' '.join(line.strip() for line in held if line.strip())}")
        out.append("")

    for line in doc.splitlines():
        head = line.rstrip().removesuffix(":")
        if line.rstrip().endswith(":") and head in SECTIONS:
            if section:
                close()
            section, held = head, []
        elif section and (line.startswith(" ") or not line.strip()):
            held.append(line)
        else:
            if section:
                close()
                section, held = "", []
            out.append(line.rstrip().removesuffix("::") + ":" if line.rstrip().endswith("::") else line.rstrip())
    if section:
        close()
    text = re.sub(r"(?<!`)``(?!`)", "`", "\n".join(out).strip())
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else re.sub(r"\n{3,}", "\n\n", part) for part in parts)


def _items(lines: list[str]) -> list[str]:
    """``name: text`` items with their continuation lines."""
    items: list[str] = []
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    for line in lines:
        if not line.strip():
            continue
        text = line.strip()
        name, colon, rest = text.partition(":")
        if len(line) - len(line.lstrip()) == indent and colon and re.fullmatch(r"[\w.*]+", name):
            items.append(f"- `{name}`:{rest}")
        elif items:
            items[-1] += f" {text}"
        else:
            items.append(text)
    # An item that only repeats its name is there for the docstring's completeness; items with one text are one.
    names: dict[str, list[str]] = {}
    for item in [each for each in items if ": As of all " not in each]:
        name, _, text = item.partition(": ")
        if not re.fullmatch(r"- `(\**)(\w+?)_*`: The (?i:\2)s?\.", item):
            names.setdefault(text, []).append(name.removeprefix("- "))
    return [f"- {', '.join(each)}: {text}" for text, each in names.items()]


def main() -> None:
    """Write the pages."""
    sys.path.insert(0, str(ROOT))
    for path, text in pages().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
