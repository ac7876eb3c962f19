"""What more workers and key groups cost: ``python -m tests.benchmarks.scale``, about a minute a line.

Runs J1 on Spark with each number of workers, key groups and rows a batch, and each store. Prints CPU-seconds per
million rows in steady state, of all processes and of Python alone, the highest resident memory of all processes
together, and per batch what local stores did: entries that were replayed from the log, and stores that were opened. The
last column is the resident memory of a Python worker that has served no key group yet.

``--peer 32`` instead compares the fixed cost of a key group and batch: a keyed counter and the same counter on Spark's
own ``transformWithStateInPandas``, each with 32 key groups or keys on as many partitions, and one row for each. They
run in one session, and alternate batch by batch, so that other work on the machine affects both.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq

from tests.benchmarks.events import Events, event_files
from tests.benchmarks.meter import Cpu, Watcher, cpu_of
from tests.benchmarks.work import SETTINGS, commits

_ROOT = Path(__file__).resolve().parents[2]
_FOLDER = _ROOT / ".bench"


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
    _FOLDER.mkdir(exist_ok=True)
    (_FOLDER / ".gitignore").write_text("*\n")
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
    folder = _FOLDER / "runs" / f"scale-{workers}-{groups}-{rows}-{store}-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "data").mkdir(parents=True)
    events = Events(f"scale-{options.keys}-{rows}", keys=options.keys, rows=rows)
    batches = options.warm_up + options.batches
    paths = event_files(events, batches, _FOLDER / "events")
    for path in paths:
        (folder / "data" / path.name).hardlink_to(path)
    shown = commits(folder)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.scale", f"--folder={folder}", "--sizes", size, "--stores", store],
            cwd=_ROOT,
            env={
                **os.environ,
                "PYTHONPATH": str(_ROOT),
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            stdout=log,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        watcher = Watcher(process.pid, lambda batch: (shown / str(batch)).exists())
        watcher.start()
        try:
            status = process.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            watcher.stop()
    marks = watcher.marks[:batches]
    if status or len(marks) < batches:
        tail = "\n".join((folder / "log").read_text(errors="replace").splitlines()[-25:])
        print(f"failed, status {status}, {len(marks)} of {batches} batches seen\n{tail}", file=sys.stderr)
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
        f"{replayed:,.0f} | {opened:.1f} | {counted['idle_worker'] / 1e6:.0f} MB |",
        flush=True,
    )
    shutil.rmtree(folder)
    return True


def _run(options: argparse.Namespace) -> None:
    """Run J1 to its end, and write what its metrics count."""
    import keyed
    from keyed.runtimes.spark.query.group_marks import spark_metrics
    from tests.benchmarks.functions import J1, OUTPUT

    workers, groups = (int(part) for part in options.sizes[0].split("/"))
    folder = Path(options.folder)
    spark = keyed.spark_session("scale", master=f"local[{workers}]", parallelism=groups, config=SETTINGS)
    idle = spark.sparkContext.parallelize([0], 1).map(_resident).collect()[0]
    source = spark.readStream.schema("user_id string, ts timestamp, amount long").option("maxFilesPerTrigger", 1)
    delay = keyed.bounded_out_of_orderness(seconds=10)
    stream = keyed.stream(source.parquet(str(folder / "data")), timestamp="ts", watermark=delay).key_by("user_id")
    counted = stream.process(J1(), OUTPUT, name="J1", store=options.stores[0])
    writer = counted.df.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    batches = [spark_metrics(progress) for progress in query.recentProgress]
    figures = [each["J1"] for each in batches if "J1" in each]
    (folder / "counters").write_text(json.dumps({"idle_worker": idle, "batches": figures}))
    spark.stop()


def _compare(groups: int, warm_up: int, batches: int) -> None:
    """Print the cost of a key group and batch in keyed and on Spark's own operator."""
    import keyed
    from keyed.codec.key_hash import group_of, key_hash
    from keyed.runtimes.spark.group_ids import group_ids
    from tests.benchmarks.functions import J1, RawPandas

    session = keyed.spark_session("peer", master="local[2]", parallelism=groups, config=SETTINGS)
    # One key for each partition of Spark's operator, and one for each key group.
    by_group = {group_of(key_hash(key), groups): key for key in reversed(range(100 * groups))}
    keys = {"Spark": group_ids(groups), "keyed": by_group.values()}
    columns, output = "user_id int, amount long", "user_id int, cnt long, sum long"
    with TemporaryDirectory() as work:
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
                before = cpu_of(os.getpid())
                writer = frame.writeStream.format("noop").outputMode(mode).trigger(availableNow=True)
                writer.option("checkpointLocation", str(folder / f"{name}-checkpoint")).start().awaitTermination()
                if batch >= warm_up:
                    costs[name].append(cpu_of(os.getpid()) - before)
        session.stop()
    print("| CPU-ms a key group and batch, median | JVM | Python workers | both |\n|---|--:|--:|--:|")
    totals = {}
    for name, found in costs.items():
        jvm, workers = (1000 * median(getattr(cpu, kind) for cpu in found) / groups for kind in ("jvm", "workers"))
        totals[name] = jvm + workers
        print(f"| {name} | {jvm:.0f} | {workers:.0f} | {jvm + workers:.0f} |")
    print(f"\nkeyed / Spark: {totals['keyed'] / totals['Spark']:.2f} ({groups} key groups, {batches} batches of each)")


def _resident(_: Any) -> int:
    """Return the resident bytes of a worker that has loaded what the worker of a key group loads."""
    import psutil

    import keyed.runtimes.spark.worker.processor

    assert keyed.runtimes.spark.worker.processor.WRITERS is not None
    return int(psutil.Process().memory_info().rss)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.scale", description=__doc__)
    parser.add_argument(
        "--sizes", nargs="+", default=["2/2", "8/8"], metavar="W/G", help="workers/key groups (default: 2/2 8/8)"
    )
    parser.add_argument("--rows", nargs="+", type=int, default=[20_000, 1_000_000], help="rows a batch")
    parser.add_argument("--stores", nargs="+", default=["memory", "rocksdb", "lmdb"], help="local stores")
    parser.add_argument("--keys", type=int, default=100_000, help="keys (default: %(default)s)")
    parser.add_argument("--warm-up", type=int, default=8, help="batches left out (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=8, help="batches measured after them (default: %(default)s)")
    parser.add_argument("--peer", type=int, metavar="GROUPS", help="compare with Spark's own operator")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
