"""The Nexmark queries in keyed, Flink SQL and Spark SQL: ``python -m tests.benchmarks.nexmark``.

Each engine runs each query over the same events, on two cores, in a process of its own. A process runs the query over
a few events, whose results are compared with those of DuckDB, over 250,000 to warm up, three times over the few, and
then ``--rounds`` times over all. The cheapest of the three is the start-up, and is subtracted. Figures are CPU-seconds
of all processes for a million events, the median of the rounds with the least and the most; rounds of different engines
are not interleaved. ``--log`` keeps what each run cost, and what all else on the machine did beside it; what is
there already is not measured again.

All read Parquet, keyed and Spark a file of events a batch, Flink a file of each table, in the order of events. All
write Parquet; Flink and Spark have no files of rows that change (q4, q9, q15 to q19), and throw these away.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import platform
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import attrs
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark

import keyed
from examples.nexmark.catalog import QUERIES
from examples.nexmark.catalog import run as run_locally
from examples.nexmark.generator import Generator
from tests.benchmarks.events import FOLDER, ignored_folder
from tests.benchmarks.meter import lines_with_meter, mark
from tests.benchmarks.nexmark_latency import LATENCY_QUERIES, latency_table
from tests.benchmarks.nexmark_sql import (
    FLINK,
    FLINK_CANNOT,
    FLINK_CHANGES,
    FLINK_TABLES,
    SPARK,
    SPARK_CANNOT,
    SPARK_MODES,
)
from tests.examples.nexmark_oracles import Oracle
from tests.support.flink import PACKAGE, flink_python
from tests.support.jars import FLINK_PARQUET, fetch

__all__ = ["main"]

_ROOT = Path(__file__).resolve().parents[2]
_FOLDER = FOLDER / "nexmark"
_FLINK_RUN = Path(__file__).with_name("nexmark_flink.py")
_NAMES = {"keyed": "keyed on Spark", "local": "keyed, local", "flink": "Flink SQL", "spark": "Spark SQL"}
_FILE = 250_000  # events: a batch on Spark
_FEW, _FEW_RATE = 5_000, 125
_STARTS = 3
_CONFIG = {"spark.ui.enabled": "false", "spark.driver.memory": "4g", "spark.ui.showConsoleProgress": "false"}
#: Of equal prices or times Flink and Spark may choose any.
_ANY_OF_EQUALS = {"q9", "q18", "q19"}
#: Spark has no end of input: its last windows stay open.
_OPEN_WINDOWS = {"q5", "q8", "q11"}


@attrs.frozen
class Figures:
    """The figures of a query in an engine.

    Attributes:
        cpu: CPU-seconds for a million events, the median of the rounds.
        least, most: Those of the cheapest and of the dearest round.
        peak_bytes: Highest resident memory of all processes together.
        state_bytes: Size of the state at its largest: live state of keyed, files of checkpoints of Flink, state stores
            of Spark; ``None`` where nothing is kept.
        agrees: Whether the results of the warm-up are those of the oracle.
    """

    cpu: float
    least: float
    most: float
    peak_bytes: int
    state_bytes: int | None
    agrees: bool | None


class CannotRun(Exception):
    """An engine does not have what a query needs; the message says what."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure. Returns 1 where results differ or a run failed."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.latency and not set(options.only) & set(LATENCY_QUERIES):
        parser.error(f"--latency measures {', '.join(LATENCY_QUERIES)}")
    if options.child is not None:
        _child(options.engines[0], options.only[0], [Path(folder) for folder in options.child])
        return 0
    if options.latency:
        chosen = [query for query in options.only if query in LATENCY_QUERIES]
        print(_settings(options), flush=True)
        print(latency_table(options.rate, chosen, _CONFIG))
        return 0
    ignored_folder(_FOLDER)
    few, warm = _folder(_FEW, _FEW_RATE), _folder(min(_FILE, options.events), options.rate)
    whole = _folder(options.events, options.rate)
    runs = [few, warm, *[few] * _STARTS, *[whole] * options.rounds]
    print(_settings(options), flush=True)
    figures: dict[str, dict[str, Figures | str]] = {}
    logged = read_log(options.log)
    until = time.monotonic() + 60 * options.minutes
    for query in options.only:
        figures[query] = {}
        for engine in options.engines:
            left = until - time.monotonic()
            try:
                record = logged.get((query, engine, tuple(run.name for run in runs)))
                if record is None and left <= 0:
                    measured: Figures | str = f"not measured: --minutes {options.minutes} are over"
                else:
                    if record is None:
                        record = _measured(engine, query, runs, min(left, options.limit))
                        if options.log is not None:
                            with options.log.open("a") as log:
                                log.write(json.dumps(record) + "\n")
                    measured = figures_of(record)
            except (CannotRun, RuntimeError) as error:
                measured = f"{'cannot' if isinstance(error, CannotRun) else 'FAILED'}: {error}"
            figures[query][engine] = measured
            print(f"# {query} {engine}: {measured}", file=sys.stderr, flush=True)
    print(table(figures, options.engines))
    for engine in options.engines:
        peaks = [each.peak_bytes / 1e6 for row in figures.values() if isinstance(each := row[engine], Figures)]
        print(f"peak memory of {_NAMES[engine]}: {min(peaks, default=0):.0f} to {max(peaks, default=0):.0f} MB")
    if options.chart is not None:
        options.chart.write_text(chart(figures, options.engines))
    found = [each for row in figures.values() for each in row.values()]
    is_wrong = [each.startswith("FAILED") if isinstance(each, str) else each.agrees is False for each in found]
    return 1 if any(is_wrong) else 0


