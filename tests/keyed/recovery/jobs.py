"""Jobs of all kinds with a changelog per operator, run in processes that tests kill and restore.

What a job writes depends on its rows and the size of its batches alone: its clock is the number of rows that it has
read. A job's folder holds ``checkpoint``, one folder of changelogs per *life* (a run that starts without a checkpoint
begins a life, restored from the changelogs of the one before), and the folders of its sinks.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import keyed
from keyed import OutputTag
from keyed import windows as w
from keyed.changelog.directory import DirectoryChangelog
from keyed.content.contents import MODULUS, hash_of_text, hash_text
from keyed.vectorized import TIMESTAMP_COLUMN, TableState, VectorizedFunction
from tests.keyed.runtimes.local import job
from tests.keyed.runtimes.local.job import LATE, Source

ROWS, ROWS_PER_BATCH = 3_000, 150
Options = Callable[[str], dict[str, Any]]


class Buckets(VectorizedFunction):
    """Counts rows per item and hundred milliseconds in a table, and takes what the watermark has passed."""

    buckets = TableState("item string, bucket bigint, n bigint, last bigint", key=("item", "bucket"))

    def process_batch(self, table, ctx):
        import pyarrow.compute as pc

        times = table.column(TIMESTAMP_COLUMN)
        rows = pa.table(
            {
                "item": table.column("item"),
                "bucket": pc.divide(times, 100),
                "n": pa.array([1] * table.num_rows, pa.int64()),
                "last": table.column("i").cast(pa.int64()),
            }
        )
        self.buckets.merge(rows, {"n": "sum", "last": "max"})

    def on_watermark(self, watermark, ctx):
        import pyarrow.compute as pc

        done = self.buckets.take(pc.field("bucket") < watermark // 100)
        if done.num_rows:
            ctx.emit(done.sort_by([("bucket", "ascending"), ("item", "ascending")]))


def functions(stream: Any, options: Options) -> list[Any]:
    """Hand-written functions in two stages: all states, both kinds of timers, a store on disk."""
    first = stream.key_by("item").process(
        job.Windows(), "item string, kind string, at bigint, n bigint", store="rocksdb", **options("Windows")
    )
    totals = first.key_by("kind").process(
        job.Totals(), "kind string, item string, at bigint, n bigint", **options("Totals") | {"parallelism": 1}
    )
    return [totals, first, first.side_output(LATE)]


def tables(stream: Any, options: Options) -> list[Any]:
    """A vectorized function with a table."""
    schema = "item string, bucket bigint, n bigint, last bigint"
    return [stream.key_by("item").process(Buckets(), schema, **options("Buckets"))]


def _windowed(assigner: Any, path: str = "row") -> Any:
    def build(stream: Any, options: Options) -> list[Any]:
        schema = "item string, window_start bigint, window_end bigint, n bigint, total bigint"
        late = OutputTag("late", "i bigint, item string, ts bigint")
        windowed = stream.key_by("item").window(assigner).path(path).side_output_late_data(late)
        aggregates = {"n": w.Count(), "total": w.Sum("i")}
        output = windowed.aggregate(aggregates, output=schema, **options("WindowOperator"))
        return [output, output.side_output("late")]

    return build


def _counted(stream: Any, options: Options) -> list[Any]:
    counts = (
        stream.key_by("item")
        .window(w.CountWindows.of(17))
        .aggregate(
            {"n": w.Count(), "total": w.Sum("i")},
            output="item string, n bigint, total bigint",
            **options("WindowOperator"),
        )
    )
    return [counts]


#: Job by name: builds the outputs over a stream; ``options`` gives those of the operator with a name.
JOBS: dict[str, Callable[[Any, Options], list[Any]]] = {
    "functions": functions,
    "tables": tables,
    "tumbling": _windowed(w.TumblingEventTimeWindows.of(100)),
    "hopping": _windowed(w.HoppingEventTimeWindows.of(300, 100)),
    "sessions": _windowed(w.EventTimeSessionWindows.with_gap(13)),
    "dynamic-sessions": _windowed(w.EventTimeSessionWindows.with_dynamic_gap(lambda row: 5 + row.i % 20)),
    "processing-tumbling": _windowed(w.TumblingProcessingTimeWindows.of(200)),
    "processing-sessions": _windowed(w.ProcessingTimeSessionWindows.with_gap(160)),
    "count": _counted,
    "vectorized-tumbling": _windowed(w.TumblingEventTimeWindows.of(100), "vectorized"),
    "vectorized-hopping": _windowed(w.HoppingEventTimeWindows.of(300, 100), "vectorized"),
    "vectorized-sessions": _windowed(w.EventTimeSessionWindows.with_gap(13), "vectorized"),
}


class Life:
    """Folders of a job that survive a run, and the origin of its restore.

    Args:
        folder: The job's folder.
        name: Name of the job.
        parallelism: Number of key groups.
        export_interval: That of its changelogs, in rows.
    """

    def __init__(self, folder: Path, name: str, parallelism: int = 2, export_interval: int = 0) -> None:
        self.folder = folder
        self.name = name
        self.parallelism = parallelism
        self.export_interval = export_interval

    @property
    def number(self) -> int:
        """Number of the present life, from 0."""
        lives = [int(path.name.split("-")[1]) for path in self.folder.glob("life-*")]
        return max(lives, default=0)

    def changelog(self, operator: str, life: int) -> DirectoryChangelog:
        """The changelog of an operator in a life."""
        path = self.folder / f"life-{life:04d}" / operator
        interval = self.export_interval
        return DirectoryChangelog(path, compaction_lag=0, auto_compact=False, export_interval=interval)

    def operators(self) -> list[str]:
        """Operators that the present life has changelogs of."""
        return sorted(path.name for path in (self.folder / f"life-{self.number:04d}").glob("*"))

    def lose_checkpoint(self) -> None:
        """Lose the checkpoint and the local stores, so that the next run begins a life."""
        shutil.rmtree(self.folder / "checkpoint", ignore_errors=True)
        life = self.number
        if self.restorable():
            life += 1
        else:
            # It was killed before each group had a commit to restore: the life begins once more.
            shutil.rmtree(self.folder / f"life-{life:04d}", ignore_errors=True)
            if not life:
                for sink in self.folder.glob("sink-*"):
                    shutil.rmtree(sink)
        (self.folder / f"life-{life:04d}").mkdir(parents=True)

    def restorable(self) -> bool:
        """Return whether each group of each changelog of the present life has a commit."""
        life, names = self.number, self.operators()
        if len(names) < {"functions": 2, "chained": 3}.get(self.name, 1):
            return False
        for name in names:
            changelog = self.changelog(name, life)
            header = changelog.header()
            if header is None or any(changelog.reader(g).last() is None for g in range(header.parallelism)):
                return False
        return True

    def options(self, operator: str, standby: bool) -> dict[str, Any]:
        """Options of an operator of the present life."""
        life = self.number
        options: dict[str, Any] = {"changelog": self.changelog(operator, life), "parallelism": self.parallelism}
        if life:
            old = self.changelog(operator, life - 1)
            options["restore_from"] = old
            if standby:
                options["restore_from"] = keyed.RestorePoint(old, standby=str(self.folder / "standby"))
        return options


def run(
    life: Life,
    *,
    rows: int = ROWS,
    drain: bool = True,
    compact_every: int = 0,
    standby: bool = False,
    on_progress: Callable[[Any], object] = lambda _: None,
) -> Any:
    """Run the job to the end of its rows, from where it stopped.

    Args:
        life: The job.
        rows: Number of rows of its source.
        drain: Whether the input ends.
        compact_every: After how many batches its changelogs are compacted.
        standby: Whether a life is restored with the help of its standbys.
        on_progress: Called after each batch.
    """
    source = Source(rows)

    def progressed(progress: Any) -> None:
        if compact_every and (progress.batch_id + 1) % compact_every == 0:
            for operator in life.operators():
                life.changelog(operator, life.number).compact()
        on_progress(progress)

    data: Any = source
    if life.name.startswith("vectorized-"):
        # Windows over whole columns have columns as their source, and the clock stands still.
        data = pa.Table.from_pylist(list(source))
    stream = keyed.stream(data, timestamp="ts", watermark=keyed.bounded_out_of_orderness(milliseconds=20))
    outputs = JOBS[life.name](stream, lambda operator: life.options(operator, standby))
    return keyed.run(
        *(output.to(life.folder / f"sink-{number}") for number, output in enumerate(outputs)),
        checkpoint=life.folder / "checkpoint",
        rows_per_batch=ROWS_PER_BATCH,
        processing_time=source.clock,
        drain=drain,
        on_progress=progressed,
    )


def written(folder: Path) -> dict[str, list[Any]]:
    """The rows of each sink, per file."""
    return {
        str(file.relative_to(folder)): [tuple(row.values()) for row in pq.read_table(file).to_pylist()]
        for file in sorted(folder.glob("sink-*/*.parquet"))
    }


def rows_of(folder: Path, sink: int = 0) -> list[Any]:
    """All rows of a sink, in some order."""
    return sorted(row for name, rows in written(folder).items() if name.startswith(f"sink-{sink}/") for row in rows)


def final_state(life: Life) -> dict[str, Any]:
    """The final state in the changelogs, over all key groups."""
    found: dict[str, Any] = {}
    for operator in life.operators():
        changelog = life.changelog(operator, life.number)
        header = changelog.header()
        assert header is not None
        markers = [changelog.reader(group).last() for group in range(header.parallelism)]
        assert all(marker is not None for marker in markers)
        commits = [marker for marker in markers if marker is not None]
        total = sum(hash_of_text(marker.hash, operator) for marker in commits) % MODULUS
        clocks = {(marker.sequence, marker.watermark, marker.processing_time, marker.ended) for marker in commits}
        found[operator] = sum(marker.entries for marker in commits), hash_text(total), clocks
    return found
