"""The results of the queries as Parquet files.

Results that only append go through keyed's own sink. Two kinds need a sink of their own, a function that gets each
batch and replaces the files of its id:

- Final tables: rows that replace earlier ones of the same key have two more columns, ``batch`` and ``deleted``. The
  last row of a key, by batch, is its value.
- Partitioned files: a folder ``dt=.../hm=...`` for each day and minute.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import keyed
from examples.nexmark.columns import pc
from examples.nexmark.nexmark_errors import NexmarkError
from keyed.extending import table_of

#: The name of the query that wrote a folder; readers of Parquet folders skip the file.
_QUERY = "_nexmark-query"


def final_table(folder: Path, output: keyed.Output) -> Callable[[Any, int], None]:
    """Return the sink of a final table."""

    def write(batch: Any, batch_id: int) -> None:
        rows = _table(batch, output)
        rows = rows.append_column("batch", pa.repeat(batch_id, rows.num_rows).cast(pa.int64()))
        rows = rows.append_column("deleted", pa.repeat(pa.scalar(False), rows.num_rows))
        _write(rows, folder / f"part-{batch_id:010d}.parquet")

    return write


def partitioned(folder: Path, output: keyed.Output) -> Callable[[Any, int], None]:
    """Return the sink of files that are partitioned by the columns ``dt`` and ``hm``."""

    def write(batch: Any, batch_id: int) -> None:
        name = f"part-{batch_id:010d}.parquet"
        for earlier in folder.glob(f"dt=*/hm=*/{name}"):
            earlier.unlink()
        rows = _table(batch, output)
        for dt, hm in {*zip(rows["dt"].to_pylist(), rows["hm"].to_pylist(), strict=True)}:
            chosen = rows.filter((pc.field("dt") == dt) & (pc.field("hm") == hm))
            _write(chosen.drop_columns(["dt", "hm"]), folder / f"dt={dt}" / f"hm={hm}" / name)

    return write


def claim(folder: Path, query: str, *, resumes: bool) -> None:
    """Create the folder of a query's results.

    Args:
        folder: The folder.
        query: Name of the query.
        resumes: Whether an earlier run of the query may have written results, because there is a checkpoint.

    Raises:
        NexmarkError: The folder has other files.
    """
    mark = folder / _QUERY
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if not mark.is_file():
            raise NexmarkError(f"{folder} exists and is not an empty folder; give another one, or remove it")
        if mark.read_text() != query:
            raise NexmarkError(f"{folder} has the results of {mark.read_text()}, not of {query}; give another folder")
        if not resumes:
            raise NexmarkError(f"{folder} has the results of an earlier run; give its --checkpoint, or another folder")
    folder.mkdir(parents=True, exist_ok=True)
    mark.write_text(query)


def _table(batch: Any, output: keyed.Output) -> pa.Table:
    """Return the rows of a batch: a list in the local runtime, a DataFrame on Spark."""
    if isinstance(batch, list):
        return table_of(batch, output.schema)
    table: pa.Table = batch.toArrow()
    return table


def _write(rows: pa.Table, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}")
    pq.write_table(rows, unfinished)
    unfinished.rename(path)
