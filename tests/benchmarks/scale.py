"""What more workers and key groups cost: ``python -m tests.benchmarks.scale``, about a minute a line.

Runs J1 on Spark with each number of workers, key groups and rows a batch, and each store. Prints CPU-seconds per
million rows in steady state, of all processes and of Python alone, the highest resident memory of all processes
together, and per batch what local stores did: entries that were replayed from the log, and stores that were opened. The
last column is the resident memory of a Python worker that has served no key group yet.

``--goals`` instead runs six such jobs with batches of a million and of 20,000 rows, and prints a table of goals with
today's figures, the constants of the cost model of `docs/explanation/scale.md`, and the error of its prediction of the
run that was left out of the fit. It needs about ten CPU-minutes, and 3 GB of memory for 16 workers.

``--peer 32`` compares the fixed cost of a key group and batch: a keyed counter and the same counter on Spark's
own ``transformWithStateInPandas``, each with 32 key groups or keys on as many partitions, and one row for each. They
run in one session, and alternate batch by batch, so that other work on the machine affects both.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import attrs
import pyarrow.parquet as pq

from tests.benchmarks.cost_model import Batch, fitted, predicted
from tests.benchmarks.events import FOLDER, Events, event_files, link_files
from tests.benchmarks.meter import Cpu, Meter, adopt_orphans, marks_of
from tests.benchmarks.work import SETTINGS, commits


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Returns 1 if a run failed."""
    options = _parser().parse_args(arguments)
    if options.folder:
        _run(options)
        return 0
    if options.peer:
        _compare(options.peer, options.warm_up, options.batches)
        return 0
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if options.goals:
        return _goals(options)
    print(
        "| workers | groups | rows a batch | store | CPU-s per million | Python | peak memory | entries replayed",
        end=" ",
    )
    print("| stores opened | idle worker |\n|---|---|---|---|---|---|---|---|---|---|")
    failed = 0
    for size, rows, store in product(options.sizes, options.rows, options.stores):
        failed += not _measure(size, rows, store, options)
    return int(failed > 0)


def _measure(size: str, rows: int, store: str, options: argparse.Namespace) -> bool:
    """Run J1 in a process of its own and print a line about it."""
    workers, groups = (int(part) for part in size.split("/"))
    folder = FOLDER / "runs" / f"scale-{workers}-{groups}-{rows}-{store}-{os.getpid()}"
    batches = options.warm_up + options.batches
    paths = link_files(folder, event_files(_events(options.keys, rows), batches))
    shown = commits(folder)
    arguments = [f"--workers={workers}", f"--sizes=1/{groups}", f"--stores={store}"]
    marks = marks_of(
        "scale", [f"--folder={folder}", *arguments], folder, batches, lambda batch: (shown / str(batch)).exists()
    )
    if marks is None:
        return False
    counted = json.loads((folder / "counters").read_text())
    steady = marks[options.warm_up - 1 :]
    millions = sum(pq.read_metadata(path).num_rows for path in paths[options.warm_up :]) / 1e6
    cost = (steady[-1].cpu - steady[0].cpu) / millions
    peak = max(mark.peak_bytes for mark in steady[1:]) / 1e9
    before, after = counted["batches"][options.warm_up - 1], counted["batches"][batches - 1]
    replayed, opened = (
        (after[name] - before[name]) / options.batches for name in ("entries_replayed", "stores_opened")
    )
    print(
        f"| {workers} | {groups} | {rows:,} | {store} | {cost.total:.1f} | {cost.workers:.1f} | {peak:.1f} GB | "
        f"{replayed:,.0f} | {opened:.1f} | {counted['idle_worker'][0] / 1e6:.0f} MB |",
        flush=True,
    )
    shutil.rmtree(folder)
    return True


def _events(keys: int, rows: int) -> Events:
    return Events(f"scale-{keys}-{rows}", keys=keys, rows=rows)


@attrs.frozen
class _Size:
    """The size of a run: threads of Spark (and so workers), source tasks and key groups."""

    workers: int
    tasks: int
    groups: int

    @property
    def name(self) -> str:
        return f"{self.workers} workers, {self.tasks} tasks, {self.groups} groups"

    def batch(self, rows: int, seconds: float) -> Batch:
        """Return a batch for the cost model."""
        return Batch(rows, self.groups, self.tasks, seconds)


