"""What is done with Spark beside running a chain: sessions, counters, and checkpoints read without their job.

Nothing here imports pyspark before it is called.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from keyed.changelog.model import Changelog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    from keyed.recovery import Verified


def spark_session(
    app_name: str = "keyed",
    *,
    master: str | None = None,
    parallelism: int | None = None,
    config: Mapping[str, str] | None = None,
    quiet: bool = True,
) -> SparkSession:
    """A Spark session with what keyed needs set where the user has not said otherwise; an active one is completed.

    Args:
        app_name: Name of the application.
        master: Where Spark runs: ``local[2]``, ``spark://host:7077``, or ``sc://host:15002`` for Spark Connect; by
            default all processors of this machine.
        parallelism: Number of key groups of queries that do not say, in Spark's terms the shuffle partitions; by
            default, on this machine alone, the number of its threads.
        config: Spark settings; they go before those of keyed.
        quiet: Whether Spark and its Python workers, where this starts them, write to a log file instead of standard
            error, what functions ``print`` in the workers included. An error names the file.

    Raises:
        SessionError: A package or setting rules keyed out.
        JavaNotFound: There is no Java 17 or newer.
    """
    module = importlib.import_module("keyed.runtimes.spark.session.spark_session")
    session: SparkSession = module.spark_session(
        app_name, master=master, parallelism=parallelism, config=config, quiet=quiet
    )
    return session


def spark_metrics(progress: Mapping[str, Any] | StreamingQueryProgress) -> dict[str, dict[str, int]]:
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
    session: SparkSession, checkpoint: str | os.PathLike[str], changelogs: Mapping[str, Changelog]
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
    session: SparkSession, checkpoint: str | os.PathLike[str], operator: str, changelog: Changelog | None = None
) -> list[Verified]:
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
    found: list[Verified] = verify(session, os.fspath(checkpoint), operator, changelog)
    return found
