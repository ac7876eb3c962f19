"""The time from the commit of a batch to its export, on Spark: ``python -m tests.benchmarks.delay``, a minute.

A batch is exported with the next one, so the delay is what is left of the trigger's interval and the start of that
batch; the last batch is exported when the query is stopped.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

import keyed
from keyed.changelog import DirectoryChangelog
from keyed.runtimes.spark.query.spark_query import SparkQuery
from tests.benchmarks.events import EVENTS, event_files
from tests.benchmarks.functions import J1, OUTPUT

BATCHES = 10


def main() -> None:
    """Measure and print."""
    spark = keyed.spark_session("delay", master="local[2]", parallelism=2)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        event_files(EVENTS["100k-small"], BATCHES + 2, folder / "events")
        source = spark.readStream.schema("user_id string, ts timestamp, amount long").option("maxFilesPerTrigger", 1)
        for trigger in ("1 second", "5 seconds"):
            number = trigger.partition(" ")[0]
            changelog, checkpoint = DirectoryChangelog(folder / f"log-{number}"), folder / f"checkpoint-{number}"
            counted = (
                keyed.stream(source.parquet(str(folder / "events" / "100k-small")), timestamp="ts")
                .key_by("user_id")
                .process(J1(), OUTPUT, name="J1", changelog=changelog)
            )
            query = counted.start(lambda batch, number: batch.count(), checkpoint=checkpoint, trigger=trigger)
            assert isinstance(query, SparkQuery)
            while len(query.batches) <= BATCHES and query.is_active:
                query.await_termination(0.2)
            started = time.monotonic()
            query.query.stop()
            stopped = time.monotonic()
            query.stop()
            flushed = time.monotonic()
            delays = sorted(_delays(checkpoint, Path(changelog.path))[2:])
            _print(f"trigger {trigger}, 20,000 rows a batch: least, median, most seconds", *_three(delays))
            _print("    stopping the query, exporting its last batch", stopped - started, flushed - stopped)
    spark.stop()


def _delays(checkpoint: Path, log: Path) -> list[float]:
    """Seconds from the commit of each batch but the last to the export of its last key group."""
    commits = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))[:-1]
    return [
        max(path.stat().st_mtime for path in (log / "groups").glob(f"*/{int(commit.name) + 1:020d}.segment"))
        - commit.stat().st_mtime
        for commit in commits
    ]


def _three(values: list[float]) -> tuple[float, float, float]:
    return values[0], median(values), values[-1]


def _print(what: str, *values: float) -> None:
    print(f"{what}: {', '.join(f'{value:.2f}' for value in values)}", flush=True)


if __name__ == "__main__":
    main()