def table(figures: dict[str, dict[str, Figures | str]], engines: Sequence[str]) -> str:
    """Return the CPU-seconds as a table in Markdown, and below it the reasons of cells without one."""
    compared = [*engines] == ["local", "flink"]
    columns = [*(_NAMES[engine] for engine in engines), *(["Flink SQL / keyed, local"] if compared else [])]
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "--:|" * len(columns)]
    for query, row in figures.items():
        cells = [_text(row[engine]) for engine in engines]
        if compared:
            ours, theirs = row["local"], row["flink"]
            ratio = ""
            if isinstance(ours, Figures) and isinstance(theirs, Figures):
                ratio = f"{theirs.cpu / ours.cpu:.1f}"
            cells.append(ratio)
        lines.append(f"| {query} | " + " | ".join(cells) + " |")
    whys = [
        f"- {query}, {_NAMES[engine]}: {row[engine]}"
        for query, row in figures.items()
        for engine in engines
        if isinstance(row[engine], str) and row[engine]
    ]
    return "\n".join([*lines, *(["", *whys] if whys else [])])


def _text(figures: Figures | str) -> str:
    if isinstance(figures, str):
        return ""
    spread = f" ({figures.least:.2f} to {figures.most:.2f})" if figures.least < figures.most else ""
    return f"{figures.cpu:.2f}{spread}"


def chart(figures: dict[str, dict[str, Figures | str]], engines: Sequence[str]) -> str:
    """Return an SVG with a bar for each query and engine."""
    colours = {"keyed": "#1f6feb", "local": "#79b8ff", "flink": "#e6522c", "spark": "#f2a93b"}
    rows = [(query, engine, figures[query][engine]) for query in figures for engine in engines]
    bars = [(query, engine, each.cpu) for query, engine, each in rows if isinstance(each, Figures)]
    most = max((cpu for *_, cpu in bars), default=1.0)
    parts, y, last = [], 40, ""
    for query, engine, cpu in bars:
        if query != last:
            y += 8
            parts.append(f'<text x="36" y="{y + 10}" text-anchor="end">{query}</text>')
        last, width = query, 560 * cpu / most
        parts.append(f'<rect x="44" y="{y}" width="{width:.1f}" height="11" fill="{colours[engine]}"/>')
        parts.append(f'<text x="{48 + width:.1f}" y="{y + 10}">{cpu:.1f}</text>')
        y += 13
    for place, engine in enumerate(engines):
        parts.append(f'<rect x="{44 + 150 * place}" y="26" width="11" height="11" fill="{colours[engine]}"/>')
        parts.append(f'<text x="{60 + 150 * place}" y="36">{_NAMES[engine]}</text>')
    title = '<text x="44" y="16" font-weight="bold">Nexmark: CPU-seconds per million events, less is better</text>'
    size = f'width="680" height="{y + 10}" font-family="sans-serif" font-size="11"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', title, *parts, "</svg>", ""])


