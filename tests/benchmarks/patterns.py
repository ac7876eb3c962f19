"""The cost of a pattern: ``python -m tests.benchmarks.patterns``.

Three steps with ``followed_by`` and ``within`` over payments of 100,000 cards, of which 5 % satisfy a condition, in
batches of a million rows. The conditions are functions of the row, or DuckDB expressions over columns; ``next`` instead
of ``followed_by`` is a pattern for which no row may be left out. Flink SQL's ``MATCH_RECOGNIZE`` reads the same rows as
CSV, in the environment of `tests.benchmarks.joins`. Each variant runs in a process of its own, and the variants take
turns. Figures are CPU-seconds of all processes for a million rows, without the first batch; of Flink, a run over the
first batch is taken off.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

import keyed
from keyed.patterns import Pattern
from tests.benchmarks.work import SETTINGS
from tests.support.flink import cpu_seconds, csv_table, run_flink

__all__ = ["main"]

_SCHEMA = "card string, time bigint, amount double"
_OUTPUT = "card string, first bigint, last bigint"
_FUNCTIONS: dict[str, Any] = {
    "small": lambda row: row.amount < 1,
    "middle": lambda row: 100 <= row.amount <= 200,
    "large": lambda row: row.amount > 500,
}
_COLUMNS = {"small": "amount < 1", "middle": "amount BETWEEN 100 AND 200", "large": "amount > 500"}
_FLINK_COLUMNS = """
card STRING, ms BIGINT, amount DOUBLE, ts AS TO_TIMESTAMP_LTZ(ms, 3), WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
"""
#: The steps and their further conditions: ``followed_by`` is a loop over rows that do not match the next step.
_FLINK_STEPS = {
    "followed-by": ("A X* B Y* C", "X AS NOT (X.amount BETWEEN 100 AND 200), Y AS NOT (Y.amount > 500),"),
    "next": ("A B C", ""),
}
_FLINK_MATCHES = """
SELECT card, first_ms, last_ms FROM payments MATCH_RECOGNIZE (
  PARTITION BY card ORDER BY ts MEASURES A.ms AS first_ms, C.ms AS last_ms
  ONE ROW PER MATCH AFTER MATCH SKIP TO NEXT ROW PATTERN ({steps}) WITHIN INTERVAL '10' MINUTE
  DEFINE A AS A.amount < 1, {skipped} B AS B.amount BETWEEN 100 AND 200, C AS C.amount > 500
)
"""
_VARIANTS = [f"{runtime} {kind}" for runtime in ("local", "spark") for kind in ("functions", "columns", "columns-next")]
_VARIANTS += ["flink followed-by", "flink next"]


def _table(number: int, rows: int, keys: int) -> pa.Table:
    """Return the rows of a batch, a thousand a second."""
    chance = np.random.default_rng(number)
    cards = np.array([f"card {each}" for each in range(keys)])
    amounts = chance.choice([0.5, 150.0, 900.0, 20.0], size=rows, p=[0.02, 0.02, 0.01, 0.95])
    return pa.table(
        {
            "card": pa.array(cards[chance.integers(0, keys, rows)]),
            "time": pa.array(np.arange(number * rows, (number + 1) * rows)),
            "amount": pa.array(amounts),
        }
    )


def _matches(kind: str, data: Any) -> Any:
    where = _FUNCTIONS if kind == "functions" else _COLUMNS
    pattern = Pattern.begin("small", where=where["small"])
    for step in ("middle", "large"):
        add = pattern.next if kind.endswith("next") else pattern.followed_by
        pattern = add(step, where=where[step])
    stream = keyed.stream(data, timestamp="time", watermark=keyed.bounded_out_of_orderness(seconds=5)).key_by("card")
    return stream.match(pattern.within(minutes=10)).select(
        lambda match: (match["small"][0].card, match["small"][0].time, match["large"][0].time), output=_OUTPUT
    )


def _flink(kind: str, tables: list[pa.Table]) -> tuple[float, int]:
    """Return the CPU-seconds of Flink over tables, and the number of matches."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "csv").mkdir()
        options = pyarrow.csv.WriteOptions(include_header=False)
        # One file, because Flink takes several in any order.
        pyarrow.csv.write_csv(pa.concat_tables(tables), f"{folder}/csv/payments.csv", options)
        steps, skipped = _FLINK_STEPS[kind]
        statements = [
            csv_table("payments", _FLINK_COLUMNS, f"{folder}/csv"),
            csv_table("found", "card STRING, first_ms BIGINT, last_ms BIGINT", f"{folder}/found"),
            f"INSERT INTO found {_FLINK_MATCHES.format(steps=steps, skipped=skipped)}",
        ]
        return run_flink(Path(folder), statements)


def _run(variant: str, options: argparse.Namespace) -> None:
    """Run a variant; print CPU-seconds per million rows and the number of matches."""
    runtime, kind = variant.split()
    marks: list[float] = []
    found = [0]
    tables = [_table(number, options.rows, options.keys) for number in range(options.batches)]
    if runtime == "flink":
        (first, _), (last, found[0]) = (_flink(kind, tables[:count]) for count in (1, options.batches))
        marks = [first, *[last] * (options.batches - 1)]
    elif runtime == "local":
        output = _matches(kind, pa.concat_tables(tables))
        result = output.run(
            lambda *_: None, rows_per_batch=options.rows, on_progress=lambda _: marks.append(cpu_seconds())
        )
        found[0] = result.metrics["PatternOperator"]["rows_out"]
        # The end of the input is a batch of its own.
        marks = marks[: options.batches]
    else:
        spark = keyed.spark_session("bench", master="local[2]", parallelism=2, config=SETTINGS)
        with tempfile.TemporaryDirectory() as folder:
            for number, table in enumerate(tables):
                (Path(folder) / "in").mkdir(exist_ok=True)
                pq.write_table(table, Path(folder) / "in" / f"{number:03d}.parquet")
            data = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1).parquet(f"{folder}/in")

            def sink(batch: Any, _: int) -> None:
                found[0] += batch.count()
                marks.append(cpu_seconds())

            query = _matches(kind, data).df.writeStream.foreachBatch(sink).outputMode("append")
            query = query.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
            query.awaitTermination()
            marks = marks[: options.batches]
    million = (len(marks) - 1) * options.rows / 1e6
    print("figure", (marks[-1] - marks[0]) / million, found[0], flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.patterns", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="in a batch")
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=_VARIANTS, default=_VARIANTS)
    parser.add_argument("--run", choices=_VARIANTS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.run is not None:
        _run(options.run, options)
        return 0
    figures: dict[str, list[float]] = {}
    matches: dict[str, str] = {}
    given = [f"--{name}={getattr(options, name)}" for name in ("rows", "batches", "keys")]
    for _ in range(options.rounds):
        for variant in options.only:
            command = [sys.executable, "-m", "tests.benchmarks.patterns", *given, "--run", variant]
            printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            (line,) = [each for each in printed.splitlines() if each.startswith("figure")]
            _, figure, matches[variant] = line.split()
            figures.setdefault(variant, []).append(float(figure))
            print(f"# {variant}: {figures[variant][-1]:.2f}", file=sys.stderr, flush=True)
    print("| variant | CPU-s per million rows | matches |\n|---|--:|--:|")
    for variant, measured in figures.items():
        print(f"| {variant} | {median(measured):.2f} | {matches[variant]} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
