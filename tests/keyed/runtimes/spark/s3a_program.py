"""A job with nothing on its own disk but local stores, for a test that kills it.

``python -m tests...s3a_program FOLDER CHECKPOINT PARALLELISM LOG [RESTORED LOG]``: it reads ``s3a://bucket/in``, writes
``s3a://bucket/out``, and prints the id of each batch. ``KEYED_S3`` has the options of the server's clients, as JSON.
"""

import json
import os
import sys
from pathlib import Path

import keyed
from keyed.changelog import ObjectStoreChangelog
from tests.keyed.runtimes.spark.functions import count
from tests.support.jars import S3A, fetch


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main(folder: Path, checkpoint: str, parallelism: int, log: str, restored: str | None = None) -> None:
    options = json.loads(os.environ["KEYED_S3"])
    session = keyed.spark_session(
        "s3a",
        master="local[2]",
        parallelism=parallelism,
        config={
            "spark.local.dir": str(folder / "tmp"),
            "spark.jars": ",".join(map(str, fetch(S3A))),
            "spark.hadoop.fs.s3a.endpoint": options["endpoint"],
            "spark.hadoop.fs.s3a.endpoint.region": options["region"],
            "spark.hadoop.fs.s3a.access.key": options["access_key_id"],
            "spark.hadoop.fs.s3a.secret.key": options["secret_access_key"],
            "spark.hadoop.fs.s3a.path.style.access": "true",
        },
    )
    changelog = ObjectStoreChangelog(f"s3://bucket/{log}", options)
    earlier = ObjectStoreChangelog(f"s3://bucket/{restored}", options) if restored else None
    source = keyed.stream(
        session.readStream.schema("k string, t bigint, v bigint")
        .option("maxFilesPerTrigger", 1)
        .parquet("s3a://bucket/in"),
        timestamp="t",
    )
    counted = count(source, parallelism=parallelism, changelog=changelog, restore_from=earlier)
    result = counted.run(
        "s3a://bucket/out",
        checkpoint=f"s3a://bucket/{checkpoint}",
        local_dir=folder / "stores",
        on_progress=lambda progress: say("BATCH", progress.batch_id),
    )
    say("DONE", result.batches, result.restored)
    session.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
