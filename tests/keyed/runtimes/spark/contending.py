"""Queries in a program of its own, of which tests start two: ``python -m tests...contending FOLDER NAME ROUNDS``.

In each round it prints ``READY``, waits for the file ``go`` in the folder of the round, and runs a query that reads
``in``, one file a batch, and writes ``out``. It prints ``BATCH`` and an id for each batch, and then ``DONE``, or
``REFUSED`` and why.
"""

from __future__ import annotations

import sys
from pathlib import Path

import keyed
from tests.keyed.runtimes.spark.functions import count, files_source
from tests.support.spark_programs import say, say_batch
from tests.support.waiting import until


def main(folder: Path, name: str, rounds: int) -> None:
    config = {"spark.local.dir": str(folder / "tmp" / name), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    spark = keyed.spark_session("contending", master="local[2]", parallelism=2, config=config)
    for number in range(rounds):
        own = folder / str(number)
        say("READY", number)
        until((own / "go").exists, seconds=600)
        counted = count(files_source(spark, own / "in"), parallelism=2)
        try:
            counted.run(own / "out", checkpoint=own / "checkpoint", on_progress=say_batch)
            say("DONE", number)
        except keyed.KeyedError as error:
            say("REFUSED", number, type(error).__name__, *str(error).split("\n")[:2])
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