@attrs.frozen
class _Measured:
    """A run.

    Attributes:
        large: CPU time of a large batch.
        small: CPU time of a small batch.
        peak: Highest resident bytes of all processes together, with the state stores of earlier runs of the session.
        idle: Resident and private bytes of an idle worker.
    """

    large: Cpu
    small: Cpu
    peak: int
    idle: tuple[int, int]


_TWO, _SIXTEEN, _HELD_OUT = _Size(2, 2, 2), _Size(16, 16, 16), _Size(4, 16, 32)
#: The runs of the goals by session. One is left out of the fit of the cost model.
_SIZES = ((_Size(4, 4, 4), _Size(4, 64, 64), _Size(4, 4, 128), _HELD_OUT), (_SIXTEEN,), (_TWO,))
_LARGE, _SMALL = 1_000_000, 20_000


def _goals(options: argparse.Namespace) -> int:
    """Measure and print the table of goals and the cost model. Returns 1 if a run failed."""
    print(f"CPU-seconds of a batch, J1 with {options.keys:,} keys, store {options.stores[0]}\n")
    print(f"| run | {_LARGE:,} rows | in Python | {_SMALL:,} rows | in Python | peak memory | task x group |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    found: dict[_Size, _Measured] = {}
    for sizes in _SIZES:
        measured = _measured(sizes, options)
        if measured is None:
            return 1
        for size, each in measured.items():
            print(
                f"| {size.name} | {each.large.total:.1f} | {each.large.workers:.1f} | {each.small.total:.1f} | "
                f"{each.small.workers:.1f} | {each.peak / 1e9:.1f} GB | {size.tasks * size.groups:,} |",
                flush=True,
            )
        found |= measured
    four, many, groups, _, sixteen, two = found.values()
    idle = min(each.idle for each in found.values())
    needed = (_SIXTEEN.workers - _TWO.workers) * idle[1]
    peer = _compare(16, 1, 2 + options.goal_batches)
    print(f"\nBatches of each kind, after two to warm up: {options.goal_batches}.\n")
    print("| goal | at most | today |\n|---|--:|--:|")
    for goal, most, today in (
        ("CPU of 16 workers and groups, over 2 and 2", 1.15, sixteen.large.total / two.large.total),
        ("their peak memory without idle workers", 1.3, (sixteen.peak - needed) / two.peak),
        ("a key group and batch, over Spark's own operator", 1.3, peer),
        ("CPU of 64 tasks and groups, over 4 and 4", 1.3, many.large.total / four.large.total),
        ("CPU of 128 groups on 4 workers, over 4 groups", 1.5, groups.large.total / four.large.total),
    ):
        print(f"| {goal} | {most:.2f} | {today:.2f} |")
    print(f"\nidle worker: {idle[0] / 1e6:.0f} MB resident, of which {idle[1] / 1e6:.0f} MB private")
    points = {
        size: [size.batch(rows, cost.total) for rows, cost in ((_LARGE, each.large), (_SMALL, each.small))]
        for size, each in found.items()
    }
    held_out = points.pop(_HELD_OUT)
    costs = fitted([batch for batches in points.values() for batch in batches])
    costs |= _export_costs() | _state_costs()
    print("\n| constant | CPU-ms |\n|---|--:|")
    for name, cost in costs.items():
        print(f"| for each {name} | {1000 * cost:,.2f} |")
    print(f"\nLeft out of the fit: {_HELD_OUT.name}\n\n| rows | predicted | measured | error |\n|--:|--:|--:|--:|")
    for batch in held_out:
        seconds = predicted(costs, batch)
        print(f"| {batch.rows:,} | {seconds:.1f} | {batch.seconds:.1f} | {seconds / batch.seconds - 1:+.0%} |")
    return 0


def _measured(sizes: Sequence[_Size], options: argparse.Namespace) -> dict[_Size, _Measured] | None:
    """Run J1 with each size in one session: two batches to warm up, then large and small ones."""
    repeated = options.goal_batches
    # The JVM compiles its code during the first batches.
    warm = [_LARGE // 5, _LARGE]
    rows = [*warm, *[_LARGE] * repeated, *[_SMALL] * repeated]
    folder = FOLDER / "runs" / f"goals-{sizes[0].workers}-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    for place, size in enumerate(sizes):
        data, files = folder / str(place) / "data", 0
        data.mkdir(parents=True)
        for count in dict.fromkeys(rows):
            for path in event_files(_events(options.keys, count), rows.count(count)):
                table = pq.read_table(path)
                for task in range(size.tasks):
                    start, end = (bound * table.num_rows // size.tasks for bound in (task, task + 1))
                    part = data / f"part-{files:06d}.parquet"
                    pq.write_table(table.slice(start, end - start), part)
                    # Spark takes files in the order of their times of change.
                    os.utime(part, (1_600_000_000 + files, 1_600_000_000 + files))
                    files += 1
    arguments = [f"--workers={sizes[0].workers}", f"--stores={options.stores[0]}", "--sizes"]
    arguments += [f"{size.tasks}/{size.groups}" for size in sizes]

    def shown(batch: int) -> bool:
        place, number = divmod(batch, len(rows))
        return (commits(folder / str(place)) / str(number)).exists()

    marks = marks_of("scale", [f"--folder={folder}", *arguments], folder, len(rows) * len(sizes), shown)
    if marks is None:
        return None
    idle = json.loads((folder / "0" / "counters").read_text())["idle_worker"]
    shutil.rmtree(folder)
    found = {}
    for place, size in enumerate(sizes):
        own = marks[place * len(rows) :][: len(rows)]
        ends = [mark.cpu for mark in own]
        first = len(warm) - 1
        costs = [(ends[last] - ends[last - repeated]) / repeated for last in (first + repeated, first + 2 * repeated)]
        found[size] = _Measured(costs[0], costs[1], max(mark.peak_bytes for mark in own[1:]), tuple(idle))
    return found


def _export_costs() -> dict[str, float]:
    """Return the cost of the export of a key group's batch to a directory, in the local runtime."""
    import keyed
    from tests.benchmarks.functions import J1

    groups, batches, rows = 8, 20, [{"user_id": f"u{i}", "amount": 1} for i in range(1_000)]
    costs = {}
    for name in ("warm", "without", "with"):
        with TemporaryDirectory() as folder:
            changelog = keyed.DirectoryChangelog(Path(folder) / "changelog") if name == "with" else None
            job = keyed.stream(rows).key_by("user_id").process(J1(), name="J1", parallelism=groups, changelog=changelog)
            began = process_time()
            job.run(rows_per_batch=len(rows) // batches, checkpoint=Path(folder) / "checkpoint")
            costs[name] = process_time() - began
    return {"export of a key group": (costs["with"] - costs["without"]) / (groups * batches)}


def _state_costs() -> dict[str, float]:
    """Return the cost of replaying the log of a key group whose local store is lost."""
    from tests.benchmarks.takeover import run

    with TemporaryDirectory() as name:
        folder = Path(name)
        run(folder, 200_000, "memory")
        size = sum(file.stat().st_size for file in (folder / "checkpoint").rglob("*") if file.is_file())
        began = process_time()
        run(folder, 200_001, "lmdb")
        return {"GB of log, replayed": (process_time() - began) / (size / 1e9)}


def _run(options: argparse.Namespace) -> None:
    """Run J1 to its end, and write what its metrics count."""
    import keyed
    from keyed.runtimes.spark.query.exports import spark_metrics
    from tests.benchmarks.functions import J1, OUTPUT

    folder = Path(options.folder)
    sizes = [tuple(int(part) for part in size.split("/")) for size in options.sizes]
    spark = keyed.spark_session("scale", master=f"local[{options.workers}]", parallelism=sizes[0][1], config=SETTINGS)
    idle = spark.sparkContext.parallelize([0], 1).map(_resident).collect()[0]
    for place, (tasks, groups) in enumerate(sizes):
        own = folder / str(place) if len(sizes) > 1 or not (folder / "data").exists() else folder
        spark.conf.set("spark.sql.shuffle.partitions", groups)
        if tasks > 1:
            # Each file is a task of its own.
            largest = max(file.stat().st_size for file in (own / "data").iterdir())
            for name in ("maxPartitionBytes", "openCostInBytes"):
                spark.conf.set(f"spark.sql.files.{name}", largest + 1)
        reader = spark.readStream.schema("user_id string, ts timestamp, amount long")
        source = reader.option("maxFilesPerTrigger", tasks).parquet(str(own / "data"))
        delay = keyed.bounded_out_of_orderness(seconds=10)
        stream = keyed.stream(source, timestamp="ts", watermark=delay).key_by("user_id")
        counted = stream.process(J1(), OUTPUT, name="J1", store=options.stores[0])
        writer = counted.df.writeStream.format("noop").option("checkpointLocation", str(own / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        batches = [spark_metrics(progress) for progress in query.recentProgress]
        figures = [each["J1"] for each in batches if "J1" in each]
        (own / "counters").write_text(json.dumps({"idle_worker": idle, "batches": figures}))
    spark.stop()


def _compare(groups: int, warm_up: int, batches: int) -> float:
    """Print the cost of a key group and batch in keyed and on Spark's own operator, and return their ratio."""
    import keyed
    from keyed.codec.key_hash import group_of, key_hash
    from keyed.runtimes.spark.worker.wire import group_ids
    from tests.benchmarks.functions import J1, RawPandas

    session = keyed.spark_session("peer", master="local[2]", parallelism=groups, config=SETTINGS)
    # One key for each partition of Spark's operator, and one for each key group.
    by_group = {group_of(key_hash(key), groups): key for key in reversed(range(100 * groups))}
    keys = {"Spark": group_ids(groups), "keyed": by_group.values()}
    columns, output = "user_id int, amount long", "user_id int, cnt long, amount long"
    adopt_orphans()
    with TemporaryDirectory() as work, Meter(os.getpid()) as meter:
        folder = Path(work)

        def rows(name: str) -> Any:
            (folder / name).mkdir()
            return session.readStream.schema(columns).option("maxFilesPerTrigger", 1).csv(str(folder / name))

        raw = rows("Spark").groupBy("user_id").transformWithStateInPandas(RawPandas(), output, "update", "None")
        ours = keyed.stream(rows("keyed")).key_by("user_id").process(J1(), output, name="J1").df
        costs: dict[str, list[Cpu]] = {"Spark": [], "keyed": []}
        for batch in range(warm_up + batches):
            for name, frame, mode in (("Spark", raw, "update"), ("keyed", ours, "append")):
                new = folder / f"{name}-{batch}.csv"
                new.write_text("".join(f"{key},1\n" for key in keys[name]))
                new.rename(folder / name / new.name)
                before = meter.read()
                writer = frame.writeStream.format("noop").outputMode(mode).trigger(availableNow=True)
                writer.option("checkpointLocation", str(folder / f"{name}-checkpoint")).start().awaitTermination()
                if batch >= warm_up:
                    costs[name].append(meter.read() - before)
        session.stop()
    print("| CPU-ms a key group and batch, median | JVM | Python workers | both |\n|---|--:|--:|--:|")
    totals = {}
    for name, found in costs.items():
        jvm, workers = (1000 * median(getattr(cpu, kind) for cpu in found) / groups for kind in ("jvm", "workers"))
        totals[name] = jvm + workers
        print(f"| {name} | {jvm:.0f} | {workers:.0f} | {jvm + workers:.0f} |")
    ratio = totals["keyed"] / totals["Spark"]
    print(f"\nkeyed / Spark: {ratio:.2f} ({groups} key groups, {batches} batches of each)")
    return ratio


def _resident(_: Any) -> tuple[int, int]:
    """Return the resident and the private bytes of a worker that has loaded what the worker of a key group loads."""
    import psutil

    import keyed.runtimes.spark.worker.processor

    assert keyed.runtimes.spark.worker.processor.WRITERS is not None
    memory = psutil.Process().memory_full_info()
    return int(memory.rss), int(memory.uss)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.scale", description=__doc__)
    parser.add_argument(
        "--sizes", nargs="+", default=["2/2", "8/8"], metavar="W/G", help="workers/key groups (default: 2/2 8/8)"
    )
    parser.add_argument("--rows", nargs="+", type=int, default=[20_000, 1_000_000], help="rows a batch")
    parser.add_argument("--stores", nargs="+", default=["lmdb", "memory", "rocksdb"], help="local stores")
    parser.add_argument("--keys", type=int, default=100_000, help="keys (default: %(default)s)")
    parser.add_argument("--warm-up", type=int, default=8, help="batches left out (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=8, help="batches measured after them (default: %(default)s)")
    parser.add_argument("--peer", type=int, metavar="GROUPS", help="compare with Spark's own operator")
    parser.add_argument("--goals", action="store_true", help="print the goals and the cost model")
    parser.add_argument("--goal-batches", type=int, default=2, help="batches of each kind (default: %(default)s)")
    parser.add_argument("--workers", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