def _parser() -> argparse.ArgumentParser:
    def names(of: Sequence[str]) -> Callable[[str], list[str]]:
        def chosen(text: str) -> list[str]:
            unknown = [name for name in text.split(",") if name not in of]
            if unknown:
                raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(of)}")
            return text.split(",")

        return chosen

    def positive(text: str) -> int:
        if not text.isdigit() or int(text) < 1:
            raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0")
        return int(text)

    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.nexmark", description=__doc__)
    parser.add_argument("--only", type=names([*QUERIES]), default=[*QUERIES], help="queries, by default all")
    parser.add_argument("--engines", type=names([*_NAMES]), default=[*_NAMES], help="by default all four")
    parser.add_argument("--events", type=positive, default=200_000, help="number of events (default: 200000)")
    parser.add_argument("--rate", type=positive, default=10_000, help="events a second of event time")
    parser.add_argument("--rounds", type=positive, default=2, help="measured runs")
    limit = "seconds after which a process is ended (default: 3600)"
    parser.add_argument("--limit", type=positive, default=3600, help=limit)
    minutes = "minutes after which the rest is not measured (default: 90)"
    parser.add_argument("--minutes", type=positive, default=90, help=minutes)
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="where a line of each query and engine is added (JSON)"
    )
    parser.add_argument("--chart", type=Path, metavar="FILE", help="where a chart of the figures goes (SVG)")
    latency = "measure latencies of keyed on Spark instead (q1, q5, q8, q18; about 15 minutes)"
    parser.add_argument("--latency", action="store_true", help=latency)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    return parser


def _folder(count: int, rate: int) -> Path:
    return _FOLDER / f"{count}-{rate}"


