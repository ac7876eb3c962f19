"""A job on a cluster that has nothing in common but an S3 server, for a test that kills it.

``python -m tests...s3a_program MASTER CHECKPOINT PARALLELISM LOG [RESTORED LOG]``: it reads ``s3a://bucket/in``,
writes ``s3a://bucket/out``, and prints the id of each batch. ``KEYED_S3`` has the options of the server's clients, as
JSON, and ``KEYED_JARS`` the paths of Hadoop's S3A.
"""

import json
import os
import sys

import keyed
from keyed.changelog import ObjectStoreChangelog
from tests.keyed.runtimes.spark.functions import count
from tests.support.spark_cluster import SETTINGS
from tests.support.spark_programs import say, say_batch


def main(master: str, checkpoint: str, parallelism: int, log: str, restored: str | None = None) -> None:
    options = json.loads(os.environ["KEYED_S3"])
    session = keyed.spark_session(
        "s3a",
        master=master,
        parallelism=parallelism,
        quiet=False,
        config=SETTINGS
        | {
            "spark.task.maxFailures": "12",
            "spark.jars": os.environ["KEYED_JARS"],
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
    result = counted.run("s3a://bucket/out", checkpoint=f"s3a://bucket/{checkpoint}", on_progress=say_batch)
    say("DONE", result.batches, result.restored)
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
