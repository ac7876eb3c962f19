"""The cost of an idle Spark query: ``python -m tests.benchmarks.idle``, two minutes.

Prints the CPU-seconds a second of all processes, the files that came into the checkpoint and the batches: with a
trigger of a second, after a few rows, with and without a changelog, and as it was before with a tick at each trigger;
and how long stopping takes, also of a query that is busy with batch after batch.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import keyed
from keyed.changelog import DirectoryChangelog
from keyed.runtimes.spark.query.spark_query import SparkQuery
from tests.benchmarks.functions import J1, OUTPUT
from tests.benchmarks.meter import Meter, adopt_orphans

SECONDS = 30


def main() -> None:
    """Measure and print."""
    adopt_orphans()
    spark = keyed.spark_session("idle", master="local[2]", parallelism=2)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in").mkdir()
        rows = [{"user_id": f"u{n}", "ts": n, "amount": 1} for n in range(100)]
        (folder / "in" / "1.json").write_text("\n".join(map(json.dumps, rows)))
        source = spark.readStream.schema("user_id string, ts long, amount long").json(str(folder / "in"))
        stream = keyed.stream(source, timestamp="ts").key_by("user_id")
        for number, changelog in enumerate((None, DirectoryChangelog(folder / "log"))):
            counted = stream.process(J1(), OUTPUT, name="J1", changelog=changelog)
            checkpoint = folder / f"checkpoint-{number}"
            query = counted.start(folder / f"out-{number}", checkpoint=checkpoint, trigger="1 second")
            assert isinstance(query, SparkQuery)
            _measure("with a changelog" if changelog else "without a changelog", query.query, checkpoint)
            _stopped("    stop()", query)
        checkpoint = folder / "checkpoint-plain"
        plain = stream.process(J1(), OUTPUT, name="J1").df.writeStream.format("noop")
        started = plain.option("checkpointLocation", str(checkpoint)).trigger(processingTime="1 second").start()
        _measure("writeStream, with a tick at each trigger", started, checkpoint)
        _stopped("    stop()", started)
        rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10_000).load()
        busy = rate.selectExpr("CONCAT('u', value % 1000) AS user_id", "value AS ts", "1L AS amount")
        counted = (
            keyed.stream(busy, timestamp="ts")
            .key_by("user_id")
            .process(J1(), OUTPUT, name="J1", changelog=DirectoryChangelog(folder / "busy-log"))
        )
        query = counted.start(folder / "busy-out", checkpoint=folder / "busy", trigger="0 seconds")
        while query.progress is None or query.progress.batch_id < 5:
            query.await_termination(1)
        _stopped("busy, with a changelog: stop()", query)
    spark.stop()


def _measure(what: str, query: Any, checkpoint: Path) -> None:
    while query.lastProgress is None:
        query.awaitTermination(1)
    query.awaitTermination(10)
    batches, files = _batches(checkpoint), _files(checkpoint)
    with Meter(os.getpid()) as meter:
        before = meter.read()
        query.awaitTermination(SECONDS)
        cost = (meter.read() - before).total / SECONDS
    made = len(_files(checkpoint) - files)
    print(f"{what}: {cost:.3f} core, {made} new files, {_batches(checkpoint) - batches} batches", flush=True)


def _batches(checkpoint: Path) -> int:
    return max((int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")), default=-1)


def _stopped(what: str, query: Any) -> None:
    started = time.monotonic()
    query.stop()
    print(f"{what}: {time.monotonic() - started:.2f} s", flush=True)


def _files(checkpoint: Path) -> set[Path]:
    return {path for path in checkpoint.rglob("*") if path.is_file()}


if __name__ == "__main__":
    main()
