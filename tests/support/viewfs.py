"""A file system that only Spark can access, without a server: Hadoop's mount table over a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def mounted(session: SparkSession, folder: Path) -> str:
    """Return a URI of a folder of this machine that only Spark can resolve.

    Args:
        session: The session, of Spark's own program.
        folder: The folder.
    """
    table = f"table{abs(hash(folder))}"
    folder.mkdir(parents=True, exist_ok=True)
    # Settings of a session are also Hadoop's; tasks get them with the query, and the driver's own threads do not.
    for settings in (session.conf, session._jsc.hadoopConfiguration()):
        settings.set(f"fs.viewfs.mounttable.{table}.link./data", folder.as_uri())
    return f"viewfs://{table}/data"
