"""What a script costs beside the same job in Python and in Flink SQL: ``python -m tests.benchmarks.scripts``.

All run over the same rows, each in a process of its own: a script over the lines of a JSON file and over Arrow tables,
a job in Python over these tables, with as many rows in a batch, and Flink SQL over the JSON file. Scripts and jobs
write Parquet, a file for each batch; Flink discards its results. A process warms up, runs over a tenth of the rows, and
over all; a process of Flink has one run. Figures are CPU-seconds for a million rows: the median of the runs over all
rows, without the cheapest over a tenth. Rounds take turns.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import keyed
from keyed import sql
from keyed.joins import IntervalJoin, Select
from keyed.vectorized import TIMESTAMP_COLUMN
from keyed.windows import Count, Sum, TumblingEventTimeWindows, aggregate
from tests.support.flink import cpu_seconds, run_flink

_ROWS_PER_BATCH = 10_000
_FLINK_TABLE = """
CREATE TABLE `{name}` (
title STRING, {value} BIGINT, `at` BIGINT, ts AS TO_TIMESTAMP_LTZ(`at`, 3), WATERMARK FOR ts AS ts)
WITH ('connector' = 'filesystem', 'path' = 'file://{folder}/{name}.jsonl', 'format' = 'json')
"""
_FLINK_SETTINGS = {
    "execution.checkpointing.interval": "5 s",
    "pipeline.object-reuse": "true",
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "1 s",
    "table.exec.mini-batch.size": "10000",
}


def _large(sales: Any, _: Any) -> Any:
    return sales.map_batches(_twice, output="title string, twice bigint")


def _twice(table: Any) -> Any:
    large = table.filter(pc.field("tickets") > 4)
    twice = pc.multiply(large.column("tickets"), 2)
    return large.append_column("twice", twice).select(["title", "twice", TIMESTAMP_COLUMN])


def _sold(sales: Any, _: Any) -> Any:
    return aggregate(sales.key_by("title"), {"n": Count(), "tickets": Sum("tickets")})


def _hourly(sales: Any, _: Any) -> Any:
    windows = sales.key_by("title").window(TumblingEventTimeWindows.of(3_600_000))
    return windows.aggregate(n=Count(), tickets=Sum("tickets"))


def _returned(sales: Any, returns: Any) -> Any:
    join = IntervalJoin(Select(["title", "tickets"], ["returned"]), lower=-600_000, upper=600_000)
    rows = sales.connect(returns).key_by("title")
    return rows.process(join, output="title string, tickets bigint, returned bigint")


#: The statement of each job, the job in Python, and the query of Flink SQL.
JOBS: dict[str, tuple[str, Callable[[Any, Any], Any], str]] = {
    "filter": (
        "CREATE STREAM out AS SELECT title, tickets * 2 AS twice FROM sales WHERE tickets > 4;",
        _large,
        "SELECT title, tickets * 2 FROM sales WHERE tickets > 4",
    ),
    "group by": (
        "CREATE TABLE out AS SELECT title, COUNT(*) AS n, SUM(tickets) AS tickets FROM sales GROUP BY title;",
        _sold,
        "SELECT title, COUNT(*), SUM(tickets) FROM sales GROUP BY title",
    ),
    "window, final": (
        """CREATE TABLE out AS SELECT title, COUNT(*) AS n, SUM(tickets) AS tickets FROM sales
        WINDOW TUMBLING (SIZE 1 HOUR) GROUP BY title EMIT FINAL;""",
        _hourly,
        """SELECT title, COUNT(*), SUM(tickets) FROM TABLE(TUMBLE(TABLE sales, DESCRIPTOR(ts), INTERVAL '1' HOUR))
        GROUP BY title, window_start, window_end""",
    ),
    "interval join": (
        """CREATE STREAM out AS SELECT s.title, s.tickets, r.returned
        FROM sales s JOIN returns r WITHIN 10 MINUTES GRACE PERIOD 0 SECONDS ON s.title = r.title;""",
        _returned,
        """SELECT s.title, s.tickets, r.returned FROM sales s, `returns` r WHERE s.title = r.title
        AND r.ts BETWEEN s.ts - INTERVAL '10' MINUTE AND s.ts + INTERVAL '10' MINUTE""",
    ),
}
_STREAMS = {"sales": "tickets", "returns": "returned"}

KINDS = ("SQL over JSON lines", "SQL over Arrow", "Python over Arrow", "Flink SQL over JSON lines")


def _rows(value: str, count: int) -> pa.Table:
    chance = np.random.default_rng(len(value))
    titles: Any = pa.array([f"title {number}" for number in range(1000)])
    columns = [titles.take(chance.integers(1000, size=count)), pa.array(chance.integers(9, size=count))]
    return pa.Table.from_arrays([*columns, pa.array(1000 * np.arange(count))], names=["title", value, "at"])


def _costs(job: str, kind: str, count: int) -> tuple[float, float]:
    """Return the CPU-seconds of a run over a tenth of the rows, and of one over all."""
    if not kind.startswith("Flink"):
        _run(job, kind, count // 100)
    return _run(job, kind, count // 10), _run(job, kind, count)


def _read(job: str) -> dict[str, str]:
    return {name: value for name, value in _STREAMS.items() if name in JOBS[job][2]}


def _run(job: str, kind: str, count: int) -> float:
    """Return the CPU-seconds of a run over so many rows of each stream of the job."""
    statement, build, query = JOBS[job]
    read = _read(job)
    with tempfile.TemporaryDirectory() as folder:
        inputs: dict[str, Any] = {}
        for name, value in read.items():
            inputs[name] = rows = _rows(value, count)
            if "JSON" in kind:
                inputs[name] = Path(folder, f"{name}.jsonl")
                duckdb.from_arrow(rows).query("rows", f"COPY rows TO '{inputs[name]}' (FORMAT json)")
        began = cpu_seconds()
        if kind.startswith("SQL"):
            streams = (
                f"CREATE STREAM {name} (title STRING KEY, {value} BIGINT, at BIGINT)"
                " WITH (FORMAT = 'JSON', TIMESTAMP = 'at');"
                for name, value in read.items()
            )
            script = " ".join(streams) + statement
            sql.script(script, inputs, rows_per_batch=_ROWS_PER_BATCH, folder=Path(folder, "written"))
        elif kind.startswith("Python"):
            streams_ = [keyed.stream(inputs.get(name), timestamp="at") for name in read]
            output = build(streams_[0], streams_[-1]).to(keyed.parquet_sink(Path(folder, "written")))
            # A batch of a script has so many rows in all, one of a job in Python so many of each input.
            keyed.run(output, rows_per_batch=_ROWS_PER_BATCH // len(read))
        else:
            tables = [_FLINK_TABLE.format(name=name, value=value, folder=folder) for name, value in read.items()]
            insert = f"CREATE TABLE nothing WITH ('connector' = 'blackhole') AS {query}"
            return run_flink(Path(folder), [*tables, insert], _FLINK_SETTINGS)[0]
        return cpu_seconds() - began


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of each stream (1,000,000)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=JOBS, default=list(JOBS))
    return parser


def main() -> None:
    """Print a table of the jobs."""
    given = _parser().parse_args()
    print(f"| job | {' | '.join(KINDS)} | SQL / Python over Arrow |")
    print(f"|---|{'--:|' * (len(KINDS) + 1)}")
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for job in given.only:
            costs: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
            for _ in range(given.rounds):
                for kind, of_kind in costs.items():
                    of_kind.append(pool.apply(_costs, (job, kind, given.rows)))
            print(f"# {job}: {costs}", file=sys.stderr, flush=True)
            millions = 0.9 * given.rows * len(_read(job)) / 1e6
            cells = [
                (median(over_all for _, over_all in each) - min(over_few for over_few, _ in each)) / millions
                for each in costs.values()
            ]
            print(f"| {job} | {' | '.join(f'{cell:.2f}' for cell in [*cells, cells[1] / cells[2]])} |", flush=True)


if __name__ == "__main__":
    main()
