"""What is done with Spark beside running a chain: sessions, counters, and checkpoints read without their job.

Nothing here imports pyspark before it is called.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

from keyed.changelog.model import Changelog

__all__ = ["spark_flush", "spark_metrics", "spark_session", "spark_verify"]


def spark_session(app_name: str = "keyed", **options: Any) -> Any:
    """A Spark session with what keyed needs set where the user has not said otherwise.

    Args:
        app_name: Name of the application.
        options: ``master``, ``parallelism`` (number of key groups) and ``config`` (Spark settings), as
            `keyed.runtimes.spark.session.spark_session.spark_session` has them.

    Raises:
        SessionError: A package or setting rules keyed out.
        JavaNotFound: There is no Java 17 or newer.
    """
    return importlib.import_module("keyed.runtimes.spark.session.spark_session").spark_session(app_name, **options)


def spark_metrics(progress: Any) -> dict[str, dict[str, int]]:
    """The counters of each operator of a Spark query that was started with plain ``writeStream``.

    Args:
        progress: ``query.lastProgress``, or the progress that a ``StreamingQueryListener`` gets.

    Returns:
        By operator: its counters, ``watermark`` and ``processing_time``.
    """
    metrics: dict[str, dict[str, int]] = importlib.import_module("keyed.runtimes.spark.query.metrics").operator_metrics(
        progress
    )
    return metrics


def spark_flush(
    session: Any, checkpoint: str | os.PathLike[str], changelogs: Mapping[str, Changelog]
) -> dict[str, int]:
    """Export what a Spark checkpoint has committed and changelogs lack.

    That is the last batch of a query that was started and stopped with plain ``writeStream``, and all there is where a
    changelog is empty. The query may be running. Queries of `run` and `start` do it themselves when they end.

    Args:
        session: A Spark session; it need not be the one of the query.
        checkpoint: Folder of the checkpoint.
        changelogs: Changelogs by name of operator.

    Returns:
        Number of the last commit by operator, which its changelog now has.

    Raises:
        CheckpointError: There is no checkpoint, or it has no such operator.
        ChangelogDiverged: A changelog is not this checkpoint's.
        ChangelogError: It cannot be written.
    """
    flush = importlib.import_module("keyed.runtimes.spark.checkpoint.spark_flush").flush
    done: dict[str, int] = flush(session, os.fspath(checkpoint), changelogs)
    return done


def spark_verify(
    session: Any, checkpoint: str | os.PathLike[str], operator: str, changelog: Changelog | None = None
) -> Any:
    """Check an operator in a Spark checkpoint, against its changelog if one is given.

    Args:
        session: A Spark session; it need not be the one of the query.
        checkpoint: Folder of the checkpoint.
        operator: Name of the operator.
        changelog: Its changelog, to compare with, commit by commit and entry by entry.

    Returns:
        A `keyed.recovery.Verified` for each key group.

    Raises:
        CheckpointError: There is no checkpoint, or it has no such operator.
        ChangelogError: The changelog was never written, or cannot be read.
    """
    verify = importlib.import_module("keyed.runtimes.spark.checkpoint.spark_verify").verify
    return verify(session, os.fspath(checkpoint), operator, changelog)
