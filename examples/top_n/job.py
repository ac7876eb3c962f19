"""The chain of streams, and the runs of it: on Spark, or in this process.

The chain is the same for both; only the source differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import attrs

import keyed
from examples.top_n.arrivals import Arrivals
from examples.top_n.functions import LATE, CountByItem, Ranked, RankPerWindow, WindowCount
from examples.top_n.workspace import Workspace
from windows import Count, TopN, TumblingEventTimeWindows

#: Names of the two operators, in checkpoints and metrics.
COUNT, RANK = "count-by-item", "rank-per-window"

#: The window's row: its key and bounds, then what was aggregated.
_WINDOW_COUNT = "item string, window_start timestamp, window_end timestamp, count bigint"


@attrs.frozen
class Settings:
    """What is computed, and how.

    Attributes:
        n: Items a window.
        window_minutes: Length of a window.
        delay_minutes: How far the watermark stays behind the newest event time.
        rows_per_batch: Rows a micro-batch.
        runtime: What runs the job.
        path: Row by row, or whole columns at a time, with the window and the ranking of the library.
        first_stage: On the path by row, whether a function written by hand counts or a window of the library.
    """

    n: int
    window_minutes: int
    delay_minutes: int
    rows_per_batch: int
    runtime: Literal["spark", "local"]
    path: Literal["row", "vectorized"] = "row"
    first_stage: Literal["hand", "window"] = "hand"


def top_n(source: Any, settings: Settings) -> tuple[keyed.Output, keyed.Output]:
    """The job as a chain of streams.

    Args:
        source: Rows with ``item`` and ``event_time``: a streaming DataFrame, an Arrow table, or any other source.
        settings: What to compute.

    Returns:
        The rankings, and the late rows.
    """
    watermark = keyed.bounded_out_of_orderness(minutes=settings.delay_minutes)
    items = keyed.stream(source, timestamp="event_time", watermark=watermark).key_by("item")
    window_ms = settings.window_minutes * 60_000
    if settings.path == "vectorized" or settings.first_stage == "window":
        windowed = items.window(TumblingEventTimeWindows.of(window_ms)).path(settings.path).side_output_late_data(LATE)
        counts = windowed.aggregate({"count": Count()}, output=_WINDOW_COUNT, name=COUNT)
    else:
        counts = items.process(CountByItem(window_ms), output=WindowCount, name=COUNT)
    rank: RankPerWindow | TopN = RankPerWindow(settings.n)
    if settings.path == "vectorized":
        rank = TopN(settings.n, by="count", item="item", columns=_WINDOW_COUNT)
    ranking = counts.key_by("window_start", "window_end").process(rank, output=Ranked, name=RANK)
    return ranking, counts.side_output(LATE)


def run_on_spark(
    arrivals: Arrivals, settings: Settings, workspace: Workspace, on_progress: Callable[[keyed.Progress], object]
) -> None:
    """Run the job as one Structured Streaming query, each file of arrivals a micro-batch.

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
        _run(source, settings, workspace, on_progress)
    finally:
        spark.stop()


def run_locally(
    arrivals: Arrivals, settings: Settings, workspace: Workspace, on_progress: Callable[[keyed.Progress], object]
) -> None:
    """Run the job in this process, without Spark and Java; the two columns are read into memory.

    Raises:
        keyed.KeyedError: The query failed.
    """
    _run(arrivals.table(), settings, workspace, on_progress, rows_per_batch=settings.rows_per_batch)


def _run(
    source: Any,
    settings: Settings,
    workspace: Workspace,
    on_progress: Callable[[keyed.Progress], object],
    **options: Any,
) -> None:
    ranking, late = top_n(source, settings)
    keyed.run(
        ranking.to(keyed.parquet_sink(workspace.top)),
        late.to(keyed.parquet_sink(workspace.late)),
        checkpoint=str(workspace.checkpoint),
        drain=True,
        on_progress=on_progress,
        **options,
    )
