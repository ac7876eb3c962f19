"""A job with broadcast state in a program of its own, for a test that kills it: ``python -m tests... FOLDER KIND``.

Reads ``FOLDER/in`` and ``FOLDER/rules``, a file of each a batch, writes ``FOLDER/sink``, and prints each batch's id. If
the kind is ``table``, the table ``FOLDER/rates.parquet`` is there instead of rules.
"""

import sys
from pathlib import Path
from typing import Any

import keyed
from tests.keyed.runtimes.spark.functions import RATES, RULES, SCHEMA, Convert, Limits
from tests.support.spark_programs import say, say_batch


def rules(source: Any, folder: Path) -> keyed.Output:
    """Tell how many of the rules a row reaches."""
    rows, rules = (keyed.stream(source(name), timestamp="t") for name in ("in", "rules"))
    job = rows.key_by("k").connect(rules.broadcast(RULES))
    return job.process(Limits(), "k string, n bigint, reached bigint", parallelism=2)


def table(source: Any, folder: Path) -> keyed.Output:
    """Tell the rate of each row's currency."""
    rows = keyed.stream(source("in").selectExpr("CAST(v AS STRING) AS user", "k AS currency"))
    job = rows.key_by("user").connect(keyed.global_table(folder / "rates.parquet", RATES, key="currency", every=1))
    return job.process(Convert(), "user string, rate double, country string", parallelism=2)


def main(folder: Path, kind: str) -> None:
    session = keyed.spark_session("killed", master="local[2]", config={"spark.local.dir": str(folder / "tmp")})
    reader = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    made = table if kind == "table" else rules
    made(lambda name: reader.parquet(str(folder / name)), folder).run(
        folder / "sink", checkpoint=folder / "checkpoint", on_progress=say_batch
    )
    say("DONE")
    session.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
