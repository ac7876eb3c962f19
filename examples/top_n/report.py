"""Output of the job: a line per batch, and the last rankings as a table."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import keyed
from examples.top_n.job import COUNT

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def progress_line(progress: keyed.Progress, total: int | None) -> str:
    """Return a batch in one line: rows so far, watermark, late rows and rows without an item or a time so far."""
    counters = progress.metrics.get(COUNT, {})
    rows, late, bad = (counters.get(name, 0) for name in ("rows_in", "rows_side_output", "rows_bad"))
    if progress.watermark == keyed.MAX_TIMESTAMP:
        watermark = "end of input"
    elif progress.watermark == keyed.MIN_TIMESTAMP:
        watermark = "none yet"
    else:
        watermark = f"{_EPOCH + timedelta(milliseconds=progress.watermark):%Y-%m-%d %H:%M}"
    read = f"{rows:,}" if total is None else f"{rows:>{len(f'{total:,}')},} of {total:,}"
    line = f"batch {progress.batch_id:>4}   {read} rows   watermark {watermark:<16}   late {late:,}"
    return f"{line}   bad {bad:,}: without item or time" if bad else line


def read_results(folder: Path) -> pa.Table:
    """Return all rows of a Parquet folder; a table without columns if it has no file."""
    files = sorted(folder.glob("*.parquet"))
    return pa.concat_tables(pq.read_table(path) for path in files) if files else pa.table({})


def rows_in(folder: Path) -> int:
    """Return the number of rows of a Parquet folder; only footers are read."""
    return sum(pq.read_metadata(path).num_rows for path in folder.glob("*.parquet"))


def table_lines(top: pa.Table, windows: int = 4) -> Iterator[str]:
    """Return the rankings of the last windows, one column a window.

    Args:
        top: Rows of `examples.top_n.functions.Ranked`.
        windows: Number of windows.

    Yields:
        Lines of text.
    """
    rankings: dict[datetime, dict[int, tuple[str, int]]] = {}
    for row in top.to_pylist():
        rankings.setdefault(row["window_start"], {})[row["rank"]] = row["item"], row["count"]
    last = sorted(rankings)[-windows:]
    if not last:
        return
    cells = [[f"{item}  {count:>5,}" for item, count in rankings[start].values()] for start in last]
    widths = [max(16, *map(len, column)) for column in cells]
    heads = [f"{start.astimezone(UTC):%Y-%m-%d %H:%M}".ljust(width) for start, width in zip(last, widths, strict=True)]
    yield "rank   " + "   ".join(heads).rstrip()
    for rank in range(1, 1 + max(max(rankings[start]) for start in last)):
        line = []
        for start, width in zip(last, widths, strict=True):
            item, count = rankings[start].get(rank, ("", None))
            line.append((item if count is None else f"{item.ljust(width - 6)}{count:>6,}").ljust(width))
        yield f"{rank:>4}   " + "   ".join(line).rstrip()
