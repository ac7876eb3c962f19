"""Interval and as-of joins of two streams: ``python -m tests.benchmarks.joins``.

Two streams of events with 100,000 keys are joined by key where their times are ten seconds apart at most, and the
events of the first as of those of the second. Beside keyed, over whole columns and by row, run a stateless
pass-through, Spark's own stream-stream join, and Flink SQL's interval join, in an environment of its own into which the
package ``apache-flink`` is installed. Flink reads the same rows as CSV, which it can without further connectors; what
reading them costs is measured by itself, ``flink-pass``.

Rounds are interleaved. Figures are CPU-seconds of all processes for a million events of both streams. The first file of
either is left out, and with it the start of the processes: on Spark it is the first batch, of Flink a run of it is
taken off. The pairs are counted and have to agree.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow.csv
import pyarrow.parquet as pq

import keyed
from keyed.joins import AsOfJoin, IntervalJoin
from tests.benchmarks.events import Events, event_files, ignored_folder
from tests.benchmarks.functions import pass_through
from tests.benchmarks.meter import lines_with_meter, mark
from tests.benchmarks.work import SETTINGS
from tests.support.flink import csv_table, run_flink

__all__ = ["main"]

_SCHEMA = "user_id string, ts timestamp, amount long"
_PAIRS = "user_id string, first bigint, second bigint"
_BOUND_MS = 10_000
_CHOICES = ("pass", "interval", "interval-row", "spark-interval", "as-of", "as-of-row", "flink-pass", "flink")
_FLINK_COLUMNS = """
user_id STRING, ms BIGINT, amount BIGINT, ts AS TO_TIMESTAMP_LTZ(ms, 3), WATERMARK FOR ts AS ts - INTERVAL '10' SECOND
"""
_FLINK_PAIRS = "user_id STRING, first_amount BIGINT, second_amount BIGINT"
_FLINK_JOIN = """
SELECT l.user_id, l.amount AS first_amount, r.amount AS second_amount FROM lefts AS l, rights AS r
WHERE l.user_id = r.user_id AND r.ts BETWEEN l.ts - INTERVAL '10' SECOND AND l.ts + INTERVAL '10' SECOND
"""
_FLINK_PASS = "SELECT user_id, amount, amount FROM lefts UNION ALL SELECT user_id, amount, amount FROM rights"


def pair(left: Any, right: Any) -> tuple[str, int, int | None]:
    """Return the row of a pair."""
    return left.user_id, left.amount, None if right is None else right.amount


def keyed_join(variant: str, left: Any, right: Any) -> Any:
    """Return a join of keyed as a DataFrame."""
    path: Any = "row" if variant.endswith("-row") else "vectorized"
    delay = keyed.bounded_out_of_orderness(seconds=10)
    first, second = (keyed.stream(each, timestamp="ts", watermark=delay) for each in (left, right))
    join: Any = AsOfJoin(pair, path=path)
    if variant.startswith("interval"):
        join = IntervalJoin(pair, lower=-_BOUND_MS, upper=_BOUND_MS, path=path)
    return first.connect(second).key_by("user_id").process(join, _PAIRS, name="join").df


def spark_join(left: Any, right: Any) -> Any:
    """Return Spark's own interval join as a DataFrame."""
    first = left.withWatermark("ts", "10 seconds").alias("l")
    second = right.withWatermark("ts", "10 seconds").alias("r")
    near = "l.user_id = r.user_id AND r.ts BETWEEN l.ts - INTERVAL 10 SECONDS AND l.ts + INTERVAL 10 SECONDS"
    from pyspark.sql.functions import expr

    return first.join(second, expr(near)).selectExpr("l.user_id", "l.amount AS first", "r.amount AS second")


