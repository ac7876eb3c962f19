"""What a script costs beside the same job in Python: ``python -m tests.benchmarks.scripts``.

A script runs over the rows, and over an Arrow table of them. All run in this process over the same rows, each in a
process of its own, with as many rows in a batch, and discard their results. Figures are CPU-seconds for a million rows
without the start-up, the median of the rounds, which take turns.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import keyed
from keyed import sql
from keyed.vectorized import TIMESTAMP_COLUMN
from keyed.windows import Count, Sum, TumblingEventTimeWindows, aggregate

_STREAM = "CREATE STREAM sales (title STRING KEY, tickets INT) WITH (FORMAT = 'JSON');"


def _large(stream: Any) -> Any:
    return stream.map_batches(_twice, output="title string, twice bigint")


def _twice(table: Any) -> Any:
    found = table.filter(pc.field("tickets") > 4)
    twice = pc.multiply(found.column("tickets"), 2)
    return found.set_column(found.column_names.index("tickets"), "twice", twice).select(
        ["title", "twice", TIMESTAMP_COLUMN]
    )


def _sold(stream: Any) -> Any:
    return aggregate(stream.key_by("title"), {"n": Count(), "tickets": Sum("tickets")})


def _hourly(stream: Any) -> Any:
    windows = stream.key_by("title").window(TumblingEventTimeWindows.of(3_600_000))
    return windows.aggregate(n=Count(), tickets=Sum("tickets"))


#: The statement of each job, and the job in Python.
JOBS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "filter": ("CREATE STREAM out AS SELECT title, tickets * 2 AS twice FROM sales WHERE tickets > 4;", _large),
    "group by": (
        "CREATE TABLE out AS SELECT title, COUNT(*) AS n, SUM(tickets) AS tickets FROM sales GROUP BY title;",
        _sold,
    ),
    "window, final": (
        """CREATE TABLE out AS SELECT title, COUNT(*) AS n, SUM(tickets) AS tickets FROM sales
        WINDOW TUMBLING (SIZE 1 HOUR) GROUP BY title EMIT FINAL;""",
        _hourly,
    ),
}


KINDS = ("SQL", "SQL over columns", "Python over columns")


def _rows(count: int) -> list[dict[str, Any]]:
    chance = random.Random(7)
    return [
        {"title": f"title {chance.randrange(1000)}", "tickets": chance.randrange(9), "rowtime": 1000 * number}
        for number in range(count)
    ]


def _nowhere(*_: Any) -> None:
    """Discard results."""


def _run(job: str, kind: str, count: int) -> float:
    """Return the CPU-seconds of a run."""
    rows = _rows(count)
    statement, build = JOBS[job]
    given: Any = rows if kind == "SQL" else pa.Table.from_pylist(rows)
    began = time.process_time()
    if kind.startswith("SQL"):
        sql.script(_STREAM + statement, {"sales": given}, rows_per_batch=10_000, on_records=_nowhere)
    else:
        stream = keyed.stream(given, timestamp="rowtime")
        build(stream).run(_nowhere, rows_per_batch=10_000)
    return time.process_time() - began


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    return parser


def main() -> None:
    """Print a table of the jobs."""
    given = _parser().parse_args()
    print("| job | SQL | SQL over columns | Python over columns | SQL / Python | over columns |")
    print("|---|--:|--:|--:|--:|--:|")
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for job in JOBS:
            costs: dict[str, list[float]] = {kind: [] for kind in KINDS}
            for _ in range(given.rounds):
                for kind, found in costs.items():
                    few, all_ = (pool.apply(_run, (job, kind, count)) for count in (given.rows // 10, given.rows))
                    found.append((all_ - few) / (given.rows * 0.9) * 1e6)
            of_sql, of_columns, of_python = (median(each) for each in costs.values())
            cells = [of_sql, of_columns, of_python, of_sql / of_python, of_columns / of_python]
            print(f"| {job} | {' | '.join(f'{cell:.1f}' for cell in cells)} |", flush=True)


if __name__ == "__main__":
    main()
