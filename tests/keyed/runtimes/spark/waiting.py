"""A started query with a changelog that waits for its end: ``python -m tests.keyed.runtimes.spark.waiting FOLDER``.

Reads ``FOLDER/in``, one file a batch. Prints the id of each batch, and the status at the end.
"""

import sys
from pathlib import Path

import keyed
from keyed.changelog import DirectoryChangelog
from keyed.runtimes.spark.query import spark_query
from tests.keyed.runtimes.spark.functions import COUNTED, SCHEMA, Count
from tests.support.spark_programs import say_batch


def main(folder: Path) -> None:
    # On a busy machine the last batch does not get into its changelog within ten seconds.
    spark_query._PATIENCE = 200
    session = keyed.spark_session("waiting", master="local[2]", config={"spark.local.dir": str(folder / "tmp")})
    source = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    counted = (
        keyed.stream(source, timestamp="t")
        .key_by("k")
        .process(Count(), COUNTED, name="count", parallelism=2, changelog=DirectoryChangelog(folder / "log"))
    )
    query = counted.start(
        folder / "out", checkpoint=folder / "checkpoint", trigger="200 milliseconds", on_progress=say_batch
    )
    try:
        query.await_termination()
    finally:
        sys.stdout.write(f"ENDED {query.await_termination()}, {query.status.value}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
