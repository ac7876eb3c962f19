"""A join of two sources with a checkpoint, on either path: run as a program in a process that a test kills."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import keyed
from keyed.changelog import DirectoryChangelog
from keyed.joins import AsOfJoin, IntervalJoin

ROWS, ROWS_PER_BATCH = 2_000, 100
LATE = keyed.OutputTag("late", "k string, t bigint, id bigint")
PAIRS = "k string, left bigint, right bigint"


def pair(left: Any, right: Any) -> tuple[Any, ...]:
    """Return the row of a pair."""
    return (left or right).k, left and left.id, right and right.id


JOINS: dict[str, Any] = {
    "interval": lambda path: IntervalJoin(pair, lower=-30, upper=20, how="full", late_left=LATE, path=path),
    "as of": lambda path: AsOfJoin(pair, tolerance=200, late_left=LATE, path=path),
}


def side(seed: int, rows: int) -> pa.Table:
    """Return rows in some disorder, a few of them late."""
    random = Random(seed)
    times = [max(0, i - random.randrange(20) - 400 * (random.random() < 0.01)) for i in range(ROWS)]
    keys = [f"k{random.randrange(40)}" for _ in range(ROWS)]
    return pa.table({"k": keys, "t": times, "id": list(range(ROWS))}).slice(0, rows)


def run(folder: Path, kind: str, path: str, *, rows: int = ROWS, parallelism: int = 2, restored: bool = False) -> Any:
    """Run the job over the first rows of its sources, from its checkpoint or from the changelog of another folder."""
    delay = keyed.bounded_out_of_orderness(20)
    streams = [keyed.stream(side(seed, rows), timestamp="t", watermark=delay) for seed in (1, 2)]
    name, life = ("again", "second") if restored else ("log", "first")
    out = (
        streams[0]
        .connect(streams[1])
        .key_by("k")
        .process(
            JOINS[kind](path),
            PAIRS,
            name="join",
            parallelism=parallelism,
            changelog=DirectoryChangelog(folder / name),
            restore_from=DirectoryChangelog(folder / "log") if restored else None,
        )
    )
    sinks = [keyed.parquet_sink(folder / f"{each}-{life}") for each in ("out", "late")]
    return keyed.run(
        out.to(sinks[0]),
        out.side_output(LATE).to(sinks[1]),
        checkpoint=folder / f"checkpoint-{life}",
        rows_per_batch=ROWS_PER_BATCH,
        drain=rows == ROWS,
    )


def written(folder: Path) -> list[tuple[Any, ...]]:
    """Return all that the lives of a job have written."""
    files = sorted(file for file in folder.glob("*-*/*.parquet") if not file.name.startswith("_"))
    return sorted((row for file in files for row in map(_row, pq.read_table(file).to_pylist())), key=str)


def _row(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(sorted(row.items()))
