"""Generated events as Parquet files, one file a micro-batch; made once and kept in the git-ignored folder ``.bench``.

An event is ``user_id`` (text), ``ts`` (a timestamp) and ``amount``. Events are 1 ms apart, each moved by up to 5
seconds to either side, which is the disorder. Each file comes from a seed of its own, so file 7 is the same however
many files are asked for.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = Path(__file__).resolve().parents[2] / ".bench"
_START = 1_700_000_000_000
_DISORDER_MS = 5_000


@attrs.frozen
class Events:
    """One series of files.

    Attributes:
        name: Folder of the files.
        keys: Number of keys.
        rows: Rows a file.
        keep: Every ``keep``-th key only: a slice of the keys with all of their rows, where the whole would take too
            long.
        load: First files that together hold each key of ``1 … load_keys`` once, to fill the state.
        load_keys: How many keys those files hold.
    """

    name: str
    keys: int
    rows: int
    keep: int = 1
    load: int = 0
    load_keys: int = 0


EVENTS = {
    events.name: events
    for events in (
        Events("1k", keys=1_000, rows=1_000_000),
        Events("100k", keys=100_000, rows=1_000_000),
        Events("100k-slice", keys=100_000, rows=1_000_000, keep=10),
        Events("100k-small", keys=100_000, rows=20_000),
        Events("thousand", keys=1_000, rows=1_000),
        Events("state-10k", keys=1_000, rows=10_000, load=5, load_keys=10_000),
        Events("state-1m", keys=1_000, rows=10_000, load=5, load_keys=1_000_000),
        Events("open-1m", keys=1_000_000, rows=100_000, load=2, load_keys=1_000_000),
        Events("open-10m", keys=10_000_000, rows=100_000, load=10, load_keys=10_000_000),
    )
}


def ignored_folder(folder: Path = FOLDER) -> Path:
    """Create a folder of benchmarks, which Git ignores."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n")
    return folder


def event_files(events: Events, count: int, scale: int = 1) -> list[Path]:
    """The first ``count`` files, made where they are missing.

    Args:
        events: Which series.
        count: Number of files.
        scale: Divides rows and keys, for trials.
    """
    folder = ignored_folder() / "events" / (events.name if scale == 1 else f"{events.name}-{scale}")
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"part-{index:06d}.parquet" for index in range(count)]
    for index, path in enumerate(paths):
        if not path.exists():
            staged = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            pq.write_table(_table(events, index, scale), staged)
            # Spark takes files in the order of their times of change.
            os.utime(staged, (1_600_000_000 + index, 1_600_000_000 + index))
            staged.replace(path)
    return paths


def link_files(folder: Path, paths: list[Path]) -> list[Path]:
    """Create a folder for a run, with links to its files, which keep their times of change."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "data").mkdir(parents=True)
    for path in paths:
        (folder / "data" / path.name).hardlink_to(path)
    return paths


def _table(events: Events, index: int, scale: int) -> pa.Table:
    random = np.random.default_rng([7, events.keys, events.rows, index])
    keys, rows = max(1, events.keys // scale), max(1, events.rows // scale)
    if index < events.load:
        share = events.load_keys // scale // events.load
        users = np.arange(index * share, (index + 1) * share)
        rows = share
    else:
        users = random.integers(0, keys, rows)
    times = _START + index * rows + np.arange(rows) + random.integers(-_DISORDER_MS, _DISORDER_MS + 1, rows)
    amounts = random.integers(1, 100, rows)
    if events.keep > 1:
        kept = users % events.keep == 0
        users, times, amounts = users[kept], times[kept], amounts[kept]
    names = pa.array([f"u{user:06d}" for user in users])
    stamps = pa.array(times).cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))
    return pa.table({"user_id": names, "ts": stamps, "amount": pa.array(amounts)})