def run(variant: str, folder: Path) -> int:
    """Run a variant on Spark to the end of its input, two files a batch. How many rows came out."""
    spark = keyed.spark_session("bench", master="local[2]", parallelism=2, config=SETTINGS)
    spark.sparkContext.setLogLevel("ERROR")
    left, right = (
        spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder / side))
        for side in ("left", "right")
    )
    if variant == "pass":
        frame = left.unionAll(right).mapInArrow(pass_through, _SCHEMA)
    elif variant == "spark-interval":
        frame = spark_join(left, right)
    else:
        frame = keyed_join(variant, left, right)
    found = [0]

    def count(batch: Any, number: int) -> None:
        found[0] += batch.count()
        if number == 0:
            # From here on it is measured.
            mark("begin")

    with tempfile.TemporaryDirectory() as checkpoint:
        query = frame.writeStream.foreachBatch(count).option("checkpointLocation", checkpoint)
        query.outputMode("append").trigger(availableNow=True).start().awaitTermination()
    return found[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure. Returns 1 where the pairs of the interval joins differ."""
    options = _parser().parse_args(arguments)
    if options.run is not None:
        mark(f"end {run(options.only[0], options.run)}")
        return 0
    with tempfile.TemporaryDirectory(dir=ignored_folder()) as scratch:
        whole, start = (_inputs(Path(scratch) / str(files), files, options.rows) for files in (options.files, 1))
        million = 2 * (options.files - 1) * options.rows / 1e6
        figures: dict[str, list[float]] = {}
        pairs: dict[str, int] = {}
        for _ in range(options.rounds):
            for variant in options.only:
                try:
                    one_file = _measured(variant, start, options.limit)[0] if variant.startswith("flink") else 0.0
                    all_files, pairs[variant] = _measured(variant, whole, options.limit)
                except TimeoutError:
                    print(f"# {variant}: not through after {options.limit:.0f} s", file=sys.stderr, flush=True)
                    continue
                figures.setdefault(variant, []).append((all_files - one_file) / million)
                print(f"# {variant}: {figures[variant][-1]:.2f}", file=sys.stderr, flush=True)
    print("| what | CPU-s per million rows | rows out |\n|---|--:|--:|")
    for variant, found_figures in figures.items():
        print(f"| {variant} | {median(found_figures):.2f} | {pairs[variant]:,} |")
    interval = {
        count for variant, count in pairs.items() if variant in ("interval", "interval-row", "spark-interval", "flink")
    }
    return 0 if len(interval) <= 1 else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.joins", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--files", type=int, default=5, help="files of either stream, each a batch")
    parser.add_argument("--rows", type=int, default=250_000, help="rows of a file")
    parser.add_argument("--limit", type=float, default=180, help="seconds after which a run is given up")
    parser.add_argument("--only", nargs="+", choices=_CHOICES, default=_CHOICES)
    parser.add_argument("--run", metavar="FOLDER", type=Path, help=argparse.SUPPRESS)
    return parser


def _inputs(folder: Path, files: int, rows: int) -> Path:
    """Make the two streams as Parquet, and as CSV for Flink."""
    for side, seed in (("left", 0), ("right", 1)):
        events = Events(f"join-{side}-{rows}", keys=100_000 + seed, rows=rows)
        for path in event_files(events, files):
            (folder / side).mkdir(parents=True, exist_ok=True)
            (folder / side / path.name).symlink_to(path)
            # One file, because Flink takes several in any order.
            text = folder / f"{side}-csv" / "events.csv"
            text.parent.mkdir(exist_ok=True)
            table = pq.read_table(path)
            stamps: Any = table.column("ts")
            millis = stamps.cast("timestamp[ms]").cast("int64")
            header = pyarrow.csv.WriteOptions(include_header=False)
            with text.open("ab") as file:
                pyarrow.csv.write_csv(table.set_column(1, "ts", millis), file, header)
    return folder


def _measured(variant: str, folder: Path, seconds: float) -> tuple[float, int]:
    """Return the CPU-seconds of a process and all below it, from its first batch on, and how many rows came out.

    Raises:
        TimeoutError: It was not through in time.
    """
    if variant.startswith("flink"):
        tables = [csv_table(f"{side}s", _FLINK_COLUMNS, folder / f"{side}-csv") for side in ("left", "right")]
        if variant == "flink":
            tables += [csv_table("found", _FLINK_PAIRS, folder / "found"), f"INSERT INTO found {_FLINK_JOIN}"]
        else:
            # A count would change at each row, and reading that in Python costs more than the join.
            tables.append(f"CREATE TABLE nothing WITH ('connector' = 'blackhole') AS {_FLINK_PASS}")
        return run_flink(folder, tables, seconds=seconds)
    command = [sys.executable, "-m", __spec__.name, "--only", variant, "--run", str(folder)]
    spent, rows = 0.0, 0
    for line, meter in lines_with_meter(command, folder / f"{variant}.log", seconds):
        if line.startswith("begin"):
            spent = meter.read().total
        elif line.startswith("end"):
            spent, rows = meter.read().total - spent, int(line.split()[1])
    return spent, rows


if __name__ == "__main__":
    sys.exit(main())
