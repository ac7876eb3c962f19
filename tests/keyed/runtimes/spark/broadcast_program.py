"""A job with broadcast state in a program of its own, for a test that kills it: ``python -m tests... FOLDER KIND``.

Reads ``FOLDER/in`` and ``FOLDER/rules``, a file of each a batch, writes ``FOLDER/sink``, and prints each batch's id.
"""

import sys
from pathlib import Path

import keyed
from tests.keyed.runtimes.spark.functions import RULES, SCHEMA, Limits
from tests.keyed.runtimes.spark.lives import say


def main(folder: Path) -> None:
    session = keyed.spark_session("killed", master="local[2]", config={"spark.local.dir": str(folder / "tmp")})
    reader = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    rows, rules = (keyed.stream(reader.parquet(str(folder / name)), timestamp="t") for name in ("in", "rules"))
    job = rows.key_by("k").connect(rules.broadcast(RULES))
    job.process(Limits(), "k string, n bigint, reached bigint", parallelism=2).run(
        folder / "sink",
        checkpoint=folder / "checkpoint",
        on_progress=lambda progress: say("BATCH", progress.batch_id),
    )
    say("DONE")
    session.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
