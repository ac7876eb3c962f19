"""The rows as Parquet files in order of arrival, of which a streaming source reads one per micro-batch.

``<folder>/part-000000.parquet`` and so on, each with ``rows_per_batch`` rows, and ``_arrivals.json`` with their number
(Spark's file source skips names that begin with an underscore). Spark reads files in the order of their
modification times, which increase by a second per file. The folder is written under another name and renamed when it
is complete, so it never exists in part; a later run continues with the same files.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from examples.top_n.datasets import SCHEMA, Dataset, DatasetError

_SUMMARY = "_arrivals.json"
_FIRST_CHANGE = 1_600_000_000  # seconds; any time in the past


@attrs.frozen
class Arrivals:
    """A complete folder of arrivals.

    Attributes:
        folder: The folder.
        rows: Rows in it.
        files: Files in it.
        dropped: Rows of the data that are not in it.
    """

    folder: Path
    rows: int
    files: int
    dropped: int

    def table(self) -> pa.Table:
        """Return all rows in order of arrival."""
        return pa.concat_tables(pq.read_table(path) for path in sorted(self.folder.glob("part-*.parquet")))


def read_arrivals(folder: Path) -> Arrivals | None:
    """Return the content of an earlier run, or ``None``."""
    summary = folder / _SUMMARY
    if not summary.is_file():
        return None
    return Arrivals(folder, **json.loads(summary.read_text()))


def write_arrivals(folder: Path, dataset: Dataset, rows_per_batch: int) -> Arrivals:
    """Write ``dataset`` into ``folder``, which is not there yet.

    Raises:
        DatasetError: The data cannot be read, or has no rows. Nothing is left behind.
    """
    staged = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    staged.mkdir(parents=True)
    try:
        dropped: list[int] = []
        rows = files = 0
        for table in _pieces(dataset, rows_per_batch, dropped):
            path = staged / f"part-{files:06d}.parquet"
            pq.write_table(table, path)
            os.utime(path, (_FIRST_CHANGE + files, _FIRST_CHANGE + files))
            rows += table.num_rows
            files += 1
        if not rows:
            raise DatasetError(f"{dataset.about}: no rows to count; {sum(dropped):,} rows {dataset.dropped_because}")
        summary = {"rows": rows, "files": files, "dropped": sum(dropped)}
        (staged / _SUMMARY).write_text(json.dumps(summary) + "\n")
        staged.rename(folder)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return Arrivals(folder, rows, files, sum(dropped))


def _pieces(dataset: Dataset, size: int, dropped: list[int]) -> Iterator[pa.Table]:
    """Return the rows of the data in tables of ``size`` rows; the last one may have fewer."""
    waiting = SCHEMA.empty_table()
    for chunk in dataset.chunks():
        dropped.append(chunk.dropped)
        rows = pa.concat_tables([waiting, chunk.rows.cast(SCHEMA)])
        whole = rows.num_rows - rows.num_rows % size
        for start in range(0, whole, size):
            yield rows.slice(start, size)
        waiting = rows.slice(whole)
    if waiting.num_rows:
        yield waiting
