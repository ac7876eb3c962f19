"""Runs a query of `tests.benchmarks.scripts` in Flink SQL, in an environment with PyFlink."""

import json
import sys

from pyflink.table import EnvironmentSettings, TableDescriptor, TableEnvironment  # type: ignore[import-not-found]


def main(folder: str, streams: str, query: str) -> None:
    """Run the query over the JSON lines of the folder to their end, and discard its rows.

    Args:
        folder: Has a file for each stream.
        streams: JSON, the value column of each stream.
        query: The query.
    """
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    settings = {
        "parallelism.default": "2",
        "execution.checkpointing.interval": "5 s",
        "execution.checkpointing.dir": f"file://{folder}/checkpoints",
        "state.backend.type": "rocksdb",
        "pipeline.object-reuse": "true",
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": "1 s",
        "table.exec.mini-batch.size": "10000",
    }
    for name, value in settings.items():
        tables.get_config().set(name, value)
    for name, value in json.loads(streams).items():
        tables.execute_sql(
            f"CREATE TABLE `{name}` (title STRING, {value} BIGINT, `at` BIGINT, ts AS TO_TIMESTAMP_LTZ(`at`, 3),"
            " WATERMARK FOR ts AS ts) WITH ("
            f"'connector' = 'filesystem', 'path' = 'file://{folder}/{name}.jsonl', 'format' = 'json')"
        )
    blackhole = TableDescriptor.for_connector("blackhole").build()
    tables.sql_query(query).execute_insert(blackhole).wait()
    print("found", flush=True)
    # It waits for its input to end, so that the times of its Java process can be read.
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
