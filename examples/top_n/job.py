"""The chain of streams, and its runs: on Spark, or in this process.

The chain is the same for both; only the source differs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

import attrs

import keyed
from examples.top_n.arrivals import Arrivals
from examples.top_n.functions import BAD, LATE, CountByItem, Ranked, RankPerWindow, WindowCount
from examples.top_n.workspace import Workspace

#: Names of the two operators, in checkpoints, metrics and changelogs.
COUNT, RANK = "count-by-item", "rank-per-window"

OnProgress = Callable[[keyed.Progress], object]


@attrs.frozen
class Settings:
    """Settings of the job.

    Attributes:
        n: Items per window.
        window_minutes: Length of a window.
        delay_minutes: How far the watermark stays behind the newest event time.
        rows_per_batch: Rows per micro-batch.
        runtime: The runtime of the job.
    """

    n: int
    window_minutes: int
    delay_minutes: int
    rows_per_batch: int
    runtime: Literal["spark", "local"]


def top_n(
    source: Any, settings: Settings, changelog: Callable[[str], keyed.Changelog]
) -> tuple[keyed.Output, keyed.Output]:
    """Return the job as a chain of streams.

    Args:
        source: Rows with ``item`` and ``event_time``: a streaming DataFrame, an Arrow table, or any other source.
        settings: Settings of the job.
        changelog: Returns the changelog of an operator.

    Returns:
        The rankings, and the late rows.
    """
    watermark = keyed.bounded_out_of_orderness(minutes=settings.delay_minutes)
    items = keyed.stream(source, timestamp="event_time", watermark=watermark, on_bad_row=BAD).key_by("item")
    counts = items.process(
        CountByItem(settings.window_minutes * 60_000),
        output=WindowCount,
        name=COUNT,
        changelog=changelog(COUNT),
    )
    ranking = counts.key_by("window_start", "window_end").process(
        RankPerWindow(settings.n), output=Ranked, name=RANK, changelog=changelog(RANK)
    )
    return ranking, counts.side_output(LATE)


def run_on_spark(
    arrivals: Arrivals, settings: Settings, workspace: Workspace, on_progress: OnProgress, pace: float
) -> None:
    """Run the job as one Structured Streaming query, each file of arrivals a micro-batch.

    Args:
        arrivals: The rows.
        settings: Settings of the job.
        workspace: The folders of the job.
        on_progress: Called after each batch.
        pace: Seconds over which the rows arrive; 0 is as fast as possible.

    Raises:
        keyed.KeyedError: The query failed, or Spark cannot be started.
    """
    spark = keyed.spark_session("top_n")
    try:
        source = (
            spark.readStream.schema("item string, event_time timestamp")
            .option("maxFilesPerTrigger", 1)
            .parquet(str(arrivals.folder))
        )
        outputs = _outputs(source, settings, workspace)
        checkpoint = str(workspace.checkpoint)
        if pace and not workspace.is_finished():
            trigger = f"{round(1000 * pace / arrivals.files)} milliseconds"
            query = keyed.start(*outputs, checkpoint=checkpoint, trigger=trigger, on_progress=on_progress)
            try:
                while rows_read(query.progress) < arrivals.rows and not query.await_termination(0.2):
                    pass
            finally:
                query.stop()
        keyed.run(*outputs, checkpoint=checkpoint, drain=True, on_progress=on_progress)
    finally:
        spark.stop()


def run_locally(
    arrivals: Arrivals, settings: Settings, workspace: Workspace, on_progress: OnProgress, pace: float
) -> None:
    """Run the job in this process, without Spark and Java; the two columns are read into memory.

    The arguments and errors are those of `run_on_spark`.
    """
    began = time.monotonic()

    def show(progress: keyed.Progress) -> None:
        on_progress(progress)
        time.sleep(max(0.0, began + pace * rows_read(progress) / arrivals.rows - time.monotonic()))

    outputs = _outputs(arrivals.table(), settings, workspace)
    checkpoint = str(workspace.checkpoint)
    keyed.run(*outputs, checkpoint=checkpoint, drain=True, on_progress=show, rows_per_batch=settings.rows_per_batch)


def rows_read(progress: keyed.Progress | None) -> int:
    """Return the number of rows that the job has read, including earlier runs."""
    return 0 if progress is None else progress.metrics.get(COUNT, {}).get("rows_in", 0)


def _outputs(source: Any, settings: Settings, workspace: Workspace) -> list[Any]:
    ranking, late = top_n(source, settings, workspace.changelog)
    return [ranking.to(keyed.parquet_sink(workspace.top)), late.to(keyed.parquet_sink(workspace.late))]
