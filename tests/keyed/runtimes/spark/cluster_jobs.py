"""Jobs for clusters, as a program: ``python -m tests...cluster_jobs JOB FOLDER MASTER CHANGELOG GROUPS [NAME=VALUE]``.

The same chains run in the local runtime, over the same rows: see `undisturbed`. ``FOLDER/in-N`` holds the rows of a
source, a file a batch; the program writes ``FOLDER/out`` and ``FOLDER/checkpoint``, and prints the id of each batch.
``CHANGELOG`` is ``directory``, ``kafka=HOST:PORT`` or ``s3=URL``.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import keyed
from examples.top_n.job import Settings, top_n
from keyed.changelog import DirectoryChangelog, KafkaChangelog, ObjectStoreChangelog
from tests.benchmarks.functions import J1, OUTPUT
from tests.keyed.runtimes.spark.functions import COUNTED, Both
from tests.support.spark_cluster import SETTINGS
from tests.support.spark_programs import say, say_batch

#: Schemas of the sources of each job.
JOBS = {
    "top_n": ("item string, event_time bigint",),
    "J1": ("user_id string, ts bigint, amount bigint",),
    "two": ("k string, t bigint, v bigint", "k string, t bigint, v bigint"),
}
OUTPUTS = {"top_n": ("top", "late"), "J1": ("counts",), "two": ("both",)}
_MINUTE = 60_000


def write_rows(job: str, folder: Path, batches: int, rows: int) -> None:
    """Write the rows of a job, a file a batch and source. Those of the main job come in disorder, some of them late."""
    chance = random.Random(job)
    for batch in range(batches):
        for side, schema in enumerate(JOBS[job]):
            names = [column.split()[0] for column in schema.split(", ")]
            if job == "top_n":
                # An hour a batch.
                times = [batch * 60 * _MINUTE + chance.randrange(-90 * _MINUTE, 60 * _MINUTE) for _ in range(rows)]
                columns: list[list[Any]] = [[f"i{int(chance.expovariate(0.05))}" for _ in times], times]
            else:
                # In the order of time over both sources, so that no result depends on the batch of a row.
                times = [(batch * rows + i) * 2 + side for i in range(rows)]
                keys = [f"k{chance.randrange(rows)}" for _ in times]
                columns = [keys, times, [chance.randrange(100) for _ in times]]
            into = folder / f"in-{side}"
            into.mkdir(parents=True, exist_ok=True)
            path = into / f"part-{batch:04}.parquet"
            pq.write_table(pa.table(dict(zip(names, columns, strict=True))), path)
            os.utime(path, (1_600_000_000 + batch,) * 2)


def chain(job: str, sources: list[Any], changelog: Callable[[str], Any], **options: Any) -> tuple[keyed.Output, ...]:
    """Return the outputs of a job."""
    if job == "top_n":
        return top_n(sources[0], Settings(10, 60, 30, 1, "spark"), changelog)
    if job == "J1":
        events = keyed.stream(sources[0], timestamp="ts").key_by("user_id")
        return (events.process(J1(), output=OUTPUT, name="J1", changelog=changelog("J1"), **options),)
    first, second = (keyed.stream(source, timestamp="t").key_by("k") for source in sources)
    both = first.connect(second).process(Both(), output=COUNTED, name="two", changelog=changelog("two"), **options)
    return (both,)


def changelogs(kind: str, folder: Path) -> Callable[[str], Any]:
    """Return what gives the changelog of an operator."""
    kind, _, place = kind.partition("=")
    # No two folders have the same name, so no two jobs share a topic.
    name = f"{folder.parent.name}-{folder.name}"
    if kind == "kafka":
        return lambda operator: KafkaChangelog(f"{name}-{operator}", bootstrap=place)
    if kind == "s3":
        from tests.support.s3 import S3Server

        return lambda operator: ObjectStoreChangelog(f"s3://bucket/{name}/{operator}", S3Server(url=place).options)
    return lambda operator: DirectoryChangelog(folder / "changelog" / operator)


def undisturbed(job: str, folder: Path) -> Path:
    """Run a job over its rows in this process; returns the folder of its outputs."""
    sources = []
    for side, _ in enumerate(JOBS[job]):
        files = sorted((folder / f"in-{side}").glob("*.parquet"))
        sources.append(pa.concat_tables(pq.read_table(file) for file in files))
    rows = pq.read_metadata(files[0]).num_rows
    into = folder / "undisturbed"
    outputs = chain(job, sources, changelogs("directory", into))
    sinks = zip(outputs, OUTPUTS[job], strict=True)
    keyed.run(
        *(output.to(keyed.parquet_sink(into / name)) for output, name in sinks),
        rows_per_batch=rows,
        drain=True,
        checkpoint=into / "checkpoint",
    )
    return into


def main(job: str, folder: Path, master: str, changelog: str, groups: int, *settings: str) -> None:
    """Run a job on Spark."""
    config = SETTINGS | dict(setting.split("=", 1) for setting in settings)
    session = keyed.spark_session(job, master=master, parallelism=groups, config=config, quiet=False)
    sources = [
        session.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / f"in-{side}"))
        for side, schema in enumerate(JOBS[job])
    ]
    outputs = chain(job, sources, changelogs(changelog, folder))
    sinks = zip(outputs, OUTPUTS[job], strict=True)
    result = keyed.run(
        *(output.to(keyed.parquet_sink(folder / "out" / name)) for output, name in sinks),
        checkpoint=folder / "checkpoint",
        drain=True,
        on_progress=say_batch,
    )
    say("METRICS", result.metrics)
    say("DONE")
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]), *sys.argv[6:])
