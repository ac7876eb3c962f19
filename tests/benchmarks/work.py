"""Runs one variant to the end of its input: ``python -m tests.benchmarks.work VARIANT FOLDER``, started by `__main__`.

``FOLDER/data`` holds the input. A batch that is committed shows as ``FOLDER/checkpoint/commits/N``: Spark writes these
files itself, for the local runtime they are written here.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import keyed
from keyed.job.chaining import lines
from keyed.runtimes.spark.plan.build import build
from tests.benchmarks.functions import J1, J2, OUTPUT, ConnectedJ1, RawPandas, RawRows, pass_through
from tests.benchmarks.minutes import COLUMNS, MinuteByColumns, MinuteByRows
from tests.benchmarks.variants import VARIANTS, Variant
from tests.benchmarks.windows import CONTINUOUS, WINDOWS, spark_windows, window_job
from tests.support.kafka import ADDRESS

_PARALLELISM = 2
_FUNCTIONS: dict[str, tuple[Any, str]] = {
    "J1": (J1, OUTPUT),
    "twice-shuffled": (J1, OUTPUT),
    "twice-chained": (J1, OUTPUT),
    "J2": (J2, OUTPUT),
    "J1-connected": (ConnectedJ1, OUTPUT),
    "J1-ordered": (J1, OUTPUT),
    "minute-rows": (MinuteByRows, COLUMNS),
    "minute-columns": (MinuteByColumns, COLUMNS),
}
_MASTER = f"local[{_PARALLELISM}]"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SETTINGS = {"spark.ui.enabled": "false", "spark.driver.memory": "4g", "spark.ui.showConsoleProgress": "false"}


def commits(folder: Path) -> Path:
    """Folder of the commits."""
    return folder / "checkpoint" / "commits"


def run(variant: Variant, folder: Path) -> None:
    """Run a variant to its end."""
    if variant.engine == "local":
        _run_locally(variant, folder)
        return
    if variant.engine == "keyed":
        spark = keyed.spark_session("bench", master=_MASTER, parallelism=_PARALLELISM, config=SETTINGS)
    else:
        spark = _plain_session()
    source = (
        spark.readStream.schema("user_id string, ts timestamp, amount long")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folder / "data"))
    )
    query = (
        _output(variant, source, folder)
        .writeStream.format("noop")
        .outputMode("update" if variant.engine.startswith("raw") or variant.job == CONTINUOUS else "append")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


def _output(variant: Variant, source: Any, folder: Path) -> Any:
    """The variant's output as a streaming DataFrame."""
    if variant.engine == "pass":
        return source.mapInArrow(pass_through, source.schema)
    if variant.engine == "raw-pandas":
        return source.groupBy("user_id").transformWithStateInPandas(RawPandas(), OUTPUT, "Update", "None")
    if variant.engine == "raw-rows":
        return source.groupBy("user_id").transformWithState(RawRows(), OUTPUT, "Update", "None")
    if variant.engine == "jvm":
        return spark_windows(variant.job, source)
    job = keyed_job(variant, source, _changelog(variant, folder))
    if variant.job == "twice-chained":
        # The DataFrame of an output does not chain.
        plan = build(lines(job.stage), [job], _PARALLELISM, changelogs={})
        return plan.routes[0].frame(plan.frame)
    return job.df


def _changelog(variant: Variant, folder: Path) -> Any:
    """The changelog of a variant, if it has one. A Kafka broker is named by an environment variable."""
    from keyed.changelog import DirectoryChangelog, KafkaChangelog

    if variant.changelog == "directory":
        return DirectoryChangelog(folder / "changelog")
    if variant.changelog == "kafka":
        return KafkaChangelog(f"bench-{variant.name}-{os.getpid()}", bootstrap=os.environ[ADDRESS])
    return None


def keyed_job(variant: Variant, source: Any, changelog: Any = None) -> keyed.Output:
    """The job over a source, 10 seconds of delay."""
    parallelism = None if variant.engine == "keyed" else 1
    if variant.job in (CONTINUOUS, *WINDOWS):
        options = {"store": variant.store, "parallelism": parallelism, "changelog": changelog}
        return window_job(variant.job, source, path=variant.path, **options)
    function, output = _FUNCTIONS[variant.job]
    delay = keyed.bounded_out_of_orderness(seconds=10)
    # Both sides of connected streams have half of the rows. On Spark either scans all files for them.
    parts = _halves(source) if variant.job == "J1-connected" else [source]
    keyed_by = [keyed.stream(part, timestamp="ts", watermark=delay).key_by("user_id") for part in parts]
    stream = keyed_by[0].connect(keyed_by[1]) if len(keyed_by) > 1 else keyed_by[0]
    once = stream.process(
        function(),
        output,
        name=variant.job,
        order="watermark" if variant.job == "J1-ordered" else "event_time",
        store=variant.store,
        parallelism=parallelism,
        changelog=changelog,
    )
    if not variant.job.startswith("twice"):
        return once
    again = once.key_by("user_id", chain=variant.job == "twice-chained")
    return again.process(J1(), OUTPUT, name="again", store=variant.store, parallelism=parallelism)


def _halves(source: Any) -> list[Any]:
    """Return every second row of a table, or of a streaming DataFrame those of every second amount, and the others."""
    if hasattr(source, "sparkSession"):
        return [source.where(f"pmod(amount, 2) = {rest}") for rest in (0, 1)]
    import numpy as np

    return [source.take(np.arange(rest, source.num_rows, 2)) for rest in (0, 1)]


def local_job(variant: Variant, folder: Path, **options: Any) -> None:
    """Run J1 or J2 in this process; each file is a batch, outputs are let go."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = [pq.read_table(path) for path in sorted((folder / "data").iterdir())]
    job = keyed_job(variant, pa.concat_tables(tables))
    rows = tables[0].num_rows // len(job.stage.inputs)
    job.run(lambda values, batch_id: None, rows_per_batch=rows, drain=False, **options)


def _run_locally(variant: Variant, folder: Path) -> None:
    shown = commits(folder)
    shown.mkdir(parents=True)

    def show(progress: keyed.Progress) -> None:
        (shown / str(progress.batch_id)).touch()

    local_job(variant, folder, checkpoint=str(folder / "checkpoint" / "keyed"), on_progress=show)


def _plain_session() -> Any:
    """A session as Spark's documentation would have it for stateful Python: what keyed's helper sets, by hand."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(_MASTER)
    settings = {
        **SETTINGS,
        "spark.sql.shuffle.partitions": str(_PARALLELISM),
        "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


if __name__ == "__main__":
    run(VARIANTS[sys.argv[1]], Path(sys.argv[2]))