def _generate(folder: Path) -> None:
    """Write a folder of events, with a file of each table too, unless it is there."""
    if not folder.exists():
        count, rate = map(int, folder.name.split("-"))
        new = Path(tempfile.mkdtemp(dir=_FOLDER))
        Generator(count, rate, seed=7).write(new / "events", -(-count // _FILE))
        files = sorted((new / "events").glob("*.parquet"))
        for name in FLINK_TABLES:
            schema = pa.schema(list(pq.read_schema(files[0]).field(name).type))
            with pq.ParquetWriter(new / f"{name}.parquet", schema) as writer:
                for file in files:
                    structs: Any = pq.read_table(file, columns=[name])[name].combine_chunks().drop_null()
                    writer.write_table(pa.Table.from_arrays(structs.flatten(), schema=schema))
        new.rename(folder)


def _settings(options: argparse.Namespace) -> str:
    flink = _flink_settings(Path("CHECKPOINTS"))
    versions = ", ".join(f"{name} {version(name)}" for name in ("pyspark", "pyarrow"))
    machine = f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}"
    return "\n".join(
        [
            f"{datetime.now(UTC):%Y-%m-%d}, {machine}, {versions}, {PACKAGE}",
            f"{options.events:,} events, {options.rate:,} a second; {options.rounds} rounds",
            f"batches: {_FILE:,} events on Spark, 100,000 in the local runtime",
            f"keyed and Spark: local[2], 2 shuffle partitions, {_CONFIG}",
            f"Flink: {flink}",
        ]
    )


def _flink_settings(checkpoints: Path) -> dict[str, str]:
    return {
        "parallelism.default": "2",
        "pipeline.object-reuse": "true",
        "state.backend.type": "rocksdb",
        "execution.checkpointing.interval": "5 s",
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.dir": f"file://{checkpoints}",
        "table.local-time-zone": "UTC",
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": "2 s",
        "table.exec.mini-batch.size": "50000",
    }


def _measured(engine: str, query: str, runs: list[Path], seconds: float) -> dict[str, Any]:
    """Measure a query in an engine over folders of events, for so many seconds at most.

    Raises:
        CannotRun: It cannot.
        RuntimeError: It failed, or was not through in time.
    """
    cannot = {"flink": FLINK_CANNOT, "spark": SPARK_CANNOT}.get(engine, {})
    if query in cannot:
        raise CannotRun(cannot[query])
    for run in runs:
        _generate(run)
    scratch = Path(tempfile.mkdtemp(dir=_FOLDER))
    command = [sys.executable, "-m", __spec__.name, "--engines", engine, "--only", query, "--child", str(scratch)]
    command += map(str, runs)
    if engine == "flink":
        given = {
            "settings": _flink_settings(scratch / "checkpoints"),
            "tables": FLINK_TABLES,
            "sql": FLINK[query],
            "appends": query not in FLINK_CHANGES,
            "runs": [str(run) for run in runs],
            "collected": str(scratch / "collected"),
            "written": str(scratch / "out"),
        }
        command = [flink_python(), str(_FLINK_RUN), json.dumps(given)]
    try:
        marks, peak, state = _watched(command, scratch, seconds)
        costs = [after - before for before, after in zip(marks[::2], marks[1::2], strict=True)]
        return {
            "query": query,
            "engine": engine,
            "runs": [run.name for run in runs],
            "cpu_seconds": [round(cost.own, 2) for cost in costs],
            "cpu_seconds_of_others": [round(cost.machine - cost.own, 2) for cost in costs],
            "seconds": [round(cost.clock, 2) for cost in costs],
            "peak_bytes": peak,
            "state_bytes": state,
            "agrees": _agrees(engine, query, runs[0], scratch),
        }
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def read_log(log: Path | None) -> dict[tuple[str, str, tuple[str, ...]], dict[str, Any]]:
    """Return what a file of runs has by query, engine and folders of events."""
    lines = log.read_text().splitlines() if log is not None and log.exists() else []
    records = map(json.loads, lines)
    return {(record["query"], record["engine"], tuple(record["runs"])): record for record in records}


def figures_of(record: dict[str, Any]) -> Figures:
    """Return the figures of the runs of a query in an engine."""
    costs, events = record["cpu_seconds"], int(record["runs"][-1].partition("-")[0])
    start_up = min(costs[2 : 2 + _STARTS])
    rounds = [(cost - start_up) * 1e6 / (events - _FEW) for cost in costs[2 + _STARTS :]]
    sizes = record["peak_bytes"], record["state_bytes"]
    return Figures(median(rounds), min(rounds), max(rounds), *sizes, record["agrees"])


@attrs.frozen
class _Mark:
    """Seconds at a moment: CPU time of the processes that are measured, and of all of the machine; a clock's."""

    own: float
    machine: float
    clock: float

    def __sub__(self, other: _Mark) -> _Mark:
        return _Mark(self.own - other.own, self.machine - other.machine, self.clock - other.clock)


def _busy_seconds() -> float:
    """Return the CPU time that all processes of the machine have used (Linux)."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.steal - times.guest - times.guest_nice)


def _watched(command: list[str], scratch: Path, seconds: float) -> tuple[list[_Mark], int, int | None]:
    """Run a process: what was used at each mark, its highest memory, and the largest state.

    Raises:
        RuntimeError: It failed, or was not through in time.
    """
    marks: list[_Mark] = []
    peaks, states = [0], [0]
    environment = {"PYTHONPATH": str(_ROOT), "TZ": "UTC", "HADOOP_CLASSPATH": _hadoop()}
    try:
        for line, meter in lines_with_meter(command, scratch / "log", seconds, **environment):
            if line.startswith("state"):
                states.append(int(line.split()[1]))
            elif line.startswith(("begin", "end")):
                if not marks:
                    watched = (meter.pid, scratch / "checkpoints", peaks, states)
                    threading.Thread(target=_watch, args=watched, daemon=True).start()
                marks.append(_Mark(meter.read().total, _busy_seconds(), time.monotonic()))
    except TimeoutError as error:
        raise RuntimeError(str(error)) from error
    except RuntimeError as error:
        raise RuntimeError(_reason((scratch / "log").read_text())) from error
    return marks, peaks[0], max(states) or None


def _hadoop() -> str:
    """Return the libraries that Flink needs for Parquet: its own, and Hadoop's client of pyspark."""
    client = Path(pyspark.__file__).parent / "jars"
    return os.pathsep.join(map(str, [*fetch(FLINK_PARQUET), *client.glob("hadoop-client-*.jar")]))


def _reason(log: str) -> str:
    """Return the line of a log that names the error: plans of many lines may follow it."""
    named = [line for line in log.splitlines() if re.match(r"[\w.]+(Error|Exception|Unsupported\w*)\b", line)]
    return (named or [log[-1500:]])[-1][:500]


def _watch(pid: int, checkpoints: Path, peaks: list[int], states: list[int]) -> None:
    """Note the highest memory of a process and those below it, and the largest size of a folder, until it ends."""
    while True:
        time.sleep(0.5)
        try:
            processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        resident = 0
        for process in processes:
            try:
                resident += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        peaks[0] = max(peaks[0], resident)
        size = 0
        for path in checkpoints.rglob("*"):
            try:
                size += path.stat().st_size if path.is_file() else 0
            except FileNotFoundError:
                continue
        states[0] = max(states[0], size)


def _agrees(engine: str, query: str, few: Path, scratch: Path) -> bool | None:
    """Check the results of the warm-up. ``None`` where they depend on the time of processing, or ties on the order."""
    if query == "q12" and engine in ("flink", "spark"):
        return None
    truth = Oracle(few / "events")
    try:
        expected = truth.expected(query)
        if engine in ("keyed", "local"):
            return truth.found(query, scratch / "out-0") == expected
        found = sorted(pickle.loads((scratch / "collected").read_bytes()))
        if engine == "spark" and query in _OPEN_WINDOWS:
            return bool(found) and set(found) <= set(expected)
        return len(found) == len(expected) if query in _ANY_OF_EQUALS else found == expected
    finally:
        truth.connection.close()


def _child(engine: str, query: str, folders: list[Path]) -> None:
    """Run a query over folders of events, one after the other, in this process."""
    scratch, *runs = folders
    spark = None
    if engine != "local":
        spark = keyed.spark_session("nexmark", master="local[2]", parallelism=2, config=_CONFIG)
        spark.sparkContext.setLogLevel("ERROR")
    for number, folder in enumerate(runs):
        checkpoint = scratch / f"checkpoint-{number}"
        mark("begin")
        target = scratch / f"out-{number}"
        if engine == "spark":
            kept = scratch / "collected" if not number else None
            size = _run_spark(spark, query, folder / "events", checkpoint, target, kept)
        else:
            size = _run_keyed(query, folder / "events", target, spark, checkpoint)
        mark("end")
        print(f"state {size}", flush=True)


class _Sizes:
    """The largest live state of a query."""

    def __init__(self) -> None:
        self.largest = 0

    def __call__(self, progress: keyed.Progress) -> None:
        self.largest = max(self.largest, sum(each["live_bytes"] for each in progress.metrics.values()))


def _run_keyed(query: str, folder: Path, target: Path, spark: Any, checkpoint: Path) -> int:
    """Run a query of keyed that writes Parquet files. Returns the bytes of its state."""
    sizes = _Sizes()
    run_locally(query, folder, target, spark=spark, checkpoint=checkpoint, on_progress=sizes)
    return sizes.largest


def _run_spark(spark: Any, query: str, folder: Path, checkpoint: Path, target: Path, collected: Path | None) -> int:
    """Run a query of Spark SQL that writes Parquet files, or keeps its rows as a pickle. Returns its state's bytes."""
    files = sorted(folder.glob("*.parquet"))
    schema = spark.read.parquet(str(files[0])).schema
    events = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).option("pathGlobFilter", "*.parquet")
    for number, name in enumerate(FLINK_TABLES):
        frame = events.parquet(str(folder)).where(f"event_type = {number}").selectExpr(f"{name}.*")
        # An event time of Spark has a zone.
        frame = frame.withColumn("dateTime", frame["dateTime"].cast("timestamp"))
        frame.withWatermark("dateTime", "4 seconds").createOrReplaceTempView(name)
    side = spark.read.option("header", True).schema("key bigint, value string").csv(str(folder / "side_input.csv"))
    side.createOrReplaceTempView("static_side")
    rows: list[Any] = []

    def keep(batch: Any, _: int) -> None:
        rows.extend(tuple(row) for row in batch.collect())

    mode = SPARK_MODES.get(query, "append")
    stream = spark.sql(SPARK[query]).writeStream.outputMode(mode)
    stream = stream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    if collected is not None:
        stream = stream.foreachBatch(keep)
    elif mode == "append":
        stream = stream.format("parquet").option("path", str(target))
    else:
        stream = stream.format("noop")
    running = stream.start()
    running.awaitTermination()
    if collected is not None:
        collected.write_bytes(pickle.dumps(rows))
    sizes = [
        sum(operator["memoryUsedBytes"] for operator in report["stateOperators"]) for report in running.recentProgress
    ]
    return max(sizes, default=0)


if __name__ == "__main__":
    sys.exit(main())
