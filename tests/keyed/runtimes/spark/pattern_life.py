"""A job that finds a pattern on Spark, in a program that a test kills: ``python -m tests...pattern_life FOLDER``.

It reads files of ``FOLDER/in`` as they come, one a batch, and writes ``FOLDER/out`` and the changelog ``FOLDER/log``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keyed
from keyed.patterns import Pattern
from tests.keyed.runtimes.spark.functions import SCHEMA

PATTERN = (
    Pattern.begin("small", where="v < 20")
    .followed_by("middle", where=lambda row, match: row.v > match["small"][0].v)
    .followed_by("large", where="v > 80")
    .within(milliseconds=100)
)


def matches(data: Any, folder: Path) -> Any:
    """Return the output of the job."""
    stream = keyed.stream(data, timestamp="t", watermark=keyed.bounded_out_of_orderness(milliseconds=40)).key_by("k")
    return stream.match(PATTERN).select(
        lambda match: tuple(rows[0].t for rows in match.values()),
        output="small bigint, middle bigint, large bigint",
        name="matches",
        parallelism=2,
        changelog=keyed.DirectoryChangelog(folder / "log"),
    )


def main(folder: Path) -> None:
    """Run the job until it is killed."""
    session = keyed.spark_session("killed", master="local[2]", config={"spark.local.dir": str(folder / "tmp")})
    data = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    output = matches(data, folder).to(folder / "out")
    keyed.start(output, checkpoint=folder / "checkpoint", trigger="100 milliseconds").await_termination()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
